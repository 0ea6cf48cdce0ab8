import Synchronization
import Testing

@testable import Postgres

/// Goal: a flush that takes longer is followed by a longer pause, within the bounds, so that a slow database gets fewer
/// and larger statements. Method: a table; then the same stream over a quick and a slow pretended database.
@Suite struct CommitPaceTests {
    /// The length of a flush and the expected interval, in milliseconds.
    @Test(arguments: [(0, 5), (1, 5), (2, 8), (6, 24), (10, 40), (5_000, 40)])
    func aSlowFlushIsFollowedByALongerPause(took: Int, interval: Int) {
        #expect(CommitPace().interval(after: .milliseconds(took)) == .milliseconds(interval))
    }

    @Test func theShortestIsNeverUndercut() {
        #expect(CommitPace(shortest: .seconds(60)).interval(after: .seconds(1)) == .seconds(60))
    }

    /// Compares two runs, because how many items arrive in a while depends on the machine.
    @Test func aSlowDatabaseHasLargerStatements() async {
        func size(took: Duration) async -> Int {
            let batches = Mutex<[Int]>([])
            let group = GroupCommit<Int, Int>(
                name: "test", pace: .init(longest: .milliseconds(400)), size: { _ in (1, 1) },
                flush: { items throws(PostgresError) in
                    batches.withLock { $0.append(items.count) }
                    try? await Task.sleep(for: took)
                    return items
                })
            await withTaskGroup { tasks in
                for item in 0..<400 {
                    tasks.addTask { _ = try? await group.submit(item) }
                    try? await Task.sleep(for: .milliseconds(4))
                }
            }
            // The first flushes know of no earlier flush, and the last one takes the rest.
            let sizes = batches.withLock { $0.dropFirst(4).dropLast() }
            return sizes.reduce(0, +) / max(1, sizes.count)
        }
        let (quick, slow) = (await size(took: .milliseconds(1)), await size(took: .milliseconds(100)))
        // About 400 ms between two flushes instead of 5 or a few more.
        #expect(quick > 0 && slow > 5 * quick, "\(quick), \(slow)")
    }
}
