/// One record of comma-separated values (RFC 4180). Written by hand: no library that resolves here reads it.
///
/// Fields are separated by commas, or by the semicolons or tabs that spreadsheets write instead; a quoted one may hold
/// separators, line ends and, doubled, quotes. A quote inside an unquoted
/// field, and text after a closing quote, are errors and not a guess.
enum CSVLine {
    enum Reading: Equatable {
        case fields([[UInt8]])
        /// A quote is not closed: the record continues in the next line.
        case open
        case broken(String)
    }

    private static let quote = UInt8(ascii: "\"")
    /// The separators that a file may have, the usual one first.
    static let separators = [UInt8(ascii: ","), UInt8(ascii: ";"), UInt8(ascii: "\t")]

    /// - Parameter bytes: without the line's end.
    static func read(_ bytes: [UInt8], _ separator: UInt8) -> Reading {
        var fields: [[UInt8]] = []
        var position = 0
        while true {
            if position < bytes.count, bytes[position] == quote {
                var field: [UInt8] = []
                position += 1
                while true {
                    guard let end = bytes[position...].firstIndex(of: quote) else { return .open }
                    field += bytes[position..<end]
                    position = end + 1
                    guard position < bytes.count, bytes[position] == quote else { break }
                    field.append(quote)
                    position += 1
                }
                guard position == bytes.count || bytes[position] == separator else {
                    return .broken("has text after a closing quote")
                }
                fields.append(field)
            } else {
                let end = bytes[position...].firstIndex(of: separator) ?? bytes.count
                let field = bytes[position..<end]
                if field.contains(quote) { return .broken("has a quote inside an unquoted value") }
                fields.append(Array(field))
                position = end
            }
            guard position < bytes.count else { return .fields(fields) }
            // A separator; an empty value may follow.
            position += 1
        }
    }
}
