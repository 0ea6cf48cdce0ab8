package import AsyncHTTPClient
package import Foundation
import Synchronization

/// What responders said of certificates, for all apps of a process: about Apple's few certificates, so it is small.
///
/// One question at a time for each certificate, however many receipts wait for it, and `openMax` for all. What was
/// said is renewed in the background while it still counts: only the first question about a certificate is waited for,
/// and one after a long quiet. Connections are per host, so a slow responder holds up no call to the App Store Server
/// API.
package final class CertificateStatuses: Sendable {
    /// The longest that anybody waits for a responder.
    package static let patience: Duration = .seconds(5)
    /// A responder's word is taken until its next update, within these bounds …
    package static let freshMin: TimeInterval = 3600
    package static let freshMax: TimeInterval = 86_400
    /// … and for so long it still counts while it is being renewed. No longer than 75 minutes beyond the next update in
    /// all: swift-certificates allows as much for a clock that is wrong.
    package static let renewalMax: TimeInterval = 900
    /// A responder without an answer is left alone for so long …
    package static let pause: TimeInterval = 30
    /// … and for so long nobody waits for it again.
    package static let silenceMax: TimeInterval = 600
    static let openMax = 8
    static let countMax = 256

    private struct Entry {
        let status: CertificateStatus
        /// From then on it is renewed …
        var freshUntil: Date
        /// … and from then on it counts no more.
        var countsUntil: Date
    }

    private struct State {
        var entries: [[UInt8]: Entry] = [:]
        var open: [[UInt8]: Task<CertificateStatus, Never>] = [:]
    }

    private let responder: OCSPResponder
    private let now: @Sendable () -> Date
    private let state = Mutex(State())

    package init(
        http: HTTPClient, patience: Duration = patience, now: @escaping @Sendable () -> Date = { Date() }
    ) {
        responder = OCSPResponder(http: http, patience: patience)
        self.now = now
    }

    /// What is known of certificates; about those of which nothing is, somebody is being asked when this returns.
    func inquire(_ issues: [CertificateIssue]) -> [Inquiry] {
        let now = now()
        return state.withLock { state in issues.map { inquire($0, at: now, &state) } }
    }

    enum Inquiry: Sendable {
        case known(CertificateStatus)
        case open(Task<CertificateStatus, Never>)

        var status: CertificateStatus {
            get async {
                switch self {
                case .known(let status): status
                case .open(let question): await question.value
                }
            }
        }
    }

    private func inquire(_ issue: CertificateIssue, at now: Date, _ state: inout State) -> Inquiry {
        guard issue.isAskable(at: now) else { return .known(.good) }
        let entry = state.entries[issue.id].flatMap { now < $0.countsUntil ? $0 : nil }
        if let entry, now < entry.freshUntil { return .known(entry.status) }
        if state.open[issue.id] == nil, state.open.count < Self.openMax {
            state.open[issue.id] = Task { await ask(issue) }
        }
        if let entry { return .known(entry.status) }
        return state.open[issue.id].map(Inquiry.open) ?? .known(.unanswered)
    }

    private func ask(_ issue: CertificateIssue) async -> CertificateStatus {
        let answer = await responder.answer(about: issue, at: now())
        let now = now()
        return state.withLock { state in
            state.open[issue.id] = nil
            let before = state.entries[issue.id].flatMap { now < $0.countsUntil ? $0 : nil }
            let entry = Self.entry(answer, after: before, at: now)
            state.entries[issue.id] = entry
            if state.entries.count > Self.countMax,
                let oldest = state.entries.min(by: { $0.value.freshUntil < $1.value.freshUntil })
            {
                state.entries[oldest.key] = nil
            }
            return entry.status
        }
    }

    private static func entry(_ answer: OCSPResponder.Answer, after before: Entry?, at now: Date) -> Entry {
        switch answer {
        case .good(let nextUpdate):
            let fresh = min(max(nextUpdate.timeIntervalSince(now), freshMin), freshMax)
            return Entry(status: .good, freshUntil: now + fresh, countsUntil: now + fresh + renewalMax)
        case .revoked:
            // For good, until a responder says otherwise: who can cut it off must not bring a certificate back.
            return Entry(status: .revoked, freshUntil: now + freshMin, countsUntil: .distantFuture)
        case .none:
            guard var entry = before, entry.status != .unanswered else {
                return Entry(status: .unanswered, freshUntil: now + pause, countsUntil: now + silenceMax)
            }
            entry.freshUntil = min(now + pause, entry.countsUntil)
            return entry
        }
    }
}
