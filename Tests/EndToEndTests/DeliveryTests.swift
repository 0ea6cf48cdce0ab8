import Adversary
import Foundation
import Glibc
import Settings
import Testing

extension EndToEnd {
    /// Grants reach the app's backend as webhooks, whatever happens to dispatchers and to the backend.
    @Suite struct Deliveries {
        private static let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        private static let newSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
        private static let users = (1...10).map { "player-\($0)" }
        private static let concurrency = 8

        private static func secrets(_ texts: String...) throws -> [WebhookSecret] {
            try texts.map { try #require(WebhookSecret($0)) }
        }

        /// Runs a system whose app `game` has one endpoint at a receiver, with everything but a dispatcher started.
        private static func run(
            _ script: @escaping EventReceiver.Script = { _, _ in .taken },
            _ body: (System, EventReceiver) async throws -> Void
        ) async throws {
            let receiver = try await EventReceiver.start(secrets: try secrets(secret), script: script)
            do {
                try await System.run { system in
                    LogSearch.note(credential: secret)
                    LogSearch.note(credential: newSecret)
                    try configure(system, receiver)
                    try await system.start(.ingest)
                    try await system.start(.worker)
                    try await system.start(.scheduler)
                    try await body(system, receiver)
                }
            } catch {
                await receiver.stop()
                throw error
            }
            await receiver.stop()
        }

        private static func configure(
            _ system: System, _ receiver: EventReceiver, secret: String = secret
        ) throws {
            try system.configureGame {
                $0.endpoints = [
                    .init(name: "shop", url: receiver.url, secret: secret, concurrency: concurrency)
                ]
            }
        }

        /// Each of the users buys so often.
        private static func buy(_ count: Int, in system: System) async throws {
            for user in users {
                let sales = try await system.appStore.sell(count)
                system.owe(sales, to: user)
                try await system.submit(sales, user: user)
            }
        }

        /// Starts a dispatcher and waits until its endpoint is known: what is told before is not sent.
        @discardableResult
        private static func startDispatcher(_ system: System) async throws -> RunningProcess {
            let dispatcher = try await system.start(.dispatcher)
            try await system.wait("the endpoint to be known") {
                try await system.count("select count(*) from endpoints") == 1
            }
            return dispatcher
        }

        private static func grants(_ receiver: EventReceiver) -> [EventReceiver.Received] {
            receiver.taken.filter { $0.type == "purchase.granted" }
        }

        /// Expects that each event that the feed shows was taken, those of a user in order.
        private static func expectWhole(_ receiver: EventReceiver, _ system: System) async throws {
            try await system.wait("every event to be taken", within: .seconds(90)) {
                let written = try await system.texts("select event_id::text from events")
                return Set(written).isSubset(of: Set(receiver.taken.map(\.id)))
            }
            #expect(receiver.orderDefects == [])
        }

        /// Goal: a purchase that is posted reaches the app's backend by itself (B8).
        /// Method: ten players buy ten times each; a receiver, at the loopback, checks the signatures and writes down
        /// what comes. The command lists the endpoint.
        @Test func grantsReachTheBackendInOrder() async throws {
            try await Self.run { system, receiver in
                try await Self.startDispatcher(system)
                try await Self.buy(10, in: system)
                try await system.wait("100 grants to arrive", within: .seconds(60)) {
                    Self.grants(receiver).count == 100
                }
                try await Self.expectWhole(receiver, system)
                #expect(receiver.repeats == 0)
                #expect(receiver.inFlightMax <= Self.concurrency)
                #expect(Set(receiver.taken.compactMap(\.userID)) == Set(Self.users))
                try await system.wait("nothing to wait") {
                    try await system.command("endpoints", "list").contains("game/shop: working, nothing waits")
                }
                let json = try await system.command("endpoints", "list", "--json", "--endpoint", "game/shop")
                #expect(json.contains(#""state":"working""#) && json.contains(#""undelivered":[]"#), "\(json)")
            }
        }

        /// Goal: a dispatcher that is killed loses nothing, and repeats at most what was in flight.
        /// Method: while a slow receiver gets 200 events, the dispatcher is killed -9 and started again, four times.
        @Test func aKilledDispatcherLosesNothing() async throws {
            try await Self.run({ _, _ in .init(.status(200), after: .milliseconds(100)) }) { system, receiver in
                var dispatcher = try await Self.startDispatcher(system)
                try await Self.buy(20, in: system)
                let kills = 4
                for kill in 1...kills {
                    let seen = receiver.received.count
                    try await system.wait("kill \(kill): webhooks to come") { receiver.received.count > seen + 10 }
                    await dispatcher.killHard()
                    dispatcher = try await system.start(.dispatcher)
                }
                try await system.wait("200 grants to arrive", within: .seconds(90)) {
                    Self.grants(receiver).count >= 200
                }
                #expect(Self.grants(receiver).count == 200)
                #expect(receiver.orderDefects == [])
                #expect(receiver.repeats <= Self.concurrency * kills)
            }
        }

        /// Goal: a backend that is away for a while gets everything when it is back, and a person is needed for nothing.
        /// Method: the receiver's port is closed while players buy, until the endpoint counts as failing; another
        /// receiver listens at the same port then.
        @Test func aBackendThatComesBackGetsEverything() async throws {
            try await Self.run { system, receiver in
                try await Self.startDispatcher(system)
                try await Self.buy(1, in: system)
                try await system.wait("10 grants to arrive") { Self.grants(receiver).count == 10 }
                await receiver.stop()
                try await Self.buy(5, in: system)
                try await system.wait("the endpoint to fail", within: .seconds(60)) {
                    try await system.command("endpoints", "list").contains("game/shop: failing")
                }
                let back = try await EventReceiver.start(secrets: try Self.secrets(Self.secret), port: receiver.port)
                try await system.wait("50 grants to arrive", within: .seconds(60)) { Self.grants(back).count == 50 }
                try await system.wait("both events about the endpoint", within: .seconds(60)) {
                    Set(back.taken.filter { $0.userID == nil }.map(\.type)) == [
                        "endpoint.failing", "endpoint.recovered",
                    ]
                }
                for user in Self.users {
                    let sequences = back.taken.filter { $0.userID == user }.map(\.sequence)
                    #expect(sequences == sequences.sorted() && sequences.first == 2, "\(user)")
                }
                #expect(Set(receiver.taken.map(\.id)).isDisjoint(with: back.taken.map(\.id)))
                await back.stop()
            }
        }

        /// Goal: the secret is changed without a refused webhook.
        /// Method: while players buy, the file gets a second secret and SIGHUP is sent; the receiver changes to the
        /// new one; the old one leaves the file.
        @Test func secretsChangeUnderLoad() async throws {
            try await Self.run { system, receiver in
                try await Self.startDispatcher(system)
                try await Self.buy(4, in: system)
                try Self.configure(system, receiver, secret: "\(Self.newSecret) \(Self.secret)")
                try await system.reload()
                // A turn follows the file when it is renewed.
                try await Task.sleep(for: .seconds(1))
                receiver.trust(try Self.secrets(Self.newSecret))
                try await Self.buy(4, in: system)
                try Self.configure(system, receiver, secret: Self.newSecret)
                try await system.reload()
                try await Self.buy(4, in: system)
                try await system.wait("120 grants to arrive", within: .seconds(90)) {
                    Self.grants(receiver).count == 120
                }
                #expect(receiver.received.compactMap(\.refusal) == [])
                try await Self.expectWhole(receiver, system)
            }
        }
    }
}
