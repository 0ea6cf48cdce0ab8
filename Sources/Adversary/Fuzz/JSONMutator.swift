import AppStoreSimulator

/// Mutates JSON by its tokens, whole or broken.
enum JSONMutator {
    private struct Token {
        enum Kind { case string, scalar, mark }

        let kind: Kind
        let range: Range<Int>
    }

    static func mutate(_ bytes: [UInt8], _ random: inout SplitMix64) -> [UInt8] {
        let tokens = tokens(of: bytes)
        guard !tokens.isEmpty, bytes.count < 64 << 10 else { return ByteMutator.mutate(bytes, with: bytes, &random) }
        let token = random.pick(tokens)
        func replacing(_ range: Range<Int>, _ new: some Sequence<UInt8>) -> [UInt8] {
            Array(bytes[..<range.lowerBound]) + Array(new) + Array(bytes[range.upperBound...])
        }
        switch random.below(13) {
        case 0, 1: return replacing(token.range, random.pick(values).utf8)
        case 2: return replacing(token.range, Array(bytes[random.pick(tokens).range]))
        case 3: return replacing(token.range, [])
        case 4: return duplicated(tokens, in: bytes, &random)
        case 5: return replacing(token.range, nested(Array(bytes[token.range]), &random))
        case 6: return replacing(token.range, "\"\(random.pick(keys))\"".utf8)
        case 7 where token.kind == .string:
            return replacing(token.range.lowerBound + 1..<token.range.lowerBound + 1, random.pick(noUTF8))
        case 8 where token.kind == .string:
            let unit = Array(random.pick(letters).utf8)
            let text = Array(repeatElement(unit, count: 1 << random.below(12)).joined())
            return replacing(token.range.lowerBound + 1..<token.range.upperBound - 1, text)
        case 9 where token.kind == .scalar: return replacing(token.range, number(&random).utf8)
        case 12: return replacing(token.range, retyped(Array(bytes[token.range]), token.kind))
        case 10, 11: return inner(bytes, tokens, &random)
        default: return ByteMutator.mutate(bytes, with: bytes, &random)
        }
    }

    /// The value in another type: text of digits as a number, a number or a word as text.
    private static func retyped(_ value: [UInt8], _ kind: Token.Kind) -> [UInt8] {
        let quote = UInt8(ascii: "\"")
        switch kind {
        case .scalar: return [quote] + value + [quote]
        case .string:
            let inner = value.dropFirst().dropLast()
            return !inner.isEmpty && inner.allSatisfy({ (0x30...0x39).contains($0) }) ? Array(inner) : value
        case .mark: return value
        }
    }

    /// Repeats one member of an object.
    private static func duplicated(_ tokens: [Token], in bytes: [UInt8], _ random: inout SplitMix64) -> [UInt8] {
        let members = tokens.indices.dropLast(2).filter { index in
            tokens[index].kind == .string && bytes[tokens[index + 1].range] == [UInt8(ascii: ":")]
                && tokens[index + 2].kind != .mark
        }
        guard !members.isEmpty else { return bytes }
        let index = random.pick(members)
        let member = bytes[tokens[index].range.lowerBound..<tokens[index + 2].range.upperBound]
        var bytes = bytes
        bytes.insert(contentsOf: member + [UInt8(ascii: ",")], at: tokens[index].range.lowerBound)
        return bytes
    }

