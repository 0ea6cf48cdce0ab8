import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
package import Service
package import Settings

/// `/v1/feed-groups` and `/v1/feed-groups/{name}`: where the app's backend stores up to where it has handled the events
/// of one app, so that its lag is seen and a new process reads on from there (B8).
///
/// A group is of one app: a cursor of several apps would pass over the past of an app that a key gets later. The cursor
/// goes only forward, unless the backend rewinds it: of two readers the slower one cannot take the other one back.
package struct FeedGroupRoutes: Sendable {
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
        router.serve("/v1/feed-groups", [.get: Endpoint("appId") { request, _ in try await list(request) }])
        router.serve(
            "/v1/feed-groups/:name",
            [
                .get: Endpoint("appId") { try await get($0, $1) }, .put: Endpoint("appId") { try await put($0, $1) },
                .delete: Endpoint("appId") { try await forget($0, $1) },
            ])
    }

    /// Answers with the groups of the caller's apps, each with its lag.
    private func list(_ request: Request) async throws -> Response {
        let caller = try await admit(request)
        let apps = try caller.apps(request.parameter("appId"), of: configuration.current.appIDs)
        let groups = try await ledger.run(Statements.feedGroupLags, apps)
        return Response(json: .object([.init("groups", .array(groups.map { .object($0.members) }))]))
    }

    private func get(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let key = try self.key(request, context, of: try await admit(request))
        guard let lag = try await ledger.run(Statements.feedGroupLag, key).first else {
            throw Problem.noFeedGroup(field: "name")
        }
        return Response(json: .object(lag.members))
    }

    /// Answers 200, even if the group had the same cursor before: a caller whose answer was lost may send it again.
    private func put(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await admit(request)
        let key = try self.key(request, context, of: caller)
        let (cursor, rewinds, body) = try await bodies.withBody(of: request, context, from: caller) {
            try Self.read($0)
        }
        let apps = try caller.apps(nil, of: configuration.current.appIDs)
        guard try await ledger.run(Statements.isGivenCursor, .init(cursor, apps: apps)).first == true else {
            throw Problem.incomplete(
                .unknownCursor,
                "is not the place of an event that this feed shows: after a restored backup, read on from the group",
                field: "after")
        }
        guard let group = try await ledger.run(Statements.storeFeedCursor, .init(key, cursor, rewinds: rewinds)).first
        else {
            // The statement that refused knows only the group of before it waited for another reader.
            guard let group = try await ledger.run(Statements.readFeedGroup, key).first else {
                throw Problem.conflict(.tooManyGroups, "one app has \(FeedGroup.perAppMax) groups at most")
            }
            throw Problem.cursorBehind(group.cursor)
        }
        return Response(
            json: .object(
                [
                    .init("name", .string(key.name)), .init("appId", .string(key.appID)),
                    .init("after", .string(group.cursor.text)), .init("storedAt", .string(group.storedAt.rfc3339)),
                ] + body.ignoredMember))
    }

    private func forget(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let key = try self.key(request, context, of: try await admit(request))
        guard try await ledger.run(Statements.forgetFeedGroup, key).first == true else {
            throw Problem.noFeedGroup(field: "name")
        }
        return Response(json: .object([]), status: .ok)
    }

    /// A user's own token speaks for no backend, whatever its scopes say.
    private func admit(_ request: Request) async throws -> Caller {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        guard caller.userID == nil else { throw Problem.missingScope(.events) }
        return caller
    }

    private func key(_ request: Request, _ context: HTTPContext, of caller: Caller) throws(Problem) -> FeedGroup.Key {
        let appID = try caller.app(request.parameter("appId"), of: configuration.current.appIDs)
        return try Self.key(context.parameters.get("name") ?? "", of: appID, field: "name")
    }

    /// - Throws: 400 for a name that no group has.
    static func key(_ name: String, of appID: String, field: String) throws(Problem) -> FeedGroup.Key {
        guard let key = FeedGroup.Key(appID: appID, name: name) else {
            throw .badParameter(field, "1 to \(FeedGroup.nameBytesMax) of the characters a to z, 0 to 9 and -")
        }
        return key
    }

    private static func read(_ bytes: [UInt8]) throws(Problem) -> (EventCursor, rewinds: Bool, ClosedBody) {
        let body = try ClosedBody(bytes, members: ["after", "rewind"])
        guard case .string(let text)? = body["after"], let cursor = EventCursor(text) else {
            throw .wrongType("after", "a cursor that the feed has given, or 0-0")
        }
        switch body["rewind"] {
        case nil: return (cursor, rewinds: false, body)
        case .bool(let rewinds)?: return (cursor, rewinds: rewinds, body)
        default: throw .wrongType("rewind", "true or false")
        }
    }
}

extension FeedGroupLag {
    /// The members of an answer.
    fileprivate var members: [JSONValue.Member] {
        var members: [JSONValue.Member] = [
            .init("name", .string(name)), .init("appId", .string(appID)), .init("after", .string(cursor)),
            .init("storedAt", .string(storedAt.rfc3339)),
            .init("eventsBehind", .integer(min(eventsBehind, FeedGroup.countedMax))),
            .init("hasMore", .bool(eventsBehind > FeedGroup.countedMax)),
            .init("lagSeconds", .integer(Int(seconds))),
        ]
        if let oldestAt { members.append(.init("oldestAt", .string(oldestAt.rfc3339))) }
        return members
    }
}

extension Problem {
    static func noFeedGroup(field: String) -> Problem {
        Problem(.notFound, .notFound, "this app has no such group", field: field)
    }

    /// - Parameter stored: the cursor that the group keeps.
    fileprivate static func cursorBehind(_ stored: EventCursor) -> Problem {
        Problem(
            .conflict, .cursorBehind, "the group has handled more, up to `stored`; to go back, send rewind: true",
            field: "after", stored: stored.text)
    }
}
