import Foundation
package import Postgres
import Purchases

/// A halt for our own misconfiguration, or a pause by hand; a row of the table `halts`.
package struct Halt: Sendable, Hashable {
    package let appID: String
    /// `verifyReceipt`, `serverApi`, or `*` for a pause by hand.
    package let service: String
    package let environment: String
    /// A hash of the key or secret. A corrected configuration has another hash, so the halt does not apply to it.
    package let credential: String
    package let reason: String

    package init(appID: String, service: String, environment: String, credential: String, reason: String) {
        self.appID = appID
        self.service = service
        self.environment = environment
        self.credential = credential
        self.reason = reason
    }

    package static let everyService = "*"
    /// A pause by hand: no purchase of this app is judged until an operator resumes it.
    package static func pause(_ appID: String) -> Halt {
        Halt(appID: appID, service: everyService, environment: "*", credential: "operator", reason: "paused")
    }

    /// How often one call tests whether the halt is over.
    package static let probeInterval: Duration = .seconds(60)
}

extension Statements {
    package static let listHalts = Statement<Void, Halt>(
        "ledger.list_halts", "select app_id, service, environment, credential, reason from halts",
        read: { row throws(PostgresError) in
            Halt(
                appID: try row.text(0), service: try row.text(1), environment: try row.text(2),
                credential: try row.text(3), reason: try row.text(4))
        })

    /// Records a halt; returns a row only where it is new, so that one process logs it.
    package static let halt = Statement<Halt, Bool>(
        "ledger.halt",
        """
        insert into halts (app_id, service, environment, credential, reason, probe_at)
        values ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))
        on conflict do nothing returning true
        """,
        bind: { halt in
            [
                .text(halt.appID), .text(halt.service), .text(halt.environment), .text(halt.credential),
                .text(halt.reason), .double(Halt.probeInterval.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Reserves the next probe for this process: one process a minute may probe. No row: it is not this process's turn.
    package static let takeProbe = Statement<Halt, Bool>(
        "ledger.take_probe",
        """
        update halts set probe_at = now() + make_interval(secs => $5)
        where app_id = $1 and service = $2 and environment = $3 and credential = $4 and probe_at <= now()
        returning true
        """,
        bind: { halt in
            [
                .text(halt.appID), .text(halt.service), .text(halt.environment), .text(halt.credential),
                .double(Halt.probeInterval.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Gives a reserved probe back: any process may probe now.
    package static let returnProbe = Statement<Halt, Void>(
        "ledger.return_probe",
        """
        update halts set probe_at = now()
        where app_id = $1 and service = $2 and environment = $3 and credential = $4
        """,
        bind: { halt in
            [
                .text(halt.appID), .text(halt.service), .text(halt.environment), .text(halt.credential),
            ]
        })

    /// Ends a halt and makes the rows that waited for it due.
    package static let endHalt = Statement<Halt, Int>(
        "ledger.end_halt", "select end_halt($1, $2, $3, $4)",
        bind: { halt in
            [
                .text(halt.appID), .text(halt.service), .text(halt.environment), .text(halt.credential),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })

    package struct Credentials: Sendable {
        package var appID: String
        package var hashes: [String]

        package init(appID: String, hashes: [String]) {
            self.appID = appID
            self.hashes = hashes
        }
    }

    /// Ends the halts of credentials that the configuration no longer names, and makes the rows that waited for them
    /// due.
    package static let endStaleHalts = Statement<Credentials, Int>(
        "ledger.end_stale_halts", "select end_stale_halts($1, $2)",
        bind: { [.text($0.appID), .texts($0.hashes)] },
        read: { row throws(PostgresError) in try row.int(0) })
}
