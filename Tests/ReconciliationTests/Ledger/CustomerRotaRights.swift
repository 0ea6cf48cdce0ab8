import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

extension RightsTests {
    /// Keeps the rota of customers as the worker, and looks up as those who may.
    static func workOnCustomers(
        in lab: LedgerLab,
        _ act: (DatabaseRole, LedgerLab, (Database) async throws -> Void) async throws -> Void
    ) async throws {
        try await lab.customer("rights", dueIn: "-1 minute")
        try await lab.run(
            "update history_walks set refunds_due_at = now(), active_until = now() where customer = 'rights'")
        let place = Statements.SweptPlace(
            appID: "game", environment: "Production", customersEvery: .seconds(3600), refundsEvery: .seconds(60))
        let claim = Statements.CustomerClaim(places: [place], lease: .zero, wholeEvery: .seconds(60))
        try await act(.worker, lab) { database in
            try await database.run(Statements.enterCustomers, .seconds(60))
            try await database.run(Statements.enterImported, ())
            try await database.run(Statements.scheduleCustomers, [place])
            try await database.run(Statements.wantUnpaid, .init(apart: .seconds(60)))
            try await database.run(Statements.wantReported, .init(apart: .seconds(60)))
            try await database.run(
                Statements.wantCustomer, .init([(appID: "game", name: .user("u1"))], reason: .support))
            let claimed = try #require(try await database.run(Statements.claimCustomers, claim).first)
            let ofRefunds = try #require(try await database.run(Statements.claimRefunds, claim).first)
            var hearing = Hearing(notification: nil, appID: "game", net: .customer)
            hearing.transactions = [Verdict.Entry.purchase("swept").transaction.signed(60)]
            hearing.customers = [
                .init(
                    walk: .init(appID: "game", environment: "Production", customer: "named"), askedID: "swept",
                    activeUntil: .now)
            ]
            for (net, reader) in [(Statements.CustomerPlace.Net.customer, claimed), (.refund, ofRefunds)] {
                hearing.customerPlace = .init(
                    net: net, reader, revision: "r", passedOver: 0, next: .end(dueIn: .seconds(60)))
                _ = try await lab.hear([hearing], on: database)
            }
            try await database.run(
                Statements.putOffCustomer, .init(net: .customer, claimed, dueIn: .zero, problem: .appleAnswer))
            try await database.run(
                Statements.putOffRefunds, .init(net: .refund, ofRefunds, dueIn: .zero, problem: .appleAnswer))
            try await database.run(Statements.refundsUndone, (walk: claimed.walk, listed: []))
            try await database.run(
                Statements.noteDifferences,
                [Difference(.goodsDiffer, "t", appID: "game", environment: "Production", net: .customer)])
            try await database.run(Statements.endDifferences, [(category: .goodsDiffer, subject: "t")])
            try await database.run(Statements.endHealedDifferences, .first)
        }
        for role in [DatabaseRole.ingest, .support] {
            try await act(role, lab) { database in
                try await database.run(Statements.wantLookedUp, (appID: "game", subject: .transaction("swept")))
            }
        }
    }
}
