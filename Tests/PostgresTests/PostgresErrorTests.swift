import Testing

@testable import Postgres

/// Goal: each SQLSTATE has one meaning. Method: a table of SQLSTATEs, row by row.
@Suite struct PostgresErrorTests {
    @Test(arguments: [
        ("", PostgresError.lost), ("08006", .lost), ("08P01", .lost), ("40003", .lost), ("57P01", .lost),
        ("57P02", .lost), ("57P05", .lost), ("57P03", .unavailable), ("53300", .unavailable), ("53100", .unavailable),
        ("58030", .unavailable), ("25006", .readOnly), ("40001", .serialization), ("40P01", .serialization),
        ("55P03", .timedOut(.lock)), ("57014", .timedOut(.statement)),
        ("22021", .data(sqlState: "22021", statement: "s")), ("23505", .data(sqlState: "23505", statement: "s")),
        ("54000", .data(sqlState: "54000", statement: "s")),
        ("28P01", .misconfigured(sqlState: "28P01", statement: "s")),
        ("3D000", .misconfigured(sqlState: "3D000", statement: "s")),
        ("42501", .misconfigured(sqlState: "42501", statement: "s")),
        ("XX001", .internalError(sqlState: "XX001", statement: "s")),
        ("25P02", .internalError(sqlState: "25P02", statement: "s")),
        ("99999", .internalError(sqlState: "99999", statement: "s")),
    ])
    func classification(sqlState: String, error: PostgresError) {
        #expect(PostgresError(sqlState: sqlState, statement: "s") == error)
    }

    @Test func advice() {
        let all: [(PostgresError, PostgresError.Advice, isRetryable: Bool)] = [
            (.lost, .retrySame, true), (.serialization, .retrySame, true), (.timedOut(.lock), .bisect, true),
            (.timedOut(.statement), .bisect, true), (.data(sqlState: "22003", statement: "s"), .bisect, false),
            (.unavailable, .refuse, true), (.readOnly, .refuse, true), (.tooManyWaiting, .refuse, true),
            (.misconfigured(sqlState: "42P01", statement: "s"), .stop, false),
            (.internalError(sqlState: "XX000", statement: "s"), .stop, false),
            (.undecodable(statement: "s", column: 1), .stop, false), (.closed, .stop, false),
        ]
        for (error, advice, isRetryable) in all {
            #expect(error.advice == advice)
            #expect(error.isRetryable == isRetryable)
        }
        #expect(Set(all.map { $0.0.label }).count == all.count)
    }

    @Test func descriptions() {
        #expect("\(PostgresError.data(sqlState: "23505", statement: "a.b"))" == "postgres data 23505 in a.b")
        #expect("\(PostgresError.undecodable(statement: "a.b", column: 2))" == "postgres undecodable: column 2 of a.b")
        #expect("\(PostgresError.lost)" == "postgres lost")
        for (state, words) in [
            ("28000", "does not let this user in"), ("28P01", "refuses the user or the password"),
            ("3D000", "no such database"), ("42501", "lacks a right"),
        ] {
            let text = "\(PostgresError(sqlState: state, statement: "connect"))"
            #expect(text.hasPrefix("postgres misconfigured \(state) in connect: ") && text.contains(words))
        }
        let files = (1...42).map { "00\($0)_x.sql" }
        #expect(
            "\(MigrationError.pending(files))"
                == "run migrate first: the database lacks 42 migrations, 001_x.sql to 0042_x.sql")
        #expect("\(MigrationError.pending(["0042_x.sql"]))" == "run migrate first: the database lacks 0042_x.sql")
    }
}
