import BlockingIO
import Foundation
import Glibc
import Testing

/// Goal: a C call that waits for a silent peer ends at its deadline, and no other call ends. Method: a socket pair
/// whose other end sends nothing, read in a thread of its own.
@Suite(.timeLimit(.minutes(1))) struct CutoffTests {
    @Test func deadlineEndsABlockedRead() async throws {
        let pair = try SocketPair()
        let cutoff = Cutoff()
        cutoff.opened(pair.mine)
        let (length, duration) = await blocking {
            let start = ContinuousClock.now
            let length = cutoff.limited(to: .milliseconds(200)) { pair.read() }
            return (length, start.duration(to: .now))
        }
        #expect(length == 0)  // end of file, at once
        #expect(duration > .milliseconds(150) && duration < .seconds(10))
        #expect(cutoff.hasFired)
    }

    @Test func fireEndsABlockedReadFromOutside() async throws {
        let pair = try SocketPair()
        let cutoff = Cutoff()
        cutoff.opened(pair.mine)
        async let length = blocking { cutoff.limited(to: .seconds(50)) { pair.read() } }
        try await Task.sleep(for: .milliseconds(100))
        cutoff.fire()
        #expect(await length == 0)
    }

    @Test func aCallInTimeIsLeftAlone() async throws {
        let pair = try SocketPair()
        let cutoff = Cutoff()
        cutoff.opened(pair.mine)
        for _ in 0..<3 {
            pair.answer()
            #expect(await blocking { cutoff.limited(to: .milliseconds(600)) { pair.read() } } == 1)
        }
        // No deadline outlives its call.
        try await Task.sleep(for: .milliseconds(900))
        #expect(!cutoff.hasFired)
        pair.answer()
        #expect(await blocking { pair.read() } == 1)
    }

    /// The number of a closed socket may belong to another file by now.
    @Test func afterClosedNothingIsShutDown() async throws {
        let pair = try SocketPair()
        let cutoff = Cutoff()
        cutoff.opened(pair.mine)
        cutoff.closed()
        cutoff.fire()
        #expect(!cutoff.hasFired)
        pair.answer()
        #expect(await blocking { pair.read() } == 1)
    }

    private final class SocketPair: Sendable {
        let mine: Int32
        let theirs: Int32

        init() throws {
            var ends: [Int32] = [-1, -1]
            try #require(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &ends) == 0)
            (mine, theirs) = (ends[0], ends[1])
        }

        deinit {
            close(mine)
            close(theirs)
        }

        func read() -> Int {
            var byte: UInt8 = 0
            return Glibc.read(mine, &byte, 1)
        }

        func answer() {
            var byte: UInt8 = 1
            _ = write(theirs, &byte, 1)
        }
    }

    private func blocking<Result: Sendable>(_ body: @escaping @Sendable () -> Result) async -> Result {
        await withCheckedContinuation { continuation in
            Thread.detachNewThread { continuation.resume(returning: body()) }
        }
    }
}
