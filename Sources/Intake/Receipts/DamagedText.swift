import Encoding
import Foundation

/// The text of a proof that was damaged on its way, and the repairs so far. Each repair takes linear time, and their
/// number is bounded.
struct DamagedText {
    private var bytes: [UInt8]
    private(set) var repairs: [FieldRepair.Kind] = []
    private var layersLeft = 8
    private var percentLayersLeft = 2

    init(_ text: String) {
        bytes = Array(text.utf8)
        dropInvisible()
    }

    /// The text as JSON; nil where it is none.
    var json: JSONValue? {
        let visible = visible
        guard let first = visible.first, Self.jsonBeginnings.contains(first) else { return nil }
        return try? JSONValue(parsing: Array(visible))
    }

    private static let jsonBeginnings: Set<UInt8> = [UInt8(ascii: "{"), UInt8(ascii: "["), UInt8(ascii: "\"")]

    // MARK: Layers around the text

    /// Takes off what an encoder or a person put around the text or into it. Returns false where there is nothing.
    mutating func takeOffALayer() -> Bool {
        guard layersLeft > 0 else { return false }
        layersLeft -= 1
        guard
            takesQuotes() || takesDataURL() || takesPrefix() || takesPercentEncoding() || takesReferences()
                || takesBackslashes()
        else { return false }
        dropInvisible()
        return true
    }

    private var visible: ArraySlice<UInt8> {
        let end = bytes.lastIndex { !Self.isSpace($0) }.map { $0 + 1 } ?? 0
        return bytes[..<end].drop(while: Self.isSpace)
    }

    private mutating func replace(with new: some Sequence<UInt8>, _ repair: FieldRepair.Kind) {
        bytes = Array(new)
        note(repair)
    }

    private mutating func note(_ repair: FieldRepair.Kind) {
        if !repairs.contains(repair) { repairs.append(repair) }
    }

    /// Quotes at one end or both, also with backslashes before them.
    private mutating func takesQuotes() -> Bool {
        var text = visible
        // As Python prints bytes: b'…'.
        if let first = text.first, first | 0x20 == UInt8(ascii: "b"), let quote = text.dropFirst().first,
            Self.isQuote(quote), text.count > 2, text.last == quote
        {
            text = text.dropFirst()
        }
        var rest = bytes[text.startIndex...]
        let start = text.drop { $0 == Self.backslash }
        if let first = start.first, Self.isQuote(first) { rest = bytes[(start.startIndex + 1)...] }
        if let last = text.last, Self.isQuote(last), rest.startIndex < text.endIndex {
            rest = rest[..<(text.endIndex - 1)]
            while rest.last == Self.backslash { rest = rest.dropLast() }
        }
        guard rest.startIndex > text.startIndex || rest.endIndex < bytes.endIndex else { return false }
        replace(with: rest, .quotes)
        return true
    }

    /// `data:…,` (RFC 2397), and what may be left of it. A space at the end of the text stays: it may be a `+`.
    private mutating func takesDataURL() -> Bool {
        let text = visible
        for beginning in ["data:", "base64,", "base64:"] where Self.begins(text, with: beginning) {
            if beginning != "data:" {
                replace(with: bytes[(text.startIndex + beginning.utf8.count)...], .dataURL)
                return true
            }
            guard let comma = text.prefix(Self.dataURLBytesMax).firstIndex(of: UInt8(ascii: ",")) else { return false }
            replace(with: bytes[(comma + 1)...], .dataURL)
            return true
        }
        return false
    }

    private static let dataURLBytesMax = 256

    /// A word before a signed transaction, as in a header.
    private mutating func takesPrefix() -> Bool {
        let text = visible
        guard text.count(where: { $0 == UInt8(ascii: ".") }) == 2 else { return false }
        for word in ["bearer", "jwt", "jws"] where Self.begins(text, with: word) {
            let rest = text.dropFirst(word.utf8.count)
            let proof = rest.drop { Self.isSpace($0) || $0 == UInt8(ascii: ":") || $0 == UInt8(ascii: "=") }
            guard proof.count < rest.count else { continue }
            replace(with: proof, .prefix)
            return true
        }
        return false
    }

