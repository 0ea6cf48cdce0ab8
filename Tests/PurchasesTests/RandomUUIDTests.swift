import Encoding
import Foundation
import Testing

@testable import Purchases

/// Goal: a random id is RFC 9562's version 4, and none of its other bits is fixed. Method: every bit of many ids, and
/// no id comes twice.
@Suite struct RandomUUIDTests {
    @Test func isOfVersion4AndOtherwiseRandom() {
        let ids = (0..<10_000).map { _ in UUID.random() }
        #expect(Set(ids).count == ids.count)
        let all = ids.map { id in withUnsafeBytes(of: id.uuid, Array.init) }
        let ever = (0..<16).map { place in all.reduce(0) { $0 | $1[place] } }
        let always = (0..<16).map { place in all.reduce(0xFF) { $0 & $1[place] } }
        #expect(ever == (0..<16).map { $0 == 6 ? 0x4F : $0 == 8 ? 0xBF : 0xFF })
        #expect(always == (0..<16).map { $0 == 6 ? 0x40 : $0 == 8 ? 0x80 : 0x00 })
    }

    /// The bits of version and variant are overwritten, whatever they held.
    @Test(
        arguments: [
            (4, 0, 0, "00000000-0000-4000-8000-000000000000"), (8, 0, 1, "00000000-0000-8000-8000-000000000001"),
            (8, .max, .max, "ffffffff-ffff-8fff-bfff-ffffffffffff"),
        ] as [(UInt64, UInt64, UInt64, String)])
    func versionAndVariantAreWrittenOver(version: UInt64, high: UInt64, low: UInt64, text: String) {
        #expect(UUID(version: version, high: high, low: low).text == text)
    }
}
