import AppStoreSimulator
import Foundation
import Glibc
import Postgres

extension Drill {
    /// Drills on clocks, upgrades, limits of the machine, and crowds.
    static let operationDrills: [Drill] = [
        Drill(
            "24", "the clocks of a worker, an ingest and a scheduler are 10 minutes fast",
            expected: "no effect: due times are the database's", needs: .faketime
        ) { stage in
            // The clocks are fast and not slow: libfaketime moves monotonic timers as well, and a Swift program would
            // sleep through the drill.
            let skewed = [stage.workers[0], stage.ingests[0], stage.schedulers[0]]
            for member in skewed {
                stage.interrupt(64)
                _ = try await member.terminate(within: .seconds(60))
                // Only the time of day is wrong; monotonic clocks go on. FAKETIME_SHARED must name a shared memory:
                // otherwise the library adds the variable to the environment, and Swift does not find its arguments any
                // more.
                try await member.start([
                    "LD_PRELOAD": FaketimeLibrary.path ?? "", "FAKETIME": "+10m",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_SHARED": "none none",
                ])
                let offset = member.process?.clockOffset ?? 0
                stage.expect(
                    "\(member.name) is 10 minutes fast", abs(offset - 600) < 60,
                    "\(Int(offset)) s")
            }
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(8)))
            for member in skewed {
                _ = try await member.terminate(within: .seconds(60))
                try await member.start()
            }
            stage.expectAnswers()
        },
        Drill(
            "25", "rolling upgrade: a migration lands, processes are replaced one by one",
            expected: "no post notices; no table bloats"
        ) { stage in
            // Two sessions of another program stay idle in a transaction. The first has read the table that the
            // migration changes: the migration waits for it, and all other sessions wait behind the migration, until
            // the migration gives up.
            let reader = try await stage.forgetSession(reading: "receipts", for: .seconds(8))
            try await stage.migrateUntilItLands()
            _ = try await reader.value
            // The second session holds a snapshot: vacuum can remove no row version that is replaced meanwhile.
            let idle = try await stage.forgetSession(
                reading: "schema_migrations", for: stage.scaled(.seconds(300), min: .seconds(20)))
            for member in stage.world.members {
                let time = try await member.terminate(within: .seconds(60))
                try await member.start()
                stage.expect("\(member.name) ended in order", true, time.short)
            }
            _ = try await idle.value
            // PostgreSQL reports its statistics within a second.
            try await stage.sleep(.seconds(2))
            let bloat = try await stage.world.texts(
                """
                select relname || ' ' || round(n_dead_tup::numeric / n_live_tup, 1) from pg_stat_user_tables
                where n_live_tup > 100 order by n_dead_tup::numeric / n_live_tup desc
                """)
            let worst = bloat.first?.split(separator: " ").last.flatMap { Double($0) } ?? 0
            stage.expect(
                "dead rows, at most three for each that lives", !bloat.isEmpty && worst <= 3,
                bloat.prefix(3).joined(separator: ", "))
            stage.expectAnswers()
        },
        Drill(
            "26", "an ingest and a worker may open 64 files each",
            expected: "they stay within; who finds no place waits; nothing lost"
        ) { stage in
            let poor = [stage.ingests[0], stage.workers[0]]
            for member in poor {
                stage.interrupt(64)
                _ = try await member.terminate(within: .seconds(60))
                try await member.start(wrapper: ["/usr/bin/prlimit", "--nofile=64:64", "--"])
            }
            // Apple answers slowly, so that the worker has many calls open at once.
            try stage.fault(.latency) { $0.milliseconds = 1000 }
            var mix = PurchaseGenerator.Mix()
            mix.receipt = 40
            stage.world.traffic.set(mix)
            stage.world.traffic.set(rate: stage.world.shape.rate * 3)
            var most = [0, 0]
            let end = ContinuousClock.now + stage.scaled(.seconds(60), min: .seconds(6))
            while ContinuousClock.now < end {
                for (index, member) in poor.enumerated() {
                    most[index] = max(most[index], member.process?.openFiles ?? 0)
                }
                try await stage.sleep(.milliseconds(20))
            }
            stage.world.traffic.set(rate: stage.world.shape.rate)
            for (member, most) in zip(poor, most) {
                // Dispatch traps where no file descriptor is left.
                stage.expect("\(member.name) has some left", most < 64, "\(most) of 64 open")
                let lives = member.process?.isRunning == true
                stage.expect(
                    "\(member.name) lives", lives, lives ? "" : member.process?.log.prefix(1500).description ?? "")
            }
            stage.world.store.clearFaults()
            stage.expectAnswers([0, 503])
            for member in poor {
                _ = try await member.terminate(within: .seconds(60))
                try await member.start()
            }
        },
        Drill("27", "ten times the load for 30 s", expected: "503 at worst, an answer always; nothing lost") { stage in
            let (before, start) = (stage.world.shop.sales.count, ContinuousClock.now)
            // A debug build answers 300 posts a second, so five thousand connections wait longer than 20 s, after which
            // an app posts again and makes it worse. So the drill uses the patience of gateways to judge that every
            // post has an answer.
            stage.world.traffic.set(patience: Traffic.patienceMax)
            stage.world.traffic.set(rate: stage.world.shape.rate * 10)
            try await stage.sleep(.seconds(30))
            stage.world.traffic.set(rate: stage.world.shape.rate)
            // A busy machine, or a debug build, does not make so many: the row says how many came.
            let seconds = (ContinuousClock.now - start) / .seconds(1)
            let times = Double(stage.world.shop.sales.count - before) / seconds / stage.world.shape.rate
            stage.expect(
                "more came than before", times > 1,
                "\((times * 10).rounded() / 10) times as many, \(stage.answers.count) answers meanwhile")
            // A post from those seconds is judged by its answer, even if the answer comes after them.
            try await stage.expect("those who piled up have their answers", within: .seconds(90)) {
                stage.world.traffic.journal.open < Int(stage.world.shape.rate)
            }
            stage.expectAnswers([503])
        },
    ]
}

