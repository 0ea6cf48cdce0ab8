import AppStoreSimulator
import Foundation
import Purchases
import TestServers
import Testing

extension EndToEnd {
    /// Apple's own reports against the ledger: `makegood reconcile sales`. The App Store of the test makes the reports.
    @Suite struct SalesReportTests {
        /// Goal: each purchase that was sold, refunded, restored, shared or tried in the sandbox, on both sides of a
        /// midnight in Los Angeles, is explained to the unit, by Sales and Financial Reports. A grant that the
        /// database's owner deletes is the one unexplained unit, with product, country and day. A report that was cut
        /// is refused, and nothing is printed of it. Method: real processes, the reports of the App Store's ledger,
        /// plain and compressed.
        @Test func appleAndTheLedgerAgreeToTheUnit() async throws {
            try await System.run { system in
                try system.configureGame { $0.grantFrom = Date.now.addingTimeInterval(-6 * 86_400).formatted(.iso8601) }
                try await system.startAll()
                let today = AppleDay(of: .now)
                let midnight = AppleDay(number: today.number - 1).start
                let lost = try await system.sellOfEveryKind(around: midnight)

                let days = (-4...0).map { AppleDay(number: today.number + $0) }
                var reports: [String] = []
                for day in days {
                    reports.append(
                        try system.write(try system.appStore.store.salesReport(day: "\(day)"), to: "\(day).txt"))
                }
                try Program.run("gzip", [reports[3]])
                reports[3] += ".gz"
                let sales = ["reconcile", "sales", "--app", "game"]
                let found = try await system.command(sales + reports + ["--json"])
                #expect(found.contains(#""unexplained":0,"reports":"#), "\(found)")
                for cause in ["sandbox", "family_shared", "restored", "not_ours"] {
                    #expect(found.contains(#""cause":"\#(cause)""#), "\(cause): \(found)")
                }
                #expect(!found.contains("day_boundary") && !found.contains("refund_day"), "\(found)")
                let table = try await system.command(sales + reports)
                #expect(table.contains("every unit of Apple's is explained") && table.contains("1F ("), "\(table)")

                var months: [String] = []
                for month in Set(days.compactMap(FiscalMonth.init(containing:))) {
                    let name = "\(month.year)-\(month.month < 10 ? "0" : "")\(month.month)"
                    months.append(
                        try system.write(
                            try system.appStore.store.financialReport(month: name), to: "month-\(name).txt"))
                }
                let settled = try await system.command(sales + months + ["--json"])
                #expect(settled.contains(#""unexplained":0,"reports":"#), "\(settled)")
                #expect(settled.contains(#""cause":"price_zero""#), "\(settled)")

                let id = lost.purchase.transactionId
                try await system.execute("create table lost as select * from grants where transaction_id = '\(id)'")
                try await system.execute("delete from grants where transaction_id = '\(id)'")
                let day = AppleDay(of: midnight)
                let refusal = await system.refusal(sales + reports + ["--json"])
                #expect(refusal.contains("ended with exit(1)") && refusal.contains(#""unexplained":1,"reports":"#))
                let place =
                    #""product":"\#(ConfigurationFile.coins)","country":"DE","from":"\#(day)","through":"\#(day)""#
                #expect(
                    refusal.contains(place + #","what":"sales","apple":1,"ours":0,"causes":[],"unexplained":1"#),
                    "\(refusal)")
                try await system.execute("insert into grants select * from lost")
                try await system.execute("drop table lost")

                // A report that was cut, one that overlaps another, and one of another app alone.
                let whole = try Data(contentsOf: URL(filePath: reports[3]))
                try whole.dropLast(9).write(to: URL(filePath: "\(system.directory)/cut.txt.gz"))
                let cut = await system.refusal(sales + [reports[0], "\(system.directory)/cut.txt.gz"])
                #expect(cut.contains("ended with exit(2)") && cut.contains("cut.txt.gz, line "), "\(cut)")
                #expect(cut.contains("the file was cut off") && !cut.contains("rows of in-app"), "\(cut)")
                let copy = try system.write(try String(contentsOfFile: reports[2], encoding: .utf8), to: "copy.txt")
                let twice = await system.refusal(sales + [reports[2], copy])
                #expect(
                    twice.contains("ended with exit(2)") && twice.contains("copy.txt, line 2, column 10"), "\(twice)")
                let foreign = await system.refusal(["reconcile", "sales", "--app", "puzzle", reports[2]])
                #expect(foreign.contains("ended with exit(2)") && foreign.contains("another vendor's"), "\(foreign)")
            }
        }
    }
}

