/// Reads the tokens of one JSON text by RFC 8259, from bytes that nobody vouches for yet.
///
/// ``JSON`` and ``JSONValue`` are read with it. They judge depth, keys and the size of numbers. Each token takes linear
/// time. A byte order mark before the text is passed over, as section 8.1 allows.
struct JSONReader {
    private let bytes: [UInt8]
    var position = 0
    /// Whether a string may hold U+0000 as an escape.
    private let takesZero: Bool

    init(_ bytes: [UInt8], takesZero: Bool) {
        self.bytes = bytes
        self.takesZero = takesZero
        if bytes.starts(with: Self.byteOrderMark) { position = Self.byteOrderMark.count }
    }

    private static let byteOrderMark: [UInt8] = [0xEF, 0xBB, 0xBF]

    /// The next byte after white space, which the reader does not take.
    mutating func next() throws(JSONError.Kind) -> UInt8 {
        skipWhitespace()
        guard position < bytes.count else { throw .syntax }
        return bytes[position]
    }

    /// Takes `byte` if it is the next one after white space.
    mutating func takes(_ byte: UInt8) -> Bool {
        skipWhitespace()
        return take { $0 == byte }
    }

    /// Takes `byte`, the next one after white space.
    mutating func require(_ byte: UInt8) throws(JSONError.Kind) {
        guard takes(byte) else { throw .syntax }
    }

    /// Nothing but white space may be left.
    mutating func end() throws(JSONError.Kind) {
        skipWhitespace()
        guard position == bytes.count else { throw .syntax }
    }

    mutating func word(_ text: StaticString) throws(JSONError.Kind) {
        let end = position + text.utf8CodeUnitCount
        guard end <= bytes.count, bytes[position..<end].elementsEqual(text.description.utf8) else { throw .syntax }
        position = end
    }

    /// Skips to the end of a value, however deep it is. Only strings and brackets are looked at.
    mutating func skipValue() throws(JSONError.Kind) {
        var depth = 0
        var isString = false
        while position < bytes.count {
            let byte = bytes[position]
            switch byte {
            case UInt8(ascii: "\\") where isString: position += 1
            case UInt8(ascii: "\""): isString.toggle()
            case _ where isString: break
            case UInt8(ascii: "["), UInt8(ascii: "{"): depth += 1
            // The end of a number without brackets is the end of the list, or its next comma.
            case UInt8(ascii: "]") where depth == 0, UInt8(ascii: ",") where depth == 0: return
            case UInt8(ascii: "]"), UInt8(ascii: "}"): depth -= 1
            default: break
            }
            position += 1
        }
        throw .syntax
    }

    private mutating func take(_ isWanted: (UInt8) -> Bool) -> Bool {
        guard position < bytes.count, isWanted(bytes[position]) else { return false }
        position += 1
        return true
    }

    private mutating func skipWhitespace() {
        while take({ $0 == 0x20 || $0 == 0x0A || $0 == 0x0D || $0 == 0x09 }) {}
    }
}

// MARK: - Strings

extension JSONReader {
    mutating func string() throws(JSONError.Kind) -> String {
        try require(UInt8(ascii: "\""))
        let start = position
        while position < bytes.count {
            skipPlain()
            guard position < bytes.count else { break }
            switch bytes[position] {
            case UInt8(ascii: "\""):
                // Most strings, the long proofs among them, have no escape and take one copy.
                guard let text = String(validating: bytes[start..<position], as: UTF8.self) else { throw .syntax }
                position += 1
                return text
            case UInt8(ascii: "\\"): return try escapedString(from: start)
            case 0: throw .zeroCharacter
            case 1..<0x20: throw .syntax
            default: position += 1
            }
        }
        throw .syntax
    }

