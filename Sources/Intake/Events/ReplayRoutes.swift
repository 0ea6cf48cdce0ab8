import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import Purchases
package import Service
package import Settings

/// `POST /v1/replays`, and `GET` and `DELETE /v1/replays/{id}`: an endpoint gets events of its app once more, chosen by
/// time, type, user or id (B8).
///
/// The events have the ids of before and say which replay sends them. They go behind everything fresh, and what the
/// endpoint has yet to get comes by itself. The same request may be sent again while its replay runs.
package struct ReplayRoutes: Sendable {
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
        router.serve("/v1/replays", [.post: Endpoint { try await begin($0, $1) }])
        router.serve(
            "/v1/replays/:id",
            [.get: Endpoint { try await get($0, $1) }, .delete: Endpoint { try await cancel($0, $1) }])
    }

    /// Answers 202 with the replay, or 200 with the count alone after `dryRun`. Answers 404 for an unknown endpoint, 409
    /// for an erased user and where too many replays run, 422 where no event is chosen.
    private func begin(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await admit(request)
        let (asked, body) = try await bodies.withBody(of: request, context, from: caller) { try Asked.read($0) }
        let configuration = configuration.current
        let appID = try caller.app(asked.appID, of: configuration.appIDs)
        let question = try await question(asked, of: appID, configuration)
        guard let span = try await ledger.run(Statements.countReplay, question).first else {
            throw Problem.noEndpoint
        }
        guard !asked.isDryRun else {
            return Response(
                json: .object(
                    [.init("appId", .string(appID)), .init("endpoint", .string(question.endpoint.key.name))]
                        + EventReplay.members(events: span.events, isCounted: span.isCounted) + body.ignoredMember))
        }
        guard span.events > 0 || !span.isCounted else {
            throw Problem.incomplete(
                .nothingToReplay, "no event of this app is chosen that the endpoint gets", field: asked.narrowest)
        }
        let replay = Statements.ReplayRequest(question, span, actor: caller.name)
        guard let id = try await ledger.run(Statements.requestReplay, replay).first else {
            throw Problem.conflict(
                .tooManyReplays, "\(EventReplay.runningMax) replays of an endpoint run at most: wait, or cancel one",
                field: "endpoint")
        }
        return Response(
            json: .object(try await find(id, [appID]).members + body.ignoredMember), status: .accepted)
    }

    private func get(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let (id, apps, _) = try await replay(request, context)
        return Response(json: .object(try await find(id, apps).members))
    }

    /// Answers 200 with the replay, also if it had ended before.
    private func cancel(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let (id, apps, caller) = try await replay(request, context)
        _ = try await ledger.run(Statements.cancelReplay, (id: id, apps: apps, actor: caller.name))
        return Response(json: .object(try await find(id, apps).members))
    }

    /// A user's own token speaks for no backend, whatever its scopes say.
    private func admit(_ request: Request) async throws -> Caller {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        guard caller.userID == nil else { throw Problem.missingScope(.events) }
        return caller
    }

    private func replay(
        _ request: Request, _ context: HTTPContext
    ) async throws -> (id: UUID, apps: [String], caller: Caller) {
        let caller = try await admit(request)
        guard let id = context.parameters.get("id").flatMap(UUID.init(uuidString:)) else {
            throw Problem.badParameter("id", "the id of a replay, a UUID")
        }
        return (id, try caller.apps(nil, of: configuration.current.appIDs), caller)
    }

    private func find(_ id: UUID, _ apps: [String]) async throws -> EventReplay {
        guard let replay = try await ledger.run(Statements.readReplay, (id: id, apps: apps)).first else {
            throw Problem(.notFound, .notFound, "no such replay", field: "id")
        }
        return replay
    }

    private func question(
        _ asked: Asked, of appID: String, _ configuration: Configuration
    ) async throws -> ReplayQuestion {
        guard let endpoint = configuration.endpoint(asked.endpoint, of: appID) else { throw Problem.noEndpoint }
        var question = ReplayQuestion(endpoint)
        (question.from, question.to, question.types, question.ids) = (asked.from, asked.to, asked.types, asked.ids)
        question.user = asked.userID
        if let userID = asked.userID, let keys = configuration.userKeys {
            let name = UserName(appID: appID, key: keys.key(of: userID, app: appID))
            guard try await ledger.run(Statements.registeredUsers, [name]).first.map({ $0.sealed != nil }) ?? true
            else {
                throw Problem.conflict(.userErased, "was erased", field: "userId")
            }
            question.user = name.key
        }
        return question
    }
}

/// What the body of a request asks for.
private struct Asked {
    var appID: String?
    var endpoint = ""
    var from: Date?
    var to: Date?
    var types: [EventType]?
    var userID: String?
    var ids: [UUID]?
    var isDryRun = false

