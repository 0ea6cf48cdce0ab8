import Testing

@testable import Service

/// Goal: each user has one share of a period, and the shares use no more memory than their bound. Method: a clock that
/// the test moves.
@Suite struct UserSharesTests {
    @Test(
        "as many as there are for each user of each app, then none until the next period",
        arguments: [(UserShares.calls, 10, 60), (UserShares.receiptsAtOnce, 64, 1)])
    func period(_ shares: UserShares, most: Int, seconds: Int) {
        let (start, end) = (ContinuousClock.now, Duration.seconds(seconds))
        let late = start + end - .milliseconds(1)
        for _ in 0..<most { #expect(shares.take(of: "u1", app: "game", at: start)) }
        #expect(!shares.take(of: "u1", app: "game", at: late))
        #expect(shares.take(of: "u2", app: "game", at: late))
        #expect(shares.take(of: "u1", app: "puzzle", at: late))
        #expect(shares.take(of: "u1", app: "game", at: start + end))
    }

    @Test("users that look the same to Unicode, and not to us, have their own shares")
    func bytes() {
        let (shares, start) = (UserShares.calls, ContinuousClock.now)
        for _ in 0..<shares.most { #expect(shares.take(of: "\u{e9}", app: "game", at: start)) }
        #expect(shares.take(of: "e\u{301}", app: "game", at: start))
    }

    @Test("more users than are kept in a period: all of them are served")
    func users() {
        let (shares, start) = (UserShares.calls, ContinuousClock.now)
        for number in 0..<(UserShares.usersMax + 10) {
            #expect(shares.take(of: "u\(number)", app: "game", at: start))
        }
    }
}
