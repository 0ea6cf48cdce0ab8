import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Service
@testable import Settings
@testable import Support

/// Goal: each role can do its service's work and nothing else. Method: the real script on a database of its own; every
/// statement of each service runs as its role, and a table of statements must be refused with 42501. The roles belong
/// to the server and stay there; their rights go with the database.
@Suite(.serialized, .timeLimit(.minutes(8))) struct RightsTests {
    private static let script = RoleScript(prefix: "makegood")

    private static func make(in lab: LedgerLab) async throws {
        try await run(script.roles + script.rights(of: DatabaseRole.allCases), in: lab)
    }

    private static func run(_ script: String, in lab: LedgerLab) async throws {
        try await Migrator(LedgerLab.configuration(lab.url), migrations: Schema.migrations, logger: .silent)
            .run(script: script)
    }

    /// Lends a connection of this role.
    private static func with(
        _ role: DatabaseRole, in lab: LedgerLab, _ body: (Database) async throws -> Void
    ) async throws {
        var url = try #require(URLComponents(string: lab.url))
        url.user = script.name(role)
        // A dashboard's transactions are read-only, so that the services' connection settings would take the server for
        // a standby.
        url.queryItems = [URLQueryItem(name: "target_session_attrs", value: "any")]
        let database = Database(
            LedgerLab.configuration(try #require(url.string)), connections: 1, logger: .silent)
        do {
            try await body(database)
        } catch {
            await database.close()
            throw error
        }
        await database.close()
    }

    @Test("a table, view or function that a migration adds has its line in the list")
    func everythingIsListed() async throws {
        try await LedgerLab.with { lab in
            let objects = try await lab.texts(
                """
                select 'table ' || relname from pg_class
                where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p', 'v', 'm', 'f')
                  and not relispartition
                union all select 'function ' || p.oid::regprocedure from pg_proc p
                where pronamespace = current_schema()::regnamespace
                """)
            #expect(Set(Rights.all.map { $0.object.replacing(", ", with: ",") }) == Set(objects))
            #expect(Rights.all.count == objects.count)
            // A function runs with the owner's rights only if no role can put another table under its names, and no
            // role may call it by default.
            let definers = try await lab.texts(
                """
                select proname || ' ' || array_to_string(proconfig, ',') || ' ' || coalesce(array_to_string(proacl, ','), '=X')
                from pg_proc where pronamespace = current_schema()::regnamespace and prosecdef
                """)
            #expect(!definers.isEmpty)
            #expect(
                definers.allSatisfy { $0.contains("search_path=public, pg_temp") && !$0.contains("{=X") }, "\(definers)"
            )
        }
    }

    @Test("each service does all of its work as its role, and the check at its start agrees")
    func whatIsAllowed() async throws {
        try await LedgerLab.with { lab in
            try await Self.make(in: lab)
            for role in [DatabaseRole.ingest, .worker, .scheduler, .support, .dashboard] {
                try await Self.with(role, in: lab) { try await MissingRight.check([role], in: $0) }
            }
            try await Self.with(.all, in: lab) {
                try await MissingRight.check([.ingest, .worker, .scheduler], in: $0)
            }
            let keys = try #require(UserKeys(file: String(repeating: "0123456789abcdef", count: 4)))
            let player = UserName(appID: "game", key: keys.key(of: "u1", app: "game"))
            let start = Statements.AppStart(appID: "game", configurationHash: [1])
            var id = UUID()
            try await Self.with(.ingest, in: lab) { database in
                let submission = Submission(
                    appID: "game", userID: "u1", proof: Proof(kind: .receipt, payload: "payload"))
                id = submission.receiptID
                try await database.run(Statements.rememberApp, start)
                try await database.run(
                    Statements.insertReceipts, .init(submissions: [submission], schedule: RetrySchedule()))
                let proof = Proof.signedTransaction(String(repeating: "h", count: 3000) + ".b.s")
                let headers = ProofHeaders()
                for _ in 0..<ProofHeaders.sightingsMin { _ = headers.split(proof) }
                try await database.run(
                    Statements.insertReceipts,
                    .init(
                        submissions: [Submission(appID: "game", userID: "u1", proof: proof)],
                        schedule: RetrySchedule(), headers: headers))
                #expect(try await database.run(Statements.readReceipts, [id]).count == 1)
                try await database.run(Statements.finishedReceipts, [id])
                let named = Submission(appID: "game", userID: "u1", proof: proof, declared: Declaration(item: "x"))
                let said = try await database.run(Statements.sayLines, [SaidLine(submission: named, linesMax: 16)])
                #expect(said.map(\.result) == [.taken])
                try await database.run(Statements.reopenClaim, .init(receiptID: id, payload: "payload", moves: true))
                let question = Submission(appID: "other", userID: "u1", proof: .identifier, transactionID: "asked")
                #expect(
                    try await database.run(
                        Statements.insertReceipts, .init(submissions: [question], schedule: RetrySchedule())
                    ).count == 1)
                try await database.run(Statements.areKnownTransactions, ["1000"])
                let order = NewOrder.example
                #expect(try await database.run(Statements.placeOrders, [order]).count == 1)
                #expect(try await database.run(Statements.findOrders, [order]).count == 1)
                #expect(try await database.run(Statements.readOrders, [order.id]).count == 1)
                try await database.run(Statements.boundOrders, [order.id])
                let search = Statements.OrderSearch(appID: "game", userIDs: ["u1"], limit: 1)
                #expect(try await database.run(Statements.searchOrders, search).count == 1)
                try await database.run(
                    Statements.boughtUnits,
                    .init(
                        appID: "game", userID: "u1", product: .init(id: "coins", kind: .consumable, goods: []),
                        item: "coins"))
                try await database.run(Statements.catalogueRevisions, ())
                try await database.run(Statements.readCatalogue, CatalogueRevision(appID: "game", revision: 1))
                let report = ClientReport(appID: "game", userID: "u1", orderID: order.id, kind: .failed, details: "{}")
                #expect(try await database.run(Statements.storeReport, report).first?.orderID == order.id)
                let token = Statements.TokenWish(appID: "game", userID: "u1", token: UUID())
                #expect(try await database.run(Statements.registerToken, token).count == 1)
                #expect(try await database.run(Statements.issueToken, token).isEmpty, "registered as it is")
                let wish = Statements.InstallationWish(appID: "game", id: "i", token: Array(repeating: 1, count: 32))
                _ = try await database.run(Statements.issueInstallationToken, wish)
                #expect(
                    try await database.run(Statements.revokeInstallation, (appID: "game", token: wish.token)) == ["i"])
                try await database.run(Statements.noteRecordApp, "game")
                try await database.run(Statements.readEvents, .init(apps: ["game"], after: .start, limit: 1))
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
                let page = Statements.PurchasePage(
                    appID: user.appID, userIDs: try await database.run(Statements.idsOfPerson, user), before: .newest,
                    limit: 10)
                #expect(try await database.run(Statements.grantedPurchases, page).isEmpty)
                #expect(try await database.run(Statements.importedPurchases, page).isEmpty)
                #expect(try await database.run(Statements.postedPurchases, page).count == 2)
                try await database.run(Statements.spending, .init(appID: "game", userIDs: ["u1"], from: .now, to: .now))
                #expect(try await database.run(Statements.isSamePerson, (user: user, other: "u9")) == [false])
                let merge = Statements.Merge(UserName(appID: "game", key: "guest"), into: "u9", actor: "backend")
                #expect(try await database.run(Statements.mergeUsers, merge) == [.merged])
            }
            let posted = Posted(id: id, userID: "u1", appID: "game")
            try await Self.with(.worker, in: lab) { database in
                try await database.run(Statements.rememberApp, start)
                try await database.run(
                    Statements.takeConfiguration, .init(appID: "game", configurationHash: [2], isChanged: true))
                try await database.run(Statements.endStaleHalts, .init(appID: "game", hashes: ["a"]))
                let halt = Halt(
                    appID: "game", service: "serverApi", environment: "Production", credential: "a", reason: "r")
                #expect(try await database.run(Statements.halt, halt) == [true])
                try await database.run(Statements.takeProbe, halt)
                try await database.run(Statements.endHalt, halt)
                #expect(try await database.run(Statements.listHalts, ()) == [])
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
                try await database.run(
                    Statements.knownPurchases,
                    .init(receiptID: id, appID: "game", transactions: page.transactions))
                #expect(try await database.run(Statements.undecidedPurchases, id) == [])
                let line = AppleUpdateLine(appID: "game", environment: "Production", kind: .finish)
                #expect(
                    try await database.run(
                        Statements.claimAppleUpdates, .init(lines: [line], limit: 1, lease: .seconds(1))) == [])
                try await database.run(Statements.reportAppleUpdates, [])
                try await database.run(
                    Statements.evidence,
                    [
                        EvidenceQuestion(
                            appID: "game", userID: "u1", namedOrderID: UUID(), installationID: "i",
                            transaction: page.transactions[0])
                    ])
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
            let rejected = try await lab.post()
            try await lab.settle(lab.verdict(rejected, .receipt(.rejected(.wrongApp))))
            _ = try await lab.post()
            try await lab.run("update receipts set due_at = now() where state = 'received'")
            try await Self.with(.scheduler, in: lab) { database in
                try await database.run(Statements.rememberApp, start)
                try await database.run(Statements.listHalts, ())
                let claimed = try await database.run(
                    Statements.claim,
                    .init(
                        lane: .apple, apps: ["game"], limit: 10, rescueDelay: .seconds(1), rescueDelayMax: .seconds(2)))
                #expect(claimed.count == 1)
                try await database.run(Statements.backlog, ())
                try await database.run(Statements.feedLag, ())
                try await database.run(Statements.doubleChargesBehind, ())
                let step = try #require(
                    try await database.run(
                        Statements.takeDoubleChargeStep, .init(interval: .seconds(60), batch: 10)
                    ).first)
                let question = Statements.DoubleChargeQuestion(step: step, window: .seconds(60))
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
                try await database.run(Statements.createPayloadPartitions, 3)
                try await database.run(Statements.dropLimitPlaces, ())
                let retention = Statements.RetentionStep(days: 90, appsAskingByID: [], batch: 10)
                #expect(try await database.run(Statements.retainPayloads, retention).first?.isMore == false)
                #expect(try await database.run(Statements.payloadPlaces, ()).count == 3)
                #expect(try await database.run(Statements.keptPayloads, ()).count == 3)
                #expect(try await Invariant.check(database, span: .all) == [])
            }
            #expect(try await lab.number("select count(*) from pg_class where relname ~ '^payloads_2[0-9]{7}$'") == 3)
            try await Self.with(.support, in: lab) { database in
                let appleGateway = CatalogueEditor(database: database, actor: "ann")
                let catalogue = Catalogue(products: [.init(id: "coins", kind: .consumable, goods: [])])
                try await appleGateway.apply(try await appleGateway.plan(catalogue, for: "game", at: Date()))
                let repairs = Repairs(database: database, actor: "ann")
                #expect(try await repairs.countRejected("game", reason: nil, since: nil).count == 1)
                let explainer = Explainer(database: database, keys: keys)
                for subject in [id.uuidString, "t1"] {
                    #expect(try await explainer.timeline(ofAny: subject, for: .people)?.standing.state == "granted")
                }
                #expect(try await explainer.timeline(ofAny: UUID().uuidString, for: .people) == nil)
                #expect(try await repairs.rejudge("game", reason: nil, since: nil) == 1)
                #expect(try await repairs.redrive([.parked, .held], appID: nil, reason: nil) == 0)
                try await database.run(Statements.shadowFacts, .init(appID: "game", transactionIDs: ["t1"]))
                let span = Statements.ShadowPage(
                    appID: "game", from: .distantPast, through: .distantFuture, after: (.distantPast, ""), limit: 1)
                #expect(try await database.run(Statements.shadowPage, span).count == 1)
                try await database.run(Statements.undecidedReceipts, "game")
                #expect(try await repairs.decideOwner("u2", of: "none", appID: "game") == nil)
                try await lab.settle(try await lab.post(), .purchase("h1", .held(.orderUnknown)))
                for _ in 0..<2 {
                    let supportDecision = Statements.SupportDecision(
                        appID: "game", transactionID: "h1", userID: player.key, because: "b", isWrittenBack: true)
                    #expect(try await repairs.give(supportDecision).isDecided)
                }
                try await repairs.pause("game")
                _ = try await repairs.resume("game")
                try await database.run(Statements.backlog, ())
                let erasure = UserErasure(database: database, keys: keys, actor: "ann")
                #expect(try await erasure.look(player).standing == .known)
                #expect(try await erasure.erase(player))
                #expect(try await erasure.readmit("u1", app: "game"))
                let clear = UserErasure(database: database, keys: nil, actor: "ann")
                #expect(try await clear.erase(clear.name(of: "u1", app: "game")))
                #expect(try await Invariant.check(database, span: .all) == [])
            }
            try await Self.with(.dashboard, in: lab) { database in
                for line in Rights.all where line.object.hasPrefix("table v_") {
                    try await database.run(
                        Statement<Void, Void>("test.view", "select * from \(line.object.dropFirst("table ".count))"))
                }
            }
        }
    }

    @Test("what a role has no business with is refused with 42501")
    func whatIsRefused() async throws {
        try await LedgerLab.with { lab in
            try await Self.make(in: lab)
            for role in DatabaseRole.allCases {
                try await Self.with(role, in: lab) { database in
                    // A dashboard's read-only limit is a default of its role; a session that lifts it still has no
                    // right.
                    try await database.run(
                        Statement<Void, Void>("test.write", "set default_transaction_read_only = off"))
                    for refusal in Refusal.all where refusal.roles.contains(role) {
                        await #expect(
                            throws: PostgresError.misconfigured(sqlState: "42501", statement: "test.refused"),
                            "\(role.rawValue): \(refusal.sql)"
                        ) {
                            try await database.run(Statement<Void, Void>("test.refused", refusal.sql))
                        }
                    }
                }
            }
            // The check reads the catalogue, and so covers every table, future ones too.
            let excess = try await lab.texts(
                """
                select r || ' ' || c.relname || ' ' || p from unnest(array[\
                \(DatabaseRole.allCases.map { "'\(Self.script.name($0))'" }.joined(separator: ","))]) r,
                  pg_class c, unnest(array['delete', 'truncate', 'trigger', 'references']) p
                where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p', 'v')
                  and has_table_privilege(r, c.oid, p)
                """)
            #expect(excess == [])
        }
    }

    @Test("An event is told only by a role that may write what the event tells of")
    func eventsOfRoles() async throws {
        let types = [
            "purchase.granted", "purchase.confirmed", "purchase.revoked", "ownership.disputed", "anything.else",
            "ownership.gained", "ownership.lost", "purchase.possible_double_charge",
        ]
        // The test writes events without purchases.
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.make(in: lab)
            for (role, expected) in [
                (DatabaseRole.worker, Set(types)), (.all, Set(types)),
                (.scheduler, ["purchase.possible_double_charge"]),
                (.support, ["ownership.gained", "ownership.lost"]), (.ingest, []), (.dashboard, []),
            ] {
                try await Self.with(role, in: lab) { database in
                    try await database.run(
                        Statement<Void, Void>("test.write", "set default_transaction_read_only = off"))
                    var told: Set<String> = []
                    for type in types {
                        let event = Statement<Void, Void>(
                            "test.tell",
                            """
                            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                            values (gen_random_uuid(), 'game', '\(type)', 'u1', 't1', gen_random_uuid(), '{}')
                            """)
                        do {
                            try await database.run(event)
                            told.insert(type)
                        } catch PostgresError.misconfigured(sqlState: "42501", statement: _) {}
                    }
                    #expect(told == expected, "\(role.rawValue)")
                }
            }
        }
    }

    @Test(
        "what dashboards read shows no proof, of what was sent beside one the app's version alone, and no clear id")
    func viewsShowNoProof() async throws {
        try await LedgerLab.with { lab in
            func columns(_ condition: String) async throws -> [String] {
                try await lab.texts(
                    """
                    select distinct v.relname || ' reads ' || t.relname || '.' || a.attname
                    from pg_class v join pg_rewrite w on w.ev_class = v.oid
                    join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
                      and d.refclassid = 'pg_class'::regclass and d.refobjsubid > 0
                    join pg_class t on t.oid = d.refobjid
                    join pg_attribute a on a.attrelid = t.oid and a.attnum = d.refobjsubid
                    where v.relname like 'v\\_%' and v.relnamespace = current_schema()::regnamespace and (\(condition))
                    """)
            }
            let shown = try await columns(
                """
                t.relname like 'payloads%' or t.relname in ('stored_payloads', 'proof_headers') or t.relname = 'users' or (t.relname, a.attname) in
                  (('kept_payloads', 'body'), ('receipts', 'details'), ('receipts', 'payload_sha256'),
                   ('transactions', 'facts'))
                """)
            // One member of each column is shown: the app's version and the storefront (B15; DashboardViewTests).
            // Refunds are counted by the end of the purchase, and no member of it is shown.
            #expect(
                Set(shown) == [
                    "v_grant_times reads receipts.details", "v_grant_times reads transactions.facts",
                    "v_refund_rate_by_user reads transactions.facts", "v_storefronts reads transactions.facts",
                ])
            // The query finds a column that a view does show.
            let found = try await columns("(t.relname, a.attname) = ('kept_payloads', 'reason')")
            #expect(found == ["v_kept_payloads reads kept_payloads.reason"])
        }
    }

    @Test("the dashboard's limits are its role's own")
    func dashboardLimits() async throws {
        try await LedgerLab.with { lab in
            try await Self.make(in: lab)
            try await Self.make(in: lab)
            let settings = try await lab.texts(
                """
                select rolconnlimit || ' ' || array_to_string(rolconfig, ' ') from pg_roles
                where rolname = 'makegood_dashboard'
                """)
            #expect(
                settings == [
                    "5 default_transaction_read_only=on statement_timeout=5s idle_in_transaction_session_timeout=10s jit=off"
                ])
            try await Self.with(.dashboard, in: lab) { database in
                await #expect(throws: PostgresError.readOnly) {
                    try await database.run(Statement<Void, Void>("test.write", "create table mine (id int)"))
                }
            }
        }
    }

    @Test("a right that is missing is named before the service starts, and one too many is taken back")
    func rightsFollowTheList() async throws {
        try await LedgerLab.with { lab in
            try await Self.make(in: lab)
            try await lab.run("revoke update (lane) on receipts from makegood_worker")
            try await Self.with(.worker, in: lab) { database in
                let missing = await #expect(throws: MissingRight.self) {
                    try await MissingRight.check([.worker], in: database)
                }
                #expect(missing == MissingRight(role: "makegood_worker", right: "update (lane) on table receipts"))
            }
            try await lab.run("grant delete on grants to makegood_worker")
            try await lab.run("grant select (details) on receipts to makegood_support")
            try await lab.run("grant select on payloads to public")
            #expect(try await Self.script.existing(in: lab.database) == DatabaseRole.allCases)
            // The rights are set as `makegood migrate` sets them, for the roles that exist.
            try await Self.run(Self.script.rights(of: DatabaseRole.allCases), in: lab)
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', has_table_privilege('makegood_worker', 'grants', 'delete'),
                      has_column_privilege('makegood_support', 'receipts', 'details', 'select'),
                      has_table_privilege('makegood_scheduler', 'payloads', 'select'))
                    """) == ["f f f"])
            try await Self.with(.worker, in: lab) { try await MissingRight.check([.worker], in: $0) }
        }
    }
}
