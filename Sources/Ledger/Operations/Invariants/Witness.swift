package import Foundation
package import Postgres

/// What the outside knows, stored beside the ledger in the same database: the journal of the clients, what the App
/// Store sold, and which calls the App Store saw. For tests and drills; `Invariant.check(_:span:witness:)` compares.
package struct Witness: Sendable {
    /// One answer to one post, or the lack of an answer.
    package struct JournalEntry: Sendable {
        /// The client's key: posting the same thing again is the same submission.
        package var submission: String
        /// Nil: no answer, or one that named no receipt.
        package var receiptID: UUID?
        /// HTTP status; 0 where no answer came.
        package var status: Int
        package var appID: String
        package var userID: String
        package var transactionID: String?
        /// SHA-256 of the proof as posted (the JWS or the base64 receipt, as UTF-8); nil for a bare id.
        package var bodySHA256: [UInt8]?
        /// Whether it is a notification of Apple's, which no answer names a receipt for.
        package var isNotification = false

        package init(
            submission: String, receiptID: UUID?, status: Int, appID: String, userID: String, transactionID: String?,
            bodySHA256: [UInt8]?
        ) {
            self.submission = submission
            self.receiptID = receiptID
            self.status = status
            self.appID = appID
            self.userID = userID
            self.transactionID = transactionID
            self.bodySHA256 = bodySHA256
        }
    }

    /// One transaction of the App Store's ledger; each transaction once.
    package struct Sale: Sendable {
        package var transactionID: String
        /// Our app, not the bundle.
        package var appID: String
        package var environment: String
        package var productID: String
        package var quantity: Int
        /// The user who must own it, where the rules decide; nil: the user who posts it first.
        package var userID: String?
        /// The order that it was bought with. The order's placement was acknowledged.
        package var orderID: UUID?
        /// Whether it must be granted once accepted: genuine, of a configured product, and posted by a user who may
        /// have it.
        package var isValid: Bool
        /// When Apple took it back. A grant before that time is no fault.
        package var revokedAt: Date?

        package init(
            transactionID: String, appID: String, environment: String, productID: String, quantity: Int,
            userID: String?, orderID: UUID? = nil, isValid: Bool, revokedAt: Date? = nil
        ) {
            self.transactionID = transactionID
            self.appID = appID
            self.environment = environment
            self.productID = productID
            self.quantity = quantity
            self.userID = userID
            self.orderID = orderID
            self.isValid = isValid
            self.revokedAt = revokedAt
        }
    }

    /// One call that the App Store saw.
    package struct Call: Sendable {
        /// What it asked about: a transaction id, or the first 16 hexadecimal digits of SHA-256 of the receipt.
        package var subject: String
        package var startedAt: Date
        package var endedAt: Date
        /// Nil: the connection was closed without an answer.
        package var httpStatus: Int?
        /// When Apple wants to be asked again (`Retry-After`).
        package var retryAt: Date?

        package init(subject: String, startedAt: Date, endedAt: Date, httpStatus: Int?, retryAt: Date? = nil) {
            self.subject = subject
            self.startedAt = startedAt
            self.endedAt = endedAt
            self.httpStatus = httpStatus
            self.retryAt = retryAt
        }
    }

    /// The limits that the invariants hold the calls to.
    package struct Limits: Sendable {
        /// Workers times `MAKEGOOD_APPLE_IN_FLIGHT`.
        package var callsAtOnce: Int
        /// How many calls may have been made in vain: deaths of workers, losses of the broker or the database.
        package var interruptions: Int
        /// Number of workers: each may ask verifyReceipt once about a receipt that waits for the Server API.
        package var workers: Int

        package init(callsAtOnce: Int = .max, interruptions: Int = 0, workers: Int = 1) {
            self.callsAtOnce = callsAtOnce
            self.interruptions = interruptions
            self.workers = workers
        }
    }

    /// Rows of one insert.
    private static let batchRows = 5000

    private let database: Database

    package init(database: Database) {
        self.database = database
    }

    /// Replaces the schema `witness` and fills it. Not atomic; repeat it after an error.
    package func load(
        journal: [JournalEntry], ledger: [Sale], calls: [Call] = [], limits: Limits = Limits()
    ) async throws(PostgresError) {
        try await drop()
        for definition in Self.definitions { try await database.run(definition) }
        try await fill(Self.insertJournal, journal)
        try await fill(Self.insertSales, ledger)
        try await fill(Self.insertCalls, calls)
        try await database.run(Self.insertLimits, limits)
        for statement in Self.completions { try await database.run(statement) }
    }

    /// Removes the schema `witness`, if it is there.
    package func drop() async throws(PostgresError) {
        try await database.run(Statement<Void, Void>("witness.drop", "drop schema if exists witness cascade"))
    }

    private func fill<Row>(_ statement: Statement<[Row], Void>, _ rows: [Row]) async throws(PostgresError) {
        for start in stride(from: 0, to: rows.count, by: Self.batchRows) {
            try await database.run(statement, Array(rows[start..<min(start + Self.batchRows, rows.count)]))
        }
    }
}

