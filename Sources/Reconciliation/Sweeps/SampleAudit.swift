import AppStore
import AppleGateway
import Ledger
import Logging
import Purchases
import Service
import Settings

/// The audit by sample (L5): each day the audit draws customers of each app at random, and compares the ledger with the
/// whole history of each, which the sweep of customers reads.
struct SampleAudit: Sendable {
    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async { await sweeps.loop { await round() } }

    /// Draws, compares and sums.
    ///
    /// - Returns: whether more customers may be compared now.
    @discardableResult
    func round() async -> Bool {
        let ledger = sweeps.ledger
        do {
            // One place at a time.
            let draws = self.draws
            while !Task.isCancelled, try await ledger.run(Statements.drawSample, draws).first != nil {}
        } catch {
            sweeps.logger.debug("the sample could not be drawn", metadata: LogKeys.error(error))
        }
        do {
            let compared = try await ledger.run(Statements.compareSample, ()).first ?? 0
            let sums = try await ledger.run(Statements.auditSums, ())
            if !sums.isEmpty { _ = try await ledger.run(Statements.keepAuditSums, sums) }
            return compared > 0
        } catch {
            sweeps.logger.debug("the audit by sample could not read the database", metadata: LogKeys.error(error))
            return false
        }
    }

    /// The apps whose customers a worker may ask Apple about.
    private var draws: [Statements.AuditDraw] {
        sweeps.apps.ids.flatMap { id -> [Statements.AuditDraw] in
            guard let app = sweeps.apps[id], app.serverAPI != nil else { return [] }
            return app.lookUpOrder.map {
                .init(appID: id, environment: $0.rawValue, size: app.policy.sweeps.samplePerDay)
            }
        }
    }
}
