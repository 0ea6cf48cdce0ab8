import Encoding
package import Foundation
package import Postgres
package import Purchases
import Settings

/// Changes what an app sells, for a person: compares the new catalogue with the one in force, checks it and audits it.
package struct CatalogueEditor: Sendable {
    /// A catalogue of one app, with its changes to the one in force.
    package struct Plan: Sendable {
        package let appID: String
        package let catalogue: Catalogue
        /// The revision that the catalogue gets.
        package let revision: Int
        package let changes: [String]
    }

    private let database: Database
    private let actor: String

    /// - Parameter actor: who does it, for the audit.
    package init(database: Database, actor: String) {
        self.database = database
        self.actor = actor
    }

    /// The catalogue in force; without products where none was applied.
    package func current(_ appID: String) async throws -> Catalogue {
        let revisions = try await database.run(Statements.catalogueRevisions)
        guard let row = revisions.first(where: { $0.appID == appID }),
            let document = try await database.run(Statements.readCatalogue, row).first
        else { return Catalogue(products: []) }
        return try CatalogueFile.parse(document: document, revision: row.revision)
    }

    /// - Throws: `ConfigurationError` where the catalogue would change what was promised.
    package func plan(_ catalogue: Catalogue, for appID: String, at now: Date) async throws -> Plan {
        let current = try await current(appID)
        do throws(CatalogueConflict) {
            return Plan(
                appID: appID, catalogue: catalogue, revision: (current.revision ?? 0) + 1,
                changes: try current.changes(to: catalogue, at: now))
        } catch {
            throw ConfigurationError(key: "\(appID) / \(error.place)", problem: error.problem)
        }
    }

    /// - Throws: `ConfigurationError` where another person has applied a catalogue since the plan was made.
    package func apply(_ plan: Plan) async throws {
        let applied = try await database.run(
            Statements.applyCatalogue,
            .init(
                revision: CatalogueRevision(appID: plan.appID, revision: plan.revision),
                document: CatalogueFile.document(plan.catalogue).text, actor: actor, changes: plan.changes))
        guard !applied.isEmpty else {
            throw ConfigurationError(key: plan.appID, problem: "was changed by somebody else meanwhile; look again")
        }
    }
}
