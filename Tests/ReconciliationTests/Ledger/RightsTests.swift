import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Service

/// Goal: each role can do its service's work and nothing else. Method: the real script on a database of its own; every
/// statement of each service runs as its role, and a table of statements must be refused with 42501. The roles belong
/// to the server and stay there; their rights go with the database.
@Suite(.serialized, .timeLimit(.minutes(8))) struct RightsTests {
    private static let script = RoleScript(prefix: "makegood")

    static func make(in lab: LedgerLab) async throws {
        try await run(script.roles + script.rights(of: DatabaseRole.allCases), in: lab)
    }

    private static func run(_ script: String, in lab: LedgerLab) async throws {
        try await Migrator(LedgerLab.configuration(lab.url), migrations: Schema.migrations, logger: .silent)
            .run(script: script)
    }

    /// Lends a connection of this role.
    static func with(
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
        let names = Set(try await Self.work().map(\.name))
        let missing = try Self.namesInSources().subtracting(names)
        #expect(missing == [], "run these in RightsWork.swift")
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

    @Test("An event is written only by a role that may write what the event reports")
    func eventsOfRoles() async throws {
        let types = EventType.allCases.map(\.rawValue) + ["anything.else"]
        // The test writes events without purchases.
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.make(in: lab)
            let ofEndpoints = Set(types.filter { $0.hasPrefix("endpoint.") })
            for (role, expected) in [
                (DatabaseRole.worker, Set(types).subtracting(ofEndpoints)), (.all, Set(types)),
                (.scheduler, ["purchase.possible_double_charge"]), (.dispatcher, ofEndpoints),
                (.support, ofEndpoints.union(["ownership.gained", "ownership.lost"])), (.ingest, []), (.dashboard, []),
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
                   ('transactions', 'facts'), ('notifications', 'payload'))
                """)
            // One member of each column is shown: the app's version and the storefront (B15; DashboardViewTests).
            // Refunds are counted by the end of the purchase, and no member of it is shown.
            #expect(
                Set(shown) == [
                    "v_grant_times reads receipts.details", "v_grant_times reads transactions.facts",
                    "v_ended_purchases reads transactions.facts", "v_storefronts reads transactions.facts",
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
