import Adversary
import AppStoreSimulator
import Foundation
import Logging
import Purchases
import RabbitMQ
import Support
import Testing
import WorkQueue

extension EndToEnd {
    /// Messages that no worker could work on: shown, and their receipts published again.
    @Suite struct DeadLetters {
        /// Goal: a person sees which messages are dead letters and where their receipts stand, and publishes the open
        /// receipts again. A message that nobody can read stays until a person allows its removal, and looking removes
        /// nothing.
        /// Method: no scheduler runs, so only a published pointer brings a row to a worker. A real worker settles one
        /// purchase; the pointers of three others die by the broker's own dead-lettering (rejected, one with a strange
        /// line beside it). With them lie a pointer at the settled row, one at no row, and noise. The commands have
        /// support's rights at the database.
        @Test func areShownAndReplayed() async throws {
            try await System.run(.init(declaresQueues: true)) { system in
                try await system.start(.ingest)
                let worker = try await system.start(.worker)
                let sales = try await system.appStore.sell(4)
                system.owe(sales, to: "u1")
                let settled = try await system.submit(sales[0], user: "u1", wait: 20)
                #expect(settled.state == "granted")
                await worker.killHard()

                let open = try await system.submitAll(sales.dropFirst(), user: "u1")
                let queue = system.queues.verify(.local)
                try await system.waitForMessages(4, in: queue)
                try system.deleteQueue(queue)
                try await system.command("queue", "declare", as: nil)
                let unknown = UUID().uuidString.lowercased()
                for body in ["receipt \(open[0]) 0\nstrange \u{1b}[2J", "receipt \(open[1]) 0", "receipt \(open[2]) 0"]
                {
                    try system.publish(body, to: system.queues.verify(.local))
                }
                // Three messages, of four lines.
                try await system.reject(4, of: system.queues.verify(.local))
                for body in ["receipt \(settled.id) 0", "receipt \(unknown) 0", "noise"] {
                    try system.publish(body, to: system.queues.dead)
                }
                try await system.wait("6 dead letters") { try await system.depth(of: system.queues.dead) == 6 }

                for _ in 0..<2 {
                    // The messages that the look before held come back after its end.
                    try await system.wait("all of them there") { try await system.depth(of: system.queues.dead) == 6 }
                    let shown = try await system.command("queue", "dead")
                    for id in open { #expect(shown.contains("\(id) of game: received, attempt 0")) }
                    #expect(shown.contains("\(settled.id) of game: granted, attempt 0"))
                    #expect(shown.contains("\(unknown): no such receipt or notification in this database"))
                    #expect(shown.contains("unreadable: strange ?[2J"))
                    #expect(shown.contains("unreadable: noise"))
                    #expect(shown.ranges(of: "rejected in \(system.queues.verify(.local))").count == 3)
                    #expect(shown.ranges(of: "published here by somebody").count == 3)
                }
                let json = try await system.command("queue", "dead", "--json", "--limit", "2")
                let letters = try #require(
                    JSONSerialization.jsonObject(with: Data(json.utf8)) as? [[String: Any]], "\(json)")
                #expect(letters.count == 2)
                try await system.wait("all of them back") { try await system.depth(of: system.queues.dead) == 6 }

                #expect(
                    try await system.command("queue", "replay")
                        == """
                        3 receipts and notifications were published again, 1 had ended
                        3 letters nobody can read or find stay: look with `makegood queue dead`, then --discard

                        """)
                try await system.wait("what was rung for to be gone") {
                    try await system.depth(of: system.queues.dead) == 3
                }
                try await system.start(.worker)
                try await system.settleDebts()

                let again = try await system.command("queue", "replay", "--discard")
                #expect(again.contains("0 receipts and notifications were published again, 1 had ended"))
                #expect(again.contains("3 letters nobody could read or find are gone"))
                try await system.wait("no dead letters") { try await system.depth(of: system.queues.dead) == 0 }
                #expect(try await system.command("queue", "dead") == "no dead letters\n")
                #expect(
                    try await system.texts("select details ->> 'receipts' from audits where action = 'queue.replay'")
                        .sorted() == ["0", "3"])
            }
        }

        /// Goal: a person who may not read the queue is told so.
        /// Method: as the broker's user `makegood_support`, who has no right at all.
        @Test func whoMayNotReadIsTold() async throws {
            try await System.run { system in
                try system.publish("noise", to: system.queues.dead)
                try await system.wait("a dead letter") { try await system.depth(of: system.queues.dead) == 1 }
                let failure = await #expect(throws: System.Failure.self) { try await system.command("queue", "dead") }
                #expect(failure?.description.contains("the broker refused the user, the vhost or a permission") == true)
                #expect(try await system.depth(of: system.queues.dead) == 1)
            }
        }
    }
}

extension System {
    /// Submits all sales; returns the receipts' ids.
    fileprivate func submitAll(_ sales: some Sequence<Sale>, user: String) async throws -> [String] {
        var ids: [String] = []
        for sale in sales { ids.append(try await submit(sale, user: user).id) }
        return ids
    }
}
