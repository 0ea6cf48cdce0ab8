import Foundation
import Postgres
import Testing

@testable import Ledger

extension RightsTests {
    /// What ingest, a dispatcher, a scheduler and support do about replays. The endpoint `shop` and
    /// some events are known.
    static func workOnReplays(
        in lab: LedgerLab,
        _ act: (DatabaseRole, LedgerLab, (Database) async throws -> Void) async throws -> Void
    ) async throws {
        let shop = EndpointFilter(key: EndpointKey(appID: "game", name: "shop"), environments: ["Sandbox"])
        var question = ReplayQuestion(shop)
        (question.from, question.to) = (.distantPast, Date().addingTimeInterval(3600))
        try await lab.run("update endpoints set seen_at = now(), state = 'working', probe_at = null, reason = null")
        for role in [DatabaseRole.ingest, .support] {
            var id = UUID()
            try await act(role, lab) { database in
                let span = try #require(try await database.run(Statements.countReplay, question).first)
                let request = Statements.ReplayRequest(question, span, actor: "ann")
                id = try #require(try await database.run(Statements.requestReplay, request).first)
                #expect(try await database.run(Statements.readReplay, (id: id, apps: ["game"])).count == 1)
                #expect(try await database.run(Statements.listReplays, (app: nil, limit: 10)).isEmpty == false)
            }
            try await act(.scheduler, lab) { database in
                let due = try await database.run(Statements.dueEndpoints, 10)
                #expect(due == [shop.key.id])
            }
            try await act(.dispatcher, lab) { database in
                let rows = try await database.run(Statements.replayRows, .init(filter: shop, limit: 1))
                let page = try #require(rows.first?.page)
                #expect(page.replay == id)
                let progress = ReplayProgress(
                    replay: id, place: page.end, sent: 1, failure: (reason: "status 500", retryIn: .seconds(60)))
                #expect(try await database.run(Statements.storeReplay, progress) == [true])
            }
            try await act(role, lab) { database in
                let isCancelled = try await database.run(Statements.cancelReplay, (id: id, apps: nil, actor: "ann"))
                #expect(isCancelled == [true])
            }
        }
    }
}
