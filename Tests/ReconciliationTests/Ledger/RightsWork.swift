import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings
@testable import Support

/// Runs each statement of the settle transaction for no row: the server checks rights all the same.
private func settleNothing(in database: Database) async throws {
    try await database.transact("test.settle") { transaction throws(PostgresError) in
        transaction.queue(Statements.takeReceipts, [])
        transaction.queue(Statements.storeFacts, [])
        transaction.queue(Statements.takeLimitPlaces, [])
        transaction.queue(Statements.readGates, [])
        transaction.queue(Statements.readTrust, [])
        transaction.queue(Statements.readGiven, [])
        transaction.queue(Statements.giveBonuses, [])
        transaction.queue(Statements.insertGrants, [])
        transaction.queue(Statements.readStandings, [])
        transaction.queue(Statements.readClaimedChains, [])
        transaction.queue(Statements.writeOutcomes, [])
        transaction.queue(Statements.endCollisions, [])
        transaction.queue(Statements.closeOutcomes, [])
        transaction.queue(Statements.writeAttempts, [])
        transaction.queue(Statements.writeEvents, [])
        transaction.queue(Statements.tellAnswers, [])
        transaction.queue(Statements.markTrust, [])
        transaction.queue(Statements.ownChains, [])
        transaction.queue(Statements.moveOwnerships, [])
        transaction.queue(Statements.rememberTokens, [])
        transaction.queue(Statements.noteDoubleCharges, [])
        transaction.queue(Statements.insertAppleUpdates, [])
        transaction.queue(Statements.updateReceipts, [])
        transaction.queue(Statements.wakeUnposted, [])
        try transaction.exchange()
    }
}

/// Runs each statement of the evidence for no question.
private func askNothing(in database: Database) async throws {
    try await database.transact("test.evidence", isSnapshot: true) { transaction throws(PostgresError) in
        for part in EvidenceTransaction.firstRound { transaction.queue(part.statement, []) }
        transaction.queue(Statements.ordersOfUsers, [])
        transaction.queue(Statements.ordersNearby, [])
        transaction.queue(Statements.provenInstallations, [])
        transaction.queue(Statements.postersWithToken, [])
        try transaction.exchange()
    }
}

/// Runs each statement by which support stores an owner, and takes all of it back: the server checks rights all the same.
private func decideNothing(in database: Database) async throws {
    try await database.transact("test.own") { transaction throws(PostgresError) in
        let decision = Statements.OwnerDecision(appID: "game", transactionID: "none", userID: "u2", actor: "ann")
        let grant = Statements.DecidedGrant(
            purchase: DecidedPurchase(holderID: "u1", environment: "Production", isLatest: true), receiptID: UUID(),
            productID: "pass", originalID: "none", purchasedAt: .now)
        transaction.queue(Statements.writeEvents, [])
        transaction.queue(Statements.issueToken, .init(appID: "game", userID: "u2", token: UUID()))
        transaction.queue(Statements.writeOwnersToken, .init(decision: decision, grant: grant, token: UUID()))
        transaction.queue(Statements.judgeClaims, decision)
        try transaction.exchange()
    }
}

