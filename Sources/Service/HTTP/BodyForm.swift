import HTTPTypes

/// The form in which a body comes: its coding, by Content-Encoding, and its media type.
///
/// The bytes count for more than the head: ingest inflates gzip that the head does not name, JSON is taken under any
/// type, and a body that a proxy has inflated already is taken as it is.
struct BodyForm {
    /// The coding that the head names.
    private let coding: Coding
    /// Whether the head names a type of JSON, or none.
    private let isJSON: Bool

    private enum Coding {
        case plain, gzip, deflate
    }

    /// - Throws: 415 for a coding that no bytes can make right: an unknown one, or two of them.
    init(_ headers: HTTPFields) throws(Problem) {
        var coding = Coding.plain
        for name in (headers[.contentEncoding] ?? "").lowercased().split(whereSeparator: { ", \t".contains($0) }) {
            switch (name, coding) {
            // Clients name the charset here too.
            case ("identity", _), ("utf-8", _), ("utf8", _): break
            case ("gzip", .plain), ("x-gzip", .plain): coding = .gzip
            case ("deflate", .plain): coding = .deflate
            default: throw .unsupportedEncoding
            }
        }
        self.coding = coding
        let type = (headers[.contentType] ?? "").prefix { $0 != ";" }.lowercased().filter { $0 != " " }
        isJSON = ["", "application/json", "text/json", "application/x-json"].contains(type) || type.hasSuffix("+json")
    }

    // MARK: Coding

    /// What inflates a body that begins with this byte; nil: the body is not compressed.
    func inflater(first: UInt8) throws(Inflater.Failure) -> Inflater? {
        switch coding {
        case _ where first == Inflater.gzipMark: try Inflater(first: first, mayBeBare: false)
        case .gzip where !Self.mayBeText(first): try Inflater(first: first, mayBeBare: false)
        case .deflate where !Self.mayBeText(first): try Inflater(first: first, mayBeBare: true)
        default: nil
        }
    }

    /// Whether a JSON text may begin with this byte: with white space, an object, or a byte order mark. No compressed
    /// JSON begins so (RFC 1951, 3.2.3 to 3.2.7; RFC 1950, 2.2).
    private static func mayBeText(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "{"), 0x20, 0x09, 0x0A, 0x0D, 0xEF, 0xFE, 0xFF: true
        default: false
        }
    }

    // MARK: Text

    /// The body in UTF-8. UTF-16 is read too, with a byte order mark or without. Zero bytes at the end, which a client
    /// in C sends with its text, are passed over, and so are byte order marks.
    ///
    /// - Throws: 415 for a body that does not begin as JSON, if its type is not JSON's, and for broken UTF-16.
    func text(_ body: [UInt8]) throws(Problem) -> [UInt8] {
        var text = try Self.unitBytes(body).map { high throws(Problem) in try Self.utf8(body, high: high) } ?? body
        while text.last == 0 { text.removeLast() }
        var start = 0
        while text[start...].starts(with: Self.markInUTF8) { start += Self.markInUTF8.count }
        if start > 0 { text.removeFirst(start) }
        guard isJSON || text.isEmpty || Self.beginsAsJSON(text) else { throw .unsupportedMediaType }
        return text
    }

    private static let mark: UInt16 = 0xFEFF
    private static let markInUTF8: [UInt8] = [0xEF, 0xBB, 0xBF]

    /// Where in a unit of UTF-16 the high byte stands, 0 or 1; nil: the body is no UTF-16. The second character of a JSON
    /// text is never U+0000, so a zero there is half of a unit.
    private static func unitBytes(_ body: [UInt8]) -> Int? {
        guard body.count >= 2 else { return nil }
        switch (body[0], body[1]) {
        case (0xFE, 0xFF), (0, 1...): return 0
        case (0xFF, 0xFE), (1..., 0): return 1
        default: return nil
        }
    }

    private static func utf8(_ body: [UInt8], high: Int) throws(Problem) -> [UInt8] {
        let units = stride(from: 0, to: body.count - 1, by: 2).lazy.map { place in
            UInt16(body[place + high]) << 8 | UInt16(body[place + 1 - high])
        }
        guard body.count % 2 == 0, let text = String(validating: units.drop { $0 == mark }, as: UTF16.self) else {
            throw .unsupportedMediaType
        }
        return Array(text.utf8)
    }

    private static func beginsAsJSON(_ text: [UInt8]) -> Bool {
        let text = text.starts(with: markInUTF8) ? text[3...] : text[...]
        let first = text.first { ![0x20, 0x09, 0x0A, 0x0D].contains($0) }
        return first.map { [UInt8(ascii: "{"), UInt8(ascii: "["), UInt8(ascii: "\"")].contains($0) } ?? true
    }
}
