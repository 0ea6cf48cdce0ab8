package import AppStore
import Foundation
package import Purchases
import Synchronization

/// Why Apple was not asked, or gave nothing to go by.
package struct AppleRefusal: Error, Sendable {
    package let fate: Fate
    /// The calls that led to it, in order; the last one failed.
    package let calls: [ServiceCall]
    /// Whether Apple could not be reached, or is known to be away: it said nothing about the purchase, nor about us.
    package let isOutage: Bool

    package init(_ fate: Fate, calls: [ServiceCall] = [], isOutage: Bool = false) {
        self.fate = fate
        self.calls = calls
        self.isOutage = isOutage
    }
}

extension AppleRefusal {
    /// The breaker is open: nobody was asked.
    static let away = AppleRefusal(.postpone(.appleUnavailable, until: nil), isOutage: true)
}

/// Where every call to Apple goes through: halts, the breaker, Apple's limits, and what they learn from each answer.
package final class AppleDesk: Sendable {
    private let halts: HaltBoard
    private let governor: Governor
    private let breaker: Mutex<Breaker>
    /// When a credential was last proven good, by its hash.
    private let proven = Mutex<[String: ContinuousClock.Instant]>([:])
    /// A refusal this soon after such a proof says something about the receipt, not about the credential.
    private static let provenFor: Duration = .seconds(600)

    package init(halts: HaltBoard, governor: Governor, scale: Double) {
        self.halts = halts
        self.governor = governor
        breaker = Mutex(Breaker(scale: scale))
    }

    /// The breaker's state now; an open one becomes half-open when its pause is over.
    package var breakerState: Breaker.State {
        breaker.withLock { breaker in
            breaker.tick(.now)
            return breaker.state
        }
    }

    /// Whether Apple was away when it was asked last: nobody asks, or one at a time to find out.
    package var isInDoubt: Bool { breakerState != .closed }

    /// Asks Apple, unless a halt or the breaker says not to.
    package func ask<Answer>(
        _ service: ServiceCall.Service, for app: AppServices,
        _ question: () async throws(AppStoreFailure) -> (answer: Answer, calls: [ServiceCall]),
        proves isProof: (Answer) -> Bool = { _ in true }
    ) async throws(AppleRefusal) -> (answer: Answer, calls: [ServiceCall]) {
        if case .open = breakerState { throw .away }
        let halt = halts.halt(of: service, for: app)
        if let halt {
            guard await halts.takesProbe(halt) else { throw AppleRefusal(.halt(.halted)) }
        }
        do {
            let (answer, calls) = try await question()
            record(failed: false)
            if isProof(answer) { noteProof(service, app) }
            if let halt { await halts.end(halt) }
            return (answer, calls)
        } catch {
            var fate = Fate(error.error)
            if case .halt = fate, halt == nil, isProven(service, app) { fate = .retry(.appleAnswer) }
            // A call that a limit of ours held back says nothing about Apple: it must not close a half-open breaker.
            if !error.calls.isEmpty { record(failed: error.error.isOutage) }
            switch (fate, error.calls.last) {
            case (.halt, let call?): await halts.raise(call, for: app)
            case (.halt, nil), (.hold, _), (.postpone, _): break
            case (.retry, _), (.reject, _): if let halt, error.error.provesCredentials { await halts.end(halt) }
            }
            throw AppleRefusal(fate, calls: error.calls, isOutage: error.error.isOutage)
        }
    }

    /// The app's client, whose calls keep to Apple's limits. Nil without a `serverApi` section.
    package func serverAPI(of app: AppServices, lane: CallLane) -> ServerAPIClient? {
        guard let section = app.configuration.serverAPI else { return nil }
        return app.serverAPI?.through(
            GovernedCalls(
                governor: governor, appID: app.configuration.id, callsPerSecond: section.callsPerSecond, lane: lane))
    }

    private func noteProof(_ service: ServiceCall.Service, _ app: AppServices) {
        guard let credential = app.credentialHashes[service] else { return }
        proven.withLock { $0[credential] = .now }
    }

    private func isProven(_ service: ServiceCall.Service, _ app: AppServices) -> Bool {
        guard let credential = app.credentialHashes[service] else { return false }
        return proven.withLock { $0[credential].map { ContinuousClock.now - $0 < Self.provenFor } ?? false }
    }

    private func record(failed: Bool) {
        breaker.withLock { $0.record(failed: failed, at: .now) }
    }
}

extension AppStoreError {
    /// Whether Apple says this only to whom it has let in: the API looks at the token first, verifyReceipt at the
    /// receipt first and at the secret later.
    package var provesCredentials: Bool {
        switch self {
        case .api: !isOutage
        case .receiptStatus(let code, _): code == 21006 || code == 21010
        case .timedOut, .unreachable, .cancelled, .httpStatus, .garbage, .rateLimited, .notAdmitted,
            .unauthorized, .credentialsMissing, .environmentNotServed:
            false
        }
    }

    /// Whether Apple itself seems to be down, rather than to say something about a receipt.
    package var isOutage: Bool {
        switch self {
        case .timedOut, .unreachable, .garbage: true
        case .httpStatus(let status): status >= 500
        case .receiptStatus(let code, _): code == 21005 || code == 21009
        case .api(let code, _): code == .generalInternal || code == .generalInternalRetryable
        case .cancelled, .rateLimited, .notAdmitted, .unauthorized, .credentialsMissing, .environmentNotServed: false
        }
    }
}
