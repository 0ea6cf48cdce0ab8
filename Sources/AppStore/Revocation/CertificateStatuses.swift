package import AsyncHTTPClient
package import Foundation
import Synchronization

/// A cache of responders' answers about certificates, for all apps of a process. It is small, because Apple has few
/// certificates.
///
/// One question at a time is open for each certificate, however many receipts wait for it, and `openMax` for all. An
/// answer is renewed in the background while it still counts, so callers wait only for the first question about a
/// certificate, and for one after a long time without any. Connections are per host, so a slow responder holds up no
/// call to the App Store Server API.
package final class CertificateStatuses: Sendable {
    /// The longest time that a caller waits for a responder.
    package static let patience: Duration = .seconds(5)
    /// A responder's answer is fresh until its next update, but at least this long, in seconds.
    package static let freshMin: TimeInterval = 3600
    /// The longest time, in seconds, for which an answer is fresh.
    package static let freshMax: TimeInterval = 86_400
    /// How long an answer still counts after it is fresh no longer, while it is being renewed, in seconds. In all it
    /// counts no longer than 75 minutes beyond its next update: swift-certificates allows as much for a clock that is
    /// wrong.
    package static let renewalMax: TimeInterval = 900
    /// How long a responder that gave no answer is not asked again, in seconds.
    package static let pause: TimeInterval = 30
    /// How long no caller waits again for a responder that gave no answer, in seconds.
    package static let silenceMax: TimeInterval = 600
    static let openMax = 8
    static let countMax = 256

    private struct Entry {
        let status: CertificateStatus
        /// From then on the answer is renewed.
        var freshUntil: Date
        /// From then on the answer does not count.
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

    /// The known status of each certificate. If none is known, the question to the responder is under way when this
    /// returns; if ``openMax`` questions are open already, the status is `unanswered`.
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
            // Counts until a responder says otherwise: an attacker who cuts the responder off must not make the
            // certificate good.
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
