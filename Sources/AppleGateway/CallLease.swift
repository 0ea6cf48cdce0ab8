import DequeModule
import Ledger

/// What a process has leased of one budget for one lane. A pure value: time is a parameter.
struct CallLease: Sendable {
    /// Longer slices are of budgets of less than one call a second: there a call that may be made now does not wait.
    private static let pacedMax: Duration = .seconds(1)
    /// Nobody waits longer for the next slice than so because an answer took its time.
    private static let openingMax: Duration = .milliseconds(5)

    /// Nil: Apple names no limit, and nothing is leased.
    private(set) var slice: CallSlice?
    /// When the slice ends that was leased last, at the earliest: the answer says how long it was when it left.
    private var endsAt: ContinuousClock.Instant = .now
    /// The same at the latest. Who asks in between may be leased calls of the old slice, for a few milliseconds.
    private var opensAt: ContinuousClock.Instant = .now
    /// The slice that was leased last is over, and what was used of it is noted.
    private var hasEnded = true
    /// The last lease was less than was asked for: nothing more before the slice ends.
    private var isDry = false
    /// When each of the calls that are left may leave.
    private var calls: Deque<ContinuousClock.Instant> = []
    /// How much there was in the slice that was dry.
    private var share: Int?
    /// Of its slice, what nobody had when the database was asked last.
    private var spare = 0
    private var granted = 0
    /// What was used of the slice before.
    private var grantedBefore = 0
    /// The most that was used of a slice lately: halved with each.
    private var peak = 0
    private var lateAnswers = 0

    /// Counts from the next lease on.
    mutating func keep(to slice: CallSlice?) {
        self.slice = slice
    }

    /// What was leased and not used is not asked for again. As often as anybody asks: a slice ends once.
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

    /// The next call that is leased; nil: none is.
    var leavesAt: ContinuousClock.Instant? { calls.first }

    func isReady(_ now: ContinuousClock.Instant) -> Bool {
        slice == nil || calls.first.map { $0 <= now } ?? false
    }

    /// One call leaves.
    mutating func take() {
        if slice != nil { calls.removeFirst() }
    }

    /// How many may wait so that the last one waits no longer than so, or at most a slice; nil: any.
    func queueMax(_ wait: Duration) -> Int? {
        slice.map { max(1, share ?? $0.calls) * max(1, Int(wait / $0.length)) }
    }

    /// How many calls to lease: for who waits, and for who will come in the rest of the slice as in the last. Who has used
    /// that up asks for as many again where an eighth of what nobody had is as much: a question costs more than calls that
    /// are left over. Before they are needed only a small part of it is taken, for calls that come in bursts: what one
    /// worker keeps in vain others may lack.
    func wanted(waiting: Int) -> Int {
        let expected = max(0, grantedBefore - granted) + min(peak, spare / 64)
        return min(max(waiting, expected, granted / 4, min(granted, spare / 8)), slice?.calls ?? 0)
    }

    /// - Parameter asked: when the question went out: the answer may have taken its time. One that comes after its slice
    ///   is of no use, or calls would pile up in the next; but a database that is always so slow must not mean that
    ///   nobody calls.
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
        // Each call of a slice has its own moment in it, whoever leased it: so they do not come to Apple in a bunch.
        let distance = slice.length <= Self.pacedMax ? slice.length / slice.calls : .zero
        let begin = endsAt - slice.length
        hasEnded = false
        for number in answer.first..<answer.first + answer.calls { calls.append(begin + distance * number) }
        granted += answer.calls
        spare = max(0, slice.calls - answer.first - answer.calls)
        isDry = answer.calls < wanted
        share = isDry ? granted : nil
    }

    /// Apple said 429: what is left is worth nothing.
    mutating func forget() {
        calls = []
    }
}
