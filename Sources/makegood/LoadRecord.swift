import Histogram
import NIOCore

/// The results of all connections of a run; belongs to their event loop.
final class LoadRecord {
    /// If so many requests were sent and none was accepted, the run ends: something is set up wrongly.
    private static let hopelessMax = 200
    /// A start later than its planned time by more than this is reported.
    private static let lateness = TimeAmount.milliseconds(10)
    /// The bytes of an answer that the report quotes for a trouble.
    private static let troubleBytes = 300

    struct Accepted: Sendable {
        let body: ByteBuffer
        let at: NIODeadline
    }

    struct Found: Sendable {
        var sent = 0
        var answers = LoadReport.Answers()
        var latencies = Histogram<UInt64>.ofDurations
        var late = 0
        var worstLateness = TimeAmount.zero
        var acceptedCount = 0
        /// The first answer that was no acceptance, or the first error.
        var firstTrouble: String?
    }

    /// Called with each accepted receipt; nil: nobody watches them.
    private let watch: (@Sendable (Accepted) -> Void)?
    private(set) var found = Found()

    init(watch: (@Sendable (Accepted) -> Void)?) {
        self.watch = watch
    }

    var isHopeless: Bool { found.acceptedCount == 0 && found.answers.total >= Self.hopelessMax }

    /// Whether the body of an answer with this status is needed.
    func wantsBody(_ status: Int) -> Bool {
        Self.isAcceptance(status) ? watch != nil : found.firstTrouble == nil
    }

    func began(late: TimeAmount) {
        found.sent += 1
        if late > Self.lateness { found.late += 1 }
        found.worstLateness = max(found.worstLateness, late)
    }

    /// - Parameter body: empty if it was not wanted.
    func answered(_ status: Int, _ body: ByteBuffer, at now: NIODeadline, after latency: TimeAmount) {
        found.answers.count(status)
        guard Self.isAcceptance(status) else {
            if found.firstTrouble == nil {
                let said = String(decoding: body.readableBytesView.prefix(Self.troubleBytes), as: UTF8.self)
                found.firstTrouble = "\(status) \(said)"
            }
            return
        }
        found.latencies.record(latency)
        watch?(Accepted(body: body, at: now))
        found.acceptedCount += 1
    }

    func failed(_ error: any Error) {
        found.answers.error += 1
        if found.firstTrouble == nil { found.firstTrouble = "\(error)" }
    }

    private static func isAcceptance(_ status: Int) -> Bool { [200, 201, 202].contains(status) }
}
