import AppStore
import AppStoreSimulator
import Foundation

/// Makes inputs that are nearly right. It takes an input of the corpus apart as far as possible, mutates something
/// inside, and puts it together again, so that the input gets past a reader's first checks.
struct Mutator {
    /// The mutator feeds no reader more. ``FuzzGrowth`` measures inputs that cost more than their size.
    static let bytesMax = 256 << 10
    /// The largest number of mutations in one input.
    private static let mutationsMax = 4

    private let parser: ParserProbe.Parser
    private let corpus: [[UInt8]]
    private var random: SplitMix64

    init(_ parser: ParserProbe.Parser, corpus: [[UInt8]], seed: UInt64) {
        self.parser = parser
        self.corpus = corpus
        random = SplitMix64(seed: seed)
    }

    mutating func next() -> [UInt8] {
        var bytes = random.pick(corpus)
        for _ in 0..<random.below(Self.mutationsMax) + 1 where bytes.count <= Self.bytesMax {
            bytes = mutate(bytes)
        }
        return Array(bytes.prefix(Self.bytesMax))
    }

    private mutating func mutate(_ bytes: [UInt8]) -> [UInt8] {
        if random.oneIn(6) { return ByteMutator.mutate(bytes, with: random.pick(corpus), &random) }
        return switch parser {
        case .jws, .notification: JWSMutator.mutate(bytes, with: random.pick(corpus), &random)
        case .receipt, .certificates: BERMutator.mutate(bytes, with: random.pick(corpus), &random)
        case .verifyReceipt, .answers: JSONMutator.mutate(bytes, &random)
        case .base64: mutateBase64(bytes)
        case .inspect: mutateFile(bytes)
        case .proof: mutateProof(bytes)
        }
    }

    /// Adds a layer around the proof, or damages it as a way to the server does.
    private mutating func mutateProof(_ bytes: [UInt8]) -> [UInt8] {
        switch random.below(6) {
        case 0: return BaseText.standard.encode(bytes)
        case 1: return random.pick(Self.wrappers).flatMap { $0 == UInt8(ascii: "*") ? bytes : [$0] }
        case 2:
            let (old, new) = random.pick(Self.replacements)
            return bytes.flatMap { $0 == old ? Array(new.utf8) : [$0] }
        case 3: return JSONMutator.mutate(bytes, &random)
        default:
            var bytes = bytes
            bytes.insert(contentsOf: random.pick(Self.proofTokens).utf8, at: random.below(bytes.count + 1))
            return bytes
        }
    }

    private mutating func mutateBase64(_ bytes: [UInt8]) -> [UInt8] {
        let alphabet = random.oneIn(2) ? BaseText.standard : BaseText.url
        guard random.oneIn(2), let inner = alphabet.decode(bytes) else {
            var bytes = bytes
            bytes.insert(contentsOf: random.pick(Self.base64Tokens).utf8, at: random.below(bytes.count + 1))
            return bytes
        }
        return alphabet.encode(ByteMutator.mutate(inner, with: random.pick(corpus), &random))
    }

    private mutating func mutateFile(_ bytes: [UInt8]) -> [UInt8] {
        if bytes.count(where: { $0 == UInt8(ascii: ".") }) == 2 {
            return JWSMutator.mutate(bytes, with: random.pick(corpus), &random)
        }
        guard let inner = BaseText.standard.decode(bytes) else {
            return BERMutator.mutate(bytes, with: random.pick(corpus), &random)
        }
        return BaseText.standard.encode(BERMutator.mutate(inner, with: random.pick(corpus), &random))
    }

    private static let wrappers: [[UInt8]] = [
        "\"*\"", "'*'", " *\n", "data:;base64,*", "Bearer *", "{\"Payload\":\"*\"}", "{\"receipt-data\":\"*\"}", "[*]",
        "{\"verificationData\":*}", "{\"Store\":\"GooglePlay\",\"Payload\":\"*\"}", "{\"signedPayload\":\"*\"}",
    ].map { Array($0.utf8) }
    private static let replacements: [(UInt8, String)] = [
        (UInt8(ascii: "+"), " "), (UInt8(ascii: "/"), "\\/"), (UInt8(ascii: "/"), "_"), (UInt8(ascii: "+"), "%2B"),
        (UInt8(ascii: "%"), "%25"), (UInt8(ascii: "\""), "\\\""), (UInt8(ascii: "="), ""), (UInt8(ascii: "A"), "A\\n"),
    ]
    private static let proofTokens = [
        " ", "\t", "\r\n", "\\n", "\\u002b", "\\", "%", "%2B", "%252F", "=", "\"", "{", "}", "[", ".", ",", "\u{FEFF}",
        "\u{A0}", "\u{201C}", "-", "+", "é", "data:,", "null",
    ]

