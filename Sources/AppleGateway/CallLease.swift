import DequeModule
import Ledger

/// The calls of one budget that a process has leased for one lane. A pure value: time is a parameter.
struct CallLease: Sendable {
    /// The longest slice in which calls leave at even distances. Only a budget of less than one call a second has
    /// longer slices; there a call that may be made now does not wait.
    private static let pacedMax: Duration = .seconds(1)
    /// How much longer a caller waits for the next slice at most, because the database's answer took its time.
    private static let openingMax: Duration = .milliseconds(5)

    /// Nil: Apple names no limit, and nothing is leased.
    private(set) var slice: CallSlice?
    /// The earliest time at which the last leased slice ends: the answer says how long the slice was when the answer
    /// left.
    private var endsAt: ContinuousClock.Instant = .now
    /// The latest time at which the last leased slice ends. A question in between may be given calls of the old slice,
    /// for a few milliseconds.
    private var opensAt: ContinuousClock.Instant = .now
    /// Whether the last leased slice is over, and its use is noted.
    private var hasEnded = true
    /// Whether the last lease was less than was asked for: nothing more is leased before the slice ends.
    private var isDry = false
    /// When each of the unused calls may leave.
    private var calls: Deque<ContinuousClock.Instant> = []
    /// How many calls this process got of the slice that ran dry.
    private var share: Int?
    /// The calls of the slice that no process had leased when the database was last asked.
    private var spare = 0
    private var granted = 0
    /// How many calls were used of the slice before.
    private var grantedBefore = 0
    /// The most calls that were used of a slice lately; halved with each slice.
    private var peak = 0
    private var lateAnswers = 0

    /// Sets the slice, from the next lease on.
    mutating func keep(to slice: CallSlice?) {
        self.slice = slice
    }

    /// Ends a slice that is over. Unused calls do not count as need in the next slice. May be called as often as
    /// anybody asks: a slice ends once.
    mutating func beginSlice(_ now: ContinuousClock.Instant) {
        guard let slice, endsAt <= now else { return }
        if now >= endsAt + slice.length {
            (grantedBefore, peak, spare) = (0, 0, 0)
        } else if !hasEnded {
            grantedBefore = granted - calls.count
            peak = max(grantedBefore, peak / 2)
        }
        (hasEnded, granted, isDry, calls) = (true, 0, false, [])
    }

    /// When more may be leased; nil: now.
    func asksAt(_ now: ContinuousClock.Instant) -> ContinuousClock.Instant? {
        (isDry || endsAt <= now) && now < opensAt ? opensAt : nil
    }

    /// When the next leased call may leave; nil: none is leased.
    var leavesAt: ContinuousClock.Instant? { calls.first }

    func isReady(_ now: ContinuousClock.Instant) -> Bool {
        slice == nil || calls.first.map { $0 <= now } ?? false
    }

    /// One call leaves.
    mutating func take() {
        if slice != nil { calls.removeFirst() }
    }

    /// How many callers may wait so that the last one waits no longer than `wait`, or than a slice where that is
    /// longer; nil: any number.
    func queueMax(_ wait: Duration) -> Int? {
        slice.map { max(1, share ?? $0.calls) * max(1, Int(wait / $0.length)) }
    }

    /// How many calls to lease: for the callers that wait, and for those that will come in the rest of the slice if it
    /// goes like the last one. A process that has used its lease asks for as many calls again, up to an eighth of the
    /// calls that nobody had: a question costs more than unused calls. Before calls are needed only a small part of
    /// them is leased, for bursts: other workers may lack calls that one worker keeps in vain.
    func wanted(waiting: Int) -> Int {
        let expected = max(0, grantedBefore - granted) + min(peak, spare / 64)
        return min(max(waiting, expected, granted / 4, min(granted, spare / 8)), slice?.calls ?? 0)
    }

    /// - Parameter asked: when the question went out, because the answer may have taken its time. An answer that comes
    ///   after its slice has ended is not used, or calls would pile up in the next slice. After several late answers in
    ///   a row they are used, because a slow database must not stop all calls.
    mutating func receive(
        _ answer: Statements.Lease, wanted: Int, asked: ContinuousClock.Instant, at now: ContinuousClock.Instant,
        lateAnswersMax: Int
    ) {
        guard let slice else { return }
        endsAt = asked + answer.endsIn
        opensAt = min(now + answer.endsIn, endsAt + Self.openingMax)
        lateAnswers = now < endsAt ? 0 : lateAnswers + 1
        guard lateAnswers == 0 || lateAnswers > lateAnswersMax else { return }
        if lateAnswers > 0 { (endsAt, opensAt) = (now + slice.length, now + slice.length) }
        // Each call of a slice has its own moment in the slice, whichever process leased it, so that calls do not reach
        // Apple in a bunch.
        let distance = slice.length <= Self.pacedMax ? slice.length / slice.calls : .zero
        let begin = endsAt - slice.length
        hasEnded = false
        for number in answer.first..<answer.first + answer.calls { calls.append(begin + distance * number) }
        granted += answer.calls
        spare = max(0, slice.calls - answer.first - answer.calls)
        isDry = answer.calls < wanted
        share = isDry ? granted : nil
    }

    /// Drops the leased calls: Apple said 429, so they are worth nothing.
    mutating func forget() {
        calls = []
    }
}
