import Foundation
import Ledger
import Purchases

/// How long a receipt waits that did not end. Each wait is random, so that receipts of one moment do not come back at
/// one moment.
extension RetrySchedule {
    /// The wait of a receipt whose app is paused.
    var pause: Duration { .seconds(60) }

    private static let outageDelayMin: Duration = .seconds(30)
    private static let budgetDelayMin: Duration = .seconds(5)
    private static let delayMax: Duration = .seconds(300)
    /// Receipts that wait for the same moment come back within this time after it.
    private static let spreadMax: Duration = .seconds(60)

    /// The wait after an attempt at Apple. A receipt that nobody posted waits in its row alone: the retry queues lead
    /// to the lane `apple`.
    func wait(after receipt: StoredReceipt) -> Wait {
        let wait = wait(afterAttempts: receipt.tries, random: Double.random(in: 0..<1))
        guard receipt.lane == .unposted, case .retryQueue(let index) = wait else { return wait }
        return .row(delay(ofRetryQueue: index))
    }

    /// How long the receipt waits for the owner's own post, in seconds (``Matcher/unpostedFor``).
    var unpostedFor: TimeInterval { Matcher.unpostedFor * scale }

    /// The wait of a receipt about which Apple was not asked: about a quarter of the receipt's age. So receipts come
    /// back less often the longer they have waited. If the wait were the age itself, the last receipts of a rush would
    /// come back over minutes in which nobody calls: of N receipts of age t, N / t come in a second. With a quarter
    /// four times as many come, and the number that still waits falls with the fourth power of the time.
    ///
    /// - Parameter until: a time that Apple has named. Apple names it to all workers at once, so receipts come back one
    ///   by one after it.
    func wait(of receipt: StoredReceipt, for reason: Reason, until: Date? = nil) -> Duration {
        if let until {
            let wait = Duration.seconds(max(1, until.timeIntervalSince(receipt.readAt)))
            return wait + min(wait, Self.spreadMax) * Double.random(in: 0..<1)
        }
        if reason == .halted { return pause * scale }
        let least = (reason == .appleBudget ? Self.budgetDelayMin : Self.outageDelayMin) * scale
        return min(max(receipt.age / 4, least), Self.delayMax * scale) * Double.random(in: 0.5..<1.5)
    }

    func heldDelay(of receipt: StoredReceipt) -> Duration {
        if receipt.isOnTrust { return confirmDelay(age: receipt.age) }
        // For a bare id this old, more time alone changes nothing.
        return receipt.isBareID && receipt.isOld(by: self)
            ? fallbackDelay(random: .random(in: 0..<1)) : heldDelay(age: receipt.age)
    }

    /// The delay of a receipt that is held. A receipt that waits for the configuration or a person, and was found so
    /// before, comes back rarely. The first time it comes back like all held receipts, because a configuration may be
    /// changing just then.
    ///
    /// A receipt that waits for its owner's post comes back when the day is over. A post that is judged earlier makes
    /// the receipt due.
    func heldDelay(of receipt: StoredReceipt, _ decisions: Verdict.Decisions) -> Duration {
        if decisions.waitsForOwner {
            let rest = receipt.receivedAt.addingTimeInterval(unpostedFor).timeIntervalSince(receipt.readAt)
            if rest > 0 { return .seconds(rest) }
        }
        guard decisions.waitsForConfiguration, receipt.state == .held || decisions.isOfShadow else {
            return heldDelay(of: receipt)
        }
        return fallbackDelay(random: .random(in: 0..<1))
    }
}

extension Verdict.Decisions {
    /// Whether a purchase in the receipt waits for its owner's own post.
    fileprivate var waitsForOwner: Bool {
        guard case .transactions(let entries) = self else { return false }
        return entries.contains { $0.decision == .open(.unclaimedYet) }
    }
}

extension StoredReceipt {
    /// The time since it came, by the database's clock.
    fileprivate var age: Duration { .seconds(readAt.timeIntervalSince(receivedAt)) }
}
