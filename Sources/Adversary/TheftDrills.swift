import AsyncHTTPClient
import Foundation
import NIOHTTP1
import Purchases

extension Drill {
    /// Drills in which players post purchases of other players.
    static let theftDrills: [Drill] = [
        Drill(
            "30", "thieves post what victims buy at the same moment, and workers die",
            expected: "by proof it is the victim's; else one of the two has it, and the other keeps a copy"
        ) { stage in
            try await HTTPClient.lend(to: 64) { client in
                var thefts: [Theft] = []
                for _ in 0..<stage.world.rounds(60, min: 6) { thefts += try await stage.steal(client) }
                try await stage.judge(thefts)
            }
            stage.expectAnswers()
        }
    ]
}

/// One purchase that two players post.
private struct Theft: Sendable {
    /// How the victim's purchase names its owner.
    enum Means: CaseIterable { case order, registeredToken, nothing }

    let means: Means
    let victim: Flooder
    let thief: Flooder
    let bought: PurchaseGenerator.Post
    let stolen: PurchaseGenerator.Post
    var receiptOfVictim = UUID()
    var receiptOfThief = UUID()

    var transactionID: String { bought.transactionID ?? "" }
}

extension DrillContext {
    private static let victimsAtOnce = 12

    /// Victims buy. Then the victims and their thieves post within a second, in which the drill kills each worker once.
    fileprivate func steal(_ client: HTTPClient) async throws -> [Theft] {
        var prepared: [Theft] = []
        for number in 0..<Self.victimsAtOnce {
            prepared.append(try await prepare(Theft.Means.allCases[number % Theft.Means.allCases.count], client))
        }
        async let deaths: Void = killWorkers()
        let posted = try await withThrowingTaskGroup(of: Theft.self) { group in
            for theft in prepared {
                let pause = Duration.milliseconds(random(1000))
                group.addTask {
                    try await self.sleep(pause)
                    async let hers = self.post(theft.bought, by: theft.victim)
                    async let his = self.post(theft.stolen, by: theft.thief)
                    var posted = theft
                    (posted.receiptOfVictim, posted.receiptOfThief) = try await (hers, his)
                    return posted
                }
            }
            return try await group.reduce(into: []) { $0.append($1) }
        }
        try await deaths
        return posted
    }

