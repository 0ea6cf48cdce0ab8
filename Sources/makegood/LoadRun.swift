import Histogram
import Synchronization

/// Posts receipts over so many connections, at a rate or as fast as the answers come.
///
/// Open loop: request `i` belongs to `start + i / rate`, whatever became of those before it, and its latency counts
/// from there, so a stalled server is charged for the requests it kept from starting (no coordinated omission).
/// Bounded in time: no request starts later than ``overrun`` after the last one's time.
struct LoadRun: Sendable {
    /// A start so much after its time is reported.
    private static let lateness = Duration.milliseconds(10)
    private static let overrun = Duration.seconds(30)

    let target: LoadTarget
    let stock: TokenStock
    let connections: Int
    /// Requests a second; nil: closed loop.
    let rate: Double?
    let duration: Duration
    let users: Int
    let record = LoadRecord()

    /// Requests of the whole timetable; nil in a closed loop.
    static func planned(rate: Double?, duration: Duration) -> Int? {
        rate.map { Swift.max(1, Int(($0 * duration.inSeconds).rounded(.down))) }
    }

    func run() async -> LoadReport {
        await stock.fill()
        let start = ContinuousClock.now
        await withTaskGroup(of: Void.self) { group in
            for _ in 0..<connections {
                group.addTask { await post(from: start) }
            }
        }
        let seconds = (ContinuousClock.now - start).inSeconds
        await stock.close()
        return await report(seconds: seconds)
    }

    /// What one connection does: one request after the other.
    private func post(from start: ContinuousClock.Instant) async {
        while !record.isHopeless, let token = await stock.next() {
            var intended = ContinuousClock.now
            if let rate {
                intended = start + .seconds(Double(token.number) / rate)
                try? await Task.sleep(until: intended, tolerance: .zero, clock: .continuous)
            }
            let began = ContinuousClock.now
            guard began < start + duration + (rate == nil ? .zero : Self.overrun) else { return }
            record.began(late: began - intended, limit: Self.lateness)
            do {
                let answer = try await target.post(token.text, user: token.number % users)
                record.answered(answer, after: .now - intended)
            } catch {
                record.failed(error)
            }
        }
    }

    private func report(seconds: Double) async -> LoadReport {
        let found = record.found
        let accepted = found.answers.ended + found.answers.accepted
        let usedUp = await stock.isUsedUp
        var timetable: LoadReport.Timetable?
        if let planned = Self.planned(rate: rate, duration: duration) {
            timetable = LoadReport.Timetable(
                planned: planned, late: found.late,
                worstLateMilliseconds: (found.worstLateness / .milliseconds(1)).rounded(to: 3),
                notStarted: usedUp ? 0 : planned - found.sent)
        }
        return LoadReport(
            loop: rate == nil ? "closed" : "open", rate: rate, connections: connections,
            seconds: seconds.rounded(to: 3), sent: found.sent,
            sentPerSecond: (Double(found.sent) / seconds).rounded(to: 1),
            acceptedPerSecond: (Double(accepted) / seconds).rounded(to: 1),
            answers: found.answers, acceptMilliseconds: .init(found.latencies), timetable: timetable,
            tokensUsedUp: usedUp, tokenWaits: await stock.waits)
    }
}

/// What the connections of a run saw.
final class LoadRecord: Sendable {
    /// When so many were sent and none was accepted, the run ends: something is set up wrongly.
    static let hopelessMax = 200
    /// Accepted receipts remembered, to see what became of them.
    static let watchedMax = 200

    struct Accepted: Sendable {
        let answer: LoadTarget.Answer
        let at: ContinuousClock.Instant
    }

    struct Found {
        var sent = 0
        var answers = LoadReport.Answers()
        var latencies = Histogram<UInt64>.ofDurations
        var late = 0
        var worstLateness = Duration.zero
        /// The last accepted; a ring.
        var accepted: [Accepted] = []
        var acceptedCount = 0
        /// The first answer that was no acceptance, or the first error.
        var firstTrouble: String?
    }

    private let state = Mutex(Found())

    var found: Found { state.withLock { $0 } }

    var isHopeless: Bool {
        state.withLock { $0.acceptedCount == 0 && $0.answers.total >= Self.hopelessMax }
    }

    func began(late: Duration, limit: Duration) {
        state.withLock { found in
            found.sent += 1
            if late > limit { found.late += 1 }
            found.worstLateness = Swift.max(found.worstLateness, late)
        }
    }

    func answered(_ answer: LoadTarget.Answer, after latency: Duration) {
        let now = ContinuousClock.now
        state.withLock { found in
            found.answers.count(answer.status)
            guard answer.status == 200 || answer.status == 202 else {
                if found.firstTrouble == nil {
                    found.firstTrouble = "\(answer.status) \(String(decoding: answer.body.prefix(300), as: UTF8.self))"
                }
                return
            }
            found.latencies.record(latency)
            let accepted = Accepted(answer: answer, at: now)
            if found.accepted.count < Self.watchedMax {
                found.accepted.append(accepted)
            } else {
                found.accepted[found.acceptedCount % Self.watchedMax] = accepted
            }
            found.acceptedCount += 1
        }
    }

    func failed(_ error: any Error) {
        state.withLock { found in
            found.answers.error += 1
            if found.firstTrouble == nil { found.firstTrouble = "\(error)" }
        }
    }
}
