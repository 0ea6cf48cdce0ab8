import Testing

/// The whole product tested from the outside: real processes, real PostgreSQL and RabbitMQ, the App Store simulator
/// over real HTTP, and kill -9. After every test the invariants are checked (`SystemInvariants`).
///
/// One test at a time: each starts several processes, and two cores are enough for one system only.
@Suite(.serialized) enum EndToEnd {}

extension EndToEnd {
    @Suite(.serialized) struct InvariantCheck {
        /// Goal: the check of the invariants notices errors; if it did not, every test of this suite would be
        /// worthless.
        /// Method: after a purchase was granted correctly, one false row at a time is written into the database: a grant that
        /// nobody was owed, one to the wrong user, one with other goods or another product, an event told twice, one
        /// told to the wrong user, a row that the tallies do not count. Each must be noticed.
        @Test(arguments: [
            "update receipts set id = gen_random_uuid()",
            "update grants set user_id = 'thief'",
            "update grants set goods = '[]'",
            "update grants set product_id = 'com.example.game.gems30'",
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select gen_random_uuid(), app_id, type, user_id, transaction_id, receipt_id, body from events
            """,
            "update events set user_id = 'thief'",
            "update tallies set received = received + 1",
            """
            insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
              quantity, goods, binding_source)
            select '1', '1', app_id, environment, user_id, receipt_id, product_id, quantity, goods, binding_source
            from grants
            """,
        ])
        func theInvariantsNotice(change: String) async throws {
            await withKnownIssue {
                try await System.run { system in
                    try await system.start(.all)
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: "u1")
                    try await system.submit(sale, user: "u1", wait: 20)
                    try await system.execute(change)
                }
            }
        }
    }
}

extension System {
    /// Starts one ingest, one worker, one scheduler.
    func startAll() async throws {
        async let ingest = start(.ingest)
        async let worker = start(.worker)
        async let scheduler = start(.scheduler)
        _ = try await (ingest, worker, scheduler)
    }
}
