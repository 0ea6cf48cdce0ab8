import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Support

extension LedgerLab {
    /// Stores a notification that is due now, as ingest does. Returns its id.
    func notify(
        _ type: String = "DID_RENEW", app: String? = "game", payload: String = "jws", columns: String = "",
        values: String = ""
    ) async throws -> UUID {
        let id = UUID()
        try await run(
            """
            insert into notifications (id, version, app_id, bundle_id, environment, type, payload, payload_sha256, due_at\(columns))
            values ('\(id)', 2, \(app.map { "'\($0)'" } ?? "null"), 'com.example.game', 'Production', '\(type)',
              '\(payload)', '\\x00', now()\(values))
            """)
        return id
    }

    func notification(_ id: UUID) async throws -> StoredNotification {
        try #require(try await ledger.run(Statements.fetchNotifications, [id]).first)
    }
}

extension RightsTests {
    /// The work of each service, and of support, on notifications.
    static func workOnNotifications(
        in lab: LedgerLab,
        _ act: (DatabaseRole, LedgerLab, (Database) async throws -> Void) async throws -> Void
    ) async throws {
        let id = try await lab.notify(app: nil)
        let forwarded = try await lab.notify(columns: ", forward_due_at", values: ", now()")
        // Beside what other work has stored before.
        let toForward = try await lab.number(
            "select count(*) from notifications where forward_due_at <= now() and payload is not null")
        try await act(.worker, lab) { database in
            let stored = try #require(try await database.run(Statements.fetchNotifications, [id]).first)
            try await database.run(Statements.nameAppOfNotification, (id: id, appID: "game"))
            #expect(
                try await database.run(
                    Statements.knowsChain, .init(appID: "game", environment: "Production", originalID: "none"))
                    == [false])
            let strike = Statements.NotificationStrike(
                Pointer(notificationID: id, attempt: 0), parking: lab.parking)
            #expect(try await database.run(Statements.strikeNotification, strike) == [1])
            #expect(
                try await database.run(
                    Statements.wakeNotifications, .init(ids: ["game"], bundleIDs: ["com.example.game"], limit: 10))
                    == [])
            #expect(
                try await database.run(
                    Statements.postponeNotification, .init(stored, by: .zero, for: .clockAhead)) == [id])
            #expect(
                try await database.run(
                    Statements.closeNotification, .init(stored, heldFor: .zero, reason: "type_unknown")) == [id])
            let claimed = try await database.run(
                Statements.claimForwards,
                .init(apps: ["game"], limit: 10, delay: .seconds(1), delayMax: .seconds(2)))
            #expect(claimed.map(\.id).contains(forwarded) && claimed.count == toForward)
            try await database.run(Statements.endForwards, [forwarded])
        }
        let toClaim = try await lab.number("select count(*) from notifications where due_at <= now()")
        try await act(.scheduler, lab) { database in
            let due = try await database.run(
                Statements.claimNotifications,
                .init(limit: 10, rescueDelay: .seconds(1), rescueDelayMax: .seconds(2)))
            #expect(due.count == toClaim && toClaim >= 2)
            #expect(try await database.run(Statements.emptyNotifications, .init(days: 180, batch: 10)) == [0])
        }
        try await act(.support, lab) { database in
            let repairs = Repairs(database: database, actor: "ann")
            let held = try await repairs.heldNotifications("game", type: nil)
            #expect(held.map(\.count) == [1])
            #expect(try await repairs.rejudgeNotifications(nil, type: "DID_RENEW") == 1)
            #expect(try await database.run(Statements.notificationStandings, [id]).map(\.attempt) == [1])
        }
    }
}
