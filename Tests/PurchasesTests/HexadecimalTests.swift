import Encoding
import Foundation
import Purchases
import Testing

/// Goal: bytes read as PostgreSQL's `encode(…, 'hex')` writes them. Method: every byte, against Foundation's format.
@Suite struct HexadecimalTests {
    @Test func everyByte() {
        let bytes = (UInt8.min...UInt8.max).map { $0 }
        #expect(bytes.hexadecimal == bytes.map { String(format: "%02x", $0) }.joined())
        #expect([UInt8]().hexadecimal.isEmpty)
    }
}
