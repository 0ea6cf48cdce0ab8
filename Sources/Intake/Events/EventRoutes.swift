import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import NIOCore
import Purchases
package import Service
package import Settings
import Synchronization

/// `GET /v1/events?after=CURSOR&limit=N&wait=S&appId=A`: the app backend's feed, in commit order and without gaps.
///
/// Reading changes nothing: the backend keeps its cursor and may read any part again. Event ids are derived from the
/// purchase's data, so a backend that stores the last id of each purchase gives goods once.
package struct EventRoutes: Sendable {
    package static let limitDefault = 100
    package static let limitMax = 1000
    /// How often a waiting reader looks again.
    package static let interval: Duration = .milliseconds(200)
    /// The most readers that wait at the same time; ingest answers one more at once.
    package static let waitersMax = 64

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let users: UserRegister
    private let authenticator: Authenticator
    private let health: Health
    private let waiters = WaiterCount()

    package init(ledger: Ledger, configuration: ConfigurationHolder, authenticator: Authenticator, health: Health) {
        self.ledger = ledger
        self.configuration = configuration
        users = UserRegister(ledger: ledger)
        self.authenticator = authenticator
        self.health = health
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/events", [.get: Endpoint("after", "limit", "wait", "appId") { request, _ in try await get(request) }])
    }

    private func get(_ request: Request) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        let wait = try WaitParameter(request).duration
        let page = Statements.EventPage(
            apps: try caller.apps(request.parameter("appId"), of: configuration.current.appIDs),
            after: try Self.cursor(request), limit: try request.limit(Self.limitDefault, max: Self.limitMax))
        var events = try await ledger.run(Statements.readEvents, page)
        // A reader with such a place would wait for ever.
        if events.isEmpty, try await ledger.run(Statements.isBeyondFeed, page.after).first == true {
            throw Problem.badParameter("after", "a cursor that this feed has given: it has not come so far yet")
        }
        if events.isEmpty, wait > .zero, waiters.enter() {
            defer { waiters.leave() }
            let deadline = ContinuousClock.now + wait
            while events.isEmpty, ContinuousClock.now < deadline, !health.isDraining {
                try await Task.sleep(for: min(Self.interval, deadline - ContinuousClock.now))
                events = try await ledger.run(Statements.readEvents, page)
            }
        }
        return try Self.response(events, try await reveal(events), after: page.after)
    }

    /// The user ids behind the keys; empty where the events hold the ids themselves.
    private func reveal(_ events: [Event]) async throws -> [UserName: RevealedUser] {
        guard let keys = configuration.current.userKeys else { return [:] }
        let revealed = try await users.reveal(Set(events.map(\.user)), keys)
        // A backend that gave goods to an unreadable user would give them to the wrong one: the feed waits until the
        // file has its keys again.
        if revealed.values.contains(.unreadable) { throw Problem.unavailable() }
        return revealed
    }

    private static func cursor(_ request: Request) throws(Problem) -> EventCursor {
        guard let text = request.parameter("after"), !text.isEmpty else { return .start }
        guard let cursor = EventCursor(text) else {
            throw .badParameter("after", "a cursor that this feed has given, or 0-0")
        }
        return cursor
    }

    private static func response(
        _ events: [Event], _ users: [UserName: RevealedUser], after: EventCursor
    ) throws -> Response {
        var entries: [JSONValue] = []
        for event in events {
            let user = users[event.user]
            var userID = event.userID
            if case .id(let id)? = user { userID = id }
            var members: [JSONValue.Member] = [
                .init("id", .string(event.id.text)),
                .init("type", .string(event.type)),
                .init("appId", .string(event.appID)),
                .init("userId", .string(userID)),
            ]
            if user == .erased { members.append(.init("erased", .bool(true))) }
            // A type that is not known here was written by a newer program, about a purchase as most are.
            let type = EventType(rawValue: event.type)
            if type?.namesTransaction != false { members.append(.init("transactionId", .string(event.transactionID))) }
            if type?.namesReceipt != false { members.append(.init("receiptId", .string(event.receiptID.text))) }
            members += [
                .init("at", .string(event.at.rfc3339)),
                .init("data", try JSONValue(parsing: Array(event.body.utf8))),
            ]
            entries.append(.object(members))
        }
        return Response(
            json: .object([
                .init("events", .array(entries)), .init("next", .string((events.last?.cursor ?? after).text)),
            ]))
    }
}

/// The number of readers that wait, up to the bound.
private final class WaiterCount: Sendable {
    private let count = Atomic<Int>(0)

    func enter() -> Bool {
        guard count.wrappingAdd(1, ordering: .relaxed).newValue <= EventRoutes.waitersMax else {
            leave()
            return false
        }
        return true
    }

    func leave() {
        count.wrappingSubtract(1, ordering: .relaxed)
    }
}