    /// The member that chooses the fewest events.
    var narrowest: String {
        if ids != nil { return "ids" }
        if userID != nil { return "userId" }
        if types != nil { return "types" }
        return from != nil ? "from" : to != nil ? "to" : "endpoint"
    }

    static func read(_ bytes: [UInt8]) throws(Problem) -> (Asked, ClosedBody) {
        let body = try ClosedBody(
            bytes, members: ["appId", "endpoint", "from", "to", "types", "userId", "ids", "dryRun"])
        var asked = Asked()
        switch body["appId"] {
        case nil: break
        case .string(let id)?: asked.appID = id
        default: throw .wrongType("appId", "a text")
        }
        guard case .string(let name)? = body["endpoint"] else {
            throw .wrongType("endpoint", "the name of an endpoint of the app")
        }
        asked.endpoint = name
        asked.from = try time("from", body)
        asked.to = try time("to", body)
        if let from = asked.from, let to = asked.to, from >= to { throw .wrongType("from", "a time before `to`") }
        asked.types = try list("types", body, max: EventType.allCases.count) { value in
            guard case .string(let word) = value else { return nil }
            return EventType(rawValue: word)
        } wanted: {
            "some of: " + EventType.allCases.map(\.rawValue).joined(separator: ", ")
        }
        asked.ids = try list("ids", body, max: ReplayQuestion.idsMax) { value in
            guard case .string(let text) = value else { return nil }
            return UUID(uuidString: text)
        } wanted: {
            "1 to \(ReplayQuestion.idsMax) ids of events, each a UUID"
        }
        switch body["userId"]?.wholeNumber.map({ .string($0) }) ?? body["userId"] {
        case nil: break
        case .string(let id)? where !id.isEmpty:
            guard id.utf8.count <= IntakeFields.userBytesMax else {
                throw .tooLong("userId", bytesMax: IntakeFields.userBytesMax)
            }
            asked.userID = id
        default: throw .wrongType("userId", "a text or a whole number")
        }
        switch body["dryRun"] {
        case nil: break
        case .bool(let isDryRun)?: asked.isDryRun = isDryRun
        default: throw .wrongType("dryRun", "true or false")
        }
        return (asked, body)
    }

    private static func time(_ name: String, _ body: ClosedBody) throws(Problem) -> Date? {
        guard let value = body[name] else { return nil }
        guard case .string(let text) = value, let date = Date(rfc3339: text) else {
            throw .wrongType(name, "a time such as 2026-11-30T12:00:00Z")
        }
        return date
    }

    /// A list of one element and more; nil where it is not there.
    private static func list<Element>(
        _ name: String, _ body: ClosedBody, max: Int, _ read: (JSONValue) -> Element?, wanted: () -> String
    ) throws(Problem) -> [Element]? {
        guard let value = body[name] else { return nil }
        guard case .array(let values) = value, (1...max).contains(values.count) else {
            throw .wrongType(name, wanted())
        }
        var elements: [Element] = []
        for (index, value) in values.enumerated() {
            guard let element = read(value) else { throw .wrongType("\(name)[\(index)]", wanted()) }
            elements.append(element)
        }
        return elements
    }
}

extension EventReplay {
    fileprivate static func members(events: Int, isCounted: Bool) -> [JSONValue.Member] {
        [.init("events", .integer(events)), .init("hasMore", .bool(!isCounted))]
    }

    /// The members of an answer.
    fileprivate var members: [JSONValue.Member] {
        var members: [JSONValue.Member] = [
            .init("replayId", .string(id.text)), .init("appId", .string(appID)), .init("endpoint", .string(endpoint)),
            .init("state", .string(state.rawValue)), .init("requestedAt", .string(requestedAt.rfc3339)),
        ]
        members += Self.members(events: events, isCounted: isCounted) + [.init("sent", .integer(sent))]
        if let from { members.append(.init("from", .string(from.rfc3339))) }
        if let to { members.append(.init("to", .string(to.rfc3339))) }
        if let types { members.append(.init("types", .array(types.map(JSONValue.string)))) }
        if attempts > 0 { members.append(.init("attempts", .integer(attempts))) }
        if let lastError { members.append(.init("lastError", .string(lastError))) }
        if let nextAt { members.append(.init("nextAt", .string(nextAt.rfc3339))) }
        if let endedAt { members.append(.init("endedAt", .string(endedAt.rfc3339))) }
        return members
    }
}

extension Problem {
    fileprivate static let noEndpoint = Problem(
        .notFound, .notFound, "this app has no such endpoint, or no dispatcher has run with it yet", field: "endpoint")
}
