package import Postgres

/// The SQL behind `makegood roles` and the end of `makegood migrate`. Safe to repeat. The same transaction revokes
/// every right that is not listed any more.
///
/// The roles can log in and get no password here. PostgreSQL refuses every login by password to a role without one, and
/// no password passes through this program, its logs or its command line. The operator gives each role its own password
/// with psql's `\password`, or lets certificates or the host decide (pg_hba.conf). The roles are not groups without
/// login, because the limits of the dashboard are settings of the role that logs in, and members do not inherit them.
/// To change a password without a gap, the operator makes a second login and drops it afterwards:
/// `create role makegood_worker_b login in role makegood_worker`.
package struct RoleScript: Sendable {
    /// The prefix of the roles' names.
    package let prefix: String

    package static let dashboardConnectionsMax = 5
    /// Without jit: PostgreSQL takes the views for costly, and compiles for up to half a second a query that then runs
    /// for as long.
    package static let dashboardSettings = [
        "default_transaction_read_only=on", "statement_timeout=5s", "idle_in_transaction_session_timeout=10s",
        "jit=off",
    ]

    /// - Parameter prefix: as `Settings.rolePrefix` has checked it: it needs no quotes.
    package init(prefix: String) { self.prefix = prefix }

    package func name(_ role: DatabaseRole) -> String { "\(prefix)_\(role.rawValue)" }

    /// SQL that creates the roles, and closes database and schema to all others. A role that may create roles and owns
    /// the database runs it. Roles belong to the whole server, so a run for another database may be under way.
    package var roles: String {
        let made = DatabaseRole.allCases.map { role in
            """
            do $$ begin
              if not exists (select from pg_roles where rolname = '\(name(role))') then
                create role \(name(role)) login;
              end if;
            exception when duplicate_object or unique_violation then null;
            end $$;
            """
        }
        let members = [DatabaseRole.ingest, .worker, .scheduler, .dispatcher].map(name).joined(separator: ", ")
        let settings = Self.dashboardSettings.map { setting in
            let halves = setting.split(separator: "=")
            return "  alter role \(name(.dashboard)) set \(halves[0]) = '\(halves[1])';"
        }
        let array = Self.dashboardSettings.map { "'\($0)'" }.joined(separator: ", ")
        return """
            \(made.joined(separator: "\n"))
            grant \(members) to \(name(.all));
            do $$ begin
              if (select (rolconnlimit, rolconfig) is not distinct from (\(Self.dashboardConnectionsMax), array[\(array)])
                from pg_roles where rolname = '\(name(.dashboard))') then return; end if;
              alter role \(name(.dashboard)) connection limit \(Self.dashboardConnectionsMax);
            \(settings.joined(separator: "\n"))
            end $$;
            do $$ begin
              execute format('revoke all on database %I from public', current_database());
              execute format('revoke all on schema %I from public', current_schema());
              execute format('grant connect on database %I to \(names(DatabaseRole.allCases))', current_database());
              execute format('grant usage on schema %I to \(names(DatabaseRole.allCases))', current_schema());
            end $$;
            """
    }

    /// SQL that grants these roles their rights on everything in the schema. The owner of the schema runs it.
    package func rights(of roles: [DatabaseRole]) -> String {
        Rights.all.map { line in
            let granted = roles.compactMap { role in
                line.ofRoles[role].map { rights in
                    "grant \(rights.map(\.text).joined(separator: ", ")) on \(line.object) to \(name(role));\n"
                }
            }
            return "revoke all on \(line.object) from public, \(names(roles));\n\(granted.joined())"
        }.joined()
    }

    /// The names among these that are roles of the server.
    package static let existing = Statement<[String], String>(
        "roles.existing", "select rolname::text from pg_roles where rolname = any($1::text[])",
        bind: { [.texts($0)] },
        read: { row throws(PostgresError) in try row.text(0) })

    /// Our roles that exist on the server.
    package func existing(in database: Database) async throws(PostgresError) -> [DatabaseRole] {
        let names = Set(try await database.run(Self.existing, DatabaseRole.allCases.map(name)))
        return DatabaseRole.allCases.filter { names.contains(name($0)) }
    }

    private func names(_ roles: [DatabaseRole]) -> String { roles.map(name).joined(separator: ", ") }
}

/// A role lacks a right that its service needs. Not retryable: only a change of the database helps.
package struct MissingRight: Error, Sendable, Equatable, CustomStringConvertible {
    /// The role that logged in.
    package let role: String
    /// `update (due_at) on table receipts`; one column, where the right is limited to columns.
    package let right: String

    package var description: String {
        "the database role \(role) lacks \(right): run makegood roles, or makegood migrate where the roles exist"
    }
}

extension MissingRight {
    private struct Question: Sendable {
        let text: String
        let verb: Right.Verb
        /// As in GRANT, without the kind of object: `receipts`, `end_halt(text, text, text, text)`.
        let name: String
        let column: String?
    }

    /// Throws the first right that a service needs and the role of this connection lacks.
    package static func check(_ roles: [DatabaseRole], in database: Database) async throws {
        let questions = Rights.all.flatMap { line in
            roles.flatMap { line.ofRoles[$0] ?? [] }.flatMap { right in
                let name = String(line.object.drop { $0 != " " }.dropFirst())
                let columns = right.columns.isEmpty ? [nil] : right.columns.map { Optional($0) }
                return columns.map { column in
                    let words = column.map { "\(right.verb.rawValue) (\($0))" } ?? right.text
                    return Question(text: "\(words) on \(line.object)", verb: right.verb, name: name, column: column)
                }
            }
        }
        if let missing = try await database.run(first, questions).first { throw missing }
    }

    private static let first = Statement<[Question], MissingRight>(
        "roles.first_missing",
        """
        select current_user::text, i.question
        from unnest($1::text[], $2::text[], $3::text[], $4::text[]) with ordinality as i(question, verb, name, col, n)
        where (case when i.verb = 'execute' then has_function_privilege(to_regprocedure(i.name), i.verb)
          when i.col is null then has_table_privilege(to_regclass(i.name), i.verb)
          else has_column_privilege(to_regclass(i.name), i.col, i.verb) end) is not true
        order by i.n limit 1
        """,
        bind: { questions in
            [
                .texts(questions.map(\.text)), .texts(questions.map(\.verb.rawValue)), .texts(questions.map(\.name)),
                .texts(questions.map(\.column)),
            ]
        },
        read: { row throws(PostgresError) in MissingRight(role: try row.text(0), right: try row.text(1)) })
}