    private static func nested(_ value: [UInt8], _ random: inout SplitMix64) -> [UInt8] {
        let depth = random.pick([1, 2, 26, 31, 32, 33, 100, 4000])
        let (open, close) = random.pick([("[", "]"), (#"{"a":"#, "}"), (#"[{"":"#, "}]")])
        let end = random.oneIn(3) ? "" : String(repeating: close, count: depth)
        return Array(String(repeating: open, count: depth).utf8) + value + Array(end.utf8)
    }

    /// Mutates signed data and certificates inside strings.
    private static func inner(_ bytes: [UInt8], _ tokens: [Token], _ random: inout SplitMix64) -> [UInt8] {
        let long = tokens.filter { $0.kind == .string && $0.range.count > 80 }
        guard !long.isEmpty else { return ByteMutator.mutate(bytes, with: bytes, &random) }
        let range = random.pick(long).range
        let text = Array(bytes[range.lowerBound + 1..<range.upperBound - 1])
        let mutated: [UInt8]
        if text.count(where: { $0 == UInt8(ascii: ".") }) == 2 {
            mutated = JWSMutator.mutate(text, with: text, &random)
        } else if let inner = BaseText.standard.decode(text) {
            mutated = BaseText.standard.encode(BERMutator.mutate(inner, with: inner, &random))
        } else {
            mutated = ByteMutator.mutate(text, with: text, &random)
        }
        var bytes = bytes
        bytes.replaceSubrange(range.lowerBound + 1..<range.upperBound - 1, with: mutated)
        return bytes
    }

    private static func number(_ random: inout SplitMix64) -> String {
        switch random.below(4) {
        case 0: String(Int64(truncatingIfNeeded: random.next()))
        case 1: String(Double(bitPattern: random.next()))
        case 2: String(repeating: "9", count: 1 << random.below(13))
        default: random.pick(numbers)
        }
    }

    private static func tokens(of bytes: [UInt8]) -> [Token] {
        var tokens: [Token] = []
        var position = 0
        while position < bytes.count {
            let start = position
            position += 1
            switch bytes[start] {
            case UInt8(ascii: "\""):
                while position < bytes.count, bytes[position] != UInt8(ascii: "\"") {
                    position += bytes[position] == UInt8(ascii: "\\") ? 2 : 1
                }
                position = min(position + 1, bytes.count)
                guard position - start >= 2 else { continue }
                tokens.append(Token(kind: .string, range: start..<position))
            case UInt8(ascii: "-"), UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "a")...UInt8(ascii: "z"):
                while position < bytes.count, isWord(bytes[position]) { position += 1 }
                tokens.append(Token(kind: .scalar, range: start..<position))
            case 0x20, 0x09, 0x0A, 0x0D: continue
            default: tokens.append(Token(kind: .mark, range: start..<position))
            }
        }
        return tokens
    }

    private static func isWord(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "-"), UInt8(ascii: "+"), UInt8(ascii: "."), 0x30...0x39, 0x41...0x5A, 0x61...0x7A: true
        default: false
        }
    }

    private static let numbers = [
        "0", "-0", "-0.0", "1e400", "-1e400", "1e-400", "9223372036854775807", "9223372036854775808", "1.5",
        "-9223372036854775808", "4294967296", "1e308", "01", "1.", ".1", "+1", "1e", "-", "NaN", "0x10",
        "253402300800000", "-62167219200001",
    ]
    private static let values =
        numbers + [
            "null", "true", "false", "{}", "[]", "[[]]", "\"\"", "[null]", "{\"\":null}", #""\ud800""#, #""\u0000""#,
            #""\ud83d\ude00""#, #""\udc00\ud800""#, "\"Xcode\"", "\"Sandbox\"", "\"Production\"", "\"ES256\"",
            "\"none\"", "\"com.example.game\"", "nul", "tru", "\"", "\\", ",", ":", "{", "}", "[", "]", "//",
            "\u{FEFF}",
        ]
    private static let keys = [
        "alg", "x5c", "crit", "kid", "environment", "bundleId", "signedDate", "transactionId", "data", "summary",
        "appData", "externalPurchaseToken", "externalPurchaseId", "signedTransactionInfo", "signedRenewalInfo",
        "receiptType", "commitmentInfo", "advancedCommerceInfo", "in_app", "latest_receipt_info", "receipt", "status",
        "signedTransactions", "hasMore", "revision", "notificationHistory", "sendAttempts", "price", "",
    ]
    /// Characters of one, two, three and four bytes, combining marks in an order that needs sorting, and control
    /// characters that terminals obey.
    private static let letters = [
        "A", "é", "語", "\u{1F4A9}", "e\u{301}\u{316}", "\u{316}\u{301}", "\u{202E}", "\u{1B}", "\\u0041", "\\\\",
    ]
    private static let noUTF8: [[UInt8]] = [
        [0xFF], [0xC0, 0x80], [0xED, 0xA0, 0x80], [0xF4, 0x90, 0x80, 0x80], [0xE2, 0x82], [0x80], [0x00], [0x1F],
    ]
}
