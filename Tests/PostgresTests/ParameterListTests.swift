import Foundation
import TestServers
import Testing

@testable import Postgres

/// Goal: the text of a statement and its values count parameters alike.
@Suite(.database, .timeLimit(.minutes(2))) struct ParameterListTests {
    private struct Item: Sendable {
        let id: UUID
        let name: String?
        let count: Int?
    }

    private struct Batch: Sendable {
        let items: [Item]
        let names: [String]
        let limit: Int
    }

    private static let columns: [Column<Item>] = [
        .uuid("id") { $0.id }, .text("name") { $0.name }, .int32("count") { $0.count },
    ]

    @Test("single values and batches are numbered in the order in which they are added")
    func numbers() {
        var list = ParameterList<Batch>()
        let limit = list.add { .int32($0.limit) }
        let items = list.add(Self.columns) { $0.items }
        let names = list.add([Column<String>.text("name") { $0 }]) { $0.names }
        let last = list.add { _ in .bool(true) }
        #expect(limit == "$1")
        #expect(items.rows(as: "i") == "unnest($2::uuid[], $3::text[], $4::int4[]) as i(id, name, count)")
        #expect(
            items.rows(as: "i", "count", "id", ordinality: "n")
                == "unnest($4::int4[], $2::uuid[]) with ordinality as i(count, id, n)")
        #expect(names.rows(as: "x") == "unnest($5::text[]) as x(name)")
        #expect(last == "$6")
        #expect(list.values(Batch(items: [], names: [], limit: 1)).count == 6)
    }

    @Test("PostgreSQL reads each column of each type as it was bound, nulls included")
    func everyType() async throws {
        struct Row: Sendable, Equatable {
            let id: UUID
            var text: String?
            var flag: Bool?
            var small: Int?
            var big: Int?
            var real: Double?
            var json: String?
            var at: Date?
        }
        let statement = Statement<[Row], Row>(
            "test.columns",
            [
                .uuid("id") { $0.id }, .text("text") { $0.text }, .bool("flag") { $0.flag },
                .int32("small") { $0.small },
                .int("big") { $0.big }, .double("real") { $0.real }, .json("json") { $0.json }, .date("at") { $0.at },
            ],
            sql: { rows in
                """
                select id, text, flag, small, big, real, json::text, at from \(rows.rows(as: "i", ordinality: "n"))
                order by n
                """
            },
            read: { row throws(PostgresError) in
                Row(
                    id: try row.uuid(0), text: try row.optionalText(1), flag: try row.optionalBool(2),
                    small: try row.optionalInt(3), big: try row.optionalInt(4), real: try row.optionalDouble(5),
                    json: try row.optionalText(6), at: try row.optionalDate(7))
            })
        let rows = [
            Row(id: UUID()),
            Row(
                id: UUID(), text: "a,\"b\" {}", flag: false, small: -1, big: 1 << 40, real: 0.5, json: "{\"a\": 1}",
                at: Date(timeIntervalSince1970: 1_800_000_000)),
        ]
        let answer = try await withDatabase { try await $0.run(statement, rows) }
        #expect(answer == rows)
    }
}
