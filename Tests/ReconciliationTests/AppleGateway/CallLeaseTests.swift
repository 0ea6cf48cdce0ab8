import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation

/// Goal: calls are leased slice by slice, each slice once (B9). Method: the pure account with times of our own.
@Suite struct CallLeaseTests {
    private static let slice = CallSlice(callsPerSecond: 50)
    private static let start = ContinuousClock.now

    /// An account that leased so many calls of a slice by an answer that took so long, when 100 ms of the slice were
    /// left.
    private static func account(leased: Int, wanted: Int, took: Duration) -> CallLease {
        var account = CallLease()
        account.keep(to: slice)
        account.beginSlice(start)
        account.receive(
            .init(calls: leased, endsIn: .milliseconds(100), stoppedFor: .zero), wanted: wanted, asked: start,
            at: start + took, lateAnswersMax: 3)
        return account
    }

    @Test(
        "B9: the next slice is asked for when it has begun wherever the answer took its time; nobody waits 5 ms for that",
        arguments: [(0, 100), (1, 101), (3, 103), (20, 105)])
    func nextSlice(took: Int, opens: Int) {
        var account = Self.account(leased: 3, wanted: 3, took: .milliseconds(took))
        for millisecond in took..<130 {
            let now = Self.start + .milliseconds(millisecond)
            account.beginSlice(now)
            let waits = (100..<opens).contains(millisecond)
            #expect(account.asksAt(now) == (waits ? Self.start + .milliseconds(opens) : nil), "\(millisecond) ms")
        }
    }

    @Test("B9: a worker that was leased less than it wanted asks no more in that slice")
    func dry() {
        var account = Self.account(leased: 2, wanted: 3, took: .milliseconds(1))
        for millisecond in 1..<130 {
            let now = Self.start + .milliseconds(millisecond)
            account.beginSlice(now)
            #expect(account.asksAt(now) == (millisecond < 101 ? Self.start + .milliseconds(101) : nil))
        }
    }

    /// Runs through slices of 250 ms; each is leased and used up at once until so many calls were made. Returns the
    /// questions of each slice.
    private static func questions(using calls: [Int], of slice: CallSlice, othersLeave: Int) -> [[Int]] {
        var account = CallLease()
        account.keep(to: slice)
        return calls.enumerated().map { number, used in
            let begin = start + slice.length * number
            // Every caller begins the slice, until an answer is there.
            for _ in 0..<3 { account.beginSlice(begin) }
            var (asked, leased): ([Int], Int) = ([], 0)
            for _ in 0..<used {
                if account.leavesAt == nil {
                    asked.append(account.wanted(waiting: 1))
                    let given = min(asked[asked.count - 1], othersLeave - leased)
                    account.receive(
                        .init(
                            calls: given, first: slice.calls - othersLeave + leased, endsIn: slice.length,
                            stoppedFor: .zero),
                        wanted: asked[asked.count - 1], asked: begin, at: begin, lateAnswersMax: 3)
                    leased += given
                }
                if account.leavesAt != nil { account.take() } else { break }
            }
            return asked
        }
    }

    @Test("B9: where nobody else needs them a slice is a question or two, whether the calls come evenly or in bursts")
    func reserve() {
        let slice = CallSlice(callsPerSecond: 100_000)
        let evenly = Self.questions(using: [100, 100, 120, 150, 90], of: slice, othersLeave: slice.calls)
        #expect(evenly.dropFirst().allSatisfy { $0 == [$0[0]] }, "\(evenly)")
        let bursts = Self.questions(using: [300, 10, 300, 6, 8, 200], of: slice, othersLeave: slice.calls)
        #expect(bursts.dropFirst().allSatisfy { $0.count <= 3 }, "\(bursts)")
        #expect(bursts.joined().allSatisfy { $0 <= 600 }, "\(bursts)")
    }

    @Test("B9: where others leave little, what is asked for is what was used, and no reserve")
    func scarce() {
        let asked = Self.questions(
            using: [4, 4, 1, 1, 1], of: CallSlice(callsPerSecond: 50), othersLeave: 5)
        #expect(asked[1] == [4] && asked[2] == [4] && asked[3] == [1] && asked[4] == [1], "\(asked)")
    }

    @Test("B9: eight workers that use nine tenths of a budget evenly keep nothing that another needs")
    func shared() {
        let slice = CallSlice(callsPerSecond: 500)
        var accounts = Array(repeating: CallLease(), count: 8)
        for index in accounts.indices { accounts[index].keep(to: slice) }
        for number in 0..<40 {
            let begin = Self.start + slice.length * number
            var leased = 0
            for index in accounts.indices {
                accounts[index].beginSlice(begin)
                for _ in 0..<slice.calls * 9 / 80 {
                    if accounts[index].leavesAt == nil {
                        let wanted = accounts[index].wanted(waiting: 1)
                        let given = min(wanted, slice.calls - leased)
                        accounts[index].receive(
                            .init(calls: given, first: leased, endsIn: slice.length, stoppedFor: .zero),
                            wanted: wanted, asked: begin, at: begin, lateAnswersMax: 3)
                        leased += given
                    }
                    guard accounts[index].leavesAt != nil else {
                        // In the first slice nobody knows the demand yet.
                        if number > 0 { Issue.record("slice \(number): worker \(index) has no call") }
                        break
                    }
                    accounts[index].take()
                }
            }
        }
    }

    @Test("answers that come after their slice are of no use, but not for ever: the fourth counts from when it came")
    func late() {
        var account = CallLease()
        account.keep(to: Self.slice)
        var now = Self.start
        for answer in 1...5 {
            account.beginSlice(now)
            let asked = now
            now += .milliseconds(120)
            account.receive(
                .init(calls: 3, endsIn: .milliseconds(100), stoppedFor: .zero), wanted: 3, asked: asked, at: now,
                lateAnswersMax: 3)
            #expect((account.leavesAt != nil) == (answer > 3), "answer \(answer)")
            if answer < 4 { #expect(account.asksAt(now) == nil, "nothing was leased: it asks again at once") }
        }
    }
}
