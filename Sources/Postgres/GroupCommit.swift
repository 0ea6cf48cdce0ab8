internal import Metrics

/// Many callers, one statement: what arrives while a batch is written is the next batch.
///
/// `flush` must be idempotent, because a batch whose outcome is unknown is flushed again. One bad item fails alone:
/// the batch around it is split until it is found.
package actor GroupCommit<Item: Sendable, Outcome: Sendable> {
    /// Every bound stands twice, in rows and in bytes. An item larger than a batch is flushed alone.
    package struct Limits: Sendable {
        package var batchRows: Int
        package var batchBytes: Int
        /// All that was submitted and not answered yet.
        package var queueRows: Int
        package var queueBytes: Int

        package init(
            batchRows: Int = 512, batchBytes: Int = 8 << 20, queueRows: Int = 8192, queueBytes: Int = 64 << 20
        ) {
            self.batchRows = batchRows
            self.batchBytes = batchBytes
            self.queueRows = queueRows
            self.queueBytes = queueBytes
        }
    }

    private typealias Answer = Result<Outcome, GroupCommitError>

    private let size: @Sendable (Item) -> (rows: Int, bytes: Int)
    private let flush: @concurrent @Sendable ([Item]) async throws(PostgresError) -> [Outcome]
    private let name: String
    private let writers: Int
    private let batchRows: Recorder

    private var queue: CommitQueue<Item>
    private var submitters: [UInt64: CheckedContinuation<Answer, Never>] = [:]
    private var activeWriters = 0
    private var wakesAt: ContinuousClock.Instant?
    private var isClosed = false
    private var closers: [CheckedContinuation<Void, Never>] = []

    /// - Parameters:
    ///   - name: what metrics call it: "receipts".
    ///   - writers: flushes that run at once; batches then commit in any order.
    ///   - size: rows and bytes of one item, for the bounds.
    ///   - flush: one idempotent statement for all items. Answers one outcome per item, in the items' order.
    package init(
        name: String, limits: Limits = Limits(), writers: Int = 1,
        size: @escaping @Sendable (Item) -> (rows: Int, bytes: Int),
        flush: @escaping @concurrent @Sendable ([Item]) async throws(PostgresError) -> [Outcome]
    ) {
        precondition(writers > 0)
        self.name = name
        self.writers = writers
        self.size = size
        self.flush = flush
        batchRows = Recorder(label: PostgresMetrics.batchRows, dimensions: [("batch", name)])
        queue = CommitQueue(
            .init(
                batchRows: limits.batchRows, batchBytes: limits.batchBytes, queueRows: limits.queueRows,
                queueBytes: limits.queueBytes))
    }

    /// Rows and bytes submitted and not answered yet.
    package var held: (rows: Int, bytes: Int) { (queue.heldRows, queue.heldBytes) }

    /// Returns after the commit that holds the item.
    ///
    /// Bounded: by the wait behind the queue, and 10 s plus one flush of retries. Cancellation does not end it: the
    /// item may be in a statement already, and its neighbours do not pay for it.
    package func submit(_ item: Item) async throws(GroupCommitError) -> Outcome {
        guard !isClosed else { throw .closed }
        let (rows, bytes) = size(item)
        guard let id = queue.add(item, rows: rows, bytes: bytes) else {
            count("full", 1)
            throw .full
        }
        let answer = await withCheckedContinuation { continuation in
            submitters[id] = continuation
            startWriter()
        }
        return try answer.get()
    }

    /// Refuses new items; returns when all earlier ones are answered.
    package func close() async {
        isClosed = true
        guard !queue.isEmpty else { return }
        await withCheckedContinuation { closers.append($0) }
    }

    private func startWriter() {
        guard activeWriters < writers else { return }
        activeWriters += 1
        Task { await self.write() }
    }

    private func write() async {
        while true {
            // Callers that were woken by the last batch, or arrive in one burst, get into this one.
            await Task.yield()
            switch queue.next(at: .now) {
            case .flush(let batch): await flush(batch)
            case .giveUp(let entries, let error): answer(entries, .failed(error))
            case .sleep(let instant):
                activeWriters -= 1
                wake(at: instant)
                return
            case .idle:
                activeWriters -= 1
                return
            }
        }
    }

    /// Starts a writer then; new items start one before.
    private func wake(at instant: ContinuousClock.Instant) {
        if let wakesAt, wakesAt <= instant { return }
        wakesAt = instant
        Task {
            try? await Task.sleep(until: instant, clock: .continuous)
            if wakesAt == instant { wakesAt = nil }
            startWriter()
        }
    }

    private func flush(_ batch: CommitQueue<Item>.Batch) async {
        batchRows.record(batch.entries.reduce(0) { $0 + $1.rows })
        do throws(PostgresError) {
            let outcomes = try await flush(batch.entries.map(\.item))
            guard outcomes.count == batch.entries.count else {
                throw .undecodable(statement: name, column: 0)
            }
            queue.succeeded(batch)
            for (entry, outcome) in zip(batch.entries, outcomes) { answer(entry.id, .success(outcome)) }
            finishClosing()
        } catch {
            let verdict = queue.failed(batch, error, at: .now, jitter: .random(in: 0...1))
            answer(verdict.failed, verdict.isPoison ? .poison(error) : .failed(error))
        }
    }

    private func answer(_ entries: [CommitQueue<Item>.Entry], _ error: GroupCommitError) {
        guard !entries.isEmpty else { return }
        if case .poison = error { count("poison", entries.count) } else { count("failed", entries.count) }
        for entry in entries { answer(entry.id, .failure(error)) }
        finishClosing()
    }

    private func answer(_ id: UInt64, _ answer: Answer) {
        submitters.removeValue(forKey: id)?.resume(returning: answer)
    }

    private func finishClosing() {
        guard isClosed, queue.isEmpty else { return }
        for closer in closers { closer.resume() }
        closers = []
    }

    private func count(_ reason: String, _ items: Int) {
        Counter(label: PostgresMetrics.batchRefused, dimensions: [("batch", name), ("reason", reason)])
            .increment(by: items)
    }
}

/// Why an item was not committed.
package enum GroupCommitError: Error, Equatable, Sendable {
    /// The queue is at its bound in rows or bytes: answer 503.
    case full
    /// `close()` was called before.
    case closed
    /// The item's batch failed and nothing in the item is to blame. After `PostgresError.lost` it may be committed.
    case failed(PostgresError)
    /// The database refuses this very item: repeating it will not help.
    case poison(PostgresError)

    package var isRetryable: Bool {
        switch self {
        case .full: true
        case .failed(let error): error.isRetryable
        case .closed, .poison: false
        }
    }
}

extension GroupCommitError: CustomStringConvertible {
    package var description: String {
        switch self {
        case .full: "group commit full"
        case .closed: "group commit closed"
        case .failed(let error): "group commit failed: \(error)"
        case .poison(let error): "group commit poison: \(error)"
        }
    }
}
