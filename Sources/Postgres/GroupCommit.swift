internal import BlockingIO
internal import Metrics
internal import Synchronization

/// The thread on which the batches of all groups of the process are cut, encoded and answered. In Swift's
/// cooperative pool the next batch would wait behind the requests that came meanwhile, and the database would wait with
/// the batch. Nothing here blocks.
private let commitThread = TaskThread(name: "group-commit")

/// Writes the items of many callers together, with one statement or one transaction: the items that arrive while a
/// batch is written are the next batch.
///
/// `flush` must be idempotent, because a batch whose outcome is unknown is flushed again. One bad item fails alone: the
/// batch around it is split until the item is found.
public final class GroupCommit<Item: Sendable, Outcome: Sendable>: Sendable {
    /// Every bound stands twice, in rows and in bytes. An item larger than a batch is flushed alone.
    public struct Limits: Sendable {
        public var batchRows: Int
        public var batchBytes: Int
        /// The most rows and bytes of all items submitted and not answered yet.
        public var queueRows: Int
        public var queueBytes: Int

        public init(
            batchRows: Int = 512, batchBytes: Int = 8 << 20, queueRows: Int = 8192, queueBytes: Int = 64 << 20
        ) {
            self.batchRows = batchRows
            self.batchBytes = batchBytes
            self.queueRows = queueRows
            self.queueBytes = queueBytes
        }
    }

    private typealias Answer = Result<Outcome, GroupCommitError>
    private typealias Submitter = CheckedContinuation<Answer, Never>

    /// Behind a lock rather than an actor: a submit is a few instructions, not a visit to another thread.
    private struct State {
        var queue: CommitQueue<Item>
        var submitters: [UInt64: Submitter] = [:]
        var activeWriters = 0
        /// When the newest batch was taken, and how many items it had.
        var flushedAt = ContinuousClock.now
        var flushedItems = 0
        /// How long the newest flush that has ended took.
        var flushTook = Duration.zero
        /// When the newest writer began.
        var startedAt = ContinuousClock.now
        var wakesAt: ContinuousClock.Instant?
        var isClosed = false
        var closers: [CheckedContinuation<Void, Never>] = []

        /// The callers of `close()`, once every item is answered; none before.
        mutating func takeClosers() -> [CheckedContinuation<Void, Never>] {
            guard isClosed, submitters.isEmpty else { return [] }
            defer { closers = [] }
            return closers
        }

        /// Whether the caller shall start a writer, which is counted from now on, and when a task must look again.
        /// While an item waits and nobody writes, the result is the one or the other, unless a look is planned already.
        ///
        /// One writer is enough for almost everything: two writers that alternate write half batches, for a third more
        /// work of every process. The next writer begins when much waits, or when no batch or writer has begun for so
        /// long that something is wrong with the batch before.
        mutating func turn(
            of writers: Int, patience: Duration, pace: CommitPace, at now: ContinuousClock.Instant = .now
        ) -> (startsWriter: Bool, look: ContinuousClock.Instant?) {
            guard activeWriters < writers, queue.hasUnflushed else { return (false, nil) }
            let startsWriter = start(patience: patience, pace: pace, at: now) == nil
            if startsWriter {
                activeWriters += 1
                startedAt = now
            }
            guard activeWriters < writers, let look = start(patience: patience, pace: pace, at: now),
                wakesAt.map({ $0 > look }) ?? true
            else { return (startsWriter, nil) }
            return (startsWriter, look)
        }

        /// When one more writer may start; nil: now.
        private func start(
            patience: Duration, pace: CommitPace, at now: ContinuousClock.Instant
        ) -> ContinuousClock.Instant? {
            guard activeWriters > 0 else { return pause(of: pace, at: now) }
            let start = max(flushedAt, startedAt) + patience
            return queue.isCrowded || start <= now ? nil : start
        }

        /// Until when a writer waits for more items; nil: no longer.
        func pause(of pace: CommitPace, at now: ContinuousClock.Instant = .now) -> ContinuousClock.Instant? {
            guard flushedItems > 1, queue.waitingItems < pace.items ?? .max, !queue.isCrowded, !queue.goesAgain
            else { return nil }
            let start = flushedAt + pace.interval(after: flushTook)
            return start > now ? start : nil
        }
    }

