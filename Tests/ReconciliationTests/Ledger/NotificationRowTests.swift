import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Support

/// Goal: a notification comes again until it has ended, nobody gives it up, and its payload goes at last. Method: each
/// statement of its schedule on rows of a real database.
@Suite(.timeLimit(.minutes(8))) struct NotificationRowTests {
    private static let claim = Statements.NotificationClaim(
        limit: 10, rescueDelay: .seconds(60), rescueDelayMax: .seconds(3600))

    @Test("a due notification is leased, ever longer, and parked after eight rescues that could reach a worker")
    func rescues() async throws {
        try await LedgerLab.with { lab in
            let id = try await lab.notify()
            let later = try await lab.notify()
            try await lab.run("update notifications set due_at = now() + interval '1 hour' where id = '\(later)'")
            var claim = Self.claim
            claim.mayPark = false
            for rescue in 0..<10 {
                let claimed = try await lab.ledger.run(Statements.claimNotifications, claim)
                #expect(claimed == [ClaimedReceipt(id: id, attempt: 0, isNewlyParked: false)])
                let lease = try await lab.number(
                    "select extract(epoch from due_at - now())::int from notifications where id = '\(id)'")
                let least = min(60 << rescue, 2700)
                #expect(lease >= least - 1 && lease <= min(90 << rescue, 3600), "\(rescue): \(lease)")
                #expect(try await lab.ledger.run(Statements.claimNotifications, claim).isEmpty, "it is leased")
                try await lab.run("update notifications set due_at = now() where id = '\(id)'")
            }
            claim.repeats = false
            #expect(try await lab.ledger.run(Statements.claimNotifications, claim).isEmpty)
            let parked = try await lab.ledger.run(Statements.claimNotifications, Self.claim)
            #expect(parked == [ClaimedReceipt(id: id, attempt: 1, isNewlyParked: true)])
            let row = try await lab.notification(id)
            #expect(row.state == .parked && row.attempt == 1 && row.rescues == 0)
        }
    }

    @Test("a message that came again is counted, and parked after eight deaths; a stale one counts nothing")
    func strikes() async throws {
        try await LedgerLab.with { lab in
            let id = try await lab.notify()
            func strike(_ attempt: Int) async throws -> Int? {
                try await lab.ledger.run(
                    Statements.strikeNotification,
                    .init(Pointer(notificationID: id, attempt: attempt), parking: lab.parking)
                ).first
            }
            #expect(try await strike(1) == nil)
            for death in 1...8 { #expect(try await strike(0) == death) }
            #expect(try await strike(0) == 0)
            #expect(try await lab.notification(id).state == .parked)
            #expect(try await strike(0) == nil)
            #expect(try await strike(1) == 0, "what was parked so is parked again at the next death")
        }
    }

    @Test("a result counts once: for the attempt that was read, and not after the end")
    func results() async throws {
        try await LedgerLab.with { lab in
            let id = try await lab.notify("WHAT_IS_NEW")
            let read = try await lab.notification(id)
            #expect(
                try await lab.ledger.run(
                    Statements.postponeNotification, .init(read, by: .seconds(300), for: .clockAhead)) == [id])
            #expect(
                try await lab.ledger.run(
                    Statements.closeNotification, .init(read, heldFor: .seconds(600), reason: "type_unknown")) == [id])
            #expect(try await lab.texts("select reason from notifications") == ["type_unknown"])
            let repairs = Repairs(database: lab.ledger.database, actor: "ann")
            let held = try await repairs.heldNotifications(nil, type: nil)
            #expect(held == [.init(appID: "game", type: "WHAT_IS_NEW", reason: "type_unknown", count: 1)])
            #expect(try await repairs.rejudgeNotifications("other", type: nil) == 0)
            #expect(try await repairs.rejudgeNotifications("game", type: "WHAT_IS_NEW") == 1)
            #expect(
                try await lab.texts(
                    "select details ->> 'notifications' from audits where action = 'notifications.rejudge' order by 1")
                    == ["0", "1"])
            let again = try await lab.notification(id)
            #expect(again.state == .received && again.attempt == 1)
            #expect(try await lab.ledger.run(Statements.closeNotification, .init(read, reason: nil)).isEmpty, "stale")
            #expect(try await lab.ledger.run(Statements.closeNotification, .init(again, reason: nil)) == [id])
            #expect(try await lab.ledger.run(Statements.closeNotification, .init(again, reason: nil)).isEmpty, "ended")
            #expect(try await lab.notification(id).state == .ended)
            #expect(try await lab.ledger.run(Statements.claimNotifications, Self.claim).isEmpty)
            #expect(try await repairs.rejudgeNotifications(nil, type: nil) == 0)
        }
    }

    @Test("a notification is forwarded until the other URL has it: after 1 minute, 2, … at most hourly")
    func forwards() async throws {
        try await LedgerLab.with { lab in
            let id = try await lab.notify(columns: ", forward_due_at", values: ", now()")
            let ofOther = try await lab.notify(app: "other", columns: ", forward_due_at", values: ", now()")
            _ = try await lab.notify()
            let claim = Statements.ForwardClaim(
                apps: ["game"], limit: 10, delay: .seconds(60), delayMax: .seconds(3600))
            for attempt in 1...8 {
                let claimed = try await lab.ledger.run(Statements.claimForwards, claim)
                #expect(
                    claimed.map(\.id) == [id] && claimed.first?.attempt == attempt && claimed.first?.payload == "jws")
                let next = try await lab.number(
                    "select round(extract(epoch from forward_due_at - now()))::int from notifications where id = '\(id)'"
                )
                #expect(abs(next - min(60 << (attempt - 1), 3600)) <= 1, "\(attempt): \(next)")
                #expect(try await lab.ledger.run(Statements.claimForwards, claim).isEmpty)
                try await lab.run("update notifications set forward_due_at = now() where id = '\(id)'")
            }
            _ = try await lab.ledger.run(Statements.endForwards, [id])
            #expect(try await lab.ledger.run(Statements.claimForwards, claim).isEmpty)
            #expect(
                try await lab.texts("select id::text from notifications where forward_due_at is not null")
                    == [ofOther.uuidString.lowercased()])
        }
    }

    @Test("payloads of notifications that ended long ago go, and no others")
    func retention() async throws {
        try await LedgerLab.with { lab in
            let old = try await lab.notify()
            let held = try await lab.notify()
            let young = try await lab.notify()
            for id in [old, young] {
                let row = try await lab.notification(id)
                #expect(try await lab.ledger.run(Statements.closeNotification, .init(row, reason: nil)) == [id])
            }
            try await lab.run(
                """
                update notifications set received_at = now() - interval '181 days',
                  settled_at = case when settled_at is not null then now() - interval '181 days' end
                where id in ('\(old)', '\(held)')
                """)
            #expect(try await lab.ledger.run(Statements.emptyNotifications, .init(days: 180, batch: 10)) == [1])
            #expect(try await lab.ledger.run(Statements.emptyNotifications, .init(days: 180, batch: 10)) == [0])
            #expect(try await lab.notification(old).payload == nil)
            #expect(try await lab.notification(held).payload == "jws")
            #expect(try await lab.notification(young).payload == "jws")
        }
    }
}
