import AppStoreSimulator
import AsyncHTTPClient
import Encoding
import Foundation
import NIOHTTP1

extension Drill {
    /// Drills in which one player, or a stranger, uses as much as possible: other players wait at most three times as
    /// long as without the flood.
    static let floodDrills: [Drill] = [
        flood(
            "29a", "one player posts 8,000 forged proofs as fast as can be", requests: 8000, by: ["user.rate"]
        ) { flooder, stage in
            {
                let post = try await stage.world.shop.make(.foreignRoot, user: flooder.userID)
                await flooder.send(.POST, "/v1/receipts", post.body, of: post)
            }
        },
        flood(
            "29b", "one player posts one proof under 20,000 orders", requests: 20_000, by: ["user.rate", "user.lines"]
        ) { flooder, stage in
            let post = try await stage.world.shop.make(.signed, user: flooder.userID)
            return {
                // Each post shows the same receipt and names another order.
                let order = UUID().uuidString
                var named = post
                named.submission += " \(order)"
                named.say(#""orderId":"\#(order)""#)
                await flooder.send(.POST, "/v1/receipts", named.body, of: named)
            }
        },
        flood("29c", "one player posts megabytes of combining marks", by: ["user.rate", "user.bytesPerDay"]) {
            flooder, stage in
            let marks = String(repeating: "e\u{301}\u{316}", count: 40_000)
            return {
                var post = try await stage.world.shop.make(.foreignRoot, user: flooder.userID)
                post.say(#""details":{"note":"\#(marks)"}"#)
                await flooder.send(.POST, "/v1/receipts", post.body, of: post)
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
        Drill(
            "29e", "one address holds 256 silent connections, more than the ingests have places",
            expected: "others wait at most three times as long; who says nothing is closed"
        ) { stage in
            try await stage.restartIngests(wrapper: ["/usr/bin/prlimit", "--nofile=192:192", "--"])
            let seen = try await stage.flood(hands: 256) { flooder, _ in
                { _ = await flooder.hold("", for: .seconds(15)) }
            }
            stage.expect(
                "silent connections are closed",
                Set(seen.statuses.keys).isSubset(of: [408]) && seen.closed + (seen.statuses[408] ?? 0) > 0, seen.text)
            // A client may have sent a post at the moment in which ingest closed its idle connection; the client posts
            // again.
            stage.expectAnswers([0])
            try await stage.restartIngests()
        },
        flood(
            "29f", "one player reads lists, many at a time",
            by: ["user.rate", "user.lists", "process.lists", "request.listTime"]
        ) { flooder, _ in
            { await flooder.send(.GET, "/v1/users/\(flooder.userID)/purchases?appId=\(PurchaseGenerator.app)") }
        },
        Drill(
            "29g", "one player waits for one receipt, 512 times at once",
            expected: "others wait at most three times as long; 200 of the flooder's requests wait at an ingest"
        ) { stage in
            let seen = try await stage.flood(hands: 512) { flooder, stage in
                // Workers try the receipt for as long as Apple is away.
                try stage.fault(.status, .verifyReceipt) { $0.status = 503 }
                let (_, id) = try await stage.buy(.receipt, user: flooder.userID)
                return { await flooder.send(.GET, "/v1/receipts/\(id)?wait=25") }
            } meanwhile: { stage in
                for ingest in stage.ingests {
                    let name = "makegood_long_poll_waiters"
                    let waiters = await stage.world.metric(name, #"of="receipts""#, of: ingest) ?? 0
                    // The honest players wait at the ingest too, a few at a time.
                    stage.expect(
                        "200 of the flooder's wait at \(ingest.name)", (100...210).contains(waiters), "\(Int(waiters))")
                }
            }
            stage.world.store.clearFaults()
            stage.expect(toldOneOf: ["user.rate"], seen)
            stage.expectAnswers()
        },
        flood("29h", "one player sends batches of what nobody can read", by: ["user.rate"]) { flooder, _ in
            let batch = #"{"receipts":[\#(Array(repeating: "{}", count: 200).joined(separator: ","))]}"#
            return { await flooder.send(.POST, "/v1/receipts/batch", Array(batch.utf8)) }
        },
        notificationFlood("29i", "a stranger sends forged notifications as fast as can be", answered: [401]) { stage in
            let body = try stage.notificationBody(about: PurchaseGenerator.bundle)
            // The last character of the signature has bits that decode to nothing; the one before it counts.
            let position = body.count - 4
            let forged = body[position] == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
            return { Array(body[..<position]) + [forged] + body[(position + 1)...] }
        },
        notificationFlood(
            "29j", "Apple's genuine notifications of a foreign app, more than a day's bound", requests: 3000,
            answered: [200]
        ) { stage in
            { try stage.notificationBody(about: "com.example.stranger") }
        },
        notificationFlood(
            "29k", "a stranger sends version 1 notifications of nearly 8 MiB with a wrong password",
            to: "/v1/apple/notifications/v1", hands: 16, answered: [401]
        ) { _ in
            let receipt = String(repeating: "A", count: 8_000_000)
            let body =
                #"{"notification_type":"DID_RENEW","password":"wrong","bid":"\#(PurchaseGenerator.bundle)","#
                + #""environment":"PROD","latest_receipt":"\#(receipt)"}"#
            let bytes = Array(body.utf8)
            return { bytes }
        },
        notificationFlood(
            "29l", "Apple's genuine notifications of 240 kB about the app, as fast as can be", requests: 300,
            answered: [200]
        ) { stage in
            { try stage.notificationBody(about: PurchaseGenerator.bundle, filler: 180_000) }
        },
    ]

    /// - Parameters:
    ///   - requests: the least number of requests.
    ///   - hands: the number of the flooder's tasks.
    ///   - statuses: beside 503 (ingest has no room for it) and 408 the only answers.
    ///   - bodies: prepares the flood, and returns what makes the next body.
    private static func notificationFlood(
        _ id: String, _ name: String, to path: String = "/v1/apple/notifications", requests: Int = 1, hands: Int = 64,
        answered statuses: Set<Int>,
        _ bodies: @escaping @Sendable (DrillContext) async throws -> @Sendable () throws -> [UInt8]
    ) -> Drill {
        Drill(
            id, name, expected: "others wait at most three times as long; no notification is answered wrongly"
        ) { stage in
            let seen = try await stage.flood(hands: hands, requests: requests) { flooder, stage in
                let next = try await bodies(stage)
                return { await flooder.send(.POST, path, try next()) }
            }
            stage.expect(
                "nothing else is answered", Set(seen.statuses.keys).isSubset(of: statuses.union([0, 408, 503])),
                seen.text)
            stage.expect(
                "ingest answers", statuses.contains { seen.statuses[$0, default: 0] > 0 }, seen.text)
            stage.expectAnswers()
        }
    }

    fileprivate typealias Attack =
        @Sendable (Flooder, DrillContext) async throws -> @Sendable () async throws -> Void

    /// - Parameters:
    ///   - requests: the least number of requests.
    ///   - limits: answers must name at least one of these, and no other.
    ///   - attack: prepares the flood, and returns what each of the flooder's tasks repeats.
    private static func flood(
        _ id: String, _ name: String, requests: Int = 1, by limits: Set<String>,
        _ attack: @escaping Attack
    ) -> Drill {
        Drill(id, name, expected: "others wait at most three times as long; the flooder is told the limit") { stage in
            let seen = try await stage.flood(hands: 64, requests: requests, attack)
            stage.expect(toldOneOf: limits, seen)
            stage.expectAnswers()
        }
    }
}

extension DrillContext {
    private static let purchases = 30
    private static let floodMax: Duration = .seconds(120)

    /// Expects that other players wait hardly longer beside the flood; returns how ingest answered the flooder.
    ///
    /// - Parameters:
    ///   - hands: the number of the flooder's tasks, each with a connection of its own.
    ///   - requests: the flood ends when ingest has answered so many, and the honest players have bought.
    ///   - meanwhile: looks at the flood after the honest players have bought beside it.
    fileprivate func flood(
        hands: Int, requests: Int = 1, _ attack: @escaping Drill.Attack,
        meanwhile: (DrillContext) async throws -> Void = { _ in }
    ) async throws -> Flooder.Seen {
        try await HTTPClient.lend(to: 8) { others in
            try await HTTPClient.lend(to: hands) { client in
                let quiet = try await delays("quiet", others)
                let flooder = Flooder("flooder", in: world, client: client)
                let hand = try await attack(flooder, self)
                let loud = try await withThrowingTaskGroup(of: Void.self) { group in
                    for _ in 0..<hands {
                        group.addTask {
                            while !Task.isCancelled {
                                try? await hand()
                                // One machine plays both sides: the pause keeps the flood from starving the test
                                // itself.
                                try? await Task.sleep(for: .milliseconds(20 * hands / 64))
                            }
                        }
                    }
                    // The drill waits until the flooder's first burst, which every player may use, is over.
                    try await sleep(.seconds(2))
                    let end = ContinuousClock.now + Self.floodMax
                    var loud = try await delays("loud", others)
                    while flooder.seen.answers < requests, ContinuousClock.now < end {
                        loud += try await delays("louder-\(loud.count)", others)
                    }
                    try await meanwhile(self)
                    group.cancelAll()
                    return loud
                }
                let (calm, busy) = (Self.high(quiet), Self.high(loud))
                let most = max(calm * 3, .seconds(1))
                expect(
                    "others wait at most \(most.short)", busy <= most,
                    "\(busy.short), without the flood \(calm.short)")
                let seen = flooder.seen
                expect("the flood has its size", seen.answers >= requests, "\(seen.answers) answers")
                return seen
            }
        }
    }

    /// The body of a genuine notification about an app.
    ///
    /// - Parameter filler: so many bytes more in the payload that Apple signs; base64 makes a third more of them.
    fileprivate func notificationBody(about bundleID: String, filler: Int = 0) throws -> [UInt8] {
        var (_, payload) = try world.store.hold(NotificationRequest(app: bundleID, notificationType: "TEST"))
        let parts = payload.split(separator: ".")
        if filler > 0, parts.count == 3, let json = Base64.decodeURL(Array(parts[1].utf8)[...]) {
            let member = ",\"filler\":\"\(String(repeating: "A", count: filler))\"}"
            payload = try world.store.sign(Array(json.dropLast()) + Array(member.utf8))
        }
        return Array("{\"signedPayload\":\"\(payload)\"}".utf8)
    }

    fileprivate func expect(toldOneOf limits: Set<String>, _ seen: Flooder.Seen) {
        expect(
            "the flooder is told which limit", !seen.limits.isEmpty && seen.limits.isSubset(of: limits), seen.text)
        expect(
            "nothing else is answered", Set(seen.statuses.keys).isSubset(of: [0, 200, 202, 404, 408, 429]), seen.text)
    }

    /// Restarts the ingests one after the other; clients go to those that are up.
    fileprivate func restartIngests(wrapper: [String] = []) async throws {
        for ingest in ingests {
            _ = try await ingest.terminate(within: .seconds(60))
            try await ingest.start(wrapper: wrapper)
        }
    }

    /// The times from a post to its grant, for honest players that buy one after the other.
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

    /// The 95th percentile of the delays.
    private static func high(_ delays: [Duration]) -> Duration {
        delays.sorted()[(delays.count - 1) * 19 / 20]
    }
}
