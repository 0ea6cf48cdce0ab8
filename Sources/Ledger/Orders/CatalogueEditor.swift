import Encoding
package import Foundation
package import Postgres
package import Purchases
import Settings

/// Where a person changes what is sold: compared with what is in force, checked, audited.
package struct CatalogueEditor: Sendable {
    /// A catalogue of one app with what it changes.
    package struct Plan: Sendable {
        package let appID: String
        package let catalogue: Catalogue
        /// What it will be.
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

    /// - Throws: `ConfigurationError` where it would change what was promised.
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

    /// - Throws: `ConfigurationError` where somebody else has applied one since the plan was made.
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
