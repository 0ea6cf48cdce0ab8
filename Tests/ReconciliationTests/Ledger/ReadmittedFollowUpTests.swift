import Foundation
import Purchases
import Testing

@testable import Ledger
@testable import Settings

/// Goal: a readmitted user's subscription is looked at again, though Apple says nothing new about it. Method: the
/// transactions of the real database, with protected users.
@Suite(.timeLimit(.minutes(5))) struct ReadmittedFollowUpTests {
    @Test("an erasure ends the looks at a subscription, and a readmission begins them again, by what holds now")
    func readmitted() async throws {
        try await LedgerLab.with { lab in
            let keys = try #require(UserKeys(file: "0123456789abcdef0123456789abcdef"))
            let key = keys.key(of: "u1", app: "game")
            try await UserRegister(ledger: lab.ledger).enter("u1", key: key, app: "game", keys)
            let period = Verdict.Entry.purchase("p1", of: "p1", kind: .autoRenewable) {
                ($0.purchasedAt, $0.expiresAt) = (Date(timeIntervalSinceNow: -3600), Date(timeIntervalSinceNow: 3600))
            }
            try await lab.settle(try await lab.post(key), period)
            try await lab.settle(try await lab.post(key), .purchase("coins"))
            try await lab.followUp()
            func looks() async throws -> Int {
                try await lab.number("select count(*) from chains where due_at is not null and state = 'active'")
            }
            #expect(try await looks() == 1)
            let erasure = UserErasure(database: lab.database, keys: keys, actor: "ann")
            #expect(try await erasure.erase(erasure.name(of: "u1", app: "game")))
            #expect(try await lab.followUp().chains == 0)
            #expect(try await looks() == 0)
            #expect(try await erasure.readmit("u1", app: "game"))
            #expect(try await lab.followUp().chains == 1, "the subscription, and no consumable")
            #expect(try await looks() == 1)
            #expect(
                try await lab.told("subscription.%")
                    == ["subscription.started \(key) p1", "subscription.started \(key) p1"])
        }
    }
}
