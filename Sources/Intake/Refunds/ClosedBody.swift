import Encoding
import Service

/// A JSON object of a few known members. Other members are named in the answer and not used.
struct ClosedBody {
    /// How many unknown members an answer names.
    static let ignoredMax = 100

    let value: JSONValue
    /// The names of the unknown members, each once.
    let ignored: [String]

    /// - Throws: 400 for anything but an object, and for a known member that stands there twice.
    init(_ body: [UInt8], members known: [String]) throws(Problem) {
        do {
            value = try JSONValue(parsing: body)
        } catch {
            throw Problem(error)
        }
        guard case .object(let members) = value else {
            throw .malformed(.notJSON, "the body must be a JSON object", field: nil)
        }
        try value.refuseDuplicates(of: known)
        var ignored: [String] = []
        for member in members where !known.contains(where: { $0.utf8.elementsEqual(member.key.utf8) }) {
            guard ignored.count < Self.ignoredMax else { break }
            let name = String(String.UnicodeScalarView(member.key.unicodeScalars.prefix(128)))
            if !ignored.contains(where: { $0.utf8.elementsEqual(name.utf8) }) { ignored.append(name) }
        }
        self.ignored = ignored
    }

    /// Nil for a member that is null or not there.
    subscript(_ name: String) -> JSONValue? {
        let member = value[name]
        return member == .null ? nil : member
    }

    /// The member of an answer that names the unknown ones; nothing where there are none.
    var ignoredMember: [JSONValue.Member] {
        ignored.isEmpty ? [] : [.init("ignored", .array(ignored.map(JSONValue.string)))]
    }
}
