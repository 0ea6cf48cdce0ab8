import Commands
import Histogram
import NIOCore
import NIOPosix
import Purchases

/// Posts receipts over so many connections, at a rate or as fast as the answers come.
///
/// Open loop: request `i` belongs to `start + i / rate`, however earlier requests went, and its latency counts from
/// that time. So a stalled server is charged for the requests that it kept from starting (no coordinated omission). The
/// run is bounded in time: no request starts later than ``overrun`` after the last one's time.
///
/// The load shares a machine with the measured server: all connections live on one thread, as channel handlers.
struct LoadRun: Sendable {
    static let overrun = TimeAmount.seconds(30)

    let connector: LoadConnector
    let request: LoadRequest
    let source: TokenStock.Source
    /// The most tokens taken from the source.
    let limit: Int
    let connections: Int
    /// Requests a second; nil: closed loop.
    let rate: Double?
    let duration: Duration
    let users: Int
    /// Called with each accepted receipt, on the thread of the run; nil: nobody watches them.
    var watch: (@Sendable (LoadRecord.Accepted) -> Void)?
    /// The time-out of a request, from the first byte sent to the last byte read; longer than any gateway waits.
    var timeout = TimeAmount.seconds(30)

    struct Outcome: Sendable {
        let found: LoadRecord.Found
        /// From the first request's time to the last answer.
        let lasted: TimeAmount
        let isUsedUp: Bool
        let tokenWaits: Int
        /// Why the source of tokens failed.
        let failure: (any Error)?
        fileprivate let fetch: Task<Void, Never>?
    }

    /// The number of requests of the whole timetable; nil in a closed loop.
    static func planned(rate: Double?, duration: Duration) -> Int? {
        rate.map { Swift.max(1, Int(($0 * duration.inSeconds).rounded(.down))) }
    }

    /// Runs until the last answer.
    func run() async throws -> Outcome {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let loop = group.next()
        let done = loop.makePromise(of: Outcome.self)
        loop.execute { LoadSenders(self, on: loop, done: done).begin() }
        let outcome = try await done.futureResult.get()
        outcome.fetch?.cancel()
        await outcome.fetch?.value
        try await group.shutdownGracefully()
        return outcome
    }

    func report(of outcome: Outcome) -> LoadReport {
        let (found, seconds) = (outcome.found, outcome.lasted.inSeconds)
        let accepted = found.answers.ended + found.answers.accepted + found.answers.created
        var timetable: LoadReport.Timetable?
        if let planned = Self.planned(rate: rate, duration: duration) {
            timetable = LoadReport.Timetable(
                planned: planned, late: found.late,
                worstLateMilliseconds: (found.worstLateness.inSeconds * 1000).rounded(to: 3),
                notStarted: outcome.isUsedUp ? 0 : planned - found.sent)
        }
        return LoadReport(
            loop: rate == nil ? "closed" : "open", rate: rate, connections: connections,
            seconds: seconds.rounded(to: 3), sent: found.sent,
            sentPerSecond: (Double(found.sent) / seconds).rounded(to: 1),
            acceptedPerSecond: (Double(accepted) / seconds).rounded(to: 1),
            answers: found.answers, acceptMilliseconds: .init(found.latencies), timetable: timetable,
            tokensUsedUp: outcome.isUsedUp, tokenWaits: outcome.tokenWaits)
    }
}

/// The state that the connections of a run share; belongs to their event loop.
final class LoadSenders {
    let run: LoadRun
    let loop: any EventLoop
    let stock: TokenStock
    let record: LoadRecord
    private let done: EventLoopPromise<LoadRun.Outcome>
    private var start = NIODeadline.distantPast
    /// No request starts later than this.
    private(set) var end = NIODeadline.distantPast
    private var sending = 0

    init(_ run: LoadRun, on loop: any EventLoop, done: EventLoopPromise<LoadRun.Outcome>) {
        self.run = run
        self.loop = loop
        self.done = done
        stock = TokenStock(limit: run.limit, source: run.source, loop: loop)
        record = LoadRecord(watch: run.watch)
    }

    func begin() {
        stock.fill {
            self.start = .now()
            self.end =
                self.start + TimeAmount(inSeconds: self.run.duration.inSeconds)
                + (self.run.rate == nil ? .zero : LoadRun.overrun)
            self.sending = self.run.connections
            for _ in 0..<self.run.connections { LoadConnection(self).next() }
        }
    }

    /// The time to which a request belongs; nil in a closed loop.
    func intended(_ number: Int) -> NIODeadline? {
        run.rate.map { start + TimeAmount(inSeconds: Double(number) / $0) }
    }

    /// Counts a connection as ended; each connection calls it once.
    func ended() {
        sending -= 1
        guard sending == 0 else { return }
        done.succeed(
            LoadRun.Outcome(
                found: record.found, lasted: .now() - start, isUsedUp: stock.isUsedUp, tokenWaits: stock.waits,
                failure: stock.failure, fetch: stock.fetch))
    }
}

extension TimeAmount {
    var inSeconds: Double { Double(nanoseconds) / 1e9 }

    init(inSeconds seconds: Double) { self = .nanoseconds(Int64(seconds * 1e9)) }
}
