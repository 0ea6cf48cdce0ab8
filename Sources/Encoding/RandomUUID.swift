public import Foundation

extension UUID {
    /// Version 4 (RFC 9562, 5.4), from the kernel's generator. `UUID()` opens a file for each one.
    public static func random() -> UUID {
        var generator = SystemRandomNumberGenerator()
        return UUID(version: 4, high: generator.next(), low: generator.next())
    }

    /// Made from two halves; version and variant overwrite their six bits (RFC 9562, 4.1 and 4.2).
    public init(version: UInt64, high: UInt64, low: UInt64) {
        let high = high & ~0xF000 | version << 12
        let low = low & ~(0b11 << 62) | 0b10 << 62
        self = withUnsafeBytes(of: (high.bigEndian, low.bigEndian)) { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
    }
}