    /// Skips bytes that are no quote, no backslash and no control character, eight at a time: a proof has thousands of
    /// them. The last seven bytes of a document may stay.
    private mutating func skipPlain() {
        let (ones, highs): (UInt64, UInt64) = (0x0101_0101_0101_0101, 0x8080_8080_8080_8080)
        // Marks the bytes below `limit`, which is at most 0x80, in their highest bits.
        func below(_ limit: UInt64, _ word: UInt64) -> UInt64 { (word &- (ones &* limit)) & ~word & highs }
        bytes.withUnsafeBytes { bytes in
            while position + 8 <= bytes.count {
                let word = UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: position, as: UInt64.self))
                let quotes = word ^ (ones &* UInt64(UInt8(ascii: "\"")))
                let backslashes = word ^ (ones &* UInt64(UInt8(ascii: "\\")))
                // The lowest bit marks the first such byte. A borrow may mark plain bytes behind it.
                let marks = below(0x20, word) | below(1, quotes) | below(1, backslashes)
                guard marks == 0 else {
                    position += marks.trailingZeroBitCount / 8
                    return
                }
                position += 8
            }
        }
    }

    /// Reads the whole string, byte by byte from its first backslash on.
    private mutating func escapedString(from start: Int) throws(JSONError.Kind) -> String {
        var unescaped = Array(bytes[start..<position])
        while position < bytes.count {
            let byte = bytes[position]
            position += 1
            switch byte {
            case UInt8(ascii: "\""):
                guard let text = String(validating: unescaped, as: UTF8.self) else { throw .syntax }
                return text
            case UInt8(ascii: "\\"): try appendEscape(to: &unescaped)
            case 0: throw .zeroCharacter
            case 1..<0x20: throw .syntax
            default: unescaped.append(byte)
            }
        }
        throw .syntax
    }

    private mutating func appendEscape(to unescaped: inout [UInt8]) throws(JSONError.Kind) {
        guard position < bytes.count else { throw .syntax }
        let escape = bytes[position]
        position += 1
        switch escape {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): unescaped.append(escape)
        case UInt8(ascii: "b"): unescaped.append(0x08)
        case UInt8(ascii: "f"): unescaped.append(0x0C)
        case UInt8(ascii: "n"): unescaped.append(0x0A)
        case UInt8(ascii: "r"): unescaped.append(0x0D)
        case UInt8(ascii: "t"): unescaped.append(0x09)
        case UInt8(ascii: "u"): unescaped.append(contentsOf: String(try unicodeEscape()).utf8)
        default: throw .syntax
        }
    }

    private mutating func unicodeEscape() throws(JSONError.Kind) -> Unicode.Scalar {
        let first = try hexadecimalQuad()
        guard first != 0 || takesZero else { throw .zeroCharacter }
        if let scalar = Unicode.Scalar(first) { return scalar }
        // A surrogate: only the high half may come first, and the low half must follow.
        guard (0xD800..<0xDC00).contains(first), position + 1 < bytes.count,
            bytes[position] == UInt8(ascii: "\\"), bytes[position + 1] == UInt8(ascii: "u")
        else { throw .syntax }
        position += 2
        let second = try hexadecimalQuad()
        guard (0xDC00..<0xE000).contains(second),
            let scalar = Unicode.Scalar(0x10000 + (first - 0xD800) << 10 + (second - 0xDC00))
        else { throw .syntax }
        return scalar
    }

    private mutating func hexadecimalQuad() throws(JSONError.Kind) -> UInt32 {
        guard position + 4 <= bytes.count else { throw .syntax }
        var value: UInt32 = 0
        for byte in bytes[position..<position + 4] {
            guard byte < 0x80, let digit = Character(Unicode.Scalar(byte)).hexDigitValue else { throw .syntax }
            value = value << 4 | UInt32(digit)
        }
        position += 4
        return value
    }
}

// MARK: - Numbers

extension JSONReader {
    struct Number {
        /// As it was written.
        var text: String
        /// The number has no fraction and no exponent.
        var isWhole = true
        /// The exponent without its sign; `Int.max` if it does not fit.
        var exponent = 0
    }

    mutating func number() throws(JSONError.Kind) -> Number {
        let start = position
        var number = Number(text: "")
        _ = take { $0 == UInt8(ascii: "-") }
        if !take({ $0 == UInt8(ascii: "0") }) { try takeDigits() }
        if take({ $0 == UInt8(ascii: ".") }) {
            number.isWhole = false
            try takeDigits()
        }
        if take({ $0 | 0x20 == UInt8(ascii: "e") }) {
            number.isWhole = false
            _ = take { $0 == UInt8(ascii: "+") || $0 == UInt8(ascii: "-") }
            let digits = position
            try takeDigits()
            number.exponent = Int(String(decoding: bytes[digits..<position], as: UTF8.self)) ?? .max
        }
        number.text = String(decoding: bytes[start..<position], as: UTF8.self)
        return number
    }

    private mutating func takeDigits() throws(JSONError.Kind) {
        let start = position
        while take({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }) {}
        guard position > start else { throw .syntax }
    }
}
