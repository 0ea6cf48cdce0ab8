import Encoding
package import Foundation
package import Ledger
package import Postgres
package import Purchases

/// The repairs that operators and support make by command. Each works in batches, is audited, and may be repeated.
package struct Repairs: Sendable {
    package static let batchRows = 500

    private let database: Database
    private let actor: String

    /// - Parameter actor: the person who repairs, for the audit.
    package init(database: Database, actor: String) {
        self.database = database
        self.actor = actor
    }

    /// Makes parked and held receipts due; a scheduler then queues them again. Returns the number of receipts.
    package func redrive(
        _ states: [ReceiptState], appID: String?, reason: String?
    ) async throws(PostgresError) -> Int {
        let redrive = Statements.Redrive(states: states, appID: appID, reason: reason, limit: Self.batchRows)
        let count = try await repeated { () throws(PostgresError) in
            try await database.run(Statements.redrive, redrive).count
        }
        try await audit(
            "queue.redrive", ["states": states.map(\.rawValue).joined(separator: ","), "app": appID, "reason": reason],
            count: count)
        return count
    }

    /// Makes these receipts due, as far as they are parked or held. Returns their ids.
    package func redrive(_ ids: [UUID]) async throws(PostgresError) -> [UUID] {
        let due = try await database.run(Statements.redriveReceipts, ids)
        try await audit("queue.redrive", ["ids": due.map(\.text).joined(separator: ",")], count: due.count)
        return due
    }

    /// Sets rejected receipts back to received. Returns the number; receipts whose payload is gone stay rejected.
    package func rejudge(_ appID: String, reason: String?, since: Date?) async throws(PostgresError) -> Int {
        let rejudging = Statements.Rejudging(appID: appID, reason: reason, since: since, limit: Self.batchRows)
        let count = try await repeated { () throws(PostgresError) in
            try await database.run(Statements.rejudge, rejudging).count
        }
        try await audit(
            "support.rejudge", ["app": appID, "reason": reason, "since": since?.formatted(.iso8601)], count: count)
        return count
    }

    /// The number of rejected receipts by reason, and how many of them `rejudge` cannot set back.
    package func countRejected(
        _ appID: String, reason: String?, since: Date?
    ) async throws(PostgresError) -> [Statements.RejectedCount] {
        try await database.run(
            Statements.countRejected, Statements.Rejudging(appID: appID, reason: reason, since: since, limit: 0))
    }

    /// Makes held and parked notifications due. Returns the number.
    package func rejudgeNotifications(_ appID: String?, type: String?) async throws(PostgresError) -> Int {
        let rejudging = Statements.NotificationRejudging(appID: appID, type: type, limit: Self.batchRows)
        let count = try await repeated { () throws(PostgresError) in
            try await database.run(Statements.rejudgeNotifications, rejudging).count
        }
        try await audit("notifications.rejudge", ["app": appID, "type": type], count: count, of: "notifications")
        return count
    }

    /// Has all of an app's notifications since then asked for at Apple. Returns the number of days, of all builds and
    /// environments; 0: no worker asks Apple about the app.
    ///
    /// - Parameter since: nil: as long as Apple remembers.
    package func askNotificationHistory(_ appID: String, since: Date?) async throws(PostgresError) -> Int {
        let days = try await database.run(Statements.askNotificationHistory, .init(appID: appID, since: since)).count
        try await audit(
            "sweep.notifications", ["app": appID, "since": since?.ISO8601Format()], count: days, of: "days")
        return days
    }

    /// Has the purchases of one of Apple's customers asked for. Returns the number of customers; 0: the purchase is not
    /// known here.
    ///
    /// - Parameter purchase: the id of a transaction of the customer's, or of its chain.
    package func askCustomer(_ appID: String, purchase: String) async throws(PostgresError) -> Int {
        let wanted = Statements.WantedCustomers(
            [(appID: appID, name: .purchase(purchase))], reason: .support, apart: .zero)
        let count = try await database.run(Statements.wantCustomer, wanted).first ?? 0
        try await audit("sweep.customers", ["app": appID, "customer": purchase], count: count, of: "customers")
        return count
    }

    /// The held and parked notifications by app, type and reason.
    package func heldNotifications(
        _ appID: String?, type: String?
    ) async throws(PostgresError) -> [Statements.HeldNotifications] {
        try await database.run(
            Statements.heldNotifications, Statements.NotificationRejudging(appID: appID, type: type, limit: 1000))
    }

    /// Pauses the app: until `resume` workers judge none of its receipts; ingest stores new ones.
    package func pause(_ appID: String) async throws(PostgresError) {
        _ = try await database.run(Statements.halt, Halt.pause(appID))
        try await audit("queue.pause", ["app": appID], count: 1)
    }

    /// Ends the pause. Returns the number of waiting receipts that were made due.
    package func resume(_ appID: String) async throws(PostgresError) -> Int {
        let count = try await database.run(Statements.endHalt, Halt.pause(appID)).first ?? 0
        try await audit("queue.resume", ["app": appID], count: count)
        return count
    }

    /// Records in the audit that dead letters were replayed.
    ///
    /// - Parameter count: the number of receipts whose ids were published.
    func noteReplay(of count: Int, discarded: Int) async throws(PostgresError) {
        try await audit("queue.replay", ["discarded": String(discarded)], count: count)
    }

    /// Makes a user the owner of a subscription or non-consumable from now on; goods already given stay. Another user's
    /// earlier claim is then answered by this decision. Returns the former owner; nil if nothing of the kind was
    /// granted under this id.
    ///
    /// - Parameters:
    ///   - userID: the user as the tables have it.
    ///   - isWrittenBack: whether Apple is told (`AppPolicy/writesBackTokens`).
    package func decideOwner(
        _ userID: String, of transactionID: String, appID: String, isWrittenBack: Bool = false
    ) async throws(PostgresError) -> String? {
        try await database.decideOwner(
            .init(
                appID: appID, transactionID: transactionID, userID: userID, actor: actor, isWrittenBack: isWrittenBack))
    }

    /// Records a person's decision that a held purchase belongs to a user; a worker then gives the goods, once.
    package func give(_ supportDecision: Statements.SupportDecision) async throws(PostgresError)
        -> SupportDecisionAnswer
    {
        try await database.give(supportDecision, by: actor)
    }

    /// Sets the lane that goes first where Apple limits this app's calls, for so long; `fresh` stays as always.
    package func setFirstLane(_ lane: CallLane, of appID: String, for length: Duration) async throws(PostgresError) {
        _ = try await database.run(
            Statements.setLaneOrder, Statements.LaneOrder(appID: appID, first: lane, length: length))
        try await audit("queue.lanes", ["app": appID, "first": lane.rawValue], count: 0)
    }

    /// The `paid_without_proof` reports of apps that wait for a person, the oldest first.
    package func waitingReports(_ appID: String?) async throws(PostgresError) -> [Statements.WaitingReport] {
        try await database.run(Statements.waitingReports, appID)
    }

    /// Marks a report as handled. Returns false if no such report waits.
    package func handleReport(_ id: UUID) async throws(PostgresError) -> Bool {
        try await !database.run(Statements.handleReport, (id: id, actor: actor)).isEmpty
    }

    /// The open differences between Apple's books and ours, the oldest first.
    ///
    /// - Parameter appID: nil: of all apps.
    package func openDifferences(_ appID: String?) async throws(PostgresError) -> [Statements.ListedDifference] {
        try await database.run(Statements.listDifferences, appID)
    }

    /// Closes a difference that a person has explained. Returns where it stands now; nil if there is no such difference.
    package func closeDifference(
        _ category: Difference.Category, _ subject: String, note: String
    ) async throws(PostgresError) -> Statements.DifferenceStanding? {
        try await database.run(
            Statements.closeDifference, .init(category, subject, note: note, actor: actor)
        ).first
    }

    private func repeated(_ batch: () async throws(PostgresError) -> Int) async throws(PostgresError) -> Int {
        var total = 0
        while true {
            let count = try await batch()
            total += count
            if count < Self.batchRows { return total }
        }
    }

    private func audit(
        _ action: String, _ details: [String: String?], count: Int, of rows: String = "receipts"
    ) async throws(PostgresError) {
        var texts = details.compactMapValues { $0 }
        texts[rows] = String(count)
        // Encoding a dictionary of strings cannot fail.
        let json = (try? JSONEncoder().encode(texts)).map { String(decoding: $0, as: UTF8.self) } ?? "{}"
        try await database.run(
            Statements.audit, Statements.Audit(actor: actor, action: action, details: json))
    }
}
