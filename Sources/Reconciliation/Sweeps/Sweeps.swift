import AppleGateway
import Ledger
import Logging
import Purchases
import Service
import WorkQueue

/// The loops that ask Apple for what nobody told (Sweeps). Any number of workers may run these: the rows say what is due
/// and when.
struct Sweeps: Sendable {
    /// How often a loop looks for a row that is due.
    static let interval: Duration = .seconds(5)
    /// Calls at a time, of each sweep in each process.
    static let callsMax = 4

    let ledger: Ledger
    let apps: AppDirectory
    let halts: Halts
    let appleGateway: AppleGateway
    let workQueue: WorkQueue
    let followUps: FollowUpSignal
    let logger: Logger

    /// Runs every sweep until the task is cancelled.
    func run() async {
        await withDiscardingTaskGroup { group in
            group.addTask { await NotificationHistorySweep(self).run() }
            group.addTask { await SubscriptionSweep(self).run() }
        }
    }

    /// Repeats a round until the task is cancelled.
    ///
    /// - Parameter round: asks what is due, and returns whether more may be due now.
    func loop(_ round: () async -> Bool) async {
        while !Task.isCancelled {
            guard await !round() else { continue }
            try? await Task.sleep(for: max(.milliseconds(50), Self.interval * ledger.schedule.scale))
        }
    }
}
