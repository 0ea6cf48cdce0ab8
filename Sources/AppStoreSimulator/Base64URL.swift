import Foundation

/// Base64 with the alphabet of RFC 4648 section 5, without padding, as JWS wants it (RFC 7515 section 2).
enum Base64URL {
    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    static func encode(_ bytes: [UInt8]) -> [UInt8] {
        var result: [UInt8] = []
        result.reserveCapacity((bytes.count * 4 + 2) / 3)
        var index = 0
        while index + 2 < bytes.count {
            let group = UInt32(bytes[index]) << 16 | UInt32(bytes[index + 1]) << 8 | UInt32(bytes[index + 2])
            result.append(alphabet[Int(group >> 18)])
            result.append(alphabet[Int(group >> 12 & 63)])
            result.append(alphabet[Int(group >> 6 & 63)])
            result.append(alphabet[Int(group & 63)])
            index += 3
        }
        if index + 1 == bytes.count {
            result.append(alphabet[Int(bytes[index] >> 2)])
            result.append(alphabet[Int(bytes[index] << 4 & 63)])
        } else if index + 2 == bytes.count {
            let group = UInt32(bytes[index]) << 8 | UInt32(bytes[index + 1])
            result.append(alphabet[Int(group >> 10)])
            result.append(alphabet[Int(group >> 4 & 63)])
            result.append(alphabet[Int(group << 2 & 63)])
        }
        return result
    }

    /// Nil for padding or any character outside the alphabet.
    static func decode(_ text: Substring) -> Data? {
        guard text.utf8.allSatisfy(alphabet.contains) else { return nil }
        var standard = text.replacing("-", with: "+").replacing("_", with: "/")
        standard += String(repeating: "=", count: (4 - standard.utf8.count % 4) % 4)
        return Data(base64Encoded: String(standard))
    }
}
