/// The PostgreSQL roles that work on the database, one for each kind of user. The owner of the schema, who runs the
/// migrations, is not among them: none of these roles may create, change or drop anything.
package enum DatabaseRole: String, CaseIterable, Sendable {
    /// The four services. `all` is the role of a process that runs all of them; `all` is a member of their roles.
    case ingest, worker, scheduler, dispatcher, all
    /// People: the commands `check`, `queue` and `support`.
    case support
    /// Dashboards: the views, read-only, without payloads.
    case dashboard
}

/// One right of one role on one object. Without columns the right covers all columns, also those that a later migration
/// adds.
package struct Right: Sendable, Hashable {
    package enum Verb: String, Sendable {
        case select, insert, update, execute
    }

    package let verb: Verb
    package let columns: [String]

    static let select = Right(verb: .select, columns: [])
    static let insert = Right(verb: .insert, columns: [])
    static let execute = Right(verb: .execute, columns: [])

    static func select(_ columns: String...) -> Right { Right(verb: .select, columns: columns) }
    static func insert(_ columns: String...) -> Right { Right(verb: .insert, columns: columns) }
    static func update(_ columns: String...) -> Right { Right(verb: .update, columns: columns) }

    /// The right as GRANT and a person read it: `update (due_at, lane)`.
    package var text: String {
        columns.isEmpty ? verb.rawValue : "\(verb.rawValue) (\(columns.joined(separator: ", ")))"
    }
}
