import Encoding
package import Foundation

/// Ids of orders. New ids are UUIDv7 (RFC 9562, 5.7): with the time in front, orders that are placed, bought and looked
/// up together lie together in every index, also among millions; 74 random bits keep ids from being guessed.
package enum OrderID {
    /// The id of the order that a text names: a UUID, or the former system's number, which may be any text.
    ///
    /// The import stores an order under this id, and a submission that names the order is read by it (S2-11). No order
    /// has the id of a token that names nobody (``AccountToken/isNone(_:)``).
    package static func named(_ text: String, of appID: String) -> UUID {
        if let id = UUID(uuidString: text), !AccountToken.isNone(id) { return id }
        return DerivedID.make([appID, "order", text])
    }

    package static func make(at now: Date) -> UUID {
        var bytes = UUID.random().uuid
        let milliseconds = UInt64(max(0, now.timeIntervalSince1970 * 1000))
        (bytes.0, bytes.1, bytes.2) = (
            UInt8(truncatingIfNeeded: milliseconds >> 40), UInt8(truncatingIfNeeded: milliseconds >> 32),
            UInt8(truncatingIfNeeded: milliseconds >> 24)
        )
        (bytes.3, bytes.4, bytes.5) = (
            UInt8(truncatingIfNeeded: milliseconds >> 16), UInt8(truncatingIfNeeded: milliseconds >> 8),
            UInt8(truncatingIfNeeded: milliseconds)
        )
        bytes.6 = bytes.6 & 0x0F | 0x70
        return UUID(uuid: bytes)
    }
}