extension RightsTests {
    /// Does the work of every service and of support, as their roles, on a database of its own. Returns the statements
    /// that each role ran.
    static func work() async throws -> Set<RoleStatement> {
        var statements: Set<RoleStatement> = []
        func act(
            _ role: DatabaseRole, in lab: LedgerLab, _ body: (Database) async throws -> Void
        ) async throws {
            try await with(role, in: lab) { database in
                try await body(database)
                try await statements.formUnion(RoleStatement.prepared(role, in: database))
            }
        }
        try await LedgerLab.with { lab in
            try await Self.make(in: lab)
            for role in DatabaseRole.allCases where role != .all {
                try await act(role, in: lab) { try await MissingRight.check([role], in: $0) }
            }
            try await act(.all, in: lab) {
                try await MissingRight.check([.ingest, .worker, .scheduler, .dispatcher], in: $0)
            }
            let keys = try #require(UserKeys(file: String(repeating: "0123456789abcdef", count: 4)))
            let player = UserName(appID: "game", key: keys.key(of: "u1", app: "game"))
            let start = Statements.AppStart(appID: "game", configurationHash: [1])
            var id = UUID()
            for role in [DatabaseRole.ingest, .worker, .scheduler, .dispatcher] {
                try await act(role, in: lab) { database in
                    try await UserProtection.agree(nil, in: database)
                    #expect(try await database.run(Statements.agreeOnPurpose, .production).count == 1)
                    #expect(try await database.run(Statements.logSecret).count == 1)
                }
            }
            try await act(.ingest, in: lab) { database in
                let submission = Submission(
                    appID: "game", userID: "u1", proof: Proof(kind: .receipt, payload: "payload"))
                id = submission.receiptID
                try await database.run(Statements.rememberApp, start)
                try await database.run(
                    Statements.insertReceipts, .init(submissions: [submission], schedule: RetrySchedule()))
                let proof = Proof.signedTransaction(String(repeating: "h", count: 3000) + ".b.s")
                let headers = ProofHeaders()
                for _ in 0..<ProofHeaders.occurrencesMin { _ = headers.split(proof) }
                try await database.run(
                    Statements.insertReceipts,
                    .init(
                        submissions: [Submission(appID: "game", userID: "u1", proof: proof)],
                        schedule: RetrySchedule(), headers: headers))
                #expect(try await database.receiptViews([id]).count == 1)
                try await database.run(Statements.finishedReceipts, [id])
                let named = Submission(appID: "game", userID: "u1", proof: proof, declared: Declaration(item: "x"))
                let said = try await database.run(Statements.sayLines, [SaidLine(submission: named, linesMax: 16)])
                #expect(said.map(\.result) == [.taken])
                try await database.run(Statements.countRepeats, [id, id])
                let notification = NewNotification(
                    id: UUID(), version: 2, appID: "game", bundleID: "b", environment: "Sandbox", type: "TEST",
                    payload: "p", payloadSHA256: [1], isForwarded: true)
                #expect(
                    try await database.run(
                        Statements.insertNotifications, .init([notification], schedule: RetrySchedule())
                    ) == [notification.id])
                try await database.run(Statements.countNotificationRepeats, [notification.id, notification.id])
                try await database.run(Statements.reopenClaim, .init(receiptID: id, payload: "payload", moves: true))
                let question = Submission(appID: "other", userID: "u1", proof: .identifier, transactionID: "asked")
                #expect(
                    try await database.run(
                        Statements.insertReceipts, .init(submissions: [question], schedule: RetrySchedule())
                    ).count == 1)
                try await database.run(Statements.areKnownTransactions, ["1000"])
                _ = try await Ledger.ownedChains(
                    [EntitlementQuestion(user: player, isOfPerson: true, environment: "Production")], in: database)
                try await database.run(Statements.purchasesOfChains, [])
                let order = NewOrder.example
                #expect(try await database.run(Statements.placeOrders, [order]).count == 1)
                #expect(try await database.run(Statements.findOrders, [order]).count == 1)
                #expect(try await database.run(Statements.readOrders, [order.id]).count == 1)
                try await database.run(Statements.boundOrders, [order.id])
                #expect(try await database.run(Statements.openOrder, order).isEmpty, "the order itself is no other one")
                let search = Statements.OrderSearch(appID: "game", userIDs: ["u1"], limit: 1)
                #expect(try await database.run(Statements.searchOrders, search).count == 1)
                try await database.run(
                    Statements.boughtUnits,
                    .init(
                        appID: "game", userID: "u1", product: .init(id: "coins", kind: .consumable, goods: []),
                        item: "coins"))
                #expect(
                    try await database.run(
                        Statements.endOrder,
                        .init(OrderView(order, placedAt: .now, payBy: .now), .closed, reference: nil)
                    ) == ["ended"])
                try await database.run(Statements.catalogueRevisions, ())
                try await database.run(Statements.readCatalogue, CatalogueRevision(appID: "game", revision: 1))
                let report = ClientReport(appID: "game", userID: "u1", orderID: order.id, kind: .failed, details: "{}")
                #expect(try await database.run(Statements.storeReport, report).first?.orderID == order.id)
                let token = Statements.TokenRequest(appID: "game", userID: "u1", token: UUID())
                #expect(try await database.run(Statements.registerToken, token).count == 1)
                #expect(try await database.run(Statements.issueToken, token).isEmpty, "registered as it is")
                let wish = Statements.InstallationRequest(appID: "game", id: "i", token: Array(repeating: 1, count: 32))
                _ = try await database.run(Statements.issueInstallationToken, wish)
                #expect(
                    try await database.run(Statements.revokeInstallation, (appID: "game", token: wish.token)) == ["i"])
                try await database.run(Statements.noteRecordApp, "game")
                try await database.run(Statements.readEvents, .init(apps: ["game"], after: .start, limit: 1))
                let filter = EndpointFilter(key: EndpointKey(appID: "game", name: "shop"))
                try await database.run(Statements.deliveredCursor, filter.key.id)
                _ = try await database.run(Statements.readUndelivered, .init(filter: filter, after: .start, limit: 1))
                #expect(try await database.run(Statements.isBeyondFeed, .start) == [false])
                let group = try #require(FeedGroup.Key(appID: "game", name: "shop"))
                #expect(try await database.run(Statements.isGivenCursor, .init(.start, apps: ["game"])) == [true])
                for _ in 0..<2 {
                    let cursor = Statements.FeedGroupUpdate(group, .start, rewinds: false)
                    #expect(try await database.run(Statements.storeFeedCursor, cursor).map(\.cursor) == [.start])
                }
                #expect(try await database.run(Statements.readFeedGroup, group).map(\.cursor) == [.start])
                #expect(try await database.run(Statements.feedGroupLag, group).map(\.name) == ["shop"])
                #expect(try await database.run(Statements.feedGroupLags, ["game"]).count == 1)
                #expect(try await database.run(Statements.forgetFeedGroup, group) == [true])
                try await database.run(Statements.waitingReceipts, .init(apps: ["game"], limit: 1))
                try await handleNothing(in: database)
                try await database.run(Statements.listHalts, ())
                let sealed = keys.seal("u1", key: player.key, app: "game")
                try await database.run(
                    Statements.enterUsers, [EnteredUser(appID: "game", key: player.key, sealed: sealed)])
                #expect(try await database.run(Statements.registeredUsers, [player]).count == 1)
                let explainer = Explainer(database: database, keys: keys)
                #expect(try await explainer.timeline(of: .receipt(id), for: .support(apps: ["game"])) != nil)
                #expect(try await explainer.timeline(of: .transaction("t1"), for: .player(["game": "u1"])) == nil)
                #expect(try await explainer.timeline(of: .order(id), for: .player(["game": "u1"])) == nil)
                let user = UserName(appID: "game", key: "u1")
                #expect(
                    try await database.run(Statements.userStanding, .init(user: user, limits: .init())).count == 1)
                #expect(try await database.run(Statements.accountMergedInto, user) == [])
                #expect(try await database.run(Statements.idsMergedInto, user) == [])
                let page = Statements.PurchasePage(
                    appID: user.appID, userIDs: try await database.run(Statements.idsOfPerson, user), before: .newest,
                    limit: 10)
                let lists = try await PurchaseLists.read(page, in: database)
                #expect(lists.granted.isEmpty && lists.imported.isEmpty && lists.posted.count == 2)
                #expect(
                    try await database.run(Statements.purchaseFacts, [(appID: "game", transactionID: "t1")]).isEmpty)
                try await database.run(Statements.spending, .init(appID: "game", userIDs: ["u1"], from: .now, to: .now))
                #expect(try await database.run(Statements.isSamePerson, (user: user, other: "u9")) == [false])
                let merge = Statements.Merge(UserName(appID: "game", key: "guest"), into: "u9", actor: "backend")
                #expect(try await database.run(Statements.mergeUsers, merge) == [.merged])
                let consent = Statements.Consent(UserName(appID: "game", key: "u7"), isGiven: true)
                #expect(try await database.run(Statements.giveConsent, consent).map(\.isRepeated) == [false])
                #expect(try await database.run(Statements.consumedPurchase, "none").isEmpty)
                let used = Statements.ConsumptionReport(
                    transactionID: "none", appID: "game", percentage: 1, units: nil, at: nil)
                #expect(try await database.run(Statements.reportConsumption, used).map(\.isRepeated) == [false])
            }
            let posted = Posted(id: id, userID: "u1", appID: "game")
            try await act(.worker, in: lab) { database in
                try await database.run(Statements.rememberApp, start)
                try await database.run(
                    Statements.takeConfiguration, .init(appID: "game", configurationHash: [2], isChanged: true))
                try await database.run(Statements.endStaleHalts, .init(appID: "game", hashes: ["a"]))
                let place = Statements.NotificationPlace(appID: "game", environment: "Production")
                _ = try await database.run(Statements.countNotificationDays, place)
                #expect(try await database.run(Statements.notificationHealth, ()).count == 2)
                #expect(try await database.run(Statements.claimNotificationTest, place) == [true])
                _ = try await database.run(Statements.noteNotificationTest, .init(place: place, token: "t"))
                let halt = Halt(
                    appID: "game", service: "serverApi", environment: "Production", credential: "a", reason: "r")
                #expect(try await database.run(Statements.halt, halt) == [true])
                try await database.run(Statements.takeProbe, halt)
                try await database.run(Statements.returnProbe, halt)
                try await database.run(Statements.endHalt, halt)
                #expect(try await database.run(Statements.listHalts, ()) == [])
                try await database.run(
                    Statements.wakeIfStale, .init(receiptID: UUID(), appID: "game", hash: [1], dueIn: .zero))
                try await database.run(Statements.catalogueRevisions, ())
                try await database.run(Statements.readCatalogue, CatalogueRevision(appID: "game", revision: 1))
                let budget = CallBudget(appID: "game", environment: "Production", endpoint: "e")
                let calls = Statements.LeaseQuestion(
                    budget: budget, lane: .fresh, wanted: 1, slice: CallSlice(callsPerSecond: 1))
                #expect(try await database.run(Statements.leaseCalls, calls).count == 1)
                try await database.run(Statements.stopCalls, (budget: budget, wait: .zero))
                try await database.run(Statements.reportAppleHosts, (worker: "w", hosts: []))
                #expect(try await database.run(Statements.fetchReceipts, [id]).first?.hasPayload == true)
                try await database.run(
                    Statements.userHistory, .init(appID: "game", userID: "u1", purchasesMax: 1))
                try await database.run(
                    Statements.takePlaces,
                    .init(
                        receiptID: id, appID: "game",
                        transactions: [Verdict.Entry.purchase("t1").transaction],
                        limits: .init(perUserPerDay: 1, perAppPerDay: 1)))
                try await database.run(
                    Statements.strike, .init(pointers: [Pointer(receiptID: id, attempt: 0)], parking: lab.parking))
                let later = Postponement(receiptID: id, attempt: 0, dueIn: .zero, reason: .productUnknown)
                #expect(try await database.run(Statements.postpone, [later]) == [id])
                #expect(try await database.run(Statements.reroute, [later]) == [id])
                var limited = lab.verdict(
                    try await lab.post(), .transactions([Verdict.Entry.purchase("limited", in: Transaction.sandbox)]))
                limited.places = LimitPlace.Limit.allCases.map {
                    LimitPlace(
                        transactionID: "limited", purchaseKey: "limited", limit: $0,
                        holder: #"["u1", "coins", "coins", true]"#, takenFor: "p", places: 1)
                }
                #expect(try await lab.settle(limited, on: database).count == 1)
                let shown = Statements.ShownCustomer(installationID: "i", environment: "Production", customerID: "c")
                try await database.run(Statements.showCustomers, [shown])
                let question = Statements.BareID(receiptID: id, appID: "game", transactionID: "t1", isOld: false)
                #expect(try await database.run(Statements.knownBareID, question).first?.mayBeAsked == true)
                try await database.run(Statements.noteAnswer, question)
                #expect(try await database.run(Statements.countAnswers, .init(receiptID: id, code: 21002)) == [0])
                #expect(
                    try await database.run(
                        Statements.mayAskOfGranted, .init(appID: "game", transactionID: "none", userID: "u1")) == [
                            false
                        ])
                let walk = Statements.Walk(appID: "game", environment: "Production", customer: "c")
                let claim = Statements.WalkClaim(
                    walk: walk, askedID: "t1", lease: .seconds(30), interval: .seconds(3600))
                #expect(try await database.run(Statements.claimWalk, claim).count == 1)
                let page = Statements.WalkPage(
                    walk: walk, reader: 1, transactions: [Verdict.Entry.purchase("t9").transaction], revision: nil,
                    lease: .zero)
                #expect(try await database.run(Statements.storePage, page) == [1])
                #expect(try await database.run(Statements.claimWalk, claim).count == 1)
                #expect(
                    try await database.run(
                        Statements.chainFacts, (walk: walk, originalID: page.transactions[0].originalID)
                    )
                    .map(\.id) == ["t9"])
                try await database.run(Statements.storedTransaction, (appID: "game", id: "t9"))
                try await database.run(
                    Statements.knownPurchases,
                    .init(receiptID: id, appID: "game", transactions: page.transactions))
                #expect(try await database.run(Statements.undecidedPurchases, id) == [])
                #expect(try await database.run(Statements.usersShowing, "t1").count == 1)
                let line = AppleUpdateLine(appID: "game", environment: "Production", kind: .finish)
                #expect(
                    try await database.run(
                        Statements.claimAppleUpdates, .init(lines: [line], limit: 1, lease: .seconds(1))) == [])
                try await database.run(Statements.reportAppleUpdates, [])
                try await askNothing(in: database)
                let asked = lab.question(page.transactions[0], named: UUID(), installation: "i")
                #expect(try await EvidenceQuestion.fullAnswers(to: [asked], in: database).count == 1)
                let withToken = Verdict.Entry.purchase("t1") { $0.appAccountToken = id }
                try await database.run(Statements.orderOfToken, [lab.question(withToken.transaction)])
                try await database.run(Statements.hasEvidence, [lab.question(page.transactions[0])])
                try await database.run(Statements.shadowEvidence, [lab.question(page.transactions[0])])
                try await database.run(Statements.shadowOrders, [UUID()])
                let row = try #require(try await database.run(Statements.fetchReceipts, [id]).first)
                let decision = ShadowDecision(.purchase("t8"), of: row)
                for _ in 0..<2 { try await database.run(Statements.decideInShadow, [decision]) }
                let order = try await lab.place("u1")
                let entry = try await lab.matched("t1", by: "u1", order: order) { $0.takesChain = true }
                #expect(
                    try await lab.settle(lab.verdict(posted, .transactions([entry])), on: database) == [id: .granted])
            }
            try await act(.worker, in: lab) { database in try await settleNothing(in: database) }
            let refund = RefundRequest(
                notificationID: UUID(), appID: "game", environment: "Production", transactionID: "t1", originalID: "t1",
                reason: nil, askedAt: .now)
            try await lab.run(
                """
                insert into refund_requests (notification_id, case_id, app_id, environment, transaction_id,
                  original_transaction_id, asked_at, due_at)
                values ('\(refund.notificationID)', '\(refund.notificationID)', 'game', 'Production', 't1', 't1', now(), now())
                """)
            try await act(.worker, in: lab) { database in
                try await database.run(Statements.endLateRefundRequests, ())
                let claim = Statements.RefundClaim(
                    apps: [(id: "game", answerAfter: .zero)], limit: 1, lease: .seconds(1))
                let claimed = try await database.run(Statements.claimRefundRequests, claim)
                #expect(claimed.count == 1)
                #expect(try await database.run(Statements.refundFacts, .init(refund)).map(\.isDelivered) == [true])
                var result = RefundRequestResult(try #require(claimed.first))
                result.dueIn = .seconds(60)
                #expect(
                    try await database.run(Statements.reportRefundRequests, [result]) == [refund.notificationID])
            }
            let rejected = try await lab.post()
            try await lab.settle(lab.verdict(rejected, .receipt(.rejected(.wrongApp))))
            _ = try await lab.post()
            try await lab.run("update receipts set due_at = now() where state = 'received'")
            try await act(.scheduler, in: lab) { database in
                try await database.run(Statements.rememberApp, start)
                try await database.run(Statements.listHalts, ())
                let claimed = try await database.run(
                    Statements.claim,
                    .init(
                        lane: .apple, apps: ["game"], limit: 10, rescueDelay: .seconds(1), rescueDelayMax: .seconds(2)))
                #expect(claimed.count == 1)
                try await database.run(Statements.backlog, ())
                try await database.run(Statements.feedLag, ())
                try await database.run(Statements.allFeedGroupLags, ())
                try await countHandOuts(in: database)
                try await database.run(Statements.openAppleUpdates, ())
                try await database.run(Statements.lateRefundRequests, ())
                try await database.run(Statements.unconfirmed, ())
                try await database.run(Statements.doubleChargesBehind, ())
                try await database.run(Statements.waitingPurchases, .seconds(3600))
                try await database.run(Statements.openNotifications, ())
                try await database.run(Statements.revocationsOfDay, ())
                let plan = try #require(try await database.run(Statements.planSeal, .init(rows: 10)).first)
                _ = try await database.run(Statements.seal, plan)
                _ = try await database.run(Statements.sealHeads, 1)
                _ = try await database.run(Statements.sealHeadsAt, [1])
                _ = try await database.run(Statements.sealExtent)
                _ = try await SealFinding.look(at: 1, database)
                _ = try await database.run(Statements.sealStretch, 1...2)
                let step = try #require(
                    try await database.run(
                        Statements.takeDoubleChargeStep, .init(interval: .seconds(60), batch: 10)
                    ).first)
                let question = Statements.DoubleChargeQuestion(
                    step: step, window: .seconds(60), moment: .seconds(10))
                #expect(try await database.run(Statements.findDoubleCharges, question) == [])
                try await database.run(Statements.endDoubleChargeStep, step)
                try await database.run(
                    Statements.flagDoubleCharges,
                    [
                        DoubleCharge(
                            transactionID: "t1", appID: "game", userID: "u1", productID: "coins", receiptID: id,
                            firstTransactionID: "t0")
                    ])
                try await database.run(Statements.lookAheadOfGoods, .zero)
                _ = try await database.run(Statements.sumGoods, .seconds(3600))
                #expect(try await database.run(Statements.sumGoodsAgain, .seconds(300)) == [])
                try await database.run(Statements.lookAheadOfArrivals, .zero)
                _ = try await database.run(Statements.sumArrivals, .seconds(3600))
                #expect(try await database.run(Statements.sumArrivalsAgain, .seconds(300)) == [])
                _ = try await database.run(Statements.timeliness, ())
                _ = try await database.run(Statements.overdueItems, ())
                _ = try await database.run(Statements.openDifferences, ())
                _ = try await database.run(Statements.dueReport, ())
                _ = try await database.run(Statements.missingReports, ())
                let report = try await DayReport.read(day: "\(Date().rfc3339.prefix(10))", appID: nil, in: database)
                #expect(try await database.run(Statements.keepReport, (day: report.day, report: report.json)) == [true])
                try await database.run(Statements.createPayloadPartitions, 3)
                try await database.run(Statements.dropLimitPlaces, ())
                let retention = Statements.RetentionStep(days: 90, appsAskingByID: [], batch: 10)
                #expect(try await database.run(Statements.retainPayloads, retention).first?.isMore == false)
                #expect(try await database.run(Statements.payloadPlaces, ()).count == 3)
                #expect(try await database.run(Statements.keptPayloads, ()).count == 3)
                #expect(try await Invariant.check(database, span: .all) == [])
            }
            #expect(try await lab.number("select count(*) from pg_class where relname ~ '^payloads_2[0-9]{7}$'") == 3)
            try await act(.support, in: lab) { database in
                let appleGateway = CatalogueEditor(database: database, actor: "ann")
                let catalogue = Catalogue(products: [.init(id: "coins", kind: .consumable, goods: [])])
                try await appleGateway.apply(try await appleGateway.plan(catalogue, for: "game", at: Date()))
                let repairs = Repairs(database: database, actor: "ann")
                _ = try await SealFinding.look(at: 1, database)
                _ = try await database.run(Statements.decidedAgain, 1)
                #expect(try await repairs.closeDifference(.goodsDiffer, "none", note: "n") == nil)
                #expect(try await repairs.openDifferences("game").allSatisfy { $0.appID == "game" })
                #expect(try await repairs.countRejected("game", reason: nil, since: nil).count == 1)
                let explainer = Explainer(database: database, keys: keys)
                for subject in [id.uuidString, "t1"] {
                    #expect(try await explainer.timeline(ofAny: subject, for: .people)?.standing.state == "granted")
                }
                #expect(try await explainer.timeline(ofAny: UUID().uuidString, for: .people) == nil)
                #expect(try await repairs.rejudge("game", reason: nil, since: nil) == 1)
                #expect(try await repairs.redrive([.parked, .held], appID: nil, reason: nil) == 0)
                #expect(try await repairs.redrive([UUID()]) == [])
                let place = Statements.NotificationPlace(appID: "game", environment: "Production")
                #expect(try await database.run(Statements.arrivedNotificationTest, (place, .now)).isEmpty)
                let waiting = Statements.WaitingQuestion(apps: nil, limit: 1)
                _ = try await WaitingList(of: waiting, keys: keys, in: database)
                try await database.run(Statements.shadowFacts, .init(appID: "game", transactionIDs: ["t1"]))
                let span = Statements.ShadowPage(
                    appID: "game", from: .distantPast, through: .distantFuture, after: (.distantPast, ""), limit: 1)
                #expect(try await database.run(Statements.shadowPage, span).count == 1)
                _ = try await database.run(Statements.grantedPage, span)
                try await database.run(Statements.undecidedReceipts, "game")
                let books = try AppleBooks.report([("coins", "IA1", 9, "US")], on: AppleDay(of: .now))
                _ = try await SalesReconciliation(of: "game", [books], grantFrom: nil, in: database)
                #expect(try await repairs.decideOwner("u2", of: "none", appID: "game", isWrittenBack: true) == nil)
                try await decideNothing(in: database)
                try await lab.settle(try await lab.post(), .purchase("h1", .held(.orderUnknown)))
                for _ in 0..<2 {
                    let supportDecision = Statements.SupportDecision(
                        appID: "game", transactionID: "h1", userID: player.key, because: "b", isWrittenBack: true)
                    #expect(try await repairs.give(supportDecision).isDecided)
                }
                try await repairs.pause("game")
                _ = try await repairs.resume("game")
                let policy = AppPolicy(id: "game", grantFrom: .distantPast, products: [])
                let editor = RefundRequestEditor(database: database, actor: "ann")
                #expect(try await editor.list(app: "game", state: "open").count == 1)
                _ = try await editor.edit("t1", RefundEdit(withhold: true), policies: ["game": policy])
                try await repairs.setFirstLane(.repair, of: "game", for: .seconds(1))
                #expect(try await repairs.waitingReports("game") == [])
                #expect(try await !repairs.handleReport(UUID()))
                #expect(try await database.run(Statements.standings, [id]).count == 1)
                #expect(try await database.run(Statements.purpose) == [.production])
                _ = try await DayReport.read(day: "\(Date().rfc3339.prefix(10))", appID: "game", in: database)
                try await UserProtection.check(nil, in: database)
                try await database.run(Statements.openAppleUpdates, ())
                try await database.run(Statements.backlog, ())
                let erasure = UserErasure(database: database, keys: keys, actor: "ann")
                #expect(try await erasure.look(player).standing == .known)
                #expect(try await erasure.erase(player))
                #expect(try await erasure.readmit("u1", app: "game"))
                let clear = UserErasure(database: database, keys: nil, actor: "ann")
                #expect(try await clear.erase(clear.name(of: "u1", app: "game")))
                #expect(try await Invariant.check(database, span: .all) == [])
                #expect(try await Invariant.extent(database, span: .all).receipts > 0)
            }
            try await workOnNotifications(in: lab, act)
            try await workOnChains(in: lab, act)
            try await workOnCustomers(in: lab, act)
            try await workOnNotifications(in: lab, act)
            try await workOnNotificationWindows(in: lab, act)
            try await workOnDelivery(in: lab, act)
            try await workOnReplays(in: lab, act)
            try await act(.dashboard, in: lab) { database in
                for line in Rights.all where line.object.hasPrefix("table v_") {
                    try await database.run(
                        Statement<Void, Void>("test.view", "select * from \(line.object.dropFirst("table ".count))"))
                }
            }
        }
        return statements
    }
}
