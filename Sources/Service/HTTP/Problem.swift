package import Encoding
import Foundation
package import HTTPTypes
package import Hummingbird
import NIOCore
import Purchases
package import Settings

/// An answer that is no success: a problem document (RFC 9457, `application/problem+json`).
///
/// Programs switch over `code`. `field` names the member of the body or the parameter that is wrong, `limit` names the
/// limit that was reached. A problem never holds a value that was sent. `safeToFinish` is always false: what was
/// refused was not taken over.
package struct Problem: HTTPResponseError, Sendable, Equatable {
    static let mediaType = "application/problem+json"

    package let status: HTTPResponse.Status
    package let code: Code
    package let detail: String?
    package let field: String?
    /// The limit that was reached; nil where it was none.
    package let limit: Limit?
    /// What the server keeps instead of what was sent; nil where it is nothing that the caller needs.
    package let stored: String?
    /// Why the credential was refused, or why the request goes beyond the credential; nil where neither is so. The
    /// value is for the security log: no answer holds it.
    package let refusal: Refusal?
    package var headers: HTTPFields

    package init(
        _ status: HTTPResponse.Status, _ code: Code, _ detail: String? = nil, field: String? = nil,
        limit: Limit? = nil, stored: String? = nil, refusal: Refusal? = nil, headers: HTTPFields = [:]
    ) {
        self.status = status
        self.code = code
        self.detail = detail
        // A client's field name may be long, and an answer must not send a megabyte back.
        self.field = field.map { String($0.prefix(128)) }
        self.limit = limit
        self.stored = stored
        self.refusal = refusal
        self.headers = headers
    }

    package var document: JSONValue {
        var members: [JSONValue.Member] = [
            .init("type", .string("urn:makegood:problem:\(code.rawValue)")),
            .init("title", .string(status.reasonPhrase.isEmpty ? "Error" : status.reasonPhrase)),
            .init("status", .integer(status.code)),
        ]
        if let detail { members.append(.init("detail", .string(detail))) }
        members.append(.init("code", .string(code.rawValue)))
        if let field { members.append(.init("field", .string(field))) }
        if let limit { members.append(.init("limit", .string(limit.rawValue))) }
        if let stored { members.append(.init("stored", .string(stored))) }
        members.append(.init("safeToFinish", .bool(false)))
        return .object(members)
    }

    /// The event that the security log notes, if any.
    package var securityEvent: SecurityEvent? { refusal.map(SecurityEvent.refused) ?? limit.map(SecurityEvent.limit) }

    package var response: Response {
        var headers = headers
        headers[.contentType] = Self.mediaType
        return Response(status: status, headers: headers, body: .init(byteBuffer: ByteBuffer(bytes: document.bytes)))
    }

    package func response(from request: Request, context: some RequestContext) -> Response { response }
}

// MARK: - The problems there are

extension Problem {
    package static func malformed(_ code: Code, _ detail: String, field: String?) -> Problem {
        Problem(.badRequest, code, detail, field: field)
    }

    package static func wrongType(_ field: String, _ wanted: String) -> Problem {
        Problem(.badRequest, .wrongType, "must be \(wanted)", field: field)
    }

    /// A member that stands twice in the body: a program that read the body before may have taken the other one.
    package static func duplicate(_ field: String) -> Problem {
        Problem(.badRequest, .duplicateMember, "must be there once", field: field)
    }

    package static func tooLong(_ field: String, bytesMax: Int) -> Problem {
        Problem(.badRequest, .tooLong, "is longer than \(bytesMax) bytes", field: field)
    }

    package static func badParameter(_ name: String, _ wanted: String) -> Problem {
        Problem(.badRequest, .badParameter, "must be \(wanted)", field: name)
    }

    /// - Parameter known: the names of the parameters that the request may have.
    static func unknownParameter(_ name: String, known: [String]) -> Problem {
        Problem(
            .badRequest, .badParameter,
            known.isEmpty
                ? "is unknown: this request has no query parameters"
                : "is unknown: this request has \(known.joined(separator: ", "))",
            field: name)
    }

    package static func incomplete(_ code: Code, _ detail: String, field: String? = nil) -> Problem {
        Problem(.unprocessableContent, code, detail, field: field)
    }

