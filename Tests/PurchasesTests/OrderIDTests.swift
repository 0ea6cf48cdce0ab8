import Foundation
import Testing

@testable import Purchases

/// Goal: an order's id is RFC 9562's version 7, in the order of time, and never the same twice. Method: known moments,
/// and many ids of one of them.
@Suite struct OrderIDTests {
    @Test func hasItsTimeInFrontAndItsVersion() {
        // The example of RFC 9562, A.6: 2022-02-22T19:22:22Z.
        let text = OrderID.make(at: Date(timeIntervalSince1970: 1_645_557_742)).uuidString
        #expect(text.hasPrefix("017F22E2-79B0-7"))
        #expect("89AB".contains(text[text.index(text.startIndex, offsetBy: 19)]))
        #expect(OrderID.make(at: .distantPast).uuidString.hasPrefix("00000000-0000-7"))
    }

    @Test func sortsByTimeAndIsNeverTheSame() {
        let start = Date(timeIntervalSince1970: 1_800_000_000)
        let inTurn = (0..<1000).map { OrderID.make(at: start + Double($0) / 1000 + 0.0001).uuidString }
        #expect(inTurn == inTurn.sorted())
        #expect(Set((0..<10_000).map { _ in OrderID.make(at: start) }).count == 10_000)
    }

    @Test("S3-69: a purchase has one number in its app, and a number of Apple's leads back to its purchase")
    func purchases() {
        for id in ["0", "1", "2000000123456789", "1152921504606846975"] {
            let number = OrderID.ofPurchase(id, of: "game")
            #expect(OrderID.ofPurchase(id, of: "game") == number && OrderID.ofPurchase(id, of: "other") != number)
            #expect(OrderID.purchase(numbered: number) == id, "\(id)")
            let text = number.uuidString
            #expect(text[text.index(text.startIndex, offsetBy: 14)] == "8", "RFC 9562, 5.8")
            #expect("89AB".contains(text[text.index(text.startIndex, offsetBy: 19)]))
        }
        // Other ids have a number too, which leads to no purchase.
        for id in ["", "t1", "007", "+7", "1152921504606846976", "99999999999999999999"] {
            let number = OrderID.ofPurchase(id, of: "game")
            let found = OrderID.purchase(numbered: number)
            #expect(found.map { OrderID.ofPurchase($0, of: "game") } != number, "\(id)")
        }
        #expect(OrderID.purchase(numbered: OrderID.make(at: Date(timeIntervalSince1970: 1_800_000_000))) == nil)
    }
}
