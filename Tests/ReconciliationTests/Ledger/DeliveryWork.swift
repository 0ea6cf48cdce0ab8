import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

extension RightsTests {
    /// The work of a dispatcher, of a scheduler and of support on the delivery of events.
    static func workOnDelivery(
        in lab: LedgerLab,
        _ act: (DatabaseRole, LedgerLab, (Database) async throws -> Void) async throws -> Void
    ) async throws {
        let shop = EndpointFilter(key: EndpointKey(appID: "game", name: "shop"))
        let request = TurnRequest(endpoint: shop.key.id, holder: UUID(), length: .seconds(60))
        var change = EndpointHealthChange(
            endpoint: request.endpoint, holder: request.holder, state: .failing, failures: 8, probes: 0,
            failingSince: .now, probeIn: .zero, reason: nil, lastStatus: 500, lastError: "status 500")
        func result(of event: DueEvent, _ outcome: DeliveryResult.Outcome) -> DeliveryResult {
            DeliveryResult(
                endpoint: shop.key.id, stream: event.stream, sequence: event.sequence, eventID: event.event?.id,
                outcome: outcome)
        }
        try await act(.dispatcher, lab) { database in
            let start = Statements.AppStart(appID: "game", configurationHash: [1])
            try await database.run(Statements.rememberApp, start)
            try await database.run(Statements.listHalts, ())
            try await database.run(Statements.registeredUsers, [UserName(appID: "game", key: "u1")])
            try await database.run(Statements.registerEndpoints, [shop.key])
            let report = HandOutReport(
                apps: ["game"], transactionID: "none", eventID: UUID(),
                try HandOut(.object([.init("outcome", .string("handed_out"))])))
            let stored = try await database.run(Statements.handleEvent, report)
            #expect(stored.map(\.word) == [.unknown])
        }
        try await lab.tell("d1", "d2", user: "d1")
        try await lab.tell("d3", user: "d2")
        try await lab.tell("d4", user: "d3")
        var failed: [UUID] = []
        try await act(.dispatcher, lab) { database in
            try await lab.until("every event has its number") {
                _ = try await database.numberEvents(limit: 100, for: [shop])
                return try await lab.unnumbered == 0
            }
            #expect(try await database.run(Statements.takeTurn, request).map(\.state) == [.working])
            let due = try await database.run(Statements.dueEvents, .init(filter: shop, limit: 100, except: []))
            let ours = due.filter { ["d1", "d3", "d4"].contains($0.event?.transactionID) }
            #expect(ours.count == 3)
            failed = ours.dropFirst().compactMap { $0.event?.id }
            let results =
                ours.prefix(1).map { result(of: $0, .delivered) }
                + ours.dropFirst().map { result(of: $0, .failed(reason: "status 500", retryIn: nil)) }
            #expect(try await database.run(Statements.storeResults, results).allSatisfy(\.isStored))
            #expect(try await database.run(Statements.deliveredCursor, shop.key.id).count == 1)
            #expect(try await database.run(Statements.storeHealth, change) == [true])
            change.state = .suspended
            (change.probeIn, change.reason) = (nil, "gone")
            #expect(try await database.run(Statements.storeHealth, change) == [true])
            try await database.run(Statements.endTurn, request)
        }
        try await act(.support, lab) { database in
            let standings = try await database.run(Statements.endpointStandings, nil)
            #expect(standings.map(\.parkedStreams) == [2])
            #expect(
                try await database.run(Statements.undeliveredEvents, (endpoint: shop.key.id, limit: 10)).count == 2)
            #expect(
                try await database.run(Statements.resumeEndpoint, (endpoint: shop.key.id, actor: "ann")) == [true])
            #expect(
                try await database.run(
                    Statements.skipEvent, (endpoint: shop.key.id, event: failed[0], reason: "r", actor: "ann")
                ) == [true])
            #expect(
                try await database.run(
                    Statements.redriveEvents, .init(endpoint: shop.key.id, .parked, actor: "ann")) == [1])
        }
        try await act(.scheduler, lab) { database in
            let due = try await database.run(Statements.dueEndpoints, 10)
            #expect(due == [shop.key.id])
            #expect(try await database.run(Statements.allEndpointStandings, ()).count == 1)
            #expect(try await database.run(Statements.numberingLag, ()).count == 1)
            #expect(try await Invariant.check(database, span: .all) == [])
        }
    }
}