    /// No credentials, or none that are valid. RFC 6750, section 3.
    ///
    /// - Parameter refusal: for the security log; nil: derived from `wasGiven`.
    package static func unauthenticated(wasGiven: Bool, _ refusal: Refusal? = nil) -> Problem {
        let challenge = "Bearer realm=\"makegood\"" + (wasGiven ? ", error=\"invalid_token\"" : "")
        return Problem(
            .unauthorized, .unauthenticated,
            wasGiven ? "the key or token is not accepted" : "send Authorization: Bearer <key or token>",
            refusal: refusal ?? (wasGiven ? .unknownKey : .noCredential),
            headers: [.wwwAuthenticate: challenge])
    }

    /// A token that is not valid, and why. RFC 6750, section 3.1.
    package static func unauthenticated(_ defect: TokenDefect) -> Problem {
        invalidToken(defect.sentence, .token(defect))
    }

    /// A key whose `expires` has passed. Only the holder of the key reads this.
    package static let keyEnded = invalidToken("the key has ended (expires): use its successor", .endedKey)

    /// A notification without a proof that Apple sent it.
    package static func notApples(_ sentence: String) -> Problem {
        Problem(
            .unauthorized, .unauthenticated, sentence, headers: [.wwwAuthenticate: "Bearer realm=\"makegood\""])
    }

    private static func invalidToken(_ sentence: String, _ refusal: Refusal) -> Problem {
        Problem(
            .unauthorized, .unauthenticated, sentence, refusal: refusal,
            headers: [
                .wwwAuthenticate:
                    "Bearer realm=\"makegood\", error=\"invalid_token\", error_description=\"\(sentence)\""
            ])
    }

    package static func missingScope(_ scope: Scope, or other: Scope? = nil) -> Problem {
        let wanted = [scope, other].compactMap { $0?.rawValue }.joined(separator: " or ")
        return Problem(.forbidden, .missingScope, "needs the scope \(wanted)", refusal: .scope)
    }

    /// Unknown and foreign apps read alike, so that nobody can list them.
    package static let appNotAllowed = Problem(
        .forbidden, .appNotAllowed, "not an app of this caller", field: "appId", refusal: .app)

    package static let otherUser = Problem(
        .forbidden, .otherUser, "is not the user of the token", field: "userId", refusal: .otherUser)

    package static let promotionNotAllowed = Problem(
        .forbidden, .promotionNotAllowed, "is not among the promotions of the token", field: "promotion",
        refusal: .promotion)

    package static let notFound = Problem(.notFound, .notFound)

    /// Something of another user gets the same answer as something that does not exist.
    package static let notYours = Problem(.notFound, .notFound, refusal: .notYours)

    package static func methodNotAllowed(_ allowed: [HTTPRequest.Method]) -> Problem {
        Problem(
            .methodNotAllowed, .methodNotAllowed,
            headers: [.allow: allowed.map(\.rawValue).sorted().joined(separator: ", ")])
    }

    package static func bodyTooLarge(bytesMax: Int) -> Problem {
        Problem(
            .contentTooLarge, .bodyTooLarge, "the body is larger than \(bytesMax) bytes", field: "body",
            limit: .bodyBytes)
    }

    /// A body that is no JSON, and whose type says so. `Accept` names the type that is taken (RFC 9110, 12.5.1).
    package static let unsupportedMediaType = Problem(
        .unsupportedMediaType, .unsupportedMediaType, "send a JSON object in UTF-8 as application/json",
        field: "Content-Type", headers: [.accept: "application/json"])

    /// `Accept-Encoding` names the codings that are taken (RFC 9110, 15.5.16).
    package static let unsupportedEncoding = Problem(
        .unsupportedMediaType, .unsupportedEncoding, "send the body as it is, or in one of gzip and deflate",
        field: "Content-Encoding", headers: [.acceptEncoding: "gzip, deflate"])

    package static let badEncoding = Problem(
        .badRequest, .badEncoding, "the body cannot be inflated; send it as it is", field: "Content-Encoding")

    package static let bodyCut = Problem(.badRequest, .bodyCut, "the body ended before its announced length")

