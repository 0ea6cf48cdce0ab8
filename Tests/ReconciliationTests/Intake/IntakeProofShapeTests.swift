import Intake
import Testing

/// Goal: a proof is accepted only if all its letters are allowed (RFC 4648, section 5; RFC 7515, 7.1), wherever a wrong
/// one stands. Method: every byte at every place, in texts shorter and longer than the bytes that a processor compares
/// at once, against a list.
@Suite struct IntakeProofShapeTests {
    private static let letters = Set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.".utf8)

    @Test(arguments: [1, 15, 16, 33, 64, 100])
    func everyByteEverywhere(count: Int) {
        for byte in UInt8.min...UInt8.max {
            for place in 0..<count {
                var text = [UInt8](repeating: UInt8(ascii: "a"), count: count)
                text[place] = byte
                let isText = text.withUnsafeBufferPointer { ProofShape.isTokenText($0) }
                #expect(isText == Self.letters.contains(byte), "\(byte) at \(place) of \(count)")
            }
        }
    }

    @Test func nothingIsNoStranger() {
        #expect(ProofShape.isTokenText(UnsafeBufferPointer(start: nil, count: 0)))
    }
}
