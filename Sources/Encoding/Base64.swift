/// Strict Base64: a value has one spelling, and any other spelling gives nil.
///
/// Source: RFC 4648 sections 4 and 5, and 3.5 (unused bits must be zero, or a signature would have several spellings).
public enum Base64 {
    /// base64url without padding, as RFC 7515 section 2 wants it.
    public static func decodeURL(_ text: ArraySlice<UInt8>) -> [UInt8]? {
        decode(text, alphabet: urlAlphabet)
    }

    /// Standard base64, padded to a multiple of four, as `x5c` wants it (RFC 7515 section 4.1.6).
    public static func decodeStandard(_ text: ArraySlice<UInt8>) -> [UInt8]? {
        guard text.count % 4 == 0 else { return nil }
        let padding = text.suffix(2).reversed().prefix { $0 == UInt8(ascii: "=") }.count
        return decode(text.dropLast(padding), alphabet: standardAlphabet)
    }

    private static func decode(_ text: ArraySlice<UInt8>, alphabet: [UInt8]) -> [UInt8]? {
        guard text.count % 4 != 1 else { return nil }
        var output: [UInt8] = []
        output.reserveCapacity(text.count * 3 / 4)
        var bits: UInt32 = 0
        var count = 0
        for byte in text {
            let sextet = alphabet[Int(byte)]
            guard sextet < 64 else { return nil }
            bits = bits << 6 | UInt32(sextet)
            count += 6
            if count >= 8 {
                count -= 8
                output.append(UInt8(truncatingIfNeeded: bits >> UInt32(count)))
            }
        }
        guard bits & ((1 << UInt32(count)) - 1) == 0 else { return nil }
        return output
    }

    private static let urlAlphabet = alphabet(UInt8(ascii: "-"), UInt8(ascii: "_"))
    private static let standardAlphabet = alphabet(UInt8(ascii: "+"), UInt8(ascii: "/"))

    /// The value of each byte; 255 where the byte has none.
    private static func alphabet(_ value62: UInt8, _ value63: UInt8) -> [UInt8] {
        var values = [UInt8](repeating: 255, count: 256)
        let letters = [UInt8](UInt8(ascii: "A")...UInt8(ascii: "Z")) + [UInt8](UInt8(ascii: "a")...UInt8(ascii: "z"))
        let digits = [UInt8](UInt8(ascii: "0")...UInt8(ascii: "9"))
        for (value, byte) in (letters + digits + [value62, value63]).enumerated() {
            values[Int(byte)] = UInt8(value)
        }
        return values
    }
}
