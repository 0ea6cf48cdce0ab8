import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Support

extension RightsTests {
    /// The work of a worker, and of support, on the windows of Apple's notification history.
    static func workOnNotificationWindows(
        in lab: LedgerLab,
        _ act: (DatabaseRole, LedgerLab, (Database) async throws -> Void) async throws -> Void
    ) async throws {
        let build = SweptBuild(
            appID: "game", environment: "Sandbox", bundleID: "com.example.game", reach: .seconds(30 * 86_400))
        try await act(.worker, lab) { database in
            try await database.run(Statements.beginNotificationSweeps, [build])
            #expect(
                try await database.run(
                    Statements.planNotificationWindows,
                    .init(builds: [build], failuresEvery: .seconds(3600), allEvery: .seconds(86_400))) == ["hourly"])
            let claim = Statements.WindowClaim(builds: [build], limit: 1, lease: .zero)
            struct NoWindow: Error {}
            func claimed() async throws -> ClaimedWindow {
                let windows = try await database.run(Statements.claimNotificationWindows, claim)
                guard let window = windows.first else { throw NoWindow() }
                return window
            }
            try await database.run(
                Statements.failNotificationWindow, .init(try await claimed(), dueIn: .zero, forgetsPage: true))
            try await database.run(
                Statements.halveNotificationWindow, (window: try await claimed(), dueIn: .zero))
            let window = try await claimed()
            let notification = NewNotification(
                id: UUID(), version: 2, appID: "game", bundleID: "com.example.game", environment: "Sandbox",
                type: "ONE_TIME_CHARGE", payload: "p", payloadSHA256: [1])
            #expect(
                try await database.run(
                    Statements.insertNotifications, .init([notification], schedule: RetrySchedule())
                ) == [notification.id])
            try await database.run(Statements.countFoundNotifications, (window: window, found: 1))
            #expect(
                try await database.run(
                    Statements.moveNotificationWindow,
                    .init(window: window, next: nil, passedOver: 0, againAfter: .zero)) == [0])
            try await database.run(Statements.endNotificationWindow, window)
            let draw = Statements.AuditDraw(appID: "game", environment: "Sandbox", size: 1)
            try await database.run(Statements.drawSample, [draw])
            #expect(try await database.run(Statements.compareSample) == [0])
            let sum = Statements.AuditSum(
                appID: "game", environment: "Sandbox", day: "2026-01-31", drawn: 1, compared: 1, differences: 0,
                explained: 0)
            try await database.run(Statements.auditSums)
            try await database.run(Statements.keepAuditSums, [sum])
            #expect(try await database.run(Statements.sweeps).contains { $0.sweep == Net.notificationHistory.rawValue })
        }
        try await act(.support, lab) { database in
            let repairs = Repairs(database: database, actor: "ann")
            let since = Date.now.addingTimeInterval(-2 * 86_400 + 60)
            let days = try await repairs.askNotificationHistory("game", since: since)
            let customers = try await repairs.askCustomer("game", purchase: "none")
            #expect(days == 2 && customers == 0)
        }
    }
}
