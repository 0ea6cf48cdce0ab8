import Adversary
import Foundation
import Purchases
import TestRandom
import Testing

extension EndToEnd {
    /// Some weeks of an app's customers in a minute; `deploy/nightly` lives through a whole year (`makegood-lab year`).
    @Suite struct Year {
        /// Goal: with lost posts, lost notifications, an outage and kills the ledger ends as the App Store's books say,
        /// to the unit, the events say the same, the app's backend has each of them, and what differs is only what no
        /// net has told (B1, B2). What failed at Apple was read from its notification history. Erased users and
        /// reopened receipts raise no alarm.
        /// Method: private servers, real processes, one clock that steps. One run has the same seed every time, the
        /// other a new seed each time, which is printed. At the end the run falsifies two grants, and must notice it.
        @Test(
            .timeLimit(.minutes(5)),
            arguments: [1 as UInt64, SeededRandom(announcing: "year").seed % 1_000_000])
        func theLedgerEqualsTheBooks(seed: UInt64) async throws {
            var setup = YearRun.Setup(
                terms: .init(customers: 30, days: 40, seed: seed), script: System.localScript,
                executable: System.binary, openFiles: 1024)
            setup.falsifies = true
            let report = try await YearRun(setup) { print($0) }.run()
            #expect(report.isPassed, "\(report.text)")
            #expect(report.noticed ?? 0 >= 2, "\(report.text)")
            // A run in which little happened proves little.
            #expect(report.granted > 40 && report.subscriptions > 3 && report.users >= 25, "\(report.text)")
            #expect(report.events > 40 && report.failures > 2 && report.erased > 0, "\(report.text)")
            #expect(report.limited > 0 && report.delivered > 40, "\(report.text)")
        }

        /// Goal: where one net is off, the others find what they can, and what nobody can tell is counted (B2).
        /// Method: some days of a few customers, and the weeks in which every rota comes round; the seed chooses the
        /// net. `makegood-lab year --each` takes each of them.
        @Test(.timeLimit(.minutes(3)))
        func theOtherNetsReachTheRest() async throws {
            let seed = SeededRandom(announcing: "year without a net").seed % 1_000_000
            let net = Net.allCases[Int(seed) % Net.allCases.count]
            var setup = YearRun.Setup(
                terms: .init(customers: 12, days: 12, seed: seed), script: System.localScript,
                executable: System.binary, openFiles: 1024)
            setup.without = [net]
            setup.stepHours = 24
            let report = try await YearRun(setup) { print($0) }.run()
            #expect(report.isPassed, "\(report.text)")
            #expect(report.head.contains("without \(net.rawValue)"), "\(report.text)")
            #expect(report.compared > 8 && report.granted > 0, "\(report.text)")
        }
    }
}