extension DrillContext {
    /// Opens a session that has read a table. On return the session is idle in its transaction, and stays so for
    /// `time`.
    fileprivate func forgetSession(reading table: String, for time: Duration) async throws -> Task<Void, any Error> {
        let session = Task {
            _ = try await servers.psql(
                "set application_name = 'forgotten'", "begin isolation level repeatable read",
                "select count(*) from \(table)", "\\! sleep \(Int(time / .seconds(1)))", "commit", database: world.name)
        }
        try await expect("a session is idle in its transaction", within: .seconds(10)) {
            try await world.count(
                """
                select count(*) from pg_stat_activity where application_name = 'forgotten'
                  and state = 'idle in transaction' and datname = current_database()
                """) == 1
        }
        return session
    }

    /// Runs the next version's migration as `makegood migrate` does: the migration waits for its lock for a while, then
    /// gives up, and the operator runs it again. At least once it meets a session that holds the table.
    fileprivate func migrateUntilItLands() async throws {
        let next = try await world.count("select max(number)::int8 + 1 from schema_migrations")
        let (start, deadline) = (ContinuousClock.now, ContinuousClock.now + .seconds(60))
        let patience = PostgresConfiguration(url: "").migrationLockTimeout
        var refusals = 0
        while true {
            do {
                try await world.script(
                    """
                    begin;
                    set local lock_timeout = \(Int(patience / .milliseconds(1)));
                    alter table receipts add column drill text;
                    insert into schema_migrations (number, name, checksum, serves)
                    select \(next), 'of_the_next_version', sha256('drill'), max(number) from schema_migrations;
                    commit
                    """)
                break
            } catch {
                guard "\(error)".contains("lock timeout"), ContinuousClock.now < deadline else { throw error }
                refusals += 1
                try await sleep(.milliseconds(500))
            }
        }
        expect(
            "the migration waited for the session, and landed", refusals > 0,
            "\(refusals) times in vain, after \((ContinuousClock.now - start).short)")
    }

}

extension RunningProcess {
    /// The number of files that the process has open.
    fileprivate var openFiles: Int {
        (try? FileManager.default.contentsOfDirectory(atPath: "/proc/\(id)/fd").count) ?? 0
    }

    /// The seconds by which the process's clock is ahead of ours, from its last log line.
    var clockOffset: Double? {
        guard let stamp = log.split(separator: "\n").last?.split(separator: " ").first else { return nil }
        // 2026-01-31T12:00:00+0000
        return (try? Date.ISO8601FormatStyle(timeZoneSeparator: .omitted).parse(String(stamp)))?.timeIntervalSinceNow
    }
}

/// The Debian package faketime, where it is installed.
enum FaketimeLibrary {
    static let path: String? = {
        for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"] {
            let path = "\(folder)/faketime/libfaketimeMT.so.1"
            if FileManager.default.fileExists(atPath: path) { return path }
        }
        return nil
    }()
}

extension Drill {
    /// Corrupts the database itself: the proof that a drill can fail.
    package static let falseRecord = Drill("0", "a false record in the database", expected: "noticed") { stage in
        stage.world.traffic.pause()
        _ = try await stage.world.becomes(within: .seconds(20)) {
            try await stage.world.count("select count(*) from receipts where state = 'received'") == 0
        }
        try await stage.world.script(
            """
            update grants set user_id = 'thief' where transaction_id = (select min(transaction_id) from grants);
            delete from receipts where id = (select min(id::text)::uuid from receipts where state = 'rejected')
            """)
    }
}
