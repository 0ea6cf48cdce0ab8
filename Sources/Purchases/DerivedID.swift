import Crypto
package import Foundation

/// Ids that follow from what they name, so that doing a thing again is the same thing.
package enum DerivedID {
    /// UUIDv8 (RFC 9562, 5.8) from the first 16 bytes of the parts' digest: no two lists of parts read alike.
    package static func make(_ parts: [String]) -> UUID {
        var bytes = Array(digest(parts).prefix(16))
        bytes[6] = (bytes[6] & 0x0F) | 0x80
        bytes[8] = (bytes[8] & 0x3F) | 0x80
        return bytes.withUnsafeBytes { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
    }

    /// SHA-256 over the parts, each with its length before it (UTF-8 bytes, 8 bytes big-endian): 32 bytes.
    package static func digest(_ parts: [String]) -> [UInt8] {
        var bytes: [UInt8] = []
        bytes.reserveCapacity(parts.reduce(0) { $0 + 8 + $1.utf8.count })
        for part in parts {
            withUnsafeBytes(of: UInt64(part.utf8.count).bigEndian) { bytes.append(contentsOf: $0) }
            bytes.append(contentsOf: part.utf8)
        }
        return Array(SHA256.hash(data: bytes))
    }

    /// The id of an event: a grant made again after a restored backup is the same event.
    package static func event(appID: String, transactionID: String, type: String, revokedAt: Date? = nil) -> UUID {
        // Rounded: a date that went through the database's microseconds is the same millisecond.
        let revoked = revokedAt.map { String(Int64(($0.timeIntervalSince1970 * 1000).rounded())) }
        return make([appID, transactionID, type, revoked ?? ""])
    }
}
