package import Foundation

/// Random numbers that a failing test can repeat. SplitMix64 (Steele, Lea, Flood, 2014).
package struct SeededRandom: RandomNumberGenerator, Sendable {
    /// The start value. Every expectation should name it.
    package let seed: UInt64
    private var state: UInt64

    package init(seed: UInt64) {
        self.seed = seed
        state = seed
    }

    /// Begins with a random seed, or with `MAKEGOOD_TEST_SEED` to repeat a run; prints the seed beside the test's name.
    package init(announcing test: String) {
        let given = ProcessInfo.processInfo.environment["MAKEGOOD_TEST_SEED"].flatMap { UInt64($0) }
        self.init(seed: given ?? UInt64.random(in: 0 ... .max))
        print("\(test): seed \(seed)")
    }

    package mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var value = state
        value = (value ^ (value >> 30)) &* 0xBF58_476D_1CE4_E5B9
        value = (value ^ (value >> 27)) &* 0x94D0_49BB_1331_11EB
        return value ^ (value >> 31)
    }
}

extension SeededRandom {
    /// A UUID of any 128 bits, whatever version they claim.
    package mutating func uuid() -> UUID {
        withUnsafeBytes(of: (next(), next())) { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
    }

    /// Text with characters of all lengths in UTF-8, controls and combining marks included.
    ///
    /// - Parameter length: the number of characters.
    package mutating func text(_ length: ClosedRange<Int>) -> String {
        let ranges: [ClosedRange<UInt32>] = [
            0x20...0x7E, 0x01...0x1F, 0xA0...0x36F, 0x4E00...0x9FFF, 0x1F300...0x1F5FF,
        ]
        var text = ""
        for _ in 0..<Int.random(in: length, using: &self) {
            let range = ranges[Int.random(in: ranges.indices, using: &self)]
            if let scalar = Unicode.Scalar(UInt32.random(in: range, using: &self)) {
                text.unicodeScalars.append(scalar)
            }
        }
        return text
    }

    /// The bytes with some changed, inserted, removed or exchanged, or with the end cut off.
    package mutating func damage(_ bytes: [UInt8]) -> [UInt8] {
        var bytes = bytes
        for _ in 0...Int.random(in: 0...3, using: &self) where !bytes.isEmpty {
            let place = Int.random(in: bytes.indices, using: &self)
            switch Int.random(in: 0..<5, using: &self) {
            case 0: bytes[place] = UInt8.random(in: 0...255, using: &self)
            case 1: bytes.insert(UInt8.random(in: 0...255, using: &self), at: place)
            case 2: bytes.remove(at: place)
            case 3: bytes.swapAt(place, Int.random(in: bytes.indices, using: &self))
            default: bytes.removeLast(bytes.count - place)
            }
        }
        return bytes
    }
}
