import Ledger
import Purchases

/// What a worker does with a receipt that it has examined: the decision on the whole receipt, as a value.
enum Step: Sendable {
    /// Write the decisions. The row, if it stays open or held, is due again after `dueIn`.
    case write(Verdict.Decisions, dueIn: Duration? = nil)
    /// Write the decisions as an attempt at Apple, and have the receipt tried again after the wait.
    case retry(Verdict.Decisions, call: Verdict.Call?, RetrySchedule.Wait)
    /// Write only why the receipt waits, and for how long: no attempt.
    case postpone(Reason, by: Duration)
    /// Move the receipt to Apple's queue.
    case reroute

    /// | the examination | the step |
    /// | --- | --- |
    /// | decided | written |
    /// | a proof that fails as a whole, of a receipt that stays owed (``stays(_:despite:)``) | postponed |
    /// | no usable answer of Apple's | an attempt; a receipt that is held is postponed instead |
    /// | Apple was not asked, or named a time | postponed |
    /// | some purchases judged, the others open | written, as an attempt or without one |
    /// | Apple's lane is needed | moved there |
    /// | Apple could not be reached about some purchases | as the examination says otherwise |
    init(_ examination: Examination, of receipt: StoredReceipt, by schedule: RetrySchedule) {
        switch examination {
        case .unreached(_, let otherwise): self.init(otherwise, of: receipt, by: schedule)
        case .decided(.receipt(.rejected(let reason))) where Self.stays(receipt, despite: reason):
            self = .postpone(reason, by: schedule.heldDelay(of: receipt))
        case .decided(let decisions): self = .write(decisions)
        // A held purchase whose facts are stored does not become unknown because Apple is away.
        case .retry(let reason, _) where receipt.state == .held:
            self = .postpone(reason, by: schedule.heldDelay(of: receipt))
        case .retry(let reason, let call):
            self = .retry(.receipt(.open(reason)), call: call, schedule.wait(after: receipt))
        case .postpone(let reason, let until):
            self = .postpone(reason, by: schedule.wait(of: receipt, for: reason, until: until))
        case .partly(let entries, .retry(_, let call)):
            self = .retry(.transactions(entries), call: call, schedule.wait(after: receipt))
        case .partly(let entries, .postpone(let reason, let until)):
            self = .write(.transactions(entries), dueIn: schedule.wait(of: receipt, for: reason, until: until))
        case .reroute: self = .reroute
        }
    }

    /// Whether a receipt stays open although its proof fails as a whole. The client may have finished the transactions
    /// because we allowed it: held purchases with stored facts stay owed, and some receipts only Apple's answer ends.
    private static func stays(_ receipt: StoredReceipt, despite reason: Reason) -> Bool {
        if let waits = receipt.waitsForAnswer(despite: reason) { return waits }
        return receipt.state == .held && receipt.reason.flatMap(Reason.init(rawValue:))?.holdsFacts == true
    }
}
