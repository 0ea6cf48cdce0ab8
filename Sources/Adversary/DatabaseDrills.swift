import AppStoreSimulator
import FaultProxy
import Foundation
import Glibc
import Postgres

extension Drill {
    /// Drills in which PostgreSQL dies, loses its connections, refuses to write, or is slow.
    static let databaseDrills: [Drill] = [
        Drill("18", "PostgreSQL killed and started again", expected: "503 with Retry-After; well within 15 s") {
            stage in
            stage.interrupt(3 * 64)
            try await stage.servers.kill("postgres")
            try await stage.servers.up()
            try await stage.expectAcceptance(within: .seconds(15))
            stage.expectAnswers([503])
        },
        Drill(
            "18b", "PostgreSQL stopped: half-open connections",
            expected: "503 within the database's silence, then at once; no thread stuck; then well again"
        ) { stage in
            stage.interrupt(3 * 64)
            let bound = PostgresConfiguration(url: "").silenceMax
            try await stage.servers.send(SIGSTOP, to: "postgres")
            let silence = ContinuousClock.now
            try await stage.expect("every ingest says that it is not ready", within: bound + .seconds(2)) {
                for ingest in stage.ingests where await stage.world.ask(ingest, "/health/ready")?.status != 503 {
                    return false
                }
                return true
            }
            // Four seconds are less than any time-out of the services; a debug build that answers hundreds a second
            // takes two.
            let moment: Duration = .seconds(4)
            try await stage.sleep(bound - (ContinuousClock.now - silence) + moment)
            let first = stage.answers(since: silence)
            stage.expect(
                "nobody waits longer than \(bound.short) and a moment",
                Duration.seconds(first.longestSeconds) < bound + moment,
                "\(Duration.seconds(first.longestSeconds).short) at most, \(first.troubleText) of \(first.count)")
            let known = ContinuousClock.now
            try await stage.sleep(stage.scaled(.seconds(80), min: .seconds(4)))
            let later = stage.answers(since: known)
            stage.expect(
                "from then on nobody waits for the database", Duration.seconds(later.longestSeconds) < moment,
                "\(Duration.seconds(later.longestSeconds).short) at most, \(later.troubleText) of \(later.count)")
            for member in stage.world.members {
                try await stage.expect("\(member.name) lives", within: .seconds(10)) {
                    await stage.world.ask(member, "/health/live")?.status == 200
                }
            }
            try await stage.servers.send(SIGCONT, to: "postgres")
            // Every refused app posts again at once; a debug build cannot answer so many in one second.
            try await stage.expectAcceptance(within: .seconds(60))
            // On a busy machine a client may give up before it is connected, because every app posts again at the same
            // time.
            stage.expectAnswers([0, 503])
        },
        Drill("19", "all sessions ended every 2 s", expected: "repeated inside; under 1 % of posts notice") { stage in
            for _ in 0..<stage.world.rounds(30, min: 4) {
                stage.interrupt(3 * 64)
                try await stage.endServiceSessions()
                try await stage.sleep(stage.scaled(.seconds(2), min: .seconds(1)))
            }
            let answers = stage.answers
            stage.expect(
                "under 1 % trouble", answers.troubleCount * 100 < answers.count,
                "\(answers.troubleText) of \(answers.count)")
        },
        Drill("20", "read-only after a fail-over", expected: "503; sessions dropped; nothing is rejected by it") {
            stage in
            stage.interrupt(3 * 64)
            try await stage.servers.psql(
                "alter system set default_transaction_read_only = on", "select pg_reload_conf()")
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            let during = stage.answers
            stage.expect("posts are told", (during.troubles[503] ?? 0) > 0, "\(during.troubleText) of \(during.count)")
            try await stage.servers.psql(
                "set default_transaction_read_only = off", "alter system reset default_transaction_read_only",
                "select pg_reload_conf()")
            try await stage.expectAcceptance(within: .seconds(15))
            stage.expectAnswers([503])
        },
        Drill("21", "serialization failures and deadlocks", expected: "repeated inside; no attempt is counted") {
            stage in
            try await stage.trip(["40001", "40P01"], every: 20, on: ["receipts", "grants", "outcomes", "events"])
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            let hits = try await stage.untrip()
            stage.expect("they happened", hits > 10, "\(hits) times")
            // On a slow machine Apple's calls may have timed out: those attempts do not count here.
            let counted = try await stage.world.texts(
                "select reason || ' ' || count(*) from attempts where http_status is null and reason <> 'apple_unavailable' group by reason"
            )
            stage.expect("no attempt was counted for it", counted.isEmpty, counted.joined(separator: ", "))
            try await stage.expectAttemptsAreAnswers()
            stage.expectAnswers()
        },
        Drill("21b", "the table of grants is renamed for a while", expected: "told; then everything is granted") {
            stage in
            stage.interrupt(3 * 64)
            try await stage.world.execute("alter table grants rename to grants_elsewhere")
            try await stage.sleep(stage.scaled(.seconds(30), min: .seconds(4)))
            try await stage.world.execute("alter table grants_elsewhere rename to grants")
            stage.expectAnswers([503])
        },
        Drill("22", "disk full", expected: "503; no message acknowledged in vain") { stage in
            try await stage.trip(
                ["53100"], every: 1, on: ["receipts", "stored_payloads", "grants", "outcomes", "events"])
            stage.interrupt(3 * 64)
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(5)))
            let during = stage.answers
            stage.expect("posts are told", (during.troubles[503] ?? 0) > 0, "\(during.troubleText) of \(during.count)")
            try await stage.untrip()
            try await stage.expectAcceptance(within: .seconds(15))
            stage.expectAnswers([503])
        },
        Drill("22b", "tables locked", expected: "503 or late; health answers all the time") { stage in
            stage.interrupt(3 * 64)
            try await stage.lockedOut("lock table receipts in access exclusive mode")
            stage.expectAnswers([0, 503])
        },
        Drill("22c", "one row locked for 30 s", expected: "no other receipt waits for it") { stage in
            let (post, id) = try await stage.buy(.receipt, user: "locked")
            try await stage.lockedOut("select 1 from receipts where id = '\(id)' for update")
            try await stage.expect("granted afterwards", within: .seconds(30)) { try await stage.isGranted(post) }
            stage.expectAnswers()
        },
        Drill("22d", "statements time out", expected: "503 or late; then everything is granted") { stage in
            stage.interrupt(3 * 64)
            try await stage.world.script(
                """
                create sequence hits; create function slow() returns trigger language plpgsql
                  security definer as $$ begin
                  if nextval('hits') % 10 = 0 then perform pg_sleep(20); end if; return null; end $$
                """)
            // The drill locks one table at a time: otherwise the drill and a worker that writes both tables could wait
            // for each other.
            let tables = ["receipts", "grants"]
            for table in tables {
                try await stage.world.script(
                    "create trigger slow before insert on \(table) for each statement execute function slow()")
            }
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(8)))
            for table in tables { try await stage.world.script("drop trigger slow on \(table)") }
            try await stage.world.script("drop function slow; drop sequence hits")
            try await stage.expectAcceptance(within: .seconds(20))
            stage.expectAnswers([503])
        },
        Drill("22e", "out of connections", expected: "503 while others hold them all; well again by itself") { stage in
            stage.interrupt(3 * 64)
            let most = try await stage.world.count("select current_setting('max_connections')::int")
            // The pools of another application: they want more connections than there are, and as a superuser the
            // reserved ones too.
            let hog = Database(
                PostgresConfiguration(url: stage.world.databaseURL, applicationName: "hog"), connections: most + 20,
                logger: DrillContext.quiet)
            // A service that has lost its connection and connects again at once takes the connection that has just
            // become free. So the drill keeps the services out until the other application holds every connection.
            let name = stage.world.name
            try await stage.world.execute("alter database \(name) connection limit 0")
            try await stage.endServiceSessions()
            try await stage.expect("others hold all \(most) connections", within: .seconds(60)) {
                try await stage.world.count(
                    "select count(*) from pg_stat_activity where backend_type = 'client backend'") == most
            }
            try await stage.world.execute("alter database \(name) connection limit -1")
            let full = ContinuousClock.now
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(8)))
            let during = stage.answers(since: full)
            let services = try await stage.world.count(
                "select count(*) from pg_stat_activity where \(DrillContext.isServiceSession)")
            stage.expect("no service has any", services == 0, "\(services)")
            stage.expect("posts were told", (during.troubles[503] ?? 0) > 0, "\(during.troubleText) of \(during.count)")
            await hog.close()
            try await stage.expectAcceptance(within: .seconds(20))
            stage.expectAnswers([503])
        },
    ]
}

