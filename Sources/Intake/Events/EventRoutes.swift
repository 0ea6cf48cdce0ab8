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

/// `GET /v1/events?after=CURSOR&limit=N&wait=S&appId=A`: the app backend's feed, in commit order and without gaps. With
/// `types=T,…` events of these types alone; `group=NAME` in the place of `after` reads behind a stored cursor;
/// `undelivered=ENDPOINT` events that an endpoint has yet to take.
///
/// Reading changes nothing: the backend keeps its cursor, or stores it in a group (``FeedGroupRoutes``), and may read
/// any part again. Event ids are derived from the purchase's data, so a backend that stores the last id of each purchase
/// gives goods once.
package struct EventRoutes: Sendable {
    package static let limitDefault = 100
    package static let limitMax = 1000
    /// How often a waiting reader looks again.
    package static let interval: Duration = .milliseconds(200)
    /// The most readers that wait at the same time; ingest answers one more at once.
    package static let waitersMax = 64
    /// The most pages of ``limitMax`` events that one look for events of some types reads.
    static let pagesMax = 10

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
            "/v1/events",
            [
                .get: Endpoint("after", "group", "types", "undelivered", "limit", "wait", "appId") { request, _ in
                    try await get(request)
                }
            ])
    }

    /// What a request reads.
    private struct Question {
        var apps: [String]
        /// Nil: all types.
        var types: Set<String>?
        /// Of an endpoint that has yet to take the events. Nil: whether they were taken does not matter.
        var endpoint: EndpointFilter?
        var limit: Int
    }

    /// Events, and the cursor behind them: no event of the question lies before it that was not read.
    private typealias Page = (events: [Event], next: EventCursor)

    private func get(_ request: Request) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.events)
        let wait = try WaitParameter(request).duration
        var question = Question(
            apps: [], types: try Self.types(request), limit: try request.limit(Self.limitDefault, max: Self.limitMax))
        question.endpoint = try endpoint(request, caller)
        var after: EventCursor
        if let stored = try await storedPlace(request, caller) {
            question.apps = [stored.appID]
            after = stored.cursor
        } else {
            question.apps = try caller.apps(request.parameter("appId"), of: configuration.current.appIDs)
            after = try Self.cursor(request)
        }
        if let endpoint = question.endpoint {
            question.apps = [endpoint.key.appID]
            // Everything before was taken.
            if let taken = try await ledger.run(Statements.deliveredCursor, endpoint.key.id).first,
                (taken.place, taken.id) > (after.place, after.id)
            {
                after = taken
            }
        }
        var page = try await read(question, after: after)
        // A reader with such a place would wait for ever.
        if page.events.isEmpty, page.next == after, try await ledger.run(Statements.isBeyondFeed, after).first == true {
            guard request.parameter("group") == nil else {
                throw Problem.badParameter(
                    "group", "a group whose cursor the feed has reached: store another cursor with rewind")
            }
            throw Problem.badParameter("after", "a cursor that this feed has given: it has not come so far yet")
        }
        if page.events.isEmpty, wait > .zero, waiters.enter() {
            defer { waiters.leave() }
            let deadline = ContinuousClock.now + wait
            while page.events.isEmpty, ContinuousClock.now < deadline, !health.isDraining {
                try await Task.sleep(for: min(Self.interval, deadline - ContinuousClock.now))
                page = try await read(question, after: page.next)
            }
        }
        return try Self.response(page, try await reveal(page.events))
    }

    /// The next events of the question. With types or an endpoint, the page may be empty though more follow: its `next`
    /// lies behind the other events that were read.
    private func read(_ question: Question, after: EventCursor) async throws -> Page {
        func look(after: EventCursor, limit: Int) async throws -> [(event: Event, isWanted: Bool)] {
            let read: [(event: Event, isWanted: Bool)]
            if let endpoint = question.endpoint {
                read = try await ledger.run(
                    Statements.readUndelivered, .init(filter: endpoint, after: after, limit: limit)
                ).map { ($0.event, $0.isUndelivered) }
            } else {
                read = try await ledger.run(
                    Statements.readEvents, .init(apps: question.apps, after: after, limit: limit)
                ).map { ($0, true) }
            }
            guard let types = question.types else { return read }
            return read.map { ($0.event, $0.isWanted && types.contains($0.event.type)) }
        }
        guard question.types != nil || question.endpoint != nil else {
            let events = try await look(after: after, limit: question.limit).map(\.event)
            return (events, events.last?.cursor ?? after)
        }
        var next = after
        for _ in 0..<Self.pagesMax {
            let read = try await look(after: next, limit: Self.limitMax)
            let wanted = read.lazy.filter(\.isWanted).map(\.event).prefix(question.limit)
            if let last = wanted.last, wanted.count == question.limit { return (Array(wanted), last.cursor) }
            next = read.last?.event.cursor ?? next
            if !wanted.isEmpty || read.count < Self.limitMax { return (Array(wanted), next) }
        }
        return ([], next)
    }

    /// The app of the named group and the cursor that the group has; nil where the request names no group.
    private func storedPlace(
        _ request: Request, _ caller: Caller
    ) async throws -> (appID: String, cursor: EventCursor)? {
        guard let name = request.parameter("group") else { return nil }
        guard request.parameter("after") == nil else {
            throw Problem.badParameter("after", "left out beside group, which has its own cursor")
        }
        let appID = try caller.app(request.parameter("appId"), of: configuration.current.appIDs)
        let key = try FeedGroupRoutes.key(name, of: appID, field: "group")
        guard let group = try await ledger.run(Statements.readFeedGroup, key).first else {
            throw Problem.noFeedGroup(field: "group")
        }
        return (appID, group.cursor)
    }

    /// The filter of the endpoint that the request names; nil where the request names none.
    private func endpoint(_ request: Request, _ caller: Caller) throws(Problem) -> EndpointFilter? {
        guard let name = request.parameter("undelivered") else { return nil }
        guard request.parameter("group") == nil else {
            throw .badParameter("group", "left out beside undelivered: what an endpoint has taken is its own place")
        }
        let appID = try caller.app(request.parameter("appId"), of: configuration.current.appIDs)
        guard let endpoint = configuration.current.endpoint(name, of: appID) else {
            throw .badParameter("undelivered", "the name of an endpoint of the app in the configuration")
        }
        return endpoint
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

    /// Nil: all types.
    private static func types(_ request: Request) throws(Problem) -> Set<String>? {
        guard let text = request.parameter("types") else { return nil }
        var types: Set<String> = []
        for word in text.split(separator: ",", omittingEmptySubsequences: false) {
            guard let type = EventType(rawValue: String(word)) else {
                let known = EventType.allCases.map(\.rawValue).joined(separator: ", ")
                throw .badParameter("types", "some of these, with commas between: \(known)")
            }
            types.insert(type.rawValue)
        }
        return types
    }

    private static func response(_ page: Page, _ users: [UserName: RevealedUser]) throws -> Response {
        let entries = try page.events.map { JSONValue.object(try $0.members(of: users[$0.user])) }
        return Response(
            json: .object([.init("events", .array(entries)), .init("next", .string(page.next.text))]))
    }
}

extension Configuration {
    /// Which events an endpoint of an app gets; nil: the file defines no such endpoint.
    func endpoint(_ name: String, of appID: String) -> EndpointFilter? {
        apps[appID]?.endpoints.first { $0.name.isSameText(as: name) }.map { endpoint in
            EndpointFilter(
                key: EndpointKey(appID: appID, name: endpoint.name), types: endpoint.typeNames,
                environments: endpoint.environmentNames)
        }
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
