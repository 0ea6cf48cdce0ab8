import Purchases
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation

@Suite struct RejectionAlarmTests {
    @Test("the eleventh in ten minutes raises the alarm, once, for that app and reason")
    func once() {
        let alarm = RejectionAlarm()
        let start = ContinuousClock.now
        let raised = (1...30).filter { alarm.record("game", .wrongApp, at: start + .seconds($0)) }
        #expect(raised == [11])
        #expect(!alarm.record("game", .untrustedRoot, at: start))
        #expect(!alarm.record("other", .wrongApp, at: start))
        let later = (0..<11).map { alarm.record("game", .wrongApp, at: start + .seconds(700 + $0)) }
        #expect(later == Array(repeating: false, count: 10) + [true], "a new window")
    }

    @Test("every reason that may be our own mistake, or that of the app's release, names its cause, no other does")
    func causes() {
        let named = Reason.allCases.filter { RejectionAlarm.cause($0) != nil }
        #expect(
            Set(named) == [.malformed, .wrongApp, .wrongEnvironment, .untrustedRoot, .clockAhead, .certificateRevoked])
    }
}
