import Ledger
import Logging
import Metrics
import Purchases
import Service

/// Stores what the answers of one endpoint's receiver report of hand-outs (S0-23): `{"handled": {"outcome": …}}` in the
/// body of a 2xx answer, as in a post to `/v1/events/{id}/handled`.
struct HandOutReports: Sendable {
    private let endpoint: EndpointKey
    private let ledger: Ledger
    private let logger: Logger

    init(_ endpoint: EndpointKey, _ parts: borrowing SendingTurn.Parts) {
        self.endpoint = endpoint
        ledger = parts.ledger
        logger = parts.logger
    }

    /// Stores what an answer reports of the event that was sent. A report that nobody understands, or that does not fit
    /// the event, is counted and passed over: the event counts as delivered.
    ///
    /// - Returns: false: the database is away. The receiver reports again when the event is sent again.
    func take(_ body: [UInt8], of event: Event) async -> Bool {
        guard !body.isEmpty else { return true }
        switch HandOut.read(webhookAnswer: body, to: event.id) {
        case .none: break
        case .ignored: count("ignored")
        case .report(let handOut):
            do throws(LedgerError) {
                let stored = try await ledger.run(
                    Statements.handleEvent,
                    HandOutReport(
                        apps: [event.appID], transactionID: event.transactionID, eventID: event.id, handOut))
                count(stored.first?.word.rawValue ?? "ignored")
            } catch {
                guard !error.isRetryable else { return false }
                logger.error(
                    "the database refused a report of a hand-out: report this defect",
                    metadata: LogKeys.endpoint(endpoint, LogKeys.error(error)))
            }
        }
        return true
    }

    private func count(_ outcome: String) {
        Counter(
            label: "makegood_delivery_answers_total",
            dimensions: [("app", endpoint.appID), ("endpoint", endpoint.name), ("outcome", outcome)]
        ).increment()
    }
}
