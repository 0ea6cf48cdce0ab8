import AppStoreSimulator
import AsyncHTTPClient
import Foundation
import Synchronization
import Testing

@testable import AppStore

/// Goal: an app that requires OCSP never grants by a revoked certificate, never rejects because no responder answers
/// (P16), and never waits twice for the same responder. Method: the verifier against the simulator's responder over
/// real HTTP; where hours pass, the test sets the verifier's clock.
@Suite struct RevocationTests {
    /// A clock that the test sets.
    private final class Clock: Sendable {
        private let ahead = Mutex<TimeInterval>(0)

        var now: Date { Date() + ahead.withLock { $0 } }
        func advance(hours: Double) { ahead.withLock { $0 += hours * 3600 } }
    }

    private struct Setup {
        let store: AppStoreSimulator
        let statuses: CertificateStatuses
        let clock: Clock

        static func with(patience: Duration = .seconds(5), _ body: (Setup) async throws -> Void) async throws {
            try await RunningSimulator.with(.init(seed: 1, namesResponder: true)) { running in
                let clock = Clock()
                let statuses = CertificateStatuses(http: .shared, patience: patience) { clock.now }
                try await body(Setup(store: running.simulator, statuses: statuses, clock: clock))
            }
        }

        /// A verifier that knows no chain yet.
        func verifier(_ mode: OCSPMode) throws -> SignedDataVerifier {
            SignedDataVerifier(
                app: try AppIdentity(bundleId: "com.example.game", environments: [.production, .sandbox]),
                anchors: try TrustAnchors(rootCertificates: [store.rootCertificateDER], acceptAppleRoots: false),
                revocation: RevocationCheck(mode, statuses), now: { clock.now })
        }

        func sell() async throws -> String {
            let sold = try await store.sell(SaleRequest(app: "com.example.game", productId: "coins"))
            return try #require(sold.first).signedTransaction
        }

        var asked: [Int] { [store.responderAsked.leaf, store.responderAsked.intermediate] }
    }

    private static func seen(_ verifier: SignedDataVerifier, _ jws: String) async -> VerificationFailure.Reason? {
        do throws(VerificationFailure) {
            _ = try await verifier.transaction(jws)
            return nil
        } catch {
            return error.reason
        }
    }

    /// The answers of a responder, and the result in soft and in hard mode.
    static let answers: [(ResponderRequest, VerificationFailure.Reason?, VerificationFailure.Reason?)] = [
        (.init(manner: .signed), nil, nil),
        (.init(manner: .delegated), nil, nil),
        (.init(leaf: .revoked), .revoked, .revoked),
        (.init(intermediate: .revoked), .revoked, .revoked),
        (.init(leaf: .revoked, manner: .delegated), .revoked, .revoked),
        (.init(leaf: .unknown), nil, .statusUnknown),
        (.init(intermediate: .unknown), nil, .statusUnknown),
        (.init(manner: .undelegated), nil, .statusUnknown),
        (.init(manner: .forged), nil, .statusUnknown),
        (.init(manner: .stale), nil, .statusUnknown),
        (.init(manner: .tryLater), nil, .statusUnknown),
        (.init(manner: .error), nil, .statusUnknown),
        (.init(manner: .garbage), nil, .statusUnknown),
        (.init(manner: .silent), nil, .statusUnknown),
        // A forged answer cannot revoke a certificate.
        (.init(leaf: .revoked, manner: .forged), nil, .statusUnknown),
        (.init(leaf: .revoked, manner: .undelegated), nil, .statusUnknown),
        (.init(leaf: .revoked, manner: .stale), nil, .statusUnknown),
    ]

    @Test(arguments: answers.indices)
    func `P16: what each answer means in each mode`(_ index: Int) async throws {
        let (request, soft, hard) = Self.answers[index]
        for (mode, expected) in [(OCSPMode.off, nil), (.soft, soft), (.hard, hard)] {
            try await Setup.with(patience: request.manner == .silent ? .milliseconds(300) : .seconds(5)) { setup in
                try setup.store.set(request)
                let jws = try await setup.sell()
                #expect(try await Self.seen(setup.verifier(mode), jws) == expected, "\(mode) \(request)")
                #expect((setup.asked == [0, 0]) == (mode == .off))
            }
        }
    }

