import Testing

@testable import Reconciliation

/// Goal: each user has his share of fresh calls a minute, and no more memory is used for it than is said. Method: a clock
/// that the test moves.
@Suite struct UserSharesTests {
    @Test("ten a minute for each user of each app, then none until the next minute")
    func minute() {
        let (shares, start) = (UserShares(), ContinuousClock.now)
        for _ in 0..<UserShares.callsMax { #expect(shares.take(of: "u1", app: "game", at: start)) }
        #expect(!shares.take(of: "u1", app: "game", at: start + .seconds(59)))
        #expect(shares.take(of: "u2", app: "game", at: start + .seconds(59)))
        #expect(shares.take(of: "u1", app: "puzzle", at: start + .seconds(59)))
        #expect(shares.take(of: "u1", app: "game", at: start + UserShares.minute))
    }

    @Test("users that look the same to Unicode, and not to us, have their own shares")
    func bytes() {
        let (shares, start) = (UserShares(), ContinuousClock.now)
        for _ in 0..<UserShares.callsMax { #expect(shares.take(of: "\u{e9}", app: "game", at: start)) }
        #expect(shares.take(of: "e\u{301}", app: "game", at: start))
    }

    @Test("more users than are kept in a minute: all of them are served")
    func users() {
        let (shares, start) = (UserShares(), ContinuousClock.now)
        for number in 0..<(UserShares.usersMax + 10) {
            #expect(shares.take(of: "u\(number)", app: "game", at: start))
        }
    }
}
