import Testing

@testable import Postgres

/// Goal: a flush that takes longer is followed by a longer pause, within the bounds. Method: a table.
@Suite struct CommitPaceTests {
    /// Milliseconds.
    @Test(arguments: [(0, 5), (1, 5), (2, 8), (6, 24), (10, 40), (5_000, 40)])
    func aSlowFlushIsFollowedByALongerPause(took: Int, interval: Int) {
        #expect(CommitPace().interval(after: .milliseconds(took)) == .milliseconds(interval))
    }

    @Test func theShortestIsNeverUndercut() {
        #expect(CommitPace(shortest: .seconds(60)).interval(after: .seconds(1)) == .seconds(60))
    }
}