    @Test func `P16: a responder that is not there is no rejection`() async throws {
        var sold: (Setup, jws: String)?
        try await Setup.with(patience: .milliseconds(500)) { sold = ($0, try await $0.sell()) }
        // The simulator has ended: connections are refused.
        let (setup, jws) = try #require(sold)
        #expect(try await Self.seen(setup.verifier(.soft), jws) == nil)
        #expect(try await Self.seen(setup.verifier(.hard), jws) == .statusUnknown)
    }

    @Test func `one question for each certificate, however many receipts wait for it`() async throws {
        try await Setup.with { setup in
            try setup.store.set(ResponderRequest(delayMilliseconds: 300))
            let verifier = try setup.verifier(.hard)
            var request = SaleRequest(app: "com.example.game", productId: "coins")
            request.count = 200
            let sold = try await setup.store.sell(request)
            let start = ContinuousClock.now
            let failures = await withTaskGroup(of: VerificationFailure.Reason?.self) { group in
                for sale in sold { group.addTask { await Self.seen(verifier, sale.signedTransaction) } }
                return await group.reduce(into: []) { if let reason = $1 { $0.append(reason) } }
            }
            #expect(failures.isEmpty)
            #expect(setup.asked == [1, 1])
            // One after the other the questions would take two minutes.
            #expect(ContinuousClock.now - start < .seconds(30))
            // Another app's verifier, and one after a reload, ask no responder.
            #expect(try await Self.seen(setup.verifier(.hard), sold[0].signedTransaction) == nil)
            #expect(setup.asked == [1, 1])
        }
    }

    @Test func `an answer is good until its next update, an hour at least, and is renewed while nobody waits`()
        async throws
    {
        try await Setup.with { setup in
            let verifier = try setup.verifier(.hard)
            let jws = try await setup.sell()
            try setup.store.set(ResponderRequest(validSeconds: 60))
            #expect(await Self.seen(verifier, jws) == nil)
            setup.clock.advance(hours: 0.9)
            #expect(await Self.seen(verifier, jws) == nil)
            #expect(setup.asked == [1, 1])
            // The status has expired but still counts: the verifier does not wait for the slow responder.
            setup.clock.advance(hours: 0.2)
            try setup.store.set(ResponderRequest(delayMilliseconds: 2000, validSeconds: 3 * 3600))
            let start = ContinuousClock.now
            #expect(await Self.seen(verifier, jws) == nil)
            #expect(ContinuousClock.now - start < .seconds(2), "the responder's delay")
            try await Self.eventually { setup.asked == [2, 2] }
            // The clock has moved by 1.1 of the 3 hours. If the renewal is still under way, the verifier waits for it.
            setup.clock.advance(hours: 1.8)
            #expect(await Self.seen(verifier, jws) == nil)
            #expect(setup.asked == [2, 2])
        }
    }

    @Test func `an answer is good for a day at most`() async throws {
        try await Setup.with { setup in
            let verifier = try setup.verifier(.hard)
            let jws = try await setup.sell()
            try setup.store.set(ResponderRequest(validSeconds: 30 * 86_400))
            #expect(await Self.seen(verifier, jws) == nil)
            setup.clock.advance(hours: 23.9)
            #expect(await Self.seen(verifier, jws) == nil)
            #expect(setup.asked == [1, 1])
            setup.clock.advance(hours: 0.2)
            #expect(await Self.seen(verifier, jws) == nil)
            try await Self.eventually { setup.asked == [2, 2] }
        }
    }

    @Test func `P16: without an answer for a day, it rejects nothing; back again, it is asked again`() async throws {
        try await Setup.with { setup in
            let hard = try setup.verifier(.hard)
            let soft = try setup.verifier(.soft)
            let jws = try await setup.sell()
            try setup.store.set(ResponderRequest(manner: .error))
            for _ in 0..<24 {
                #expect(await Self.seen(hard, jws) == .statusUnknown)
                #expect(await Self.seen(soft, jws) == nil)
                setup.clock.advance(hours: 1)
            }
            try setup.store.set(ResponderRequest(manner: .signed, validSeconds: 48 * 3600))
            #expect(await Self.seen(hard, jws) == nil)
        }
    }

