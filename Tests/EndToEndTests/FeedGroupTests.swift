import Adversary
import Foundation
import Testing

extension EndToEnd {
    /// A backend that stores in Makegood up to where it has handled its events.
    @Suite struct FeedGroups {
        /// Goal: a backend that stores its cursor in a group reads every event, also from a new process, and reads
        /// nothing twice unless it goes back. Of two readers the slower one takes nothing back, and a backend that
        /// stopped reading is seen (B8, P34).
        /// Method: three players buy. The backend reads by its group, by pages and by types; a second reader stores an
        /// older cursor; the scheduler's metrics are read while the backend handles nothing; ingest is killed and
        /// started again; the group is rewound and forgotten.
        @Test func aBackendReadsByItsGroup() async throws {
            try await System.run { system in
                let ingest = try await system.start(.ingest)
                try await system.start(.worker)
                func ask(_ query: String) async throws -> Client.Answer {
                    try await system.client.with(.backend).get("/v1/events?group=shop&appId=game\(query)")
                }
                func read(_ query: String = "") async throws -> (ids: [String], next: String) {
                    let answer = try await ask(query)
                    #expect(answer.status == 200, "\(answer.text)")
                    let events = answer.json["events"] as? [[String: Any]] ?? []
                    return (events.compactMap { $0["id"] as? String }, answer.json["next"] as? String ?? "")
                }
                func behind() async throws -> Int? {
                    let answer = try await system.client.with(.backend).get("/v1/feed-groups/shop?appId=game")
                    return answer.json["eventsBehind"] as? Int
                }
                let missing = try await ask("")
                #expect(missing.status == 404 && missing.field == "group", "\(missing.text)")
                let start = try await system.client.store("0-0", in: "shop")
                #expect(start.status == 200 && start.json["after"] as? String == "0-0", "\(start.text)")
                for user in ["u1", "u2", "u3"] {
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: user)
                    #expect(try await system.submit(sale, user: user, wait: 20).state == "granted")
                }
                try await system.wait("the feed to show all three") { try await behind() == 3 }

                // The backend handles nothing, and the scheduler says so.
                let scheduler = try await system.start(.scheduler, ["MAKEGOOD_OPERATIONS_PORT": "0"])
                let operations = Client(
                    url: "http://127.0.0.1:\(try await scheduler.port(of: "operations"))", credential: nil)
                try await system.wait("the lag to be measured") {
                    let lines = try await operations.get("/metrics").text.split(separator: "\n")
                    func value(_ name: String) -> Double? {
                        let series = "makegood_feed_group_\(name){app=\"game\",group=\"shop\"} "
                        return lines.first { $0.hasPrefix(series) }.flatMap { Double($0.dropFirst(series.count)) }
                    }
                    return value("events_behind") == 3 && value("lag_seconds") ?? 0 > 0
                }

                // Reading changes nothing. What is stored is handled, and is not read again.
                let all = try await read()
                #expect(all.ids.count == 3 && Set(all.ids).count == 3)
                let one = try await read("&limit=1")
                let two = try await read("&limit=2")
                #expect(one.ids == Array(all.ids.prefix(1)) && two.ids == Array(all.ids.prefix(2)))
                #expect(try await system.client.store(two.next, in: "shop").status == 200)
                #expect(try await system.client.store(two.next, in: "shop").status == 200, "its answer was lost")
                #expect(try await read().ids == Array(all.ids.suffix(1)))
                let slower = try await system.client.store(one.next, in: "shop")
                #expect(slower.status == 409 && slower.code == "cursor_behind" && slower.field == "after")
                #expect(slower.json["stored"] as? String == two.next, "\(slower.text)")
                #expect(try await behind() == 1)

                // A new process knows where the backend is.
                await ingest.killHard()
                try await system.start(.ingest)
                #expect(try await read().ids == Array(all.ids.suffix(1)))
                #expect(try await system.client.store(all.next, in: "shop").status == 200)
                let rest = try await read()
                #expect(rest.ids == [] && rest.next == all.next)
                #expect(try await behind() == 0)

                // Back by a rewind alone. Types that did not come leave the cursor behind what was read.
                #expect(try await system.client.store("0-0", in: "shop").status == 409)
                #expect(try await system.client.store("0-0", in: "shop", rewinds: true).status == 200)
                #expect(try await read("&types=purchase.granted").ids == all.ids)
                let granted = try await read("&types=purchase.granted&limit=2")
                #expect(granted.ids == two.ids && granted.next == two.next)
                let others = try await read("&types=purchase.revoked,order.paid")
                #expect(others.ids == [] && others.next == all.next)
                let unknown = try await ask("&types=purchase.gone")
                #expect(unknown.status == 400 && unknown.field == "types", "\(unknown.text)")
                let strange = try await system.client.store("1-1", in: "shop")
                #expect(strange.status == 422 && strange.code == "unknown_cursor" && strange.field == "after")
                #expect(try await behind() == 3)

                #expect(try await system.client.forget(group: "shop").status == 200)
                #expect(try await system.client.forget(group: "shop").status == 404)
                #expect(try await ask("").status == 404)
            }
        }
    }
}
