import AppStoreSimulator
import Foundation
import Synchronization

/// One clock for the database, the processes and the App Store of a deployment. The clock goes with the machine's, and
/// steps ahead when the run says so.
///
/// - In the database, and in no other, `now()` and `clock_timestamp()` are functions of the schema `lab`. They add an
///   interval that stands in a table. The search path of the database puts that schema before `pg_catalog`, so every
///   statement, default, view and function of the product follows, and `makegood migrate` runs as it is. A call takes
///   microseconds, so a deployment with this clock gives no figures. `makegood doctor` fails there.
/// - A process preloads `deploy/clock.c`, which adds the nanoseconds that stand in a file to the time of day. Monotonic
///   clocks go on, so loops keep their pauses and calls their deadlines.
/// - The App Store has a clock of its own, which steps by the same length.
final class SteppedClock: Sendable {
    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    /// Where the compiled library and the file with the nanoseconds are.
    private let library: String
    private let file: String
    private let aheadSeconds = Mutex<Int64>(0)

    /// Compiles the library and starts at the machine's time.
    ///
    /// - Parameters:
    ///   - script: `deploy/local`; the library's source lies beside it.
    ///   - directory: where the files go.
    init(script: String, directory: String) async throws {
        library = "\(directory)/clock.so"
        file = "\(directory)/clock.nanoseconds"
        let source = URL(filePath: script).deletingLastPathComponent().appending(path: "clock.c").path
        guard let compiler = Self.compiler else { throw Failure(description: "there is no clang, cc or gcc in PATH") }
        let process = try RunningProcess(
            "the compiler", executable: compiler,
            arguments: ["-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"],
            environment: ProcessInfo.processInfo.environment.filter { ["PATH", "HOME", "TMPDIR"].contains($0.key) },
            logPath: "\(directory)/clock.log")
        guard try await process.end(within: .seconds(60)) == .exit(0) else {
            throw Failure(description: "\(source) does not compile:\n\(process.logTail)")
        }
        try Data(count: MemoryLayout<Int64>.size).write(to: URL(filePath: file))
    }

    private static var compiler: String? {
        let folders = (ProcessInfo.processInfo.environment["PATH"] ?? "").split(separator: ":")
        for name in ["clang", "cc", "gcc"] {
            for folder in folders where FileManager.default.isExecutableFile(atPath: "\(folder)/\(name)") {
                return "\(folder)/\(name)"
            }
        }
        return nil
    }

    /// The variables of the environment by which a process follows the clock.
    var environment: [String: String] { ["LD_PRELOAD": library, "MAKEGOOD_TEST_CLOCK": file] }

    /// How far the clock is ahead of the machine's.
    var ahead: Duration { .seconds(aheadSeconds.withLock { $0 }) }

    /// The clock's time.
    var now: Date { Date().addingTimeInterval(Double(aheadSeconds.withLock { $0 })) }

    // MARK: The database

    /// Makes the functions in a new database. Every connection that begins afterwards uses them.
    static func install(in database: String, on servers: PrivateServers) async throws {
        try await servers.psql(
            "create schema lab",
            "create table lab.clock (ahead interval not null)",
            "insert into lab.clock values (interval '0')",
            """
            create function lab.now() returns timestamptz language plpgsql stable parallel safe as
              'begin return pg_catalog.now() + (select ahead from lab.clock); end'
            """,
            """
            create function lab.clock_timestamp() returns timestamptz language plpgsql volatile parallel safe as
              'begin return pg_catalog.clock_timestamp() + (select ahead from lab.clock); end'
            """,
            "grant usage on schema lab to public",
            "grant select on lab.clock to public",
            "alter database \(database) set search_path = public, lab, pg_catalog", database: database)
    }

    /// Lets the functions with a search path of their own follow too. Called after `makegood migrate`.
    static func follow(in database: String, on servers: PrivateServers) async throws {
        try await servers.psql(
            """
            do $$
            declare
              f regprocedure;
            begin
              for f in select oid::regprocedure from pg_proc
                where pronamespace = 'public'::regnamespace and 'search_path=public, pg_temp' = any (proconfig)
              loop
                execute format('alter function %s set search_path = public, lab, pg_catalog, pg_temp', f);
              end loop;
            end $$
            """, database: database)
    }

    // MARK: Stepping

    /// Moves the database, then the processes, then the App Store ahead.
    ///
    /// A call in flight takes no harm. The App Store steps last, so nobody reads a date of Apple's that lies ahead. A
    /// token that a process signed before the step is older for Apple by one step; the simulator judges tokens by the
    /// machine's time. A lease that runs during the step lapses, and another worker repeats the work, as after a crash.
    func step(by seconds: Int, _ world: TestDeployment) async throws {
        try await world.execute("update lab.clock set ahead = ahead + interval '\(seconds) s'")
        let nanoseconds = aheadSeconds.withLock { ahead in
            ahead += Int64(seconds)
            return ahead * 1_000_000_000
        }
        // The processes map the file: its eight bytes change in one write, and the file itself stays.
        let handle = try FileHandle(forWritingTo: URL(filePath: file))
        try handle.write(contentsOf: withUnsafeBytes(of: nanoseconds) { Data($0) })
        try handle.close()
        try world.store.advance(ClockRequest(advance: "PT\(seconds)S"))
    }

    /// The largest difference between the clocks of the database and the App Store, and this one.
    func skew(_ world: TestDeployment) async throws -> Duration {
        let database = try await world.count("select (extract(epoch from now()) * 1000)::int8")
        let differences = [Int64(database), world.store.now].map { abs(Double($0) / 1000 - now.timeIntervalSince1970) }
        return .seconds(differences.max() ?? 0)
    }
}
