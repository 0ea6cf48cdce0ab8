/// The bounds of values that clients, files and the configuration contain, the same for all three.
package enum FieldBounds {
    /// UTF-8 bytes of a user's id.
    package static let userBytesMax = 256
    /// UTF-8 bytes of a product's, an item's or a promotion's id.
    package static let itemBytesMax = 256
    /// UTF-8 bytes of an order's id.
    package static let orderBytesMax = 128
    /// Thousandths of a currency's unit; below 2^53, so that every reader of JSON takes it as it is.
    package static let priceMax = 1_000_000_000_000_000
    /// Receipts of one batch.
    package static let batchEntriesMax = 200
}