extension DrillContext {
    /// Selects the sessions of the services in `pg_stat_activity`.
    fileprivate static let isServiceSession = "application_name like 'makegood-%' and datname = current_database()"

    fileprivate func endServiceSessions() async throws {
        try await world.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where \(Self.isServiceSession)")
    }

    /// Expects that a purchase of the drill's own is accepted again.
    func expectAcceptance(within limit: Duration) async throws {
        let start = ContinuousClock.now
        _ = try await buy(.signed, user: "canary")
        let time = ContinuousClock.now - start
        expect("posts are accepted again", time < limit, "after \(time.short)")
    }

    /// Expects that each counted attempt that names an answer belongs to one answer that Apple gave, and that no good
    /// answer counted as an attempt.
    fileprivate func expectAttemptsAreAnswers() async throws {
        func tally(_ answers: [String]) -> [String: Int] { answers.reduce(into: [:]) { $0[$1, default: 0] += 1 } }
        let counted = tally(
            try await world.texts(
                "select http_status || ' ' || coalesce(code, 0) from attempts where http_status is not null"))
        let given = tally(world.store.calls().compactMap { call in call.status.map { "\($0) \(call.code ?? 0)" } })
        let surplus = counted.filter { $0.key == "200 0" || $0.value > given[$0.key] ?? 0 }
        expect(
            "each attempt with an answer has its answer", surplus.isEmpty,
            counted.sorted { $0.key < $1.key }
                .map { "\($0.value) attempts for \(given[$0.key] ?? 0) answers \($0.key)" }.joined(separator: ", "))
        // A wake begins an attempt and is no try, and so does a claim.
        let bare = try await world.count(
            """
            select count(*) from receipts r
            where attempt - wakes - (claimed_at is not null)::int
              > (select count(*) from attempts where receipt_id = r.id)
            """)
        expect("no receipt moved on without one", bare == 0, "\(bare)")
    }

