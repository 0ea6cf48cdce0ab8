import Foundation
import Ledger
import Postgres

/// The app's backend in a year: it receives the events, and must hold in the end what the ledger told.
///
/// A webhook that is on the way while the clock steps is too old for the receiver, or too young. The receiver refuses
/// it, and takes it when it comes again.
enum YearReceiver {
    /// How long what is due needs.
    private static let deliveredMax: Duration = .seconds(30)
    /// The days after the year in which what was refused comes again.
    private static let daysMax = 3

    /// Whether this version of the program sends events to endpoints: its file names the metric.
    static func isServed(by program: String) -> Bool {
        let content = try? Data(contentsOf: URL(filePath: program), options: .alwaysMapped)
        return content?.range(of: Data("makegood_delivery_attempts_total".utf8)) != nil
    }

    /// Waits until everything is delivered, and compares it with the events of the database.
    static func audit(_ world: TestDeployment, _ clock: SteppedClock, _ report: inout YearReport) async throws {
        guard !world.endpoints.isEmpty else { return }
        for day in 0...daysMax {
            let isDelivered =
                try await world.becomes(within: deliveredMax) {
                    try await world.count(DeliveryAudit.openCount) == 0
                } != nil
            if isDelivered { break }
            guard day < daysMax else {
                report.troubles.append("\(try await world.count(DeliveryAudit.openCount)) users wait for webhooks")
                break
            }
            try await clock.step(by: YearPlan.minutesPerDay * 60, world)
        }
        let database = world.patientDatabase()
        for endpoint in world.endpoints {
            let audit = try await DeliveryAudit.run(endpoint.receiver, of: endpoint.key, in: database)
            report.delivered += audit.events
            report.troubles += audit.defects.map { "webhooks: \($0)" }
        }
        await database.close()
    }
}
