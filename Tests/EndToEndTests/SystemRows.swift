import Foundation
import Postgres
import Purchases

/// Reads rows, and waits until they are as they must be.
extension System {
    /// The first column of the result, one text per row.
    func texts(_ sql: String) async throws -> [String] {
        try await database.run(
            Statement<Void, String?>("test.texts", sql) { row throws(PostgresError) in try row.optionalText(0) }
        ).map { $0 ?? "" }
    }

    func count(_ sql: String) async throws -> Int {
        let rows = try await database.run(
            Statement<Void, Int>("test.count", sql) { row throws(PostgresError) in try row.int(0) })
        return rows.first ?? 0
    }

    func execute(_ sql: String) async throws {
        try await database.run(Statement<Void, Void>("test.execute", sql))
    }

    /// Waits until a condition holds. The failure names what was awaited, and shows the rows.
    func wait(
        _ what: String, within limit: Duration = .seconds(60), _ condition: () async throws -> Bool
    ) async throws {
        let deadline = ContinuousClock.now + limit
        while try await !condition() {
            guard ContinuousClock.now < deadline else {
                throw Failure(description: "waited \(limit) in vain for \(what)")
            }
            try await Task.sleep(for: .milliseconds(25))
        }
    }

    /// Waits until `count` receipts are in this state.
    func wait(_ state: ReceiptState, _ count: Int, within limit: Duration = .seconds(60)) async throws {
        try await wait("\(count) receipts to be \(state.rawValue)", within: limit) {
            try await self.count("select count(*) from receipts where state = '\(state.rawValue)'") == count
        }
    }

    func describeRows() async -> String {
        let receipts = try? await texts(
            """
            select concat_ws(' ', left(id::text, 8), app_id, coalesce(user_id, '-'), kind, lane, state,
              coalesce(reason, '-'), 'attempt', attempt, 'rescues', rescues,
              'due in ' || round(extract(epoch from due_at - now())::numeric, 1) || ' s')
            from receipts order by settled_at is not null, received_at limit 40
            """)
        let counts = try? await texts(
            "select concat_ws(' ', state, reason, count(*)) from receipts group by state, reason order by 1")
        return ((receipts ?? ["the database does not answer"]) + ["in all:"] + (counts ?? [])).joined(separator: "\n")
    }
}
