import Foundation
package import Glibc
import Synchronization

/// One process of the program, in a session of its own: a Ctrl-C reaches it only through this process and in order. Its
/// output goes to a file. This process ends it by its id, at the latest when this process itself ends, for whatever
/// reason.
package final class RunningProcess: Sendable {
    package enum Ending: Equatable, Sendable {
        case exit(Int32)
        case signal(Int32)
    }

    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    package let name: String
    package let id: pid_t
    private let logPath: String
    private let ending = Mutex<Ending?>(nil)

    /// Starts the program with this environment only, and without input.
    package init(
        _ name: String, executable: String, arguments: [String], environment: [String: String], logPath: String
    ) throws {
        self.name = name
        self.logPath = logPath
        var actions = posix_spawn_file_actions_t()
        posix_spawn_file_actions_init(&actions)
        defer { posix_spawn_file_actions_destroy(&actions) }
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
        posix_spawn_file_actions_addopen(&actions, 1, logPath, O_WRONLY | O_CREAT | O_APPEND, 0o600)
        posix_spawn_file_actions_adddup2(&actions, 1, 2)
        // A socket of ours that the child inherited would stay open after we close it, and the other side would wait
        // for ever.
        for descriptor in Self.inheritable { posix_spawn_file_actions_addclose(&actions, descriptor) }
        // This process may block or ignore signals that the program must see.
        var attributes = posix_spawnattr_t()
        posix_spawnattr_init(&attributes)
        defer { posix_spawnattr_destroy(&attributes) }
        var signals = sigset_t()
        sigemptyset(&signals)
        posix_spawnattr_setsigmask(&attributes, &signals)
        sigfillset(&signals)
        posix_spawnattr_setsigdefault(&attributes, &signals)
        posix_spawnattr_setflags(
            &attributes, Int16(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) | Self.newSession)
        let argv = Self.copy([executable] + arguments)
        let envp = Self.copy(environment.map { "\($0.key)=\($0.value)" })
        defer { for pointer in argv + envp { free(pointer) } }
        var id: pid_t = 0
        let status = posix_spawn(&id, executable, &actions, &attributes, argv, envp)
        guard status == 0 else {
            throw Failure(description: "\(name) did not start: \(executable): \(String(cString: strerror(status)))")
        }
        self.id = id
        ProcessReaper.shared.add(id: id)
        Thread.detachNewThread { [self] in collect() }
    }

    /// Our own file descriptors. Not closed with addclosefrom_np, which is visible only with _GNU_SOURCE. A descriptor
    /// that is closed meanwhile does no harm.
    static var inheritable: [Int32] {
        let names = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd")) ?? []
        return names.compactMap { Int32($0) }.filter { $0 > 2 }
    }

    /// POSIX_SPAWN_SETSID (spawn.h), which is visible only with _GNU_SOURCE.
    static let newSession: Int16 = 0x80

    /// The texts as a C array: the caller frees them; a nil stands at the end.
    static func copy(_ texts: [String]) -> [UnsafeMutablePointer<CChar>?] {
        texts.map { text in strdup(text) } + [nil]
    }

    /// Waits for the end. The id stays ours until this function collects it under the lock, so a signal can only reach
    /// our child.
    private func collect() {
        var info = siginfo_t()
        while waitid(P_PID, id_t(id), &info, WEXITED | WNOWAIT) != 0, errno == EINTR {}
        ending.withLock { ending in
            var status: Int32 = 0
            waitpid(id, &status, 0)
            ending = status & 0x7f == 0 ? .exit(status >> 8 & 0xff) : .signal(status & 0x7f)
        }
        ProcessReaper.shared.remove(id: id)
    }

    package var isRunning: Bool { ending.withLock { $0 == nil } }

    package func send(_ signal: Int32) {
        ending.withLock { ending in
            if ending == nil { kill(id, signal) }
        }
    }

    /// Waits for the end, at most so long, and returns how the process ended.
    package func end(within limit: Duration) async throws -> Ending {
        let deadline = ContinuousClock.now + limit
        while ContinuousClock.now < deadline {
            if let ending = ending.withLock({ $0 }) { return ending }
            try await Task.sleep(for: .milliseconds(10))
        }
        throw Failure(description: "\(name) did not end within \(limit)")
    }

    /// Kills the process with kill -9; on return it is gone.
    package func killHard() async {
        send(SIGKILL)
        // The wait runs in a task of its own: the caller's task may be cancelled, and must wait all the same.
        _ = await Task { try await end(within: .seconds(20)) }.result
    }

    /// The port behind "<what> listening … http.address=HOST:PORT" in its log, or the same in JSON.
    package func port(of what: String, within limit: Duration = .seconds(60)) async throws -> Int {
        let deadline = ContinuousClock.now + limit
        while ContinuousClock.now < deadline {
            for line in log.split(separator: "\n") where line.contains("\(what) listening") {
                let address = line.firstRange(of: "http.address").map { key in
                    line[key.upperBound...].drop { "=\":".contains($0) }.prefix { !" \"".contains($0) }
                }
                if let port = address?.split(separator: ":").last.flatMap({ Int($0) }) { return port }
            }
            guard isRunning else { break }
            try await Task.sleep(for: .milliseconds(20))
        }
        throw Failure(description: "\(name) does not listen (\(what)):\n\(logTail)")
    }

    /// Everything that the process has printed so far.
    package var log: String {
        guard let data = FileManager.default.contents(atPath: logPath) else { return "" }
        return String(decoding: data, as: UTF8.self)
    }

    package var logTail: String {
        let lines = log.split(separator: "\n")
        return lines.suffix(30).joined(separator: "\n")
    }
}
