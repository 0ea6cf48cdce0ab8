/// The name of one record: the key under which a store keeps it. No two records of a device have the same key.
public struct RecordKey: Sendable, Hashable, CustomStringConvertible {
    /// Up to 100 bytes, so that a store may use them in hexadecimal digits as a file's name.
    public let text: String

    static let transactionPrefix = "transaction-"

    /// A key for a new purchase.
    ///
    /// Nil if the length is wrong, or if the text begins with `transaction-`.
    ///
    /// - Parameter text: 1 to 100 bytes that no other purchase of this device has, such as a UUID. The server gets them
    ///   as the order's `idempotencyKey`.
    public init?(_ text: String) {
        guard (1...100).contains(text.utf8.count), !text.hasPrefix(Self.transactionPrefix) else { return nil }
        self.text = text
    }

    /// The key of a transaction that came without a record.
    init(transaction: String) { text = Self.transactionPrefix + transaction }

    /// The key as a store wrote it.
    init(stored text: String) { self.text = text }

    /// The text.
    public var description: String { text }
}

/// The id of a user, as the app's login service names the user. Two ids are equal if their bytes are: `é` in one
/// character and `é` in two are two users.
public struct UserID: Sendable, Hashable, CustomStringConvertible {
    /// The id. Never empty.
    public let text: String

    /// A user's id; nil if the text is empty.
    public init?(_ text: String) {
        guard !text.isEmpty else { return nil }
        self.text = text
    }

    /// Whether the bytes are the same.
    public static func == (one: Self, other: Self) -> Bool { one.text.utf8.elementsEqual(other.text.utf8) }

    /// Feeds the bytes.
    public func hash(into hasher: inout Hasher) {
        for byte in text.utf8 { hasher.combine(byte) }
    }

    /// The text.
    public var description: String { text }
}

/// An `appAccountToken` that the server issued: an order's id, or the token of a user.
public struct AccountToken: Sendable, Hashable, CustomStringConvertible {
    /// The UUID in small letters.
    public let text: String

    /// A token; nil if the text is no UUID (8, 4, 4, 4 and 12 hexadecimal digits). StoreKit takes nothing else.
    public init?(_ text: String) {
        let parts = text.utf8.split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
        guard parts.map(\.count) == [8, 4, 4, 4, 12] else { return nil }
        var bytes: [UInt8] = []
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "-"), UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "a")...UInt8(ascii: "f"):
                bytes.append(byte)
            case UInt8(ascii: "A")...UInt8(ascii: "F"):
                bytes.append(byte | 0x20)
            default: return nil
            }
        }
        self.text = String(decoding: bytes, as: UTF8.self)
    }

    /// The UUID in small letters.
    public var description: String { text }
}