extension Witness {
    private static let definitions: [Statement<Void, Void>] = [
        "create schema witness",
        """
        create unlogged table witness.journal (submission text not null, receipt_id uuid, status integer not null,
          app_id text not null, user_id text not null, transaction_id text, body_sha256 bytea,
          is_notification boolean not null default false)
        """,
        """
        create unlogged table witness.sales (transaction_id text primary key, app_id text not null,
          environment text not null, product_id text not null, quantity integer not null, user_id text,
          order_id uuid, is_valid boolean not null, revoked_at timestamptz)
        """,
        """
        create unlogged table witness.calls (subject text not null, started_at timestamptz not null,
          ended_at timestamptz not null, http_status integer, retry_at timestamptz)
        """,
        """
        create unlogged table witness.limits (calls_at_once bigint not null, interruptions bigint not null,
          workers bigint not null)
        """,
    ].map { Statement<Void, Void>("witness.define", $0) }

    private static let completions: [Statement<Void, Void>] = [
        "create index on witness.journal (receipt_id)", "create index on witness.journal (transaction_id)",
        "create index on witness.journal (body_sha256)", "create index on witness.calls (subject)",
        "analyze witness.journal, witness.sales, witness.calls",
    ].map { Statement<Void, Void>("witness.complete", $0) }

    private static let insertJournal = Statement<[JournalEntry], Void>(
        "witness.insert_journal",
        """
        insert into witness.journal
        select * from unnest($1::text[], $2::text[]::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::bytea[],
          $8::bool[])
        """,
        bind: { rows in
            [
                .texts(rows.map(\.submission)), .texts(rows.map { $0.receiptID?.uuidString }),
                .int32s(rows.map(\.status)), .texts(rows.map(\.appID)), .texts(rows.map(\.userID)),
                .texts(rows.map(\.transactionID)), .bytesArray(rows.map(\.bodySHA256)),
                .bools(rows.map(\.isNotification)),
            ]
        })

    private static let insertSales = Statement<[Sale], Void>(
        "witness.insert_sales",
        """
        insert into witness.sales
        select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::text[],
          $7::text[]::uuid[], $8::bool[], $9::timestamptz[])
        """,
        bind: { rows in
            [
                .texts(rows.map(\.transactionID)), .texts(rows.map(\.appID)), .texts(rows.map(\.environment)),
                .texts(rows.map(\.productID)), .int32s(rows.map(\.quantity)), .texts(rows.map(\.userID)),
                .texts(rows.map { $0.orderID?.uuidString }), .bools(rows.map(\.isValid)),
                .dates(rows.map(\.revokedAt)),
            ]
        })

    private static let insertCalls = Statement<[Call], Void>(
        "witness.insert_calls",
        """
        insert into witness.calls
        select * from unnest($1::text[], $2::timestamptz[], $3::timestamptz[], $4::int[], $5::timestamptz[])
        """,
        bind: { rows in
            [
                .texts(rows.map(\.subject)), .dates(rows.map(\.startedAt)), .dates(rows.map(\.endedAt)),
                .int32s(rows.map(\.httpStatus)), .dates(rows.map(\.retryAt)),
            ]
        })

    private static let insertLimits = Statement<Limits, Void>(
        "witness.insert_limits", "insert into witness.limits values ($1, $2, $3)",
        bind: { [.int($0.callsAtOnce), .int($0.interruptions), .int($0.workers)] })
}
