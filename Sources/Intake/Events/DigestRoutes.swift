import Crypto
import Encoding
import Foundation
import Hummingbird
package import Ledger
import Metrics
import Postgres
package import Service
package import Settings

/// `GET /v1/events/digest` and `POST /v1/events/digest`: how many events a day had and a hash over their ids, so that
/// the app's backend proves that it has all of them, and learns the ids of those that it misses (L3).
///
/// A day is `2026-11-29`, in UTC, by the events' `at`; an hour or a minute of it (`2026-11-29T13`, `2026-11-29T13:05`)
/// has fewer events. A day that has not ended has a digest up to a cursor of the feed.
package struct DigestRoutes: Sendable {
    /// The most ids of a comparison.
    package static let idsMax = 100_000

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let bodies: BodyReader

    package init(
        ledger: Ledger, configuration: ConfigurationHolder, authenticator: Authenticator, bodies: BodyReader
    ) {
        self.ledger = ledger
        self.configuration = configuration
        self.authenticator = authenticator
        self.bodies = bodies
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/events/digest",
            [
                .get: Endpoint("appId", "day", "upTo") { request, _ in try await get(request) },
                .post: Endpoint("appId") { try await compare($0, $1) },
            ])
    }

    private func get(_ request: Request) async throws -> Response {
        let appID = try self.appID(request, try await admit(request))
        let span = try await span(
            appID, day: request.parameter("day"), upTo: request.parameter("upTo"), Problem.badParameter)
        return Response(json: .object(Self.members(span, try await digest(span), request.parameter("day"))))
    }

    /// Answers 200 whether the two sides agree or not: `matches` says it. Without ids it names none.
    private func compare(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await admit(request)
        let appID = try self.appID(request, caller)
        let (said, body) = try await bodies.withBody(of: request, context, from: caller) { try Self.read($0) }
        let span = try await span(appID, day: said.day, upTo: said.upTo, Problem.wrongType)
        let digest = try await digest(span)
        var members = Self.members(span, digest, said.day)
        let matches: Bool
        switch said.side {
        case .digest(let count, let sha256): matches = count == digest.count && sha256 == digest.sha256
        case .ids(let ids):
            let differences = try await ledger.run(Statements.digestDifferences, .init(span, ids))
            matches = differences.isEmpty
            for (name, isUnknown) in [("missing", false), ("unknown", true)] {
                let ofKind = differences.filter { $0.isUnknown == isUnknown }
                members += [
                    .init("\(name)Count", .integer(ofKind.first?.all ?? 0)),
                    .init(name, .array(ofKind.map { .string($0.id.text) })),
                ]
            }
        }
        Counter(
            label: "makegood_event_digests_total",
            dimensions: [("app", appID), ("matches", matches ? "true" : "false")]
        ).increment()
        return Response(json: .object([.init("matches", .bool(matches))] + members + body.ignoredMember))
    }

    /// A user's own token speaks for no backend, whatever its scopes say.
    private func admit(_ request: Request) async throws -> Caller {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        guard caller.userID == nil else { throw Problem.missingScope(.events) }
        return caller
    }

    private func appID(_ request: Request, _ caller: Caller) throws(Problem) -> String {
        try caller.app(request.parameter("appId"), of: configuration.current.appIDs)
    }

    /// - Parameter wrong: makes the problem of a wrong field.
    /// - Throws: 400 for a field that is wrong, 409 for a day that may still get events where no cursor bounds it.
    private func span(
        _ appID: String, day: String?, upTo: String?, _ wrong: (String, String) -> Problem
    ) async throws -> DigestSpan {
        let cursor = upTo.flatMap { EventCursor($0) }
        guard upTo == nil || cursor != nil else { throw wrong("upTo", "a cursor that the feed has given") }
        guard let day, let span = DigestSpan(appID: appID, day: day, upTo: cursor) else {
            throw wrong(
                "day", "a day in UTC such as 2026-11-29, an hour (2026-11-29T13) or a minute (2026-11-29T13:05)")
        }
        if let cursor {
            guard try await ledger.run(Statements.isBeyondFeed, cursor).first != true else {
                throw wrong("upTo", "a cursor that the feed has given: it has not come so far yet")
            }
        } else {
            guard try await ledger.run(Statements.isDigestWhole, span).first == true else {
                throw Problem(
                    .conflict, .dayOpen,
                    "may still get events: ask some ten minutes after its end, or with upTo, a cursor of the feed",
                    field: "day")
            }
        }
        return span
    }

    /// - Throws: 422 for a span with too many events.
    private func digest(_ span: DigestSpan) async throws -> EventDigest {
        guard let digest = try await ledger.run(Statements.eventDigest, span).first else { throw Problem.unavailable() }
        guard digest.count <= Statements.digestMax else {
            throw Problem.incomplete(
                .tooManyEvents,
                "has more than \(Statements.digestMax) events: ask for an hour (2026-11-29T13) or a minute of it",
                field: "day")
        }
        return digest
    }

    private static func members(_ span: DigestSpan, _ digest: EventDigest, _ day: String?) -> [JSONValue.Member] {
        let upTo = span.upTo.map { [JSONValue.Member("upTo", .string($0.text))] } ?? []
        return [.init("appId", .string(span.appID)), .init("day", .string(day ?? ""))] + upTo + [
            .init("count", .integer(digest.count)), .init("sha256", .string(digest.sha256.hexadecimal)),
        ]
    }

    // MARK: The body

    /// What the backend says that it has.
    private enum Side {
        case digest(count: Int, sha256: [UInt8])
        case ids([UUID])
    }

    private static func read(
        _ bytes: [UInt8]
    ) throws(Problem) -> (said: (day: String?, upTo: String?, side: Side), ClosedBody) {
        let body = try ClosedBody(bytes, members: ["day", "upTo", "count", "sha256", "ids"])
        func text(_ name: String) throws(Problem) -> String? {
            switch body[name] {
            case nil: return nil
            case .string(let text)?: return text
            default: throw .wrongType(name, "a text")
            }
        }
        let (day, upTo) = (try text("day"), try text("upTo"))
        guard let list = body["ids"] else {
            guard let count = body["count"]?.wholeNumber.flatMap({ Int($0) }), count >= 0 else {
                throw .wrongType("count", "a whole number beside sha256; or ids in their place")
            }
            guard case .string(let hash)? = body["sha256"], let sha256 = [UInt8](hexadecimal: hash),
                sha256.count == SHA256.byteCount
            else { throw .wrongType("sha256", "64 hexadecimal digits") }
            return ((day, upTo, .digest(count: count, sha256: sha256)), body)
        }
        for name in ["count", "sha256"] where body[name] != nil { throw .wrongType(name, "left out beside ids") }
        guard case .array(let values) = list, values.count <= idsMax else {
            throw .wrongType("ids", "a list of at most \(idsMax) ids: compare an hour or a minute")
        }
        var ids: [UUID] = []
        ids.reserveCapacity(values.count)
        for (index, value) in values.enumerated() {
            guard case .string(let text) = value, let id = UUID(uuidString: text) else {
                throw .wrongType("ids[\(index)]", "the id of an event, a UUID")
            }
            ids.append(id)
        }
        return ((day, upTo, .ids(ids)), body)
    }
}
