package import Foundation

extension UUID {
    /// Version 4 (RFC 9562, 5.4), from the kernel's generator. `UUID()` opens a file for each one.
    package static func random() -> UUID {
        var generator = SystemRandomNumberGenerator()
        let high: UInt64 = generator.next() & ~0xF000 | 0x4000
        let low: UInt64 = generator.next() & ~(0b11 << 62) | 0b10 << 62
        return withUnsafeBytes(of: (high.bigEndian, low.bigEndian)) { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
    }
}
