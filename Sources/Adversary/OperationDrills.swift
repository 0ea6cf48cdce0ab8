import Foundation
import Glibc

extension Drill {
    /// Clocks, upgrades, limits of the machine, crowds.
    static let operationDrills: [Drill] = [
        Drill(
            "24", "a worker's and an ingest's clock are 10 minutes off",
            expected: "no effect: due times are the database's",
            obstacle: {
                FaketimeLibrary.path == nil
                    ? "faketime is not installed (apt install faketime)" : nil
            }
        ) { stage in
            for (member, offset) in [
                (stage.workers[0], "+10m"), (stage.workers[1], "-10m"), (stage.ingests[0], "-10m"),
            ] {
                stage.interrupt(64)
                _ = try await member.terminate(within: .seconds(60))
                try await member.start(["LD_PRELOAD": FaketimeLibrary.path ?? "", "FAKETIME": offset])
            }
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(8)))
            for member in [stage.workers[0], stage.workers[1], stage.ingests[0]] {
                _ = try await member.terminate(within: .seconds(60))
                try await member.start()
            }
            stage.expectAnswers([0, 503])
        },
        Drill(
            "25", "rolling upgrade: a migration lands, processes are replaced one by one",
            expected: "no 5xx but 503; no table bloats"
        ) { stage in
            // A session of somebody's that was forgotten in a transaction, for the whole time.
            let seconds = Int(stage.scaled(.seconds(300), min: .seconds(20)) / .seconds(1))
            let idle = Task {
                try await stage.servers.psql(
                    "begin", "select count(*) from receipts", "\\! sleep \(seconds)", "commit",
                    database: stage.world.name)
            }
            let next = try await stage.world.count("select max(number)::int8 + 1 from schema_migrations")
            try await stage.world.script(
                """
                begin;
                alter table receipts add column drill text;
                insert into schema_migrations (number, name, checksum, serves)
                select \(next), 'of_the_next_version', sha256('drill'), max(number) from schema_migrations;
                commit
                """)
            for member in stage.world.members {
                let time = try await member.terminate(within: .seconds(60))
                try await member.start()
                stage.expect("\(member.name) ended in order", true, time.short)
            }
            _ = try await idle.value
            stage.expectAnswers([0, 503])
            let p = stage.answers
            stage.expect("few posts notice", p.troubleCount * 100 <= p.count, "\(p.troubleText) of \(p.count)")
        },
        Drill("26", "an ingest and a worker run out of file descriptors", expected: "nothing lost; well again") {
            stage in
            for member in [stage.ingests[0], stage.workers[0]] {
                guard let process = member.process else { continue }
                let open = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/\(process.id)/fd").count) ?? 64
                try await limit(process, open + 2)
            }
            stage.world.traffic.set(rate: stage.world.shape.rate * 3)
            try await stage.sleep(stage.scaled(.seconds(60), min: .seconds(6)))
            stage.world.traffic.set(rate: stage.world.shape.rate)
            for member in [stage.ingests[0], stage.workers[0]] {
                guard let process = member.process else { continue }
                stage.expect("\(member.name) lives", process.isRunning)
                try await limit(process, 1024)
            }
            stage.expectAnswers([0, 503])
        },
        Drill("27", "ten times the load for 10 s", expected: "503 at worst; nothing lost") { stage in
            stage.world.traffic.set(rate: stage.world.shape.rate * 10)
            try await stage.sleep(.seconds(10))
            stage.world.traffic.set(rate: stage.world.shape.rate)
            let burst = stage.answers
            stage.expect("they came", burst.count > Int(stage.world.shape.rate * 20), "\(burst.count) answers")
            stage.expectAnswers([0, 503])
        },
    ]

    /// Descriptors a process may have open (prlimit(1)).
    private static func limit(_ process: RunningProcess, _ descriptors: Int) async throws {
        let prlimit = try RunningProcess(
            "prlimit", executable: "/usr/bin/prlimit",
            arguments: ["--pid", "\(process.id)", "--nofile=\(descriptors):"], environment: [:], logPath: "/dev/null")
        guard try await prlimit.end(within: .seconds(10)) == .exit(0) else {
            throw World.Failure(description: "prlimit failed")
        }
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
    /// Breaks the books themselves: the proof that a drill can fail.
    package static let lie = Drill("0", "a lie in the books", expected: "noticed") { stage in
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
