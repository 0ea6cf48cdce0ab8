import Crypto
import Encoding
import Foundation
import Service

extension Problem {
    /// The app has lost its user, and sends what its language writes for nothing.
    static func userPlaceholder(_ field: String) -> Problem {
        .incomplete(.userPlaceholder, "is a placeholder and names nobody: the app has lost its user", field: field)
    }

    init(_ error: JSONError) {
        self =
            switch error.kind {
            case .syntax: .malformed(.notJSON, "the body is no JSON", field: error.field)
            case .zeroCharacter:
                .malformed(.zeroCharacter, "holds U+0000, which cannot be stored", field: error.field)
            case .depth: .malformed(.tooDeep, "is nested deeper than \(JSONValue.depthMax)", field: error.field)
            case .number:
                .malformed(
                    .numberRange,
                    "holds a number longer than \(JSONValue.numberBytesMax) bytes or beyond 1e\(JSONValue.exponentMax)",
                    field: error.field)
            case .count:
                .malformed(.tooLong, "holds more than \(JSONValue.valuesMax) values", field: error.field)
            }
    }
}

extension JSONValue {
    /// - Throws: 400 for an object that has one of these members twice.
    func refuseDuplicates(of names: [String], in path: String = "") throws(Problem) {
        for name in names where members.count(where: { $0.key.isSameText(as: name) }) > 1 {
            throw .duplicate(path + name)
        }
    }

    /// A number without fraction and exponent, as it was written; nil for every other value, and for `-0`.
    var wholeNumber: String? {
        guard case .number(let text) = self, text != "-0" else { return nil }
        let digits = text.utf8.first == UInt8(ascii: "-") ? text.utf8.dropFirst() : text.utf8[...]
        return digits.allSatisfy { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) } ? text : nil
    }

    /// A server or role as text; nil where the value names none.
    var targetText: String? {
        switch self {
        case .string(let text), .number(let text): text.isEmpty ? nil : text
        case .bool(let flag): flag ? "true" : "false"
        case .null, .array, .object: nil
        }
    }

    /// The same value with every member `token` or `installationToken` replaced by its hash, under the same name with
    /// `Sha256` behind it. That holds wherever the member stands, because the old clients' records come whole in
    /// `client` too. A session token is a secret that ingest never checks (S0-1, S0-11); its hash only tells two tokens
    /// apart. Of a `password` nothing is kept.
    var withoutSessionTokens: JSONValue {
        switch self {
        case .object(let members):
            .object(
                members.map { member in
                    let name = member.key.plainASCII
                    if name == "password" { return .init(name, .null) }
                    guard name == "token" || name == "installationToken" else {
                        return .init(member.key, member.value.withoutSessionTokens)
                    }
                    guard member.value != .null else { return .init(name + "Sha256", .null) }
                    let hash = SHA256.hash(data: Data(member.value.plainText.utf8))
                    return .init(name + "Sha256", .string(hash.hexadecimal))
                })
        case .array(let elements): .array(elements.map(\.withoutSessionTokens))
        case .null, .bool, .number, .string: self
        }
    }

    /// A string's text; any other value as JSON writes it.
    private var plainText: String {
        if case .string(let text) = self { text } else { text }
    }
}

extension String {
    /// The text where it is ASCII, as every known name is, else nothing: for comparing field names from strangers.
    ///
    /// String compares and hashes by canonical equivalence, and for that sorts the marks that combine with one
    /// character, in quadratic time: comparing a megabyte of them with a literal would take minutes.
    var plainASCII: String { utf8.allSatisfy { $0 < 0x80 } ? self : "" }
}
