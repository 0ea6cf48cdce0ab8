import TestRandom
import Testing

@testable import Postgres

/// Goal: in whatever order items arrive, succeed and fail, every item is answered exactly once, within its bounds, with
/// an answer that fits what happened to it. Method: the pure queue under a seeded random script, with a clock that the
/// test sets, beside a model that only counts; then each special case.
@Suite struct CommitQueueTests {
    private typealias Queue = CommitQueue<Int>
    private static let data = PostgresError.data(sqlState: "22003", statement: "t")

    /// A hundred seeds that are always the same, and a hundred others from a random seed that is printed.
    private static let seeds: [UInt64] = {
        let first = SeededRandom(announcing: "commit queue").seed
        return Array(1...100) + (0..<100).map { first &+ $0 }
    }()

    @Test(arguments: seeds) func randomScript(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let limits = Queue.Limits(
            batchRows: .random(in: 1...20, using: &random), batchBytes: .random(in: 1...2_000, using: &random),
            queueRows: .random(in: 1...200, using: &random), queueBytes: .random(in: 1...5_000, using: &random))
        let writers = Int.random(in: 1...3, using: &random)
        var queue = Queue(limits)
        var now = ContinuousClock.now
        var held: [UInt64: (rows: Int, bytes: Int)] = [:]
        var isToBlame: Set<UInt64> = []
        var isSlow: Set<UInt64> = []
        var firstFailure: [UInt64: ContinuousClock.Instant] = [:]
        var flying: [Queue.Batch] = []
        var (lastFresh, refused, poisoned): (UInt64, Int, Int) = (0, 0, 0)

        func answered(_ entries: [Queue.Entry]) {
            for entry in entries {
                #expect(held.removeValue(forKey: entry.id) != nil, "answered twice, seed \(seed)")
                if let first = firstFailure[entry.id] {
                    // The item's own retry time, the one of its pieces, and the jumps of the clock during flushes.
                    #expect(first.duration(to: now) < .seconds(120), "answered too late, seed \(seed)")
                }
            }
        }
        func check() {
            #expect(queue.heldItems == held.count)
            #expect(queue.heldRows == held.values.reduce(0) { $0 + $1.rows })
            #expect(queue.heldBytes == held.values.reduce(0) { $0 + $1.bytes })
            #expect(queue.heldRows <= limits.queueRows && queue.heldBytes <= limits.queueBytes)
        }
        func finish(_ batch: Queue.Batch, healthy: Bool) {
            let chance = healthy ? 1 : Double.random(in: 0...1, using: &random)
            let error: PostgresError? =
                if batch.entries.contains(where: { isToBlame.contains($0.id) }) {
                    Self.data
                } else if batch.entries.contains(where: { isSlow.contains($0.id) }) {
                    .timedOut(.lock)
                } else if chance < 0.1 { .lost } else if chance < 0.2 { .serialization } else if chance < 0.25 {
                    .unavailable
                } else if chance < 0.3 { .timedOut(.statement) } else { nil }
            guard let error else {
                queue.succeeded(batch)
                return answered(batch.entries)
            }
            for entry in batch.entries where firstFailure[entry.id] == nil { firstFailure[entry.id] = now }
            let verdict = queue.failed(batch, error, at: now, jitter: .random(in: 0...1, using: &random))
            if verdict.isPoison {
                #expect(verdict.failed.count == 1 && verdict.failed.allSatisfy { isToBlame.contains($0.id) })
                poisoned += 1
            }
            if error == Self.data { #expect(verdict.failed.isEmpty || verdict.isPoison) }
            answered(verdict.failed)
        }
        func step() -> ContinuousClock.Instant? {
            switch queue.next(at: now) {
            case .flush(let batch):
                #expect(!batch.entries.isEmpty)
                let (rows, bytes) = batch.entries.reduce((0, 0)) { ($0.0 + $1.rows, $0.1 + $1.bytes) }
                #expect(
                    batch.entries.count == 1
                        || rows <= limits.batchRows && bytes <= limits.batchBytes
                            && batch.entries.count <= limits.batchRows
                )
                #expect(batch.entries.map(\.id) == batch.entries.map(\.id).sorted())
                if batch.error == nil {
                    #expect(batch.entries[0].id > lastFresh, "first come, first cut")
                    lastFresh = batch.entries.last!.id
                }
                flying.append(batch)
            case .giveUp(let entries, let error):
                #expect(error != Self.data, "an innocent item fails for a data error, seed \(seed)")
                #expect(!entries.isEmpty)
                answered(entries)
            case .sleep(let instant):
                #expect(instant > now)
                return instant
            case .idle:
                #expect(held.count == flying.reduce(0) { $0 + $1.entries.count })
                return .now + .seconds(1_000_000)
            }
            return nil
        }

        for _ in 0..<1_500 {
            switch Int.random(in: 0..<10, using: &random) {
            case 0..<5:
                let rows = Int.random(in: 0...5, using: &random), bytes = Int.random(in: 0...300, using: &random)
                if let id = queue.add(0, rows: rows, bytes: bytes) {
                    held[id] = (rows, bytes)
                    let chance = Double.random(in: 0...1, using: &random)
                    if chance < 0.02 { isToBlame.insert(id) } else if chance < 0.03 { isSlow.insert(id) }
                } else {
                    refused += 1
                    #expect(
                        queue.heldRows + rows > limits.queueRows || queue.heldBytes + bytes > limits.queueBytes
                            || held.count >= limits.queueRows, "refused without need, seed \(seed)")
                }
            case 5..<7: if flying.count < writers { _ = step() }
            case 7..<9:
                if let index = flying.indices.randomElement(using: &random) {
                    finish(flying.remove(at: index), healthy: false)
                }
            default: now += .milliseconds(.random(in: 0...400, using: &random))
            }
            check()
        }
        // Then the database recovers: every item must be answered.
        for _ in 0..<100_000 where !held.isEmpty {
            if let batch = flying.popLast() {
                finish(batch, healthy: true)
            } else if let until = step() {
                now = until
            }
            check()
        }
        #expect(held.isEmpty && queue.isEmpty)
        #expect(queue.heldRows == 0 && queue.heldBytes == 0)
    }

    /// For every size of batch and every place of the item to blame: that item alone is refused, and the rest commits.
    @Test(arguments: [1, 2, 3, 7, 8, 64, 100]) func bisectFindsExactlyTheItemToBlame(count: Int) {
        for blamed in 1...UInt64(count) {
            var queue = Queue(.init(batchRows: 512, batchBytes: 1 << 20, queueRows: 512, queueBytes: 1 << 20))
            for item in 0..<count { #expect(queue.add(item, rows: 1, bytes: 1) != nil) }
            var (flushes, committed, poison): (Int, Int, [UInt64]) = (0, 0, [])
            while case .flush(let batch) = queue.next(at: .now) {
                flushes += 1
                if batch.entries.contains(where: { $0.id == blamed }) {
                    let verdict = queue.failed(batch, Self.data, at: .now, jitter: 1)
                    if !verdict.failed.isEmpty { #expect(verdict.isPoison) }
                    poison += verdict.failed.map(\.id)
                } else {
                    queue.succeeded(batch)
                    committed += batch.entries.count
                }
            }
            #expect(poison == [blamed])
            #expect(committed == count - 1)
            #expect(queue.isEmpty)
            // At most two flushes for each halving.
            #expect(flushes <= 1 + 2 * (Int.bitWidth - (count - 1).leadingZeroBitCount))
        }
    }

    /// 512 items, one of them behind a lock: three rounds of 2 s find it, and its neighbours commit within 10 s.
    @Test func timeOutsFindTheItemToBlameWithinTheRetryTime() {
        for blamed in [1, 2, 255, 256, 257, 511, 512] as [UInt64] {
            var queue = Queue(.init(batchRows: 512, batchBytes: 1 << 20, queueRows: 512, queueBytes: 1 << 20))
            for item in 0..<512 { #expect(queue.add(item, rows: 1, bytes: 1) != nil) }
            let start = ContinuousClock.now
            var now = start, failed: [UInt64] = []
            while case .flush(let batch) = queue.next(at: now) {
                if batch.entries.contains(where: { $0.id == blamed }) {
                    now += .seconds(2)
                    let verdict = queue.failed(batch, .timedOut(.lock), at: now, jitter: 1)
                    #expect(!verdict.isPoison)
                    failed += verdict.failed.map(\.id)
                } else {
                    now += .milliseconds(1)
                    queue.succeeded(batch)
                }
            }
            #expect(failed == [blamed])
            #expect(queue.isEmpty)
            #expect(start.duration(to: now) < .seconds(9))
        }
    }

    /// An overloaded server times out on everything: all items are given back in bounded time.
    @Test func whenEverythingTimesOutAllIsGivenBack() {
        var queue = Queue(.init(batchRows: 512, batchBytes: 1 << 20, queueRows: 512, queueBytes: 1 << 20))
        for item in 0..<512 { #expect(queue.add(item, rows: 1, bytes: 1) != nil) }
        let start = ContinuousClock.now
        var now = start, answered = 0
        loop: while true {
            switch queue.next(at: now) {
            case .flush(let batch):
                now += .seconds(5)
                answered += queue.failed(batch, .timedOut(.statement), at: now, jitter: 1).failed.count
            case .giveUp(let entries, let error):
                #expect(error == .timedOut(.statement))
                answered += entries.count
            case .sleep(let instant): now = instant
            case .idle: break loop
            }
        }
        #expect(answered == 512)
        #expect(start.duration(to: now) <= .seconds(20))
    }

    @Test func aLostBatchGoesAgainUnchangedAndThenIsGivenBack() {
        var queue = Queue(.init(batchRows: 10, batchBytes: 1_000, queueRows: 100, queueBytes: 1_000))
        let ids = (0..<3).compactMap { queue.add($0, rows: 1, bytes: 1) }
        var now = ContinuousClock.now, tries = 0, failed: [UInt64] = []
        let start = now
        loop: while true {
            switch queue.next(at: now) {
            case .flush(let batch):
                tries += 1
                #expect(batch.entries.map(\.id) == ids)
                failed += queue.failed(batch, .lost, at: now, jitter: 0.9).failed.map(\.id)
            case .giveUp(let entries, let error):
                #expect(error == .lost)
                failed += entries.map(\.id)
            case .sleep(let instant): now = instant
            case .idle: break loop
            }
        }
        #expect(failed == ids)
        #expect(tries > 2 && tries <= Queue.triesMax)
        #expect(start.duration(to: now) <= Queue.retryTime)
    }

    /// New items do not wait behind a batch that waits for its next try.
    @Test func newItemsPassABatchInBackoff() {
        var queue = Queue(.init(batchRows: 10, batchBytes: 1_000, queueRows: 100, queueBytes: 1_000))
        _ = queue.add(0, rows: 1, bytes: 1)
        let now = ContinuousClock.now
        guard case .flush(let first) = queue.next(at: now) else { return #expect(Bool(false)) }
        #expect(queue.failed(first, .serialization, at: now, jitter: 1).failed.isEmpty)
        let second = queue.add(1, rows: 1, bytes: 1)
        guard case .flush(let fresh) = queue.next(at: now) else { return #expect(Bool(false)) }
        #expect(fresh.entries.map(\.id) == [second])
        guard case .sleep(let until) = queue.next(at: now) else { return #expect(Bool(false)) }
        #expect(now.duration(to: until) == .milliseconds(50))
        guard case .flush(let again) = queue.next(at: until) else { return #expect(Bool(false)) }
        #expect(again.entries.map(\.id) == first.entries.map(\.id))
    }

    @Test func anItemLargerThanABatchGoesAlone() {
        var queue = Queue(.init(batchRows: 10, batchBytes: 100, queueRows: 100, queueBytes: 1_000))
        for bytes in [50, 500, 50] { #expect(queue.add(0, rows: 1, bytes: bytes) != nil) }
        var sizes: [[Int]] = []
        while case .flush(let batch) = queue.next(at: .now) {
            sizes.append(batch.entries.map(\.bytes))
            queue.succeeded(batch)
        }
        #expect(sizes == [[50], [500], [50]])
    }

    @Test(arguments: [PostgresError.unavailable, .readOnly, .misconfigured(sqlState: "42P01", statement: "t"), .closed])
    func refusedBatchesAreGivenBackAtOnce(error: PostgresError) {
        var queue = Queue(.init(batchRows: 10, batchBytes: 1_000, queueRows: 100, queueBytes: 1_000))
        for item in 0..<3 { _ = queue.add(item, rows: 1, bytes: 1) }
        guard case .flush(let batch) = queue.next(at: .now) else { return #expect(Bool(false)) }
        let verdict = queue.failed(batch, error, at: .now, jitter: 1)
        #expect(verdict.failed.count == 3 && !verdict.isPoison)
        #expect(queue.isEmpty)
    }
}