    private static let base64Tokens = [
        "=", "==", "===", "\r\n", "\n", "\0", "-", "_", "+", "/", " ", "é", "A", "AB", "{", "\"", ";", "}", "\\",
    ]
}

/// Mutates bytes without knowing what they are.
enum ByteMutator {
    static func mutate(_ bytes: [UInt8], with other: [UInt8], _ random: inout SplitMix64) -> [UInt8] {
        guard !bytes.isEmpty else { return other }
        var bytes = bytes
        let place = random.below(bytes.count)
        let length = min(bytes.count - place, 1 + random.below(random.oneIn(4) ? 400 : 16))
        switch random.below(10) {
        case 0, 1: bytes[place] ^= 1 << UInt8(random.below(8))
        case 2: bytes[place] = random.pick(edges)
        case 3: bytes.removeSubrange(place..<place + length)
        case 4: bytes.insert(contentsOf: bytes[place..<place + length], at: place)
        case 5: bytes.removeSubrange(place...)
        case 6: bytes.insert(contentsOf: (0..<length).map { _ in UInt8(truncatingIfNeeded: random.next()) }, at: place)
        case 7 where !other.isEmpty:
            let from = random.below(other.count)
            bytes.replaceSubrange(place..<place + length, with: other[from..<min(other.count, from + length)])
        case 8: bytes.insert(contentsOf: Array(repeating: random.pick(edges), count: length), at: place)
        default: bytes = Array(bytes[..<place]) + other.suffix(random.below(other.count + 1))
        }
        return bytes
    }

    private static let edges: [UInt8] = [0x00, 0x01, 0x7F, 0x80, 0x81, 0xC0, 0xED, 0xFE, 0xFF, 0x22, 0x2E, 0x30, 0x5C]
}

/// Mutates a JWS part by part: header and payload as JSON, certificates as BER, the signature as bytes.
enum JWSMutator {
    static func mutate(_ bytes: [UInt8], with other: [UInt8], _ random: inout SplitMix64) -> [UInt8] {
        let dot = UInt8(ascii: ".")
        var parts = bytes.split(separator: dot, omittingEmptySubsequences: false).map(Array.init)
        let others = other.split(separator: dot, omittingEmptySubsequences: false).map(Array.init)
        let index = random.below(parts.count)
        if random.oneIn(8) {
            parts[index] = random.pick(others)
        } else if random.oneIn(12) {
            parts.insert([], at: index)
        } else if let decoded = BaseText.url.decode(parts[index]) {
            let mutated =
                index == 2
                ? ByteMutator.mutate(decoded, with: random.pick(others), &random) : JSONMutator.mutate(decoded, &random)
            parts[index] = BaseText.url.encode(mutated)
        }
        return Array(parts.joined(separator: [dot]))
    }
}

/// Base64 without the strictness of the reader under test.
struct BaseText {
    static let standard = BaseText(isURL: false)
    static let url = BaseText(isURL: true)

    private let isURL: Bool

    func decode(_ text: [UInt8]) -> [UInt8]? {
        var text = text
        if isURL {
            text = text.map {
                $0 == UInt8(ascii: "-") ? UInt8(ascii: "+") : $0 == UInt8(ascii: "_") ? UInt8(ascii: "/") : $0
            }
            text += Array(repeating: UInt8(ascii: "="), count: (4 - text.count % 4) % 4)
        }
        return Data(base64Encoded: Data(text)).map { Array($0) }
    }

    func encode(_ bytes: [UInt8]) -> [UInt8] {
        let text = Array(Data(bytes).base64EncodedData())
        guard isURL else { return text }
        return text.filter { $0 != UInt8(ascii: "=") }.map {
            $0 == UInt8(ascii: "+") ? UInt8(ascii: "-") : $0 == UInt8(ascii: "/") ? UInt8(ascii: "_") : $0
        }
    }
}

extension SplitMix64 {
    mutating func below(_ limit: Int) -> Int { Int(next() % UInt64(max(limit, 1))) }
    mutating func oneIn(_ count: Int) -> Bool { below(count) == 0 }
    mutating func pick<Elements: RandomAccessCollection>(_ elements: Elements) -> Elements.Element
    where Elements.Index == Int {
        elements[elements.startIndex + below(elements.count)]
    }
}