    /// Makes statements that write these tables fail: every `every`-th write, with each of the states in turn.
    fileprivate func trip(_ states: [String], every: Int, on tables: [String]) async throws {
        let cases = states.enumerated().map {
            "when \($0.offset) then raise exception 'drill' using errcode = '\($0.element)';"
        }.joined(separator: " ")
        let triggers = tables.map {
            "create trigger trip before insert or update on \($0) for each statement execute function trip();"
        }
        try await world.script(
            """
            create sequence hits; create sequence trips;
            create function trip() returns trigger language plpgsql security definer as $$ begin
              if nextval('hits') % \(every) = 0 then
                case nextval('trips') % \(states.count) \(cases) end case;
              end if;
              return null;
            end $$;
            """)
        // The drill creates one trigger after the other. A session that locks several tables at once, in another order
        // than the services, would meet them in deadlocks again and again, and posts would wait behind the session.
        for trigger in triggers { try await world.script(trigger) }
    }

    /// Ends what ``trip(_:every:on:)`` began, and returns how many statements failed.
    @discardableResult
    fileprivate func untrip() async throws -> Int {
        let trips = try await world.count("select case when is_called then last_value else 0 end from trips")
        let tables = try await world.texts("select tgrelid::regclass::text from pg_trigger where tgname = 'trip'")
        for table in tables { try await world.script("drop trigger trip on \(table)") }
        try await world.script("drop function trip; drop sequence hits; drop sequence trips")
        return trips
    }

    /// Holds a lock for a while and expects that every ingest answers its health check meanwhile.
    fileprivate func lockedOut(_ lock: String) async throws {
        let seconds = Int(scaled(.seconds(30), min: .seconds(8)) / .seconds(1))
        let holding = Task {
            try await servers.psql("begin", lock, "select pg_sleep(\(seconds))", "commit", database: world.name)
        }
        let end = ContinuousClock.now + .seconds(seconds)
        var (asked, answered) = (0, 0)
        while ContinuousClock.now < end {
            for ingest in ingests {
                asked += 1
                if await world.ask(ingest, "/health/live")?.status == 200 { answered += 1 }
            }
            try await sleep(.milliseconds(300))
        }
        _ = try await holding.value
        expect("health answers meanwhile", asked == answered, "\(answered) of \(asked)")
        try await expectAcceptance(within: .seconds(15))
    }
}