    package static let tooSlow = Problem(
        .requestTimeout, .requestTimeout,
        "the request did not arrive within \(RequestClock.limit.components.seconds) s", limit: .requestTime)

    package static let bodyTooSlow = Problem(
        .requestTimeout, .requestTimeout,
        "the body arrived slower than \(RequestClock.bytesPerSecondMin) bytes a second", limit: .bodyRate)

    package static let tooManySlowBodies = Problem(
        .requestTimeout, .requestTimeout,
        "\(RequestClock.slowOfUserMax) other bodies of this user arrive slowly at this time", limit: .userBodies)

    /// RFC 9112, 3.2.
    package static let badHost = Problem(.badRequest, .badRequest, "must name one Host")

    /// RFC 9110, 10.1.1.
    package static let unknownExpectation = Problem(
        .expectationFailed, .expectationFailed, "of Expect only 100-continue is understood")

    package static func tooManyQuestions(retryAfterSeconds: Int) -> Problem {
        Problem(
            .tooManyRequests, .tooManyQuestions, "too many transaction ids without a proof led nowhere today",
            field: "transactionId", limit: .userQuestions, headers: [.retryAfter: String(retryAfterSeconds)])
    }

    /// More requests than a rate allows. Nothing was stored; the client may send the same request later.
    package static func tooManyRequests(_ limit: Limit, retryAfterSeconds: Int) -> Problem {
        Problem(
            .tooManyRequests, .tooManyRequests,
            limit == .userRate
                ? "more requests than one user may send; send it again later"
                : "more requests than this caller may send; send it again later",
            limit: limit, headers: [.retryAfter: String(retryAfterSeconds)])
    }

    /// More new receipts of one user than may be stored. A post of a receipt that is already stored is answered all the
    /// same.
    package static func tooManyReceipts(_ limit: Limit) -> Problem {
        limit == .userOpen
            ? Problem(
                .tooManyRequests, .tooManyOpen, "too many receipts of this user have no verdict yet", limit: limit,
                headers: [.retryAfter: "60"])
            : Problem(
                .tooManyRequests, .tooManyReceipts, "this user posted too many new receipts today", limit: limit,
                headers: [.retryAfter: "3600"])
    }

    /// Too many different lines beside one proof. A line that the receipt knows already is answered all the same.
    package static let tooManyLines = Problem(
        .tooManyRequests, .tooManyLines,
        "too many different orders, items or transactions were named beside this proof; post it with one of them",
        limit: .userLines, headers: [.retryAfter: "3600"])

    /// Nothing was stored, and the client should send the same request again. Retry-After is jittered, so that clients
    /// do not return all at once.
    package static func unavailable(limit: Limit? = nil) -> Problem {
        Problem(
            .serviceUnavailable, .unavailable, "nothing was stored; send it again", limit: limit,
            headers: [.retryAfter: retryAfter])
    }

    /// The problem as a request of this method reads it: a request that only reads has nothing to store.
    func to(_ method: HTTPRequest.Method) -> Problem {
        guard code == .unavailable, method == .get || method == .head else { return self }
        return Problem(
            status, code, "it could not be read now; ask again", field: field, limit: limit, refusal: refusal,
            headers: headers)
    }

    /// Seconds; another random number each time.
    package static var retryAfter: String { String(Int.random(in: 1...5)) }

    package static let internalError = Problem(.internalServerError, .internalError)

    /// Any other error of the HTTP library, by its status alone.
    package init(_ status: HTTPResponse.Status, headers: HTTPFields) {
        var kept: HTTPFields = [:]
        for name in [HTTPField.Name.allow, .retryAfter, .wwwAuthenticate] { kept[name] = headers[name] }
        let code: Code =
            switch status.code {
            case 404: .notFound
            case 405: .methodNotAllowed
            case 413: .bodyTooLarge
            case 400..<500: .badRequest
            default: .internalError
            }
        self.init(status, code, headers: kept)
    }
}

/// An error of a store. Its description holds codes and names of statements, and nothing that was sent.
package protocol StoreError: Error {
    /// The answer that the requester gets.
    var problem: Problem { get }
}
