import Crypto
package import Foundation

/// Ids that are computed from what they name, so that a repeated action gets the same id.
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

    /// The id of the first event of a type that a purchase has: an action that is repeated after a restored backup
    /// gives the same event.
    ///
    /// The id of `purchase.granted` never changes, or goods would be handed out twice. The id of `purchase.revoked`
    /// once held the refund's date, where there was one; Apple corrects that date, and a refund is told once. The owner
    /// is no part of either id: a purchase is given to one user, and a merge or an erasure changes the user's name.
    ///
    /// - Parameter distinction: the user, the receipt or the decision, where a purchase may have several events of a
    ///   type.
    package static func event(
        appID: String, transactionID: String, type: EventType, distinction: String = ""
    ) -> UUID {
        make([appID, transactionID, type.rawValue + distinction, ""])
    }
}
