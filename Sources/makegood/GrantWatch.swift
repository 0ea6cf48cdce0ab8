import Foundation
import Histogram
import NIOCore
import Synchronization

/// Watches accepted receipts while the load runs, each from its acceptance until it has ended.
///
/// A receipt is watched if a watcher is free when it is accepted; the others are left out. So the load of the questions
/// is bounded, and no receipt waits to be looked at. A question waits in the deployment until the receipt ends, so the
/// measured time is that of the answer.
final class GrantWatch: Sendable {
    /// How long a question waits in the deployment, in seconds.
    private static let wait = 20
    /// The pause between two questions about a receipt whose question was answered at once.
    private static let interval = Duration.milliseconds(100)
    /// How long receipts are watched after the run.
    private static let limit = Duration.seconds(60)
    /// States after which nothing more happens soon: ended, or waiting for a product, a policy or a person.
    private static let settled: Set<String> = ["granted", "already_granted", "rejected", "held", "parked"]

    private struct Receipt: Decodable {
        let id: String
        let state: String
    }

    private struct State {
        var watching = 0
        var watched = 0
        var states: [String: Int] = [:]
        var durations = Histogram<UInt64>.ofDurations
        /// When the watchers give up; nil: the load still runs.
        var end: ContinuousClock.Instant?
    }

    private let target: LoadTarget
    private let watchers: Int
    private let accepted: AsyncStream<LoadRecord.Accepted>
    private let offered: AsyncStream<LoadRecord.Accepted>.Continuation
    private let state = Mutex(State())

    /// - Parameter watchers: the number of receipts that are watched at the same time.
    init(target: LoadTarget, watchers: Int) {
        self.target = target
        self.watchers = watchers
        (accepted, offered) = AsyncStream.makeStream()
    }

    func offer(_ receipt: LoadRecord.Accepted) { offered.yield(receipt) }

    /// The run is over: what is watched may still end.
    func finish() {
        state.withLock { $0.end = .now + Self.limit }
        offered.finish()
    }

    /// Watches until `finish()`, and then until each watched receipt has ended or time is up.
    func grants() async -> LoadReport.Grants {
        await withDiscardingTaskGroup { group in
            for await receipt in accepted {
                guard begin() else { continue }
                guard let shown = Self.read(Data(receipt.body.readableBytesView)) else {
                    end("unreadable", after: nil)
                    continue
                }
                group.addTask { await self.follow(shown, since: receipt.at) }
            }
        }
        return state.withLock {
            LoadReport.Grants(watched: $0.watched, states: $0.states, milliseconds: .init($0.durations))
        }
    }

    private func begin() -> Bool {
        state.withLock { state in
            guard state.watching < watchers else { return false }
            state.watching += 1
            state.watched += 1
            return true
        }
    }

    /// - Parameter duration: nil where the receipt has not ended.
    private func end(_ word: String, after duration: TimeAmount?) {
        state.withLock { state in
            state.watching -= 1
            state.states[word, default: 0] += 1
            if let duration { state.durations.record(duration) }
        }
    }

    private func follow(_ receipt: Receipt, since accepted: NIODeadline) async {
        if Self.settled.contains(receipt.state) { return end(receipt.state, after: .zero) }
        while !isOver {
            let asked = ContinuousClock.now
            if let answer = try? await target.receipt(receipt.id, wait: Self.wait), answer.status == 200,
                let shown = Self.read(Data(answer.body)), Self.settled.contains(shown.state)
            {
                return end(shown.state, after: .now() - accepted)
            }
            try? await Task.sleep(until: asked + Self.interval, clock: .continuous)
        }
        end("open", after: nil)
    }

    private var isOver: Bool {
        Task.isCancelled || state.withLock { $0.end.map { $0 <= .now } ?? false }
    }

    private static func read(_ body: Data) -> Receipt? { try? JSONDecoder().decode(Receipt.self, from: body) }
}