    /// RFC 3986, section 2.1. A `%` without two digits stays.
    private mutating func takesPercentEncoding() -> Bool {
        guard percentLayersLeft > 0, bytes.contains(Self.percent) else { return false }
        var decoded: [UInt8] = []
        decoded.reserveCapacity(bytes.count)
        var place = 0
        while place < bytes.count {
            if bytes[place] == Self.percent, let byte = hexadecimal(at: place + 1, digits: 2) {
                decoded.append(UInt8(byte))
                place += 3
            } else {
                decoded.append(bytes[place])
                place += 1
            }
        }
        guard decoded.count < bytes.count else { return false }
        percentLayersLeft -= 1
        replace(with: decoded, .percentEncoding)
        return true
    }

    /// Numeric and a few named references of HTML. Another `&` stays.
    private mutating func takesReferences() -> Bool {
        guard bytes.contains(UInt8(ascii: "&")) else { return false }
        var decoded: [UInt8] = []
        decoded.reserveCapacity(bytes.count)
        var place = 0
        while place < bytes.count {
            if bytes[place] == UInt8(ascii: "&"),
                let end = bytes[place...].prefix(Self.referenceBytesMax).firstIndex(of: UInt8(ascii: ";")),
                let byte = Self.character(of: bytes[(place + 1)..<end])
            {
                decoded.append(byte)
                place = end + 1
            } else {
                decoded.append(bytes[place])
                place += 1
            }
        }
        guard decoded.count < bytes.count else { return false }
        replace(with: decoded, .characterReferences)
        return true
    }

    private static let referenceBytesMax = 12
    private static let references: [String: UInt8] = [
        "plus": UInt8(ascii: "+"), "sol": UInt8(ascii: "/"), "equals": UInt8(ascii: "="), "quot": UInt8(ascii: "\""),
        "apos": UInt8(ascii: "'"), "amp": UInt8(ascii: "&"), "newline": 0x0A, "nbsp": 0x20,
    ]

    /// The ASCII character of a reference without `&` and `;`.
    private static func character(of reference: ArraySlice<UInt8>) -> UInt8? {
        guard let name = String(validating: reference, as: UTF8.self)?.lowercased() else { return nil }
        guard name.hasPrefix("#") else { return references[name] }
        let digits = name.dropFirst()
        let value = digits.hasPrefix("x") ? UInt32(digits.dropFirst(), radix: 16) : UInt32(digits)
        return value.flatMap { (1..<0x80).contains($0) ? UInt8($0) : nil }
    }

    /// Escapes of JSON that stand in the text as characters. A text with another escape stays as it is.
    private mutating func takesBackslashes() -> Bool {
        guard bytes.contains(Self.backslash) else { return false }
        let visible = visible
        if let first = visible.first, Self.jsonBeginnings.contains(first) {
            let quoted = [UInt8(ascii: "\"")] + visible + [UInt8(ascii: "\"")]
            if case .string(let text)? = try? JSONValue(parsing: quoted) {
                replace(with: text.utf8, .backslashes)
                return true
            }
        }
        guard let text = unescaped() else { return false }
        replace(with: text, .backslashes)
        return true
    }

    /// The bytes without backslashes. Several backslashes count as one, because each encoder on the way adds some.
    private func unescaped() -> [UInt8]? {
        var text: [UInt8] = []
        text.reserveCapacity(bytes.count)
        var place = 0
        while place < bytes.count {
            guard bytes[place] == Self.backslash else {
                text.append(bytes[place])
                place += 1
                continue
            }
            while place < bytes.count, bytes[place] == Self.backslash { place += 1 }
            guard place < bytes.count else { return nil }
            switch bytes[place] {
            case UInt8(ascii: "n"), UInt8(ascii: "r"), UInt8(ascii: "t"), 0x0A, 0x0D: text.append(0x0A)
            case UInt8(ascii: "/"), UInt8(ascii: "+"), UInt8(ascii: "="): text.append(bytes[place])
            case let byte where Self.isQuote(byte): text.append(byte)
            case UInt8(ascii: "u"):
                guard let value = hexadecimal(at: place + 1, digits: 4), value < 0x80 else { return nil }
                text.append(UInt8(value))
                place += 4
            default: return nil
            }
            place += 1
        }
        return text
    }