    /// Prepares a theft. The thief has everything that can be captured: the proof, and the text that the victim's
    /// device sends. The thief's post names an order of the thief's own, which was placed before the purchase.
    private func prepare(_ means: Theft.Means, _ client: HTTPClient) async throws -> Theft {
        let name = "victim-\(UUID().uuidString.prefix(8))"
        let installation = #""installationId":"device-of-\#(name)""#
        let victim = Flooder(name, in: world, client: client)
        let thief = Flooder("thief-of-\(name)", in: world, client: client)
        let decoy = try await order(of: thief, installation)
        var bought =
            switch means {
            case .order:
                try await world.shop.make(.ordered, user: name, order: try await order(of: victim, installation))
            case .registeredToken: try await world.shop.make(.signed, user: name, token: try await token(of: victim))
            // Only the two players know whose the purchase is.
            case .nothing: try await world.shop.make(.stolen, user: name)
            }
        var stolen = world.shop.steal(bought)
        bought.say(installation)
        stolen.say(#""orderId":"\#(decoy.uuidString.lowercased())",\#(installation)"#)
        return Theft(means: means, victim: victim, thief: thief, bought: bought, stolen: stolen)
    }

    private func order(of player: Flooder, _ installation: String) async throws -> UUID {
        let body =
            #"{"productId":"\#(PurchaseGenerator.product)","idempotencyKey":"\#(UUID().uuidString)",\#(installation)}"#
        let answer = await player.send(.POST, "/v1/orders", Array(body.utf8))
        guard answer.status == 201, let id = (answer.json["id"] as? String).flatMap(UUID.init(uuidString:)) else {
            throw TestDeployment.Failure(description: "an order was answered \(answer.status)")
        }
        return id
    }

    private func token(of player: Flooder) async throws -> UUID {
        let answer = await player.send(.POST, "/v1/users/\(player.userID)/token")
        guard let token = (answer.json["token"] as? String).flatMap(UUID.init(uuidString:)) else {
            throw TestDeployment.Failure(description: "a token was answered \(answer.status)")
        }
        return token
    }

    /// Posts until ingest accepts; returns the receipt's id.
    private func post(_ post: PurchaseGenerator.Post, by player: Flooder) async throws -> UUID {
        let end = ContinuousClock.now + .seconds(30)
        while ContinuousClock.now < end {
            let answer = await player.send(.POST, "/v1/receipts", post.body, of: post)
            if answer.status == 200 || answer.status == 202,
                let id = (answer.json["id"] as? String).flatMap(UUID.init(uuidString:))
            {
                return id
            }
            try await sleep(.milliseconds(200))
        }
        throw TestDeployment.Failure(description: "a post of \(player.userID) was not accepted")
    }

    private func killWorkers() async throws {
        for worker in workers {
            interrupt(64)
            await worker.kill()
            try await worker.start()
        }
    }

    /// Checks the database, the event feed and the answers to both players for each theft.
    fileprivate func judge(_ thefts: [Theft]) async throws {
        let receipts = thefts.flatMap { ["'\($0.receiptOfVictim)'", "'\($0.receiptOfThief)'"] }.joined(separator: ",")
        try await expect("every post has its verdict", within: .seconds(60)) {
            try await world.count("select count(*) from receipts where id in (\(receipts)) and settled_at is null") == 0
        }
        let ids = thefts.map { "'\($0.transactionID)'" }.joined(separator: ",")
        let owners = Dictionary(
            try await pairs("select transaction_id || ' ' || user_id from grants where transaction_id in (\(ids))"),
            uniquingKeysWith: { first, _ in first })
        func told(_ type: EventType) -> String {
            """
            select transaction_id || ' ' || user_id from events
            where type = '\(type.rawValue)' and transaction_id in (\(ids))
            """
        }
        let granted = try await pairs(told(.purchaseGranted))
        let disputed = Set(try await world.texts(told(.ownershipDisputed)))
        var wrong: [String] = []
        var toThieves = 0
        for theft in thefts {
            let owner = owners[theft.transactionID] ?? ""
            let isThiefs = owner == theft.thief.userID
            if isThiefs { toThieves += 1 }
            let isProven = theft.means != .nothing
            if !isThiefs && owner != theft.victim.userID || isThiefs && isProven {
                wrong.append("\(theft.means) is \(owner.isEmpty ? "nobody" : owner)'s")
                continue
            }
            let (winner, loser) = isThiefs ? (theft.thief, theft.victim) : (theft.victim, theft.thief)
            let (won, lost) =
                isThiefs
                ? (theft.receiptOfThief, theft.receiptOfVictim) : (theft.receiptOfVictim, theft.receiptOfThief)
            let winners = await winner.send(.GET, "/v1/receipts/\(won)").json
            let losers = await loser.send(.GET, "/v1/receipts/\(lost)").json
            if winners["safeToFinish"] as? Bool != true { wrong.append("\(theft.means): the owner may not finish") }
            if losers["reason"] as? String != "owned_by_another_user" || losers["safeToFinish"] as? Bool != isProven {
                wrong.append(
                    "\(theft.means): the other is told \(losers["reason"] ?? "-"), \(losers["safeToFinish"] ?? "-")")
            }
            for player in [winner, loser] where disputed.contains("\(theft.transactionID) \(player.userID)") == isProven
            {
                wrong.append("\(theft.means): \(player.userID) is \(isProven ? "" : "not ")told of a dispute")
            }
        }
        expect("each is as the rules say", wrong.isEmpty, wrong.prefix(5).joined(separator: "; "))
        expect(
            "each is granted once", granted.count == thefts.count && owners.count == thefts.count,
            "\(granted.count) told, \(owners.count) granted of \(thefts.count), \(toThieves) to thieves who came first")
    }

    /// Runs a query that returns two texts for each row.
    private func pairs(_ sql: String) async throws -> [(String, String)] {
        try await world.texts(sql).compactMap { row in
            let words = row.split(separator: " ", maxSplits: 1).map(String.init)
            return words.count == 2 ? (words[0], words[1]) : nil
        }
    }
}
