import Encoding
import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: ids are written and read in the usual form. Method: random ids beside Foundation's own, and texts with one
/// fault each.
@Suite struct UUIDTextTests {
    @Test("the text is Foundation's in lower case, and reads as the same id", arguments: [1, 2] as [UInt64])
    func asFoundation(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        for _ in 0..<2000 {
            let id = random.uuid()
            #expect(id.text == id.uuidString.lowercased(), "seed \(seed)")
            #expect(UUID(text: Array(id.text.utf8)[...]) == id, "seed \(seed)")
        }
    }

    @Test("one byte that does not belong, one too few, one too many: nil")
    func faults() {
        let text = Array("0190163d-8694-739b-aea5-966c26f8ad91".utf8)
        let digits = Set("0123456789abcdef".utf8)
        for index in text.indices {
            for byte in UInt8.min...UInt8.max {
                var changed = text
                changed[index] = byte
                let isDash = text[index] == UInt8(ascii: "-")
                let isValid = isDash ? byte == text[index] : digits.contains(byte)
                #expect((UUID(text: changed[...]) != nil) == isValid, "\(index) \(byte)")
            }
        }
        #expect(UUID(text: text.dropLast()) == nil && UUID(text: (text + [UInt8(ascii: "0")])[...]) == nil)
        #expect(UUID(text: []) == nil)
    }
}
