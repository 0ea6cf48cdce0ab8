import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: a pointer is read from the wire as it was written, and every other text is a dead letter.
@Suite struct PointerTests {
    private static let uuid = "0190163d-8694-739b-aea5-966c26f8ad91"

    private static func parse(_ text: String) -> Pointer? { Pointer(Array(text.utf8)) }

    private static func make(_ kind: Pointer.Kind, _ id: UUID, _ attempt: Int) -> Pointer {
        switch kind {
        case .receipt: Pointer(receiptID: id, attempt: attempt)
        case .notification: Pointer(notificationID: id, attempt: attempt)
        case .endpoint: Pointer(endpointID: id)
        }
    }

    @Test("parses exactly its own text", arguments: Pointer.Kind.allCases)
    func parses(kind: Pointer.Kind) throws {
        let attempt = kind == .endpoint ? 0 : 7
        let text = "\(kind.rawValue) \(Self.uuid) \(attempt)"
        let pointer = try #require(Self.parse(text))
        #expect(pointer.kind == kind)
        #expect(pointer.id == UUID(uuidString: Self.uuid))
        #expect(pointer.receiptID == (kind == .receipt ? pointer.id : nil))
        #expect(pointer.attempt == attempt)
        #expect(pointer.text == text)
        #expect(pointer == Self.make(kind, pointer.id, attempt))
        #expect(Pointer(receiptID: pointer.id, attempt: 7) != Pointer(notificationID: pointer.id, attempt: 7))
    }

    @Test(
        "everything else is a dead letter",
        arguments: [
            "", " ", "receipt", "receipt \(uuid)", "receipt \(uuid) ", "receipt  \(uuid) 1", " receipt \(uuid) 1",
            "receipt \(uuid) 1 ", "receipt \(uuid) 1\n", "receipt \(uuid) 1 2", "receipt\t\(uuid)\t1",
            "Notification \(uuid) 1", "notifications \(uuid) 1", "notification \(uuid)", "notification \(uuid) 01",
            "endpoint \(uuid) 1", "endpoint \(uuid) 00", "endpoint \(uuid)", "Endpoint \(uuid) 0",
            "endpoints \(uuid) 0",
            "receiptnotification \(uuid) 1", "notice \(uuid) 1", "\(uuid) 1", " \(uuid) 1", "Receipt \(uuid) 1",
            "receipt \(uuid) -1", "receipt \(uuid) +1",
            "receipt \(uuid) 01", "receipt \(uuid) -0", "receipt \(uuid) 1.0", "receipt \(uuid) 0x1",
            "receipt \(uuid) a",
            "receipt \(uuid) ١", "receipt \(uuid) 99999999999999999999", "receipt \(uuid.uppercased()) 1",
            "receipt {\(uuid)} 1", "receipt \(uuid.dropLast()) 1", "receipt \(uuid.dropLast())g 1",
            "receipt \(uuid.replacing("-", with: "")) 1", "receipt \(uuid) 1\u{0}", "{\"receipt\":\"\(uuid)\"}",
            "receipt \(uuid) \(String(repeating: "0", count: 30))1",
        ])
    func garbage(text: String) {
        #expect(Self.parse(text) == nil)
    }

    @Test("at most 69 bytes", arguments: Pointer.Kind.allCases)
    func length(kind: Pointer.Kind) throws {
        let longest = Self.make(kind, try #require(UUID(uuidString: Self.uuid)), .max)
        #expect(longest.text.utf8.count <= Pointer.bytesMax)
        #expect(Pointer(Array(longest.text.utf8)) == longest)
        #expect(Self.parse(String(repeating: "r", count: 1 << 20)) == nil)
    }

    @Test("round trip", arguments: [1, 2, 3] as [UInt64])
    func roundTrip(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        for _ in 0..<2000 {
            let pointer = Self.make(
                Pointer.Kind.allCases.randomElement(using: &random) ?? .receipt, random.uuid(),
                Int.random(in: 0...Int(Int32.max), using: &random))
            #expect(Pointer(Array(pointer.text.utf8)) == pointer, "seed \(seed)")
        }
    }

    @Test("whatever bytes parse are the bytes of the pointer they name", arguments: [4, 5, 6] as [UInt64])
    func mutations(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let originals = Pointer.Kind.allCases.map {
            Array("\($0.rawValue) \(Self.uuid) \($0 == .endpoint ? 0 : 12)".utf8)
        }
        var parsed = 0
        var wrong: [String] = []
        for index in 0..<20_000 {
            var bytes = originals[index % originals.count]
            for _ in 0..<Int.random(in: 1...3, using: &random) {
                let index = Int.random(in: bytes.indices, using: &random)
                switch Int.random(in: 0...3, using: &random) {
                case 0: bytes[index] = UInt8.random(in: .min ... .max, using: &random)
                case 1: bytes.remove(at: index)
                case 2: bytes.insert(UInt8(ascii: "0"), at: index)
                default: bytes[index] ^= 0x20
                }
            }
            guard let pointer = Pointer(bytes) else { continue }
            parsed += 1
            if Array(pointer.text.utf8) != bytes { wrong.append(String(decoding: bytes, as: UTF8.self)) }
        }
        #expect(wrong == [], "seed \(seed)")
        #expect(parsed > 0, "no mutation was harmless: the property was not tried")
    }
}