extension System {
    /// Sells and posts purchases of every kind within an hour of a midnight in Los Angeles, and refunds one on the day
    /// after. Returns the only purchase in Germany, on the day that begins.
    fileprivate func sellOfEveryKind(around midnight: Date) async throws -> Sale {
        let before = Int64(midnight.timeIntervalSince1970 * 1000) - 600_000
        let after = before + 1_200_000
        func sell(
            _ product: String = ConfigurationFile.coins, at moment: Int64, user: String = "u1",
            _ change: (inout SaleRequest) -> Void = { _ in }
        ) async throws -> Sale {
            let sale = try await appStore.sell(product) {
                $0.purchaseDate = moment
                $0.customer = "customer-\(user)"
                change(&$0)
            }
            owe(sale, to: user)
            let answer = try await submit(sale, user: user, wait: 20)
            guard answer.state == "granted" else { throw Failure(description: "not granted: \(answer.text)") }
            return sale
        }
        for moment in [before, after] {
            _ = try await sell(at: moment) { $0.quantity = 2 }
            _ = try await sell(ConfigurationFile.gems, at: moment)
        }
        let german = try await sell(at: after, user: "u2") { ($0.storefront, $0.currency) = ("DEU", "EUR") }
        _ = try await sell(at: after, user: "tester") { $0.environment = .sandbox }
        _ = try await sell(ConfigurationFile.gold, at: before, user: "u3") {
            $0.type = .autoRenewable
            ($0.offerType, $0.offerDiscountType, $0.price) = (1, "FREE_TRIAL", 0)
        }
        let family = try await sell(ConfigurationFile.pass, at: after, user: "u4") {
            $0.type = .autoRenewable
            $0.family = ["customer-u5"]
        }
        owe(family.family[0], promised: 0, to: "u5")
        try await submit(family.family[0], user: "u5", wait: 20)

        let sword = try await sell(ConfigurationFile.sword, at: before) { $0.type = .nonConsumable }
        let restored = try await appStore.sell(ConfigurationFile.sword) {
            $0.type = .nonConsumable
            $0.originalTransactionId = sword.purchase.transactionId
            $0.purchaseDate = after
        }
        let again = try await submit(restored, user: "u1", wait: 20)
        guard again.state == "already_granted" else { throw Failure(description: "restored: \(again.text)") }

        let refunded = try await sell(ConfigurationFile.gems, at: before, user: "u6")
        try appStore.store.refund(
            refunded.purchase.transactionId, RefundRequest(revocationDate: after + 3_600_000, revocationReason: 1))
        try await notify("REFUND", about: refunded)
        try await wait("the refund to be recorded") {
            try await self.count("select count(*) from revocations where reason = 'refunded'") == 1
        }
        // Sold by another app of the same vendor, and posted by nobody.
        _ = try await appStore.sell(ConfigurationFile.riddle, app: "puzzle") { $0.purchaseDate = after }
        return german
    }

    fileprivate func write(_ text: String, to name: String) throws -> String {
        let path = "\(directory)/\(name)"
        try text.write(toFile: path, atomically: true, encoding: .utf8)
        return path
    }

    /// What a command printed that must not end with 0.
    fileprivate func refusal(_ arguments: [String]) async -> String {
        do {
            return "ended with exit(0): " + (try await command(arguments))
        } catch {
            return "\(error)"
        }
    }
}
