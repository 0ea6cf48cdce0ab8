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
}
