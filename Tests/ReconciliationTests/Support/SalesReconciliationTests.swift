import Foundation
import Ledger
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Support

extension AppleBooks {
    /// The books of one Sales Report: lines of product, type, units and country on one day.
    static func report(
        _ lines: [(product: String, type: String, units: Int, country: String)], on day: AppleDay,
        known: Set<String> = ["coins"]
    ) throws -> AppleBooks {
        let columns = ["SKU", "Product Type Identifier", "Units", "Begin Date", "End Date", "Country Code"]
        var reader = try AppleReportReader(file: "report", header: Array(columns.joined(separator: "\t").utf8))
        var books = AppleBooks(.sales, app: "game", known: known)
        for (index, line) in lines.enumerated() {
            let text = "\(line.product)\t\(line.type)\t\(line.units)\t\(day)\t\(day)\t\(line.country)"
            if case .row(let row) = try reader.read(Array(text.utf8), number: index + 2) {
                try books.add(row, of: reader)
            }
        }
        return books
    }
}

/// Goal: the ledger's units come out of the tables as the comparison needs them: every kind of grant, refund, import
/// and decision, with country, day and cause. A grant that the database's owner deletes is one unexplained unit.
/// Method: one of each on the real database, against a report.
@Suite(.timeLimit(.minutes(2))) struct SalesReconciliationTests {
    private static let day = AppleDay(of: Date.now - 3 * 86_400)
    private static let noon = day.start + 12 * 3600

    private static func purchase(
        _ id: String, of original: String? = nil, in environment: String = Transaction.production,
        storefront: String? = "USA",
        _ decision: Decision = .grant(goods: Verdict.Entry.coins, source: .poster),
        _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        .purchase(id, of: original, in: environment, decision) {
            $0.purchasedAt = noon
            $0.facts = storefront.map { #"{"price": 990, "reason": "PURCHASE", "storefront": "\#($0)"}"# } ?? "{}"
            change(&$0)
        }
    }

    private static func texts(_ result: SalesReconciliation) -> [String] {
        result.results.flatMap(\.differences).map { difference in
            let parts = difference.parts.map {
                "\($0.cause.rawValue) \($0.units) [\($0.transactions.joined(separator: ","))]"
            }
            let rest = difference.unexplained == 0 ? [] : ["? \(difference.unexplained)"]
            return "\(difference.place.product) \(difference.place.country) \(difference.place.side.rawValue) "
                + "\(difference.apple)/\(difference.ours): " + (parts + rest).joined(separator: ", ")
        }
    }

    @Test("one of each kind is explained; a deleted grant is one unexplained unit, with product, country and day")
    func everyKind() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            for entry in [
                Self.purchase("t1"), Self.purchase("t2"), Self.purchase("t3", storefront: "DEU") { $0.quantity = 3 },
                Self.purchase("s1", in: Transaction.sandbox), Self.purchase("u1", storefront: nil),
                Self.purchase("f1") { $0.ownership = "FAMILY_SHARED" },
                Self.purchase("h1", storefront: "FRA", .held(.orderUnknown)),
                Self.purchase("r1", storefront: "FRA", .rejected(.refunded)) { $0.revokedAt = Self.noon + 60 },
                Self.purchase("b1", storefront: "FRA", .held(.beforeCutover)),
                Self.purchase("other") { $0.productID = "gems" },
                // Days that no report covers, too far to be meant.
                Self.purchase("old") { $0.purchasedAt -= 5 * 86_400 },
            ] {
                #expect(try await lab.settle(try await lab.post(), entry) != nil)
            }
            try await lab.run(
                """
                insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason,
                  takes_back, percentage, goods, at)
                select t, o, 'game', 'Production', 'u1', k, 'refunded', true, 100000, '[]', t0 from (values
                  ('t2', 1, 'revoked', timestamptz '\((Self.noon + 3600).rfc3339)'),
                  ('t3', 1, 'revoked', timestamptz '\((Self.noon + 3600).rfc3339)'),
                  ('t3', 2, 'reinstated', timestamptz '\((Self.noon + 7200).rfc3339)')) v(t, o, k, t0)
                """)
            try await lab.run(
                """
                insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id,
                  product_id, purchased_at)
                values ('i1', 'game', 'Production', 'i1', 'u1', 'coins', '\(Self.noon.rfc3339)')
                """)
            let books = try AppleBooks.report(
                [
                    ("coins", "IA1", 2, "US"), ("coins", "IA1", -1, "US"), ("coins", "IA3", 1, "US"),
                    ("coins", "IA1", 3, "DE"), ("coins", "IA1", 3, "FR"), ("coins", "IA1", -1, "FR"),
                    ("coins", "IA1", 2, "JP"), ("hat", "IA1", 4, "US"), ("an app", "1F", 7, "US"),
                    ("gems", "IA1", 1, "US"),
                ], on: Self.day)
            let found = try await SalesReconciliation(of: "game", [books], grantFrom: nil, in: lab.database)
            #expect(
                Self.texts(found) == [
                    "coins  sales 0/1: country_unknown -1 [u1]",
                    "coins DE refunds 0/3: refund_reversed -3 [t3]",
                    "coins FR refunds 1/0: rejected 1 [r1]",
                    "coins FR sales 3/0: undecided 1 [h1], rejected 1 [r1], before_cutover 1 [b1]",
                    "coins JP sales 2/0: country_unknown 1 [u1], imported 1 [i1]",
                    "coins US sales 3/4: restored 1 [], sandbox -1 [s1], family_shared -1 [f1]",
                    "hat US sales 4/0: not_ours 4 []",
                ])
            #expect(found.unexplained == 0)
            #expect(found.lines.last?.hasPrefix("every unit of Apple's is explained") == true)

            try await lab.run("delete from grants where transaction_id = 't1'")
            let after = try await SalesReconciliation(of: "game", [books], grantFrom: nil, in: lab.database)
            #expect(after.unexplained == 1)
            #expect(
                Self.texts(after).filter { $0.contains("?") } == [
                    "coins US sales 3/3: restored 1 [], sandbox -1 [s1], family_shared -1 [f1], ? 1"
                ])
            #expect(after.json.text.contains(#""product":"coins","country":"US","from":"\#(Self.day)""#))
            #expect(after.lines.contains { $0.split(separator: " ").suffix(2) == ["unexplained", "1"] })
        }
    }

    @Test("a report without a product of the app is refused, and one of a product that was sold once is not")
    func otherApps() async throws {
        try await LedgerLab.with { lab in
            let books = try AppleBooks.report([("gems", "IA1", 1, "US")], on: Self.day)
            await #expect(throws: AppleReportError.self) {
                try await SalesReconciliation(of: "game", [books], grantFrom: nil, in: lab.database)
            }
            try await lab.settle(try await lab.post(), Self.purchase("g1") { $0.productID = "gems" })
            let found = try await SalesReconciliation(of: "game", [books], grantFrom: nil, in: lab.database)
            #expect(found.unexplained == 0 && Self.texts(found) == [])
        }
    }

    @Test("before the app was live here nothing is unexplained")
    func cutover() async throws {
        try await LedgerLab.with { lab in
            let books = try AppleBooks.report([("coins", "IA1", 1, "US")], on: Self.day)
            let live = try await SalesReconciliation(
                of: "game", [books], grantFrom: Self.day.next.start, in: lab.database)
            #expect(Self.texts(live) == ["coins US sales 1/0: before_cutover 1 []"])
            try await lab.run(
                "insert into apps (app_id, configuration_sha256, live_since) values ('game', '\\x01', '2020-01-01')")
            let later = try await SalesReconciliation(of: "game", [books], grantFrom: nil, in: lab.database)
            #expect(later.unexplained == 1)
        }
    }
}