    private enum Admission {
        case refused(GroupCommitError)
        case queued(startsWriter: Bool, look: ContinuousClock.Instant?)
    }

    private let size: @Sendable (Item) -> (rows: Int, bytes: Int)
    private let flush: @concurrent @Sendable ([Item]) async throws(PostgresError) -> [Outcome]
    private let name: String
    private let writers: Int
    private let patience: Duration
    private let pace: CommitPace
    private let batchRows: Recorder
    private let state: Mutex<State>

    /// - Parameters:
    ///   - name: metrics call the group so: "receipts".
    ///   - writers: the most flushes that run at once; with several, batches commit in any order.
    ///   - patience: a flush that runs longer lets another begin beside it.
    ///   - pace: how items that come in a stream share their statements.
    ///   - size: rows and bytes of one item, for the bounds.
    ///   - flush: one idempotent statement for all items. Returns one outcome per item, in the items' order.
    public init(
        name: String, limits: Limits = Limits(), writers: Int = 1, patience: Duration = .milliseconds(100),
        pace: CommitPace = CommitPace(),
        size: @escaping @Sendable (Item) -> (rows: Int, bytes: Int),
        flush: @escaping @concurrent @Sendable ([Item]) async throws(PostgresError) -> [Outcome]
    ) {
        precondition(writers > 0)
        self.name = name
        self.writers = writers
        self.patience = patience
        self.pace = pace
        self.size = size
        self.flush = flush
        batchRows = Recorder(label: PostgresMetrics.batchRows, dimensions: [("batch", name)])
        state = Mutex(
            State(
                queue: CommitQueue(
                    .init(
                        batchRows: limits.batchRows, batchBytes: limits.batchBytes, queueRows: limits.queueRows,
                        queueBytes: limits.queueBytes))))
    }

    /// Rows and bytes submitted and not answered yet.
    public var held: (rows: Int, bytes: Int) { state.withLock { ($0.queue.heldRows, $0.queue.heldBytes) } }

    /// Submits an item and returns after the commit that holds it.
    ///
    /// The call is bounded by the wait behind the queue, and by 10 s plus one flush of retries. Cancellation does not
    /// end the call: the item may be in a statement already, and the other items of that statement do not pay for it.
    public func submit(_ item: Item) async throws(GroupCommitError) -> Outcome {
        let (rows, bytes) = size(item)
        let answer: Answer = await withCheckedContinuation { submitter in
            let admission = state.withLock { state -> Admission in
                guard !state.isClosed else { return .refused(.closed) }
                guard let id = state.queue.add(item, rows: rows, bytes: bytes) else { return .refused(.full) }
                state.submitters[id] = submitter
                let (startsWriter, look) = state.turn(of: writers, patience: patience, pace: pace)
                return .queued(startsWriter: startsWriter, look: look)
            }
            switch admission {
            case .refused(let error):
                if error == .full { count("full", 1) }
                submitter.resume(returning: .failure(error))
            case .queued(let startsWriter, let look):
                if startsWriter { Task(executorPreference: commitThread) { await self.write() } }
                if let look { wake(at: look) }
            }
        }
        return try answer.get()
    }

    /// Refuses new items; returns when all earlier ones are answered.
    public func close() async {
        await withCheckedContinuation { closer in
            let closers = state.withLock { state in
                state.isClosed = true
                state.closers.append(closer)
                return state.takeClosers()
            }
            for closer in closers { closer.resume() }
        }
    }

