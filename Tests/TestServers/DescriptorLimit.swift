import Foundation
import Glibc

/// The limit of files that this process may have open (RLIMIT_NOFILE). For exit tests: it holds for all threads.
package enum DescriptorLimit {
    package struct Failure: Error {}

    /// Runs `body` while exactly `count` more files can be opened.
    package static func leaving<Result>(
        _ count: Int, _ body: () async throws -> Result
    ) async throws -> Result {
        try await untilTimersAreOpen()
        var old = rlimit()
        guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &old) == 0 else { throw Failure() }
        // open(2) gives the lowest number that is free, and the limit is one above the highest number there may be.
        let free = (0...count).map { _ in dup(2) }
        guard let limit = free.last, limit > 0 else { throw Failure() }
        for descriptor in free { close(descriptor) }
        var low = rlimit(rlim_cur: rlim_t(limit), rlim_max: old.rlim_max)
        guard setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &low) == 0 else { throw Failure() }
        defer { setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &old) }
        return try await body()
    }

    /// Waits until the process has its timers. The first sleeps of a process take descriptors for timers, and Dispatch
    /// traps if it gets none (event_epoll.c); every service has slept before it runs short of them. A sleep that is
    /// over before its timer is set takes none, which happens to any sleep when the machine pauses; so the open timers
    /// are counted.
    private static func untilTimersAreOpen() async throws {
        var length = Duration.milliseconds(1)
        while try timersOpen() < 2 {
            try await Task.sleep(for: length, clock: .continuous)
            try await Task.sleep(for: length, clock: .suspending)
            length *= 2
            guard length < .seconds(4) else { throw Failure() }
        }
    }

    /// The number of open timers: one for each clock on which the process slept.
    private static func timersOpen() throws -> Int {
        let files = FileManager.default
        return try files.contentsOfDirectory(atPath: "/proc/self/fd").count {
            (try? files.destinationOfSymbolicLink(atPath: "/proc/self/fd/\($0)")) == "anon_inode:[timerfd]"
        }
    }
}
