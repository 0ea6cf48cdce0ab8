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

    /// The order number of a purchase that was given without an order (S3-69): always the same for the purchase, and no
    /// row holds it. A UUIDv8 (RFC 9562, 5.8). Apple's ids are numbers; if an id is a number below 2^60, it stands in the
    /// first 60 bits beside the version, and the rest is a digest of app and purchase.
    package static func ofPurchase(_ transactionID: String, of appID: String) -> UUID {
        var bytes = withUnsafeBytes(of: DerivedID.make([appID, "purchase", transactionID]).uuid) { Array($0) }
        if let number = number(transactionID) {
            for place in 0..<6 { bytes[place] = UInt8(truncatingIfNeeded: number >> UInt64(52 - 8 * place)) }
            bytes[6] = 0x80 | UInt8(truncatingIfNeeded: number >> 8) & 0x0F
            bytes[7] = UInt8(truncatingIfNeeded: number)
        }
        return bytes.withUnsafeBytes { UUID(uuid: $0.loadUnaligned(as: uuid_t.self)) }
    }

    /// The purchase whose number in the app this may be, to be checked by ``ofPurchase(_:of:)``. Nil: no UUIDv8. The
    /// number of a purchase whose id is no number leads nowhere.
    package static func purchase(numbered number: UUID) -> String? {
        let bytes = withUnsafeBytes(of: number.uuid) { Array($0) }
        guard bytes[6] & 0xF0 == 0x80 else { return nil }
        let high = bytes[0..<6].reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        return String(high << 12 | UInt64(bytes[6] & 0x0F) << 8 | UInt64(bytes[7]))
    }

    /// Nil for anything but the digits of a number below 2^60 as the number is written.
    private static func number(_ text: String) -> UInt64? {
        guard let number = UInt64(text), number < 1 << 60, String(number).isSameText(as: text) else { return nil }
        return number
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