    private func write() async {
        while true {
            // Callers that the last batch woke, or that arrive in one burst, get into this batch.
            await Task.yield()
            // Beside another writer, which may be stuck, this writer stays: a new writer would have to wait for
            // `patience`.
            while let start = state.withLock({ $0.activeWriters > 1 ? $0.pause(of: pace) : nil }) {
                try? await Task.sleep(until: start, clock: .continuous)
            }
            let step = state.withLock { state in
                let pause = state.queue.waitingItems > 0 && state.activeWriters == 1 ? state.pause(of: pace) : nil
                let step = pause.map { .sleep(until: $0) } ?? state.queue.next(at: .now)
                switch step {
                case .flush(let batch): (state.flushedAt, state.flushedItems) = (.now, batch.entries.count)
                case .giveUp: break
                case .sleep, .idle: state.activeWriters -= 1
                }
                return step
            }
            switch step {
            case .flush(let batch): await flush(batch)
            case .giveUp(let entries, let error): fail(entries, .failed(error))
            case .sleep(let instant):
                wake(at: instant)
                return
            case .idle: return
            }
        }
    }

    /// Starts a writer at that instant, if it is time by then and no writer has been started since.
    private func wake(at instant: ContinuousClock.Instant) {
        let isPlanned = state.withLock { state in
            if let wakesAt = state.wakesAt, wakesAt <= instant { return true }
            state.wakesAt = instant
            return false
        }
        if isPlanned { return }
        Task(executorPreference: commitThread) {
            try? await Task.sleep(until: instant, clock: .continuous)
            let (startsWriter, look) = self.state.withLock { state in
                if state.wakesAt == instant { state.wakesAt = nil }
                return state.turn(of: self.writers, patience: self.patience, pace: self.pace)
            }
            if let look { self.wake(at: look) }
            if startsWriter { await self.write() }
        }
    }

    private func flush(_ batch: CommitQueue<Item>.Batch) async {
        batchRows.record(batch.entries.reduce(0) { $0 + $1.rows })
        do throws(PostgresError) {
            let start = ContinuousClock.now
            defer { state.withLock { $0.flushTook = .now - start } }
            let outcomes = try await flush(batch.entries.map(\.item))
            guard outcomes.count == batch.entries.count else {
                throw .undecodable(statement: name, column: 0)
            }
            resolve { queue in
                queue.succeeded(batch)
                return zip(batch.entries, outcomes).map { ($0, .success($1)) }
            }
        } catch {
            let verdict = state.withLock { $0.queue.failed(batch, error, at: .now, jitter: .random(in: 0...1)) }
            fail(verdict.failed, verdict.isPoison ? .poison(error) : .failed(error))
        }
    }

    private func fail(_ entries: [CommitQueue<Item>.Entry], _ error: GroupCommitError) {
        guard !entries.isEmpty else { return }
        if case .poison = error { count("poison", entries.count) } else { count("failed", entries.count) }
        resolve { _ in entries.map { ($0, .failure(error)) } }
    }

    /// Changes the queue, answers the submitters that the change names, and resumes the callers of `close()` at the
    /// end.
    private func resolve(_ change: (inout CommitQueue<Item>) -> [(CommitQueue<Item>.Entry, Answer)]) {
        let (answers, closers) = state.withLock { state in
            let answers = change(&state.queue).map { (state.submitters.removeValue(forKey: $0.id), $1) }
            return (answers, state.takeClosers())
        }
        for (submitter, answer) in answers { submitter?.resume(returning: answer) }
        for closer in closers { closer.resume() }
    }

    private func count(_ reason: String, _ items: Int) {
        Counter(label: PostgresMetrics.batchRefused, dimensions: [("batch", name), ("reason", reason)])
            .increment(by: items)
    }
}

/// Why an item was not committed.
public enum GroupCommitError: Error, Equatable, Sendable {
    /// The queue is at its bound in rows or bytes: answer 503.
    case full
    /// `close()` was called before.
    case closed
    /// The item's batch failed and nothing in the item is to blame. After `PostgresError.lost` it may be committed.
    case failed(PostgresError)
    /// The database refuses this very item: repeating it will not help.
    case poison(PostgresError)

    public var isRetryable: Bool {
        switch self {
        case .full: true
        case .failed(let error): error.isRetryable
        case .closed, .poison: false
        }
    }
}

extension GroupCommitError: CustomStringConvertible {
    public var description: String {
        switch self {
        case .full: "group commit full"
        case .closed: "group commit closed"
        case .failed(let error): "group commit failed: \(error)"
        case .poison(let error): "group commit poison: \(error)"
        }
    }
}
