import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

extension LedgerLab {
    /// An endpoint of the app with its filter, which every process knows from now on.
    func endpoint(
        _ name: String = "shop", app: String = "game", types: [String]? = nil, environments: [String]? = nil
    ) async throws -> EndpointFilter {
        let filter = EndpointFilter(
            key: EndpointKey(appID: app, name: name), types: types, environments: environments)
        _ = try await ledger.run(Statements.registerEndpoints, [filter.key])
        return filter
    }

    /// Writes events of a user, each in a transaction of its own. Their transaction ids are their names.
    func tell(
        _ names: String..., user: String = "u1", app: String = "game", type: EventType = .subscriptionRenewed,
        environment: String? = nil, on session: Database? = nil
    ) async throws {
        let event = Statement<String, Void>(
            "test.tell",
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            values (gen_random_uuid(), $2, $3, $4, $1, gen_random_uuid(),
              jsonb_strip_nulls(jsonb_build_object('environment', $5::text)))
            """,
            bind: { [.text($0), .text(app), .text(type.rawValue), .text(user), .text(environment)] })
        for name in names { try await (session ?? database).run(event, name) }
    }

    /// Numbers until every event has its number. Returns the endpoints that were rung.
    @discardableResult
    func number(for filters: [EndpointFilter] = []) async throws -> Set<UUID> {
        var rung: Set<UUID> = []
        try await until("every event has its number") {
            while let batch = try await ledger.numberEvents(limit: 100, for: filters), batch.events > 0 {
                rung.formUnion(batch.endpoints)
            }
            return try await unnumbered == 0
        }
        return rung
    }

    /// The committed events without a number, also those that the feed does not show yet.
    var unnumbered: Int {
        get async throws {
            try await number("select count(*) from events e, event_progress p where (e.xid, e.id) > (p.xid, p.id)")
        }
    }

    func due(_ filter: EndpointFilter, limit: Int = 100, except: [Int] = []) async throws -> [DueEvent] {
        try await ledger.run(Statements.dueEvents, .init(filter: filter, limit: limit, except: except))
    }

    /// The names of the events that are due at the endpoint, sorted.
    func dueNames(_ filter: EndpointFilter) async throws -> [String] {
        try await due(filter).map { $0.event?.transactionID ?? "nothing" }.sorted()
    }

    /// Stores one result of an event. Whether it is stored.
    func store(
        _ outcome: DeliveryResult.Outcome, _ event: DueEvent, at filter: EndpointFilter
    ) async throws -> Bool {
        let result = DeliveryResult(
            endpoint: filter.key.id, stream: event.stream, sequence: event.sequence, eventID: event.event?.id,
            outcome: outcome)
        let stored = try await ledger.run(Statements.storeResults, [result])
        #expect(stored.map(\.stream) == [event.stream])
        return stored.first?.isStored == true
    }

    /// The one event that is due at the endpoint.
    func onlyDue(_ filter: EndpointFilter) async throws -> DueEvent {
        let events = try await due(filter)
        #expect(events.count == 1)
        return try #require(events.first)
    }

    func cursor(_ filter: EndpointFilter) async throws -> EventCursor {
        try #require(try await ledger.run(Statements.deliveredCursor, filter.key.id).first)
    }

    /// The feed of one app, which shows everything.
    func feed(_ app: String = "game") async throws -> [Event] {
        try await ledger.run(Statements.readEvents, .init(apps: [app], after: .start, limit: 1000))
    }

    /// `name number` of each numbered event of a user's stream, in the order of the numbers.
    func numbers(_ user: String = "u1", app: String = "game") async throws -> [String] {
        try await texts(
            """
            select e.transaction_id || ' ' || s.sequence from event_users u join event_sequences s using (stream)
            join events e on e.xid = s.xid and e.id = s.id
            where u.app_id = '\(app)' and u.user_id = '\(user)' order by s.sequence
            """)
    }
}
