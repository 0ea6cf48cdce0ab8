/// What one user may take of what all users share (`limits.user`). An answer that refuses more names the limit.
///
/// Each process counts for itself, so three ingest processes allow three times as much. These limits keep one user from
/// delaying others, and give or refuse nothing for good. A limit that must be exact is a place in the database
/// (`limit_places`).
package struct UserLimits: Sendable, Equatable {
    /// Requests; a batch counts as many as it has entries.
    package var rate = Rate(perSecond: 10, burst: 400)
    /// New receipts in a day of UTC. A post of what is stored already passes.
    package var receiptsPerDay = 2000
    /// Bytes of bodies in a day of UTC, as they came or inflated, whichever is more: 32 of the largest.
    package var bytesPerDay = 256 << 20
    /// Receipts without a verdict at one time.
    package var openReceipts = 1000
    /// Lines that one receipt keeps, the first post's among them; exact.
    package var lines = 16

    package init() {}

    /// Reads the limits. Absent members keep their defaults.
    ///
    /// - Throws: for an unknown member, and for a burst below the largest batch, which could then never be taken.
    static func read(_ root: inout ConfigurationReader) throws(ConfigurationError) -> UserLimits {
        var limits = UserLimits()
        guard var section = try root.section("limits") else { return limits }
        if var user = try section.section("user") {
            if let rate = try Rate.read(&user) {
                guard rate.burst >= FieldBounds.batchEntriesMax else {
                    throw user.error("rate", "must have a burst of \(FieldBounds.batchEntriesMax) at least, a batch's")
                }
                limits.rate = rate
            }
            limits.receiptsPerDay = try user.integer("receiptsPerDay", in: 1...1_000_000_000) ?? limits.receiptsPerDay
            limits.bytesPerDay = try user.integer("bytesPerDay", in: 1 << 20...Int.max) ?? limits.bytesPerDay
            limits.openReceipts = try user.integer("openReceipts", in: 1...1_000_000_000) ?? limits.openReceipts
            limits.lines = try user.integer("lines", in: 1...1000) ?? limits.lines
            try user.finish()
        }
        try section.finish()
        return limits
    }
}