    private func hexadecimal(at place: Int, digits: Int) -> Int? {
        guard place + digits <= bytes.count else { return nil }
        var value = 0
        for byte in bytes[place..<place + digits] {
            guard byte < 0x80, let digit = Character(Unicode.Scalar(byte)).hexDigitValue else { return nil }
            value = value << 4 | digit
        }
        return value
    }

    // MARK: Characters nobody sees

    /// Drops byte order marks, characters without width and spaces beyond ASCII, and makes typographic quotes plain.
    private mutating func dropInvisible() {
        guard bytes.contains(where: { $0 >= 0x80 }), let text = String(validating: bytes, as: UTF8.self) else { return }
        var kept: [UInt8] = []
        kept.reserveCapacity(bytes.count)
        var isChanged = false
        for scalar in text.unicodeScalars {
            switch scalar.value {
            case 0..<0x80: kept.append(UInt8(scalar.value))
            case 0xAB, 0xBB, 0x2018...0x201F, 0xFF02, 0xFF07: kept.append(UInt8(ascii: "\""))
            case 0x85, 0xA0, 0xAD, 0x2000...0x200F, 0x2028...0x202F, 0x205F...0x2064, 0x3000, 0xFEFF:
                isChanged = true
            default: kept.append(contentsOf: UTF8.encode(scalar) ?? .init())
            }
        }
        bytes = kept
        if isChanged { note(.whiteSpace) }
    }

    // MARK: Readings

    /// The text as a compact JWS without white space, with all repairs; nil where it is none.
    var compactJWS: (text: String, repairs: [FieldRepair.Kind])? {
        let dense = bytes.filter { !Self.isSpace($0) }
        guard let text = String(validating: dense, as: UTF8.self), ProofShape.isCompactJWS(text) else { return nil }
        // Escapes may have become the white space, and are named already.
        let isSpaced = dense.count < bytes.count && !repairs.contains(.backslashes)
        return (text, isSpaced ? repairs.adding([.whiteSpace]) : repairs)
    }

    /// A whole receipt in hexadecimal digits, as `NSData` describes itself (`<30820a12 …>`), in base64 with all repairs;
    /// nil for other digits: short words are hexadecimal too.
    var hexadecimal: (text: String, repairs: [FieldRepair.Kind])? {
        var octets: [UInt8] = []
        var high: UInt8?
        let text = visible
        let start = text.starts(with: Array("0x".utf8)) || text.starts(with: Array("0X".utf8)) ? 2 : 0
        for byte in text.dropFirst(start) where !Self.isSpace(byte) && !Self.isAroundDigits(byte) {
            guard byte < 0x80, let digit = Character(Unicode.Scalar(byte)).hexDigitValue else { return nil }
            if let first = high {
                octets.append(first << 4 | UInt8(digit))
                high = nil
            } else {
                high = UInt8(digit)
                if octets.isEmpty, ![3, 7].contains(digit) { return nil }
            }
        }
        guard high == nil, ReceiptLook(octets) >= .complete else { return nil }
        return (Data(octets).base64EncodedString(), repairs.adding([.hexadecimal]))
    }

