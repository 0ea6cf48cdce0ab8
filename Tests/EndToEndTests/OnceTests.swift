import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// A purchase is granted once, however often, by whomever and wherever it is posted.
    @Suite struct Once {
        /// Goal: the callbacks of one purchase that arrive at the same time (P4, S4-19, B2) lead to one grant and one
        /// answer.
        /// Method: one submission a hundred times in parallel, half of them to each of two ingest processes, with two
        /// workers. All are accepted with the same id, and one row, one grant and one event exist.
        @Test func oneSubmissionAHundredTimesAtTwoProcessesIsOneGrant() async throws {
            try await System.run { system in
                let first = try await system.client(of: system.start(.ingest))
                let second = try await system.client(of: system.start(.ingest))
                try await system.start(.worker)
                try await system.start(.worker)
                try await system.start(.scheduler)
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let post = Client.Post(userId: "u1", signedTransaction: sale.signedTransaction)
                let ids = try await withThrowingTaskGroup(of: String.self) { group in
                    for index in 0..<100 {
                        group.addTask { try await system.submit(post, to: index.isMultiple(of: 2) ? first : second).id }
                    }
                    return try await group.reduce(into: Set<String>()) { $0.insert($1) }
                }
                #expect(ids.count == 1)
                try await system.settleDebts()
                #expect(try await system.count("select count(*) from receipts") == 1)
                for client in [first, second] {
                    let answer = try await client.post(post)
                    #expect(answer.status == 200)
                    #expect(answer.state == "granted")
                    #expect(answer.safeToFinish == true)
                }
            }
        }

        /// Goal: one transaction in two submissions is granted once, and the second submission is answered so (P5, P7).
        /// Method: the same purchase as a signed transaction and as a legacy receipt under another order id, both in
        /// flight at once; one receipt ends granted, the other already granted, both safe to finish.
        @Test func oneTransactionUnderTwoSubmissionsIsOneGrant() async throws {
            try await System.run { system in
                try await system.startAll()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                async let signed = system.submit(
                    .init(userId: "u1", signedTransaction: sale.signedTransaction), wait: 20)
                async let legacy = system.submit(
                    .init(userId: "u1", orderId: "order-2", receipt: sale.receipt), wait: 20)
                let answers = try await [signed, legacy]
                #expect(Set(answers.map(\.state)) == ["granted", "already_granted"])
                #expect(answers.allSatisfy { $0.safeToFinish == true && $0.status == 200 })
                #expect(Set(answers.map(\.id)).count == 2)
            }
        }

        /// Goal: if three users claim one transaction in the same batch, one user gets it, and only that user is told
        /// to be the owner (P10).
        /// Method: no worker runs while the three posts are accepted, so that one worker finds them together; then one
        /// is granted and two end `already_granted`, `owned_by_another_user`, with `owner: another` and no goods.
        @Test func threeUsersWhoClaimOneTransactionInOneBatchGetOneGrant() async throws {
            try await System.run { system in
                try await system.start(.ingest)
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1", "u2", "u3")
                var ids: [String] = []
                for user in ["u1", "u2", "u3"] { ids.append(try await system.submit(sale, user: user).id) }
                try await system.start(.worker)
                try await system.start(.scheduler)
                var states: [String: Int] = [:]
                for id in ids {
                    let answer = try await system.client.receipt(id, wait: 20)
                    states[answer.state, default: 0] += 1
                    // The owner only posted it first, and no proof names the owner: the other users keep their copies
                    // for a day.
                    #expect(answer.safeToFinish == (answer.state == "granted"))
                    #expect((answer.json["nextAttemptAt"] != nil) == (answer.state != "granted"))
                    let transaction = try #require(answer.transactions.first)
                    if answer.state == "granted" {
                        #expect(transaction["owner"] as? String == "you")
                    } else {
                        #expect(answer.reason == "owned_by_another_user")
                        #expect(transaction["owner"] as? String == "another")
                        #expect(transaction["goods"] == nil)
                    }
                }
                #expect(states == ["granted": 1, "already_granted": 2])
            }
        }
    }
}
