import AsyncHTTPClient
import Foundation
import NIOHTTP1
import Reconciliation

extension Drill {
    /// One player takes what can be had: other players wait at most three times as long as without the flood.
    static let floodDrills: [Drill] = [
        flood("29a", "one player posts forged proofs as fast as can be", by: ["user.rate"]) { flooder, stage in
            {
                let post = try await stage.world.shop.make(.foreignRoot, user: flooder.userID)
                await flooder.send(.POST, "/v1/receipts", post.body, of: post)
            }
        },
        flood("29b", "one player posts one proof under ever new orders", by: ["user.rate", "user.lines"]) {
            flooder, stage in
            let post = try await stage.world.shop.make(.signed, user: flooder.userID)
            return {
                // The same receipt: what it names is another order.
                let order = UUID().uuidString
                let named = Shop.Post(
                    submission: "\(post.submission) \(order)", kind: post.kind, userID: post.userID,
                    transactionID: post.transactionID, proofSHA256: post.proofSHA256,
                    body: Self.adding(#""orderId":"\#(order)""#, to: post), repetition: .none)
                await flooder.send(.POST, "/v1/receipts", named.body, of: named)
            }
        },
        flood("29c", "one player posts megabytes of combining marks", by: ["user.rate", "user.bytesPerDay"]) {
            flooder, stage in
            let marks = String(repeating: "e\u{301}\u{316}", count: 40_000)
            return {
                let post = try await stage.world.shop.make(.foreignRoot, user: flooder.userID)
                await flooder.send(
                    .POST, "/v1/receipts", Self.adding(#""details":{"note":"\#(marks)"}"#, to: post), of: post)
            }
        },
        flood("29d", "one player sends halves of bodies", by: ["user.bodies", "request.bodyRate", "user.rate"]) {
            flooder, _ in
            let head = [
                "POST /v1/receipts HTTP/1.1", "Host: drill",
                "Authorization: Bearer \(flooder.token)",
                "Content-Type: application/json", "Content-Length: 500000",
            ]
            let start = head.joined(separator: "\r\n") + "\r\n\r\n{\"signedTransaction\":\""
            return { _ = await flooder.hold(start, for: .seconds(15)) }
        },
        flood(
            "29f", "one player reads lists, many at a time",
            by: ["user.rate", "user.lists", "process.lists", "request.listTime"]
        ) { flooder, _ in
            { await flooder.send(.GET, "/v1/users/\(flooder.userID)/purchases?appId=\(Shop.app)") }
        },
        flood("29h", "one player sends batches of what nobody can read", by: ["user.rate"]) { flooder, _ in
            let batch = #"{"receipts":[\#(Array(repeating: "{}", count: 200).joined(separator: ","))]}"#
            return { await flooder.send(.POST, "/v1/receipts/batch", Array(batch.utf8)) }
        },
    ]

    fileprivate typealias Attack =
        @Sendable (Flooder, Stage) async throws -> @Sendable () async throws -> Void

    /// The body of a post with one member more.
    private static func adding(_ member: String, to post: Shop.Post) -> [UInt8] {
        [UInt8(ascii: "{")] + member.utf8 + [UInt8(ascii: ",")] + post.body.dropFirst()
    }

    /// - Parameters:
    ///   - limits: of which answers must name at least one, and no other.
    ///   - attack: prepares, and returns what each of the flooder's hands does again and again.
    private static func flood(
        _ id: String, _ name: String, by limits: Set<String>,
        _ attack: @escaping Attack
    ) -> Drill {
        Drill(id, name, expected: "others wait at most three times as long; the flooder is told the limit") { stage in
            let client = HTTPClient(eventLoopGroupProvider: .singleton)
            do {
                try await stage.flood(limits, client, attack)
            } catch {
                try? await client.shutdown()
                throw error
            }
            try await client.shutdown()
        }
    }
}

extension Stage {
    private static let hands = 64
    private static let purchases = 30

    fileprivate func flood(
        _ limits: Set<String>, _ client: HTTPClient, _ attack: @escaping Drill.Attack
    ) async throws {
        let quiet = try await delays("quiet", client)
        let flooder = Flooder("flooder", in: world, client: client)
        let hand = try await attack(flooder, self)
        let loud = try await withThrowingTaskGroup(of: [Duration].self) { group in
            for _ in 0..<Self.hands {
                group.addTask {
                    while !Task.isCancelled {
                        try? await hand()
                        // A machine that plays both sides must not be the flood's victim itself.
                        try? await Task.sleep(for: .milliseconds(20))
                    }
                    return []
                }
            }
            // Past its first burst, which is what a player has a right to.
            try await sleep(.seconds(2))
            let loud = try await delays("loud", client)
            group.cancelAll()
            return loud
        }
        let (calm, busy) = (Self.high(quiet), Self.high(loud))
        let most = max(calm * 3, .seconds(1))
        expect("others wait at most \(most.short)", busy <= most, "\(busy.short), without the flood \(calm.short)")
        let seen = flooder.seen
        expect(
            "the flooder is told which limit", !seen.limits.isEmpty && seen.limits.isSubset(of: limits), seen.text)
        expect(
            "nothing else is answered", Set(seen.statuses.keys).isSubset(of: [0, 200, 202, 404, 408, 429]), seen.text)
        expectAnswers()
    }

    /// From a post to its grant, of honest players one after the other.
    private func delays(_ name: String, _ client: HTTPClient) async throws -> [Duration] {
        var delays: [Duration] = []
        for number in 0..<Self.purchases {
            let user = "\(name)-\(number)"
            let post = try await world.shop.make(.signed, user: user)
            let honest = Flooder(user, in: world, client: client)
            let begun = ContinuousClock.now
            let isGranted = try await world.becomes(within: .seconds(30)) {
                let answer = await honest.send(.POST, "/v1/receipts?wait=5", post.body, of: post)
                return answer.json["state"] as? String == "granted"
            }
            delays.append(isGranted == nil ? .seconds(30) : ContinuousClock.now - begun)
        }
        return delays
    }

    /// All but the slowest twentieth.
    private static func high(_ delays: [Duration]) -> Duration {
        delays.sorted()[(delays.count - 1) * 19 / 20]
    }
}