    /// Also the padding that the digits were given as base64.
    private static func isAroundDigits(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "<") || byte == UInt8(ascii: ">") || byte == UInt8(ascii: "=")
    }

    /// The text as canonical base64, with all repairs; nil where it is none, or may be several.
    ///
    /// A space may be white space or was a `+`. Of the readings that can be decoded the one that looks most like a
    /// receipt counts. If none looks like one, only a text with one reading is taken.
    var base64: (text: String, repairs: [FieldRepair.Kind])? {
        var readings: [Base64Reading] = []
        let variants: [(text: ArraySlice<UInt8>, inside: UInt8?, atEnds: UInt8?)] = [
            (visible, Self.plus, nil), (visible, Self.plus, Self.plus), (bytes[...], Self.plus, Self.plus),
            (visible, nil, nil),
        ]
        for (text, inside, atEnds) in variants {
            let (variant, made) = spaces(of: text, inside: inside, atEnds: atEnds)
            guard let reading = Base64Reading(variant, made),
                !readings.contains(where: { $0.text.utf8.elementsEqual(reading.text.utf8) })
            else { continue }
            readings.append(reading)
        }
        // Of equal looks the first one counts.
        guard let best = readings.max(by: { $0.rank < $1.rank }) else { return nil }
        let isOnlyOne = readings.count == 1
        let isPlain = !best.repairs.contains(.spacesForPlus) && readings.count { $0.rank == best.rank } == 1
        guard isOnlyOne || isPlain || best.rank > ReceiptLook.other.rawValue else { return nil }
        return (best.text, repairs.adding(best.repairs))
    }

    /// The text without line breaks and tabs.
    ///
    /// - Parameters:
    ///   - text: a part of the bytes; white space around it is dropped.
    ///   - inside: what each space inside a line becomes; nil drops it.
    ///   - atEnds: the same for spaces at both ends of a line.
    private func spaces(
        of text: ArraySlice<UInt8>, inside: UInt8?, atEnds: UInt8?
    ) -> (bytes: [UInt8], repairs: [FieldRepair.Kind]) {
        let isLineBreak = { (byte: UInt8) in byte == 0x0A || byte == 0x0D }
        var variant: [UInt8] = []
        variant.reserveCapacity(text.count)
        let around = [bytes[..<text.startIndex], bytes[text.endIndex...]]
        var (dropped, replaced) = (around.contains { $0.contains { !isLineBreak($0) } }, false)
        for line in text.split(whereSeparator: isLineBreak) {
            let start = line.firstIndex { !Self.isSpace($0) } ?? line.endIndex
            let end = line.lastIndex { !Self.isSpace($0) } ?? line.startIndex
            for (place, byte) in zip(line.indices, line) {
                guard Self.isSpace(byte) else {
                    variant.append(byte)
                    continue
                }
                if byte == 0x20, let new = place < start || place > end ? atEnds : inside {
                    variant.append(new)
                    replaced = true
                } else {
                    dropped = true
                }
            }
        }
        return (variant, (dropped ? [.whiteSpace] : []) + (replaced ? [.spacesForPlus] : []))
    }

    private static let backslash = UInt8(ascii: "\\")
    private static let percent = UInt8(ascii: "%")
    private static let plus = UInt8(ascii: "+")

    private static func isSpace(_ byte: UInt8) -> Bool { byte == 0x20 || (0x09...0x0D).contains(byte) }

    private static func isQuote(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "'") || byte == UInt8(ascii: "`")
    }

    /// Whether the text begins with this word of small letters, in letters of any size.
    private static func begins(_ text: ArraySlice<UInt8>, with word: String) -> Bool {
        let beginning = text.prefix(word.utf8.count).map { (0x41...0x5A).contains($0) ? $0 | 0x20 : $0 }
        return beginning.elementsEqual(word.utf8)
    }
}

/// One reading of a text as base64 in either alphabet.
private struct Base64Reading {
    /// The canonical spelling (RFC 4648, section 4).
    let text: String
    let repairs: [FieldRepair.Kind]
    /// How sure the reading is: -1 where unused bits are set, else the look.
    let rank: Int

    /// - Parameter repairs: what was done to the spaces.
    init?(_ bytes: [UInt8], _ repairs: [FieldRepair.Kind]) {
        var repairs = repairs
        guard let read = Base64Symbols(bytes, passesLineBreaks: false) else { return nil }
        let look = Base64.decodeStandard(read.padded[...]).map { ReceiptLook($0) }
        let isMixed = read.hasStandard && read.hasURL
        let isMispadded = read.padding > 0 && read.padding != read.missing
        if isMixed { guard let look, look >= .beginning else { return nil } }
        // A lost character shows in the same way, so the octets must be a whole receipt.
        if isMispadded { guard let look, look >= .complete else { return nil } }
        if isMixed { repairs.append(.mixedAlphabet) }
        if isMispadded { repairs.append(.padding) }
        text = String(decoding: read.padded, as: UTF8.self)
        self.repairs = repairs
        rank = look?.rawValue ?? -1
    }
}

extension [FieldRepair.Kind] {
    /// The list with these at its end, each once.
    func adding(_ more: [FieldRepair.Kind]) -> [FieldRepair.Kind] {
        self + more.filter { !contains($0) }
    }
}
