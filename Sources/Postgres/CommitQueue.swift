internal import DequeModule

/// The decisions of a group commit, without side effects: what is queued, where a batch is cut, and what becomes of a
/// batch that failed. The caller passes in time and chance.
struct CommitQueue<Item: Sendable>: Sendable {
    /// The bounds, in rows and in bytes; see `GroupCommit.Limits`.
    struct Limits: Sendable {
        var batchRows: Int
        var batchBytes: Int
        var queueRows: Int
        var queueBytes: Int
    }

    struct Entry: Sendable {
        let id: UInt64
        let item: Item
        let rows: Int
        let bytes: Int
    }

    /// Items that are flushed together.
    struct Batch: Sendable {
        var entries: [Entry]
        /// How often the same entries were flushed together and failed with no item to blame.
        var tries = 0
        /// The time of the first failure plus `retryTime`; nil until the batch fails. The pieces of a split batch
        /// inherit it, except after a data error.
        var deadline: ContinuousClock.Instant?
        var notBefore: ContinuousClock.Instant?
        /// The error of the last failure.
        var error: PostgresError?
    }

    enum Step {
        case flush(Batch)
        /// Time is up: these entries fail with this error, and are not tried again.
        case giveUp([Entry], PostgresError)
        /// Nothing to do before this instant.
        case sleep(until: ContinuousClock.Instant)
        case idle
    }

    /// The entries that a failed batch gives back; if there are none, the batch is tried again.
    struct GivenBack {
        var failed: [Entry] = []
        var isPoison = false
    }

    /// The most tries of one batch in which no item is to blame.
    static var triesMax: Int { 8 }
    /// How long a batch is retried or split after its first failure.
    static var retryTime: Duration { .seconds(10) }
    /// Full jitter between 0 and 50 ms, 100 ms, … 2 s.
    static var backoff: (first: Duration, most: Duration) { (.milliseconds(50), .seconds(2)) }

    /// The number of waiting items that makes a crowd.
    static var crowd: Int { 128 }

    let limits: Limits
    private var waiting: Deque<Entry> = []
    private var waitingRows = 0
    private var waitingBytes = 0
    /// Batches that failed and are tried again, before anything new.
    private var again: Deque<Batch> = []
    /// Rows, bytes and number of the items not answered yet: waiting, flushed now, or to be tried again.
    private(set) var heldRows = 0
    private(set) var heldBytes = 0
    private(set) var heldItems = 0
    private var lastID: UInt64 = 0

    init(_ limits: Limits) {
        self.limits = limits
    }

    var isEmpty: Bool { heldItems == 0 }
    /// How many items were in no flush so far.
    var waitingItems: Int { waiting.count }
    /// Whether an item is in no flush at the moment: it waits for its first flush, or to be tried again.
    var hasUnflushed: Bool { !waiting.isEmpty || !again.isEmpty }
    /// Whether a failed batch is to be tried again.
    var goesAgain: Bool { !again.isEmpty }
    /// Whether more items wait than one writer should take alone.
    var isCrowded: Bool {
        waiting.count >= Self.crowd || waitingRows >= limits.batchRows || waitingBytes >= limits.batchBytes
    }

    /// - Returns: the entry's id; nil if the queue is full.
    mutating func add(_ item: Item, rows: Int, bytes: Int) -> UInt64? {
        precondition(rows >= 0 && bytes >= 0)
        guard rows <= limits.queueRows - heldRows, bytes <= limits.queueBytes - heldBytes,
            heldItems < limits.queueRows  // items of no rows have a bound too
        else { return nil }
        lastID += 1
        heldItems += 1
        heldRows += rows
        heldBytes += bytes
        waitingRows += rows
        waitingBytes += bytes
        waiting.append(Entry(id: lastID, item: item, rows: rows, bytes: bytes))
        return lastID
    }

    mutating func next(at now: ContinuousClock.Instant) -> Step {
        if let index = again.firstIndex(where: { $0.deadline.map { $0 <= now } ?? false }) {
            let batch = again.remove(at: index)
            release(batch.entries)
            return .giveUp(batch.entries, batch.error ?? .unavailable)
        }
        if let index = again.firstIndex(where: { $0.notBefore.map { $0 <= now } ?? true }) {
            return .flush(again.remove(at: index))
        }
        if let batch = cut() { return .flush(batch) }
        // A batch in `again` is due at the end of its backoff or at its deadline, whichever comes first.
        return again.compactMap { [$0.notBefore, $0.deadline].compactMap(\.self).min() }.min()
            .map { .sleep(until: $0) } ?? .idle
    }

    mutating func succeeded(_ batch: Batch) {
        release(batch.entries)
    }

    /// - Parameter jitter: 0 to 1, the part of the backoff that the batch waits.
    mutating func failed(
        _ batch: Batch, _ error: PostgresError, at now: ContinuousClock.Instant, jitter: Double
    ) -> GivenBack {
        let deadline = batch.deadline ?? now + Self.retryTime
        switch error.advice {
        case .retrySame:
            guard batch.tries + 1 < Self.triesMax, now < deadline else { return give(batch, isPoison: false) }
            let backoff = min(Self.backoff.most, Self.backoff.first * (1 << min(batch.tries, 16)))
            again.append(
                Batch(
                    entries: batch.entries, tries: batch.tries + 1, deadline: deadline,
                    notBefore: now + backoff * jitter, error: error))
            return GivenBack()
        case .bisect:
            let isData = if case .data = error { true } else { false }
            guard batch.entries.count > 1, isData || now < deadline else { return give(batch, isPoison: isData) }
            // Halves cost least. After a time-out each piece that holds the item to blame costs a whole time-out, and
            // the other pieces nearly nothing: eight pieces need three rounds for 512 items, halves nine.
            let pieces = Self.pieces(batch.entries, isData ? 2 : 8)
            for piece in pieces.reversed() {
                // Data errors come at once, and the splitting ends because the pieces get smaller. A deadline would
                // fail innocent items.
                again.prepend(Batch(entries: piece, deadline: isData ? nil : deadline, error: error))
            }
            return GivenBack()
        case .refuse, .stop:
            return give(batch, isPoison: false)
        }
    }

    private mutating func give(_ batch: Batch, isPoison: Bool) -> GivenBack {
        release(batch.entries)
        return GivenBack(failed: batch.entries, isPoison: isPoison)
    }

    /// Cuts a batch off the waiting items, up to the bounds; an item larger than a whole batch goes alone.
    private mutating func cut() -> Batch? {
        var entries: [Entry] = []
        var (rows, bytes) = (0, 0)
        while let entry = waiting.first {
            let fits =
                entry.rows <= limits.batchRows - rows && entry.bytes <= limits.batchBytes - bytes
                && entries.count < limits.batchRows
            guard entries.isEmpty || fits else { break }
            entries.append(waiting.removeFirst())
            rows += entry.rows
            bytes += entry.bytes
        }
        waitingRows -= rows
        waitingBytes -= bytes
        return entries.isEmpty ? nil : Batch(entries: entries)
    }

    private mutating func release(_ entries: [Entry]) {
        for entry in entries {
            heldItems -= 1
            heldRows -= entry.rows
            heldBytes -= entry.bytes
        }
    }

    /// Non-empty pieces of nearly equal size, in order.
    private static func pieces(_ entries: [Entry], _ count: Int) -> [[Entry]] {
        let count = min(count, entries.count)
        return (0..<count).map { piece in
            Array(entries[entries.count * piece / count..<entries.count * (piece + 1) / count])
        }
    }
}
