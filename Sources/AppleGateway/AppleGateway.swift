package import AppStore
import Foundation
package import Ledger
package import Purchases
package import Service
import Synchronization

/// Why Apple was not asked, or gave no usable answer.
package struct AppleRefusal: Error, Sendable {
    package let fate: Fate
    /// The calls that led to it, in order; the last one failed.
    package let calls: [ServiceCall]
    /// Whether Apple could not be reached, or is known to be away. Apple then said nothing about the purchase, nor
    /// about us.
    package let isOutage: Bool
    /// Whether the last call's answer did not come in time.
    package internal(set) var isLate = false
    package var unreached = Unreached()

    package init(_ fate: Fate, calls: [ServiceCall] = [], isOutage: Bool = false) {
        self.fate = fate
        self.calls = calls
        self.isOutage = isOutage
    }
}

/// The purchases that were verified here and about which Apple could not be reached.
package struct Unreached: Sendable {
    /// Every purchase of the receipt, as it stands without Apple's answer.
    package var entries: [Verdict.Entry] = []
    /// The ids of the purchases about which Apple could not be reached and of which only the receipt itself is known.
    package var ids: Set<String> = []

    package init(entries: [Verdict.Entry] = [], ids: Set<String> = []) {
        self.entries = entries
        self.ids = ids
    }
}

/// Asks Apple. Every question goes through here: halts are checked, and the governor admits each of the calls.
package final class AppleGateway: Sendable {
    private let halts: Halts
    private let governor: Governor
    private let shares = UserShares.calls
    private let security: SecurityLog?
    /// When each credential was last proven good, by its hash.
    private let proven = Mutex<[String: ContinuousClock.Instant]>([:])
    /// A refusal this soon after such a proof says something about the receipt, not about the credential.
    private static let provenFor: Duration = .seconds(600)

    package init(halts: Halts, governor: Governor, security: SecurityLog? = nil) {
        self.halts = halts
        self.governor = governor
        self.security = security
    }

    /// Why asking would be in vain now: Apple refuses our credentials, or the host that is asked first is down. Only
    /// the second is an outage. Nil: asking is not in vain.
    package func absence(of service: ServiceCall.Service, for app: AppServices) -> AppleRefusal? {
        let isHalted = halts.halt(of: service, for: app) != nil
        if !isHalted, !isDown(service, for: app) { return nil }
        return AppleRefusal(.postpone(.appleUnavailable, until: nil), isOutage: !isHalted)
    }

    private func isDown(_ service: ServiceCall.Service, for app: AppServices) -> Bool {
        guard let first = app.lookUpOrder.first else { return true }
        return governor.isDown(AppleHost(service, first))
    }

    /// Asks Apple, unless a halt says not to. The governor decides whether a call goes out.
    package func ask<Answer>(
        _ service: ServiceCall.Service, for app: AppServices,
        _ question: () async throws(AppStoreFailure) -> (answer: Answer, calls: [ServiceCall]),
        proves isProof: (Answer) -> Bool = { _ in true }
    ) async throws(AppleRefusal) -> (answer: Answer, calls: [ServiceCall]) {
        let halt = halts.halt(of: service, for: app)
        if let halt {
            // If the host is down, the probe could not be made, and would cost two writes for each message.
            guard !isDown(service, for: app), await halts.takesProbe(halt) else {
                throw AppleRefusal(.halt(.halted))
            }
        }
        do {
            let (answer, calls) = try await question()
            if isProof(answer) { noteProof(service, app) }
            if let halt { await halts.end(halt) }
            return (answer, calls)
        } catch {
            var fate = Fate(error.error)
            let isAnswer = error.error != .halted
            // Another build of the app shares the credential: an alias that Apple does not know must not halt the app.
            if case .halt = fate, isAnswer, halt == nil, app.isOtherBuild || isProven(service, app) {
                fate = .retry(.appleAnswer)
            }
            // Apple was not asked: the probe is left to the next question.
            if let halt, error.calls.isEmpty { await halts.returnProbe(halt) }
            switch (fate, error.calls.last) {
            case (.halt, let call?) where isAnswer: await halts.raise(call, for: app)
            case (.halt, _), (.hold, _), (.postpone, _): break
            case (.retry, _), (.reject, _): if let halt, error.error.provesCredentials { await halts.end(halt) }
            }
            var refusal = AppleRefusal(
                fate, calls: error.calls, isOutage: error.error.isOutage || error.error == .hostDown)
            refusal.isLate = error.error == .timedOut
            throw refusal
        }
    }

    /// The lane in which a call about a receipt waits. A receipt that no worker has looked at yet has a customer who
    /// waits, so its calls are fresh as long as the user's share of fresh calls lasts. A receipt that comes again has
    /// waited before, and for a receipt that nobody posted nobody waits.
    package func lane(of receipt: StoredReceipt) -> CallLane {
        let isNew =
            receipt.source == .post && receipt.reason == nil && receipt.attempt == 0 && receipt.rescues == 0
        guard isNew else { return .repair }
        guard let poster = receipt.userID ?? receipt.orderID else { return .fresh }
        if shares.take(of: poster, app: receipt.appID, at: .now) { return .fresh }
        security?.note(.limit(.userCalls), receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        return .repair
    }

    /// The app's client, whose calls keep to Apple's limits. Nil without a `serverApi` section.
    package func serverAPI(of app: AppServices, lane: CallLane) -> ServerAPIClient? {
        app.serverAPI?.through(calls(to: .serverApi, of: app, lane))
    }

    /// As above, for legacy receipts. Nil without a `verifyReceipt` section.
    package func receipts(of app: AppServices, lane: CallLane) -> VerifyReceiptClient? {
        app.receipts?.through(calls(to: .verifyReceipt, of: app, lane))
    }

    private func calls(to service: ServiceCall.Service, of app: AppServices, _ lane: CallLane) -> GovernedCalls {
        GovernedCalls(
            governor: governor, halts: halts, app: app, lane: lane, knownHalt: halts.halt(of: service, for: app))
    }

    private func noteProof(_ service: ServiceCall.Service, _ app: AppServices) {
        guard let credential = app.credentialHashes[service] else { return }
        proven.withLock { $0[credential] = .now }
    }

    private func isProven(_ service: ServiceCall.Service, _ app: AppServices) -> Bool {
        guard let credential = app.credentialHashes[service] else { return false }
        return proven.withLock { $0[credential].map { ContinuousClock.now - $0 < Self.provenFor } ?? false }
    }
}

extension AppStoreError {
    /// Whether Apple says this only after it has accepted the credential. The API checks the token first; verifyReceipt
    /// checks the receipt first and the secret later.
    package var provesCredentials: Bool {
        switch self {
        case .api: !isOutage
        case .receiptStatus(let code, _): code == 21006 || code == 21010
        case .timedOut, .unreachable, .cancelled, .httpStatus, .garbage, .rateLimited, .notAdmitted,
            .hostDown, .halted, .unauthorized, .credentialsMissing, .environmentNotServed:
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
        case .cancelled, .rateLimited, .notAdmitted, .hostDown, .halted, .unauthorized, .credentialsMissing,
            .environmentNotServed:
            false
        }
    }
}
