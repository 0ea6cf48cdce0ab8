import AsyncHTTPClient
import Foundation
import Metrics
import NIOCore
import NIOHTTP1
import SwiftASN1
import Synchronization
@_spi(FixedExpiryValidationTime) import X509

/// Asks the responder that a certificate names. swift-certificates judges whether the answer is signed by a responder
/// that may give it, is about this certificate, and is current.
struct OCSPResponder: Sendable {
    let http: HTTPClient
    let patience: Duration

    enum Answer: Sendable, Equatable {
        case good(nextUpdate: Date)
        case revoked
        /// No answer came, or none that counts: unknown, out of date, not signed by a responder that may give it.
        case none
    }

    func answer(about issue: CertificateIssue, at now: Date) async -> Answer {
        let clock = ContinuousClock()
        let start = clock.now
        let (answer, outcome) = await ask(about: issue, at: now, by: start + patience)
        Counter(label: "makegood_ocsp_questions_total", dimensions: [("outcome", outcome)]).increment()
        Timer(label: "makegood_ocsp_seconds").record(duration: clock.now - start)
        return answer
    }

    /// The library's hard mode accepts a good answer, and refuses a revoked certificate as well as a worthless answer.
    /// Its soft mode refuses a revoked certificate only. So if hard mode refuses, which is rare, the responder is asked
    /// once more in soft mode. The first answer cannot be judged twice, because a nonce may tie it to its question.
    private func ask(
        about issue: CertificateIssue, at now: Date, by deadline: ContinuousClock.Instant
    ) async -> (Answer, outcome: String) {
        // The library refuses such a chain in any mode, which would look like a revocation.
        guard !CertificateIssue.namesResponder(issue.root) else { return (.none, "worthless") }
        let first = Question(http: http, deadline: deadline)
        let isGood = await accepts(issue, .hard, first, at: now)
        guard let response = first.response else { return (.none, "unreachable") }
        if isGood {
            // The library accepted the response, so it is readable. The library accepts none without a next update.
            return (.good(nextUpdate: OCSPTimes.nextUpdate(of: response) ?? now), "good")
        }
        let second = Question(http: http, deadline: deadline)
        let isAcceptable = await accepts(issue, .soft, second, at: now)
        if !isAcceptable, second.response != nil { return (.revoked, "revoked") }
        return (.none, "worthless")
    }

    private func accepts(
        _ issue: CertificateIssue, _ mode: OCSPFailureMode, _ question: Question, at now: Date
    ) async -> Bool {
        var verifier = Verifier(rootCertificates: CertificateStore([issue.root])) {
            JudgedBefore(issue)
            OCSPVerifierPolicy(failureMode: mode, requester: question, fixedExpiryValidationTime: now)
        }
        let result = await verifier.validate(
            leaf: issue.certificate, intermediates: CertificateStore(issue.intermediates))
        if case .validCertificate = result { return true }
        return false
    }
}

/// A policy that accepts every chain: the certificates led to an anchor before, so here only the responder decides.
private struct JudgedBefore: VerifierPolicy {
    let verifyingCriticalExtensions: [ASN1ObjectIdentifier]

    init(_ issue: CertificateIssue) {
        let certificates = [issue.certificate] + issue.intermediates + [issue.root]
        verifyingCriticalExtensions = certificates.flatMap { $0.extensions.filter(\.critical).map(\.oid) }
    }

    mutating func chainMeetsPolicyRequirements(chain: UnverifiedCertificateChain) async -> PolicyEvaluationResult {
        .meetsPolicy
    }
}

/// One POST to a responder (RFC 6960, appendix A.1), and its answer. The library calls it for each certificate of the
/// chain; it asks about the first one only.
private final class Question: OCSPRequester {
    private let http: HTTPClient
    private let deadline: ContinuousClock.Instant
    private let isAsked = Atomic(false)
    private let received = Mutex<[UInt8]?>(nil)

    /// Nil: nothing came.
    var response: [UInt8]? { received.withLock { $0 } }

    init(http: HTTPClient, deadline: ContinuousClock.Instant) {
        self.http = http
        self.deadline = deadline
    }

    private struct NoAnswer: Error {}

    func query(request: [UInt8], uri: String) async -> OCSPRequesterQueryResult {
        guard !isAsked.exchange(true, ordering: .relaxed), uri.hasPrefix("http://") || uri.hasPrefix("https://") else {
            return .nonTerminalError(NoAnswer())
        }
        var post = HTTPClientRequest(url: uri)
        post.method = .POST
        post.headers.add(name: "Content-Type", value: "application/ocsp-request")
        post.headers.add(name: "Accept", value: "application/ocsp-response")
        post.body = .bytes(ByteBuffer(bytes: request))
        let http = AppStoreHTTP(http: http, timeout: deadline - .now, now: { Date() })
        guard let answer = try? await http.answer(to: post, by: deadline, upTo: Self.bytesMax), answer.status == 200
        else { return .nonTerminalError(NoAnswer()) }
        received.withLock { $0 = answer.body }
        return .response(answer.body)
    }

    /// A response has one status and at most a few certificates: a bound on memory.
    private static let bytesMax = 64 * 1024
}

/// How long a response is good by its own dates. Only verified responses are read.
enum OCSPTimes {
    /// The earliest next update in a response (RFC 6960 section 4.2.1); nil where it has none.
    static func nextUpdate(of response: [UInt8]) -> Date? {
        guard let outer = try? DER.parse(response),
            // OCSPResponse: status, [0] ResponseBytes: type, octets of BasicOCSPResponse.
            let bytes = outer.children.dropFirst().first?.children.first?.children.last,
            let octets = try? ASN1OctetString(derEncoded: bytes), let basic = try? DER.parse(octets.bytes),
            // ResponseData: version and responder have tags of their own, the list of responses is a SEQUENCE.
            let responses = basic.children.first?.children.first(where: { $0.identifier == .sequence })
        else { return nil }
        return responses.children.compactMap { single -> Date? in
            // SingleResponse: certificate, status, this update, [0] next update.
            guard let tagged = single.children.dropFirst(3).first,
                tagged.identifier == ASN1Identifier(tagWithNumber: 0, tagClass: .contextSpecific),
                let time = tagged.children.first.flatMap({ try? GeneralizedTime(derEncoded: $0) })
            else { return nil }
            return date(time)
        }.min()
    }

    private static func date(_ time: GeneralizedTime) -> Date? {
        var calendar = Calendar(identifier: .gregorian)
        calendar.timeZone = .gmt
        return calendar.date(
            from: DateComponents(
                year: time.year, month: time.month, day: time.day, hour: time.hours, minute: time.minutes,
                second: time.seconds))
    }
}

extension ASN1Node {
    fileprivate var children: [ASN1Node] {
        if case .constructed(let nodes) = content { Array(nodes) } else { [] }
    }
}
