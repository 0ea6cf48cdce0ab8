import Foundation
import TestServers
import Testing

/// Goal: a person changes the catalogue and sees the effect, before and after (B6). Method: the built program on a real
/// database of its own.
@Suite(.timeLimit(.minutes(5))) struct CatalogTests {
    private static let configuration = """
        apps:
          - id: game
            bundleId: com.example.game
            environments: [Sandbox]
            products: [{id: coins6, type: consumable, goods: [{item: coins, amount: 6000}]}]
        """

    private static func catalogue(_ amount: Int, _ more: String = "") -> String {
        """
        apps:
          - id: game
            products:
              - {id: tier1, type: consumable, goods: [{item: gems, amount: \(amount)}]\(more)}
        """
    }

    @Test("apply says what changes, --dry-run only says it, show shows it, and what was promised is not taken back")
    func wholeWay() async throws {
        let database = try await TestDatabase.make()
        do {
            try await withFolder { folder in
                let environment = [
                    "MAKEGOOD_POSTGRES_URL": database.url,
                    "MAKEGOOD_CONFIG": try Self.configuration.written(to: folder, as: "makegood.yaml"),
                ]
                let first = try Self.catalogue(60).written(to: folder, as: "first.yaml")
                let broken = try Self.catalogue(70).written(to: folder, as: "broken.yaml")
                let typo = try Self.catalogue(60, ", limit: 1").written(to: folder, as: "typo.yaml")
                let limits = Self.catalogue(60, ", limits: {day: 2}")
                func run(_ arguments: String..., input: String = "") async throws -> BuiltProgram.Outcome {
                    try await BuiltProgram(
                        arguments: arguments, input: .init(input.utf8), environment: environment
                    ).run()
                }
                #expect(try await run("migrate").status == 0)
                let before = try await run("catalog", "show", "--app", "game")
                #expect(before.output.contains("coins6: consumable, default coins6, of the configuration"))
                let dry = try await run("catalog", "apply", first, "--dry-run")
                #expect(dry.status == 0 && dry.output.contains("not applied"), "\(dry.complaint)")
                #expect(dry.output.contains("game: + tier1 / tier1, from ever: 60 gems"))
                let applied = try await run("catalog", "apply", first)
                #expect(applied.status == 0 && applied.output.contains("revision 1"), "\(applied.complaint)")
                #expect(try await run("catalog", "apply", first).output == "game: nothing to do\n")
                let refused = try await run("catalog", "apply", broken)
                #expect(refused.status != 0 && refused.complaint.contains("game / tier1 / tier1, from ever"))
                let misspelt = try await run("catalog", "apply", typo)
                #expect(misspelt.status != 0 && misspelt.complaint.contains("apps[0].products[0].limit"))
                let piped = try await run("catalog", "apply", "-", input: limits)
                #expect(piped.output.contains("at most 2 a user and day") && piped.output.contains("revision 2"))
                let shown = try await run("catalog", "show", "--app", "game")
                #expect(shown.output.contains("revision 2") && shown.output.contains("from ever: 60 gems"))
                #expect(shown.output.contains("of the configuration"), "what no catalogue names stands as it was")
                let json = try await run("catalog", "show", "--app", "game", "--json")
                #expect((json.json["products"] as? [Any])?.count == 2)
                let unknown = try await run(
                    "catalog", "apply", "-", input: "apps: [{id: nobody, products: []}]")
                #expect(unknown.status != 0 && unknown.complaint.contains("nobody"))
            }
        } catch {
            await database.drop()
            throw error
        }
        await database.drop()
    }
}
