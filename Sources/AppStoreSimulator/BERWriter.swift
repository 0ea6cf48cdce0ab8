/// Writes DER, or, for receipts in Xcode's manner, BER: indefinite lengths, and octet strings in segments.
///
/// By hand, because SwiftASN1 writes DER alone.
struct BERWriter: Sendable {
    let isIndefinite: Bool

    static let der = BERWriter(isIndefinite: false)

    /// Octets in one segment of an octet string; short, so that there are several.
    private static let segmentMax = 512

    /// `contents` below an identifier octet; indefinite only where that octet says constructed.
    func element(_ tag: UInt8, _ contents: [UInt8]...) -> [UInt8] {
        element(tag, contents)
    }

    func element(_ tag: UInt8, _ contents: [[UInt8]]) -> [UInt8] {
        let joined = Array(contents.joined())
        if isIndefinite && tag & 0x20 != 0 { return [tag, 0x80] + joined + [0, 0] }
        return [tag] + Self.length(joined.count) + joined
    }

    func octetString(_ octets: [UInt8]) -> [UInt8] {
        guard isIndefinite else { return element(0x04, octets) }
        let segments = stride(from: 0, to: octets.count, by: Self.segmentMax)
            .map { element(0x04, Array(octets[$0..<min($0 + Self.segmentMax, octets.count)])) }
        return element(0x24, segments)
    }

    func integer(_ value: Int64) -> [UInt8] {
        var bytes = withUnsafeBytes(of: value.bigEndian) { Array($0) }
        // As few octets as keep the sign.
        while bytes.count > 1, bytes[0] == 0 && bytes[1] < 0x80 || bytes[0] == 0xFF && bytes[1] >= 0x80 {
            bytes.removeFirst()
        }
        return element(0x02, bytes)
    }

    func utf8String(_ text: String) -> [UInt8] { element(0x0C, Array(text.utf8)) }

    func ia5String(_ text: String) -> [UInt8] { element(0x16, Array(text.utf8)) }

    private static func length(_ count: Int) -> [UInt8] {
        guard count >= 0x80 else { return [UInt8(count)] }
        let bytes = withUnsafeBytes(of: count.bigEndian) { Array($0.drop { $0 == 0 }) }
        return [0x80 | UInt8(bytes.count)] + bytes
    }
}
