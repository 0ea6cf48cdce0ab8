import Foundation
import Testing

@testable import Ledger
@testable import Support

/// Goal: people and programs read the same report of a day. Method: a report with a row of each kind, its text compared
/// whole, and its JSON read back.
@Suite struct DayReportTests {
    private static let full = DayReport(
        day: "2026-11-29", app: nil, readAt: "2026-11-30T01:00:05Z", isOver: true,
        received: [
            .init(
                account: "receipts", appId: "game", environment: "", source: "post", state: "granted", items: 1190,
                balance: 0),
            .init(
                account: "receipts", appId: "game", environment: "", source: "post", state: "received", items: 2,
                balance: 2, oldestAt: "2026-11-29T23:59:00Z"),
            .init(
                account: "receipts", appId: "game", environment: "", source: "sweep", state: "granted", items: 1,
                balance: 0),
            .init(
                account: "notifications", appId: "", environment: "", source: "notification", state: "held", items: 1,
                balance: 0),
            .init(
                account: "grants", appId: "game", environment: "Production", source: "poster", state: "announced",
                items: 1191, balance: 0),
            .init(
                account: "ends", appId: "game", environment: "Production", source: "refunded", state: "reinstated",
                items: 1, balance: 0),
            .init(
                account: "ends", appId: "game", environment: "Production", source: "refunded", state: "revoked",
                items: 3,
                balance: 0),
            .init(
                account: "refund requests", appId: "game", environment: "Production", source: "", state: "answered",
                items: 2, balance: 0),
        ],
        open: [
            .init(
                account: "receipts", appId: "game", state: "held", reason: "product_unknown", items: 2,
                oldestAt: "2026-11-20T08:00:00Z"),
            .init(
                account: "receipts", appId: "game", state: "received", reason: "", items: 2,
                oldestAt: "2026-11-29T23:59:00Z"),
        ],
        overdue: [
            .init(
                account: "receipts", appId: "game", items: 2, oldestAt: "2026-11-29T23:59:00Z", ids: ["a"],
                command: "makegood explain a")
        ],
        nets: [
            .init(
                appId: "game", environment: "Production", net: "customer", kind: "purchase", told: 3, caught: 2,
                alone: 1)
        ],
        differences: [
            .init(
                appId: "game", category: "goods_differ", healsBy: "person", found: 1, healed: 0, closed: 0, open: 1,
                oldestAt: "2026-11-29T12:00:00Z")
        ],
        seals: .init(block: 812, head: "3f0a", sealedAt: "2026-11-30T00:59:00Z", blocks: 24, corrections: 1),
        sample: [
            .init(
                appId: "game", environment: "Production", population: 12_345, drawn: 100, compared: 98, differences: 0,
                explained: 0, bound: 3 / 98.0),
            .init(
                appId: "game", environment: "Sandbox", population: 0, drawn: 0, compared: 0, differences: 0,
                explained: 0),
        ])

    @Test("the text of a day with something of everything")
    func text() {
        #expect(
            Self.full.text == """
                report of 2026-11-29 (UTC), all apps, read at 2026-11-30T01:00:05Z

                received
                  game receipts post: 1192 (granted 1190, received 2)
                  game receipts sweep: 1 (granted 1)
                  notifications notification: 1 (held 1)
                  game Production grants poster: 1191 (announced 1191)
                  game Production refund requests: 2 (answered 2)

                refunds and reversals
                  game Production ends refunded: 4 (reinstated 1, revoked 3)

                not cleared
                  game receipts received 2, the oldest of 2026-11-29T23:59:00Z

                longer than the limit
                  game receipts: 2, the oldest of 2026-11-29T23:59:00Z: makegood explain a
                    a …

                open now
                  game receipts held product_unknown: 2, the oldest of 2026-11-20T08:00:00Z
                  game receipts received: 2, the oldest of 2026-11-29T23:59:00Z

                nets
                  game Production customer purchases: told 3, caught 2, alone 1

                differences from Apple's books
                  game goods_differ: found 1, healed 0, closed 0, open 1, the oldest of \
                2026-11-29T12:00:00Z (heals by: person)

                seals
                  seal.head 812 3f0a, of 2026-11-30T00:59:00Z
                  of the day: 24 blocks, 1 correction

                sample
                  game Production: 98 of 100 drawn customers compared, of 12345; 0 differences, \
                0 explained; with 95 % confidence fewer than 3.07 % of all differ
                  game Sandbox: 0 of 0 drawn customers compared, of 0; 0 differences, 0 explained
                """)
    }

    @Test("a day without anything says so, and a day that is not over")
    func empty() {
        let report = DayReport(
            day: "2026-11-30", app: "game", readAt: "2026-11-30T12:00:00Z", isOver: false, received: [], open: [],
            overdue: [], nets: [], differences: [], seals: nil, sample: [])
        let sections = [
            "received", "refunds and reversals", "not cleared", "longer than the limit", "open now", "nets",
            "differences from Apple's books", "seals", "sample",
        ]
        #expect(
            report.text
                == (["report of 2026-11-30 (UTC), game, read at 2026-11-30T12:00:00Z; the day is not over"]
                + sections.map { "\($0)\n  nothing" }).joined(separator: "\n\n"))
    }

    @Test("the JSON is read back as the same report; its fields are those of the documentation")
    func json() throws {
        let json = try Self.full.json
        #expect(try DayReport(json: json) == Self.full)
        #expect(!json.contains("\n"))
        #expect(
            json.hasPrefix(
                #"{"day":"2026-11-29","differences":[{"appId":"game","category":"goods_differ","closed":0,"found":1,"healed":0,"#
            ))
        #expect(throws: DecodingError.self) { try DayReport(json: #"{"day": "2026-11-29"}"#) }
        let object = try #require(
            JSONSerialization.jsonObject(with: Data(json.utf8)) as? [String: Any])
        #expect(
            Set(object.keys) == [
                "day", "readAt", "isOver", "received", "open", "overdue", "nets", "differences", "seals", "sample",
            ])
    }
}