    @Test func `a responder without an answer is left alone for a while, and then nobody waits for it`() async throws {
        let patience: Duration = .seconds(4)
        try await Setup.with(patience: patience) { setup in
            let soft = try setup.verifier(.soft)
            let jws = try await setup.sell()
            try setup.store.set(ResponderRequest(manner: .silent))
            #expect(await Self.seen(soft, jws) == nil)
            #expect(setup.asked == [1, 1])
            let start = ContinuousClock.now
            for _ in 0..<20 { #expect(await Self.seen(soft, jws) == nil) }
            #expect(setup.asked == [1, 1])
            setup.clock.advance(hours: 0.02)
            #expect(await Self.seen(soft, jws) == nil)
            #expect(ContinuousClock.now - start < patience)
            try await Self.eventually { setup.asked == [2, 2] }
        }
    }

    @Test func `what is good stays good while its responder is away, for a quarter of an hour`() async throws {
        try await Setup.with { setup in
            let hard = try setup.verifier(.hard)
            let jws = try await setup.sell()
            try setup.store.set(ResponderRequest(validSeconds: 60))
            #expect(await Self.seen(hard, jws) == nil)
            try setup.store.set(ResponderRequest(manner: .error))
            setup.clock.advance(hours: 1.1)
            #expect(await Self.seen(hard, jws) == nil)
            setup.clock.advance(hours: 0.2)
            #expect(await Self.seen(hard, jws) == .statusUnknown)
        }
    }

    @Test func `no answer makes no revoked certificate good again; only an answer does`() async throws {
        try await Setup.with { setup in
            let soft = try setup.verifier(.soft)
            let jws = try await setup.sell()
            try setup.store.set(ResponderRequest(leaf: .revoked))
            #expect(await Self.seen(soft, jws) == .revoked)
            try setup.store.set(ResponderRequest(manner: .error))
            for _ in 0..<3 {
                setup.clock.advance(hours: 30)
                #expect(await Self.seen(soft, jws) == .revoked)
            }
            try setup.store.set(ResponderRequest(leaf: .good, manner: .signed, validSeconds: 200 * 3600))
            setup.clock.advance(hours: 1)
            // An earlier question may fail only now, and is asked again when its pause is over.
            try await Self.eventually {
                setup.clock.advance(hours: 0.02)
                return await Self.seen(soft, jws) == nil
            }
        }
    }

    @Test func `nobody is asked about what names no responder, or has ended`() async throws {
        try await RunningSimulator.with { running in
            let statuses = CertificateStatuses(http: .shared)
            let setup = Setup(store: running.simulator, statuses: statuses, clock: Clock())
            let (hard, jws) = (try setup.verifier(.hard), try await setup.sell())
            #expect(await Self.seen(hard, jws) == nil)
            #expect(setup.asked == [0, 0])
        }
        try await Setup.with { setup in
            let jws = try await setup.sell()
            // The leaf is valid for two years, and the purchase was signed in that time.
            setup.clock.advance(hours: 3 * 365 * 24)
            #expect(try await Self.seen(setup.verifier(.soft), jws) == nil)
            #expect(setup.asked[0] == 0)
        }
    }

    @Test func `the certificates in use are listed with their ends`() async throws {
        try await Setup.with { setup in
            let verifier = try setup.verifier(.off)
            #expect(verifier.certificatesInUse.map(\.kind) == [.configuredRoot])
            _ = try await verifier.transaction(try await setup.sell())
            let used = verifier.certificatesInUse
            #expect(Set(used.map(\.kind)) == Set(CertificateInUse.Kind.allCases))
            #expect(used.first?.end == used.first { $0.kind == .root }?.end)
            let leaf = try #require(used.first { $0.kind == .leaf })
            #expect(abs(leaf.end.timeIntervalSinceNow - 2 * 365 * 86_400) < 86_400)
            #expect(leaf.subject.contains("Receipt Signing"))
        }
    }

    private static func eventually(_ condition: () async throws -> Bool) async throws {
        let start = ContinuousClock.now
        while ContinuousClock.now - start < .seconds(20) {
            if try await condition() { return }
            try await Task.sleep(for: .milliseconds(20))
        }
        Issue.record("never happened")
    }
}
