import Testing

/// Goal: printing commands for others to run needs no server and no server's address. Method: the built program without
/// any setting except the choice of what to print.
@Suite struct RolesTests {
    @Test("roles --print: the prefix alone decides")
    func prints() async throws {
        let outcome = try await BuiltProgram.run("roles", "--print", environment: ["MAKEGOOD_ROLE_PREFIX": "shop"])
        #expect(outcome.status == 0, "\(outcome.complaint)")
        #expect(outcome.output.hasPrefix("begin;\n") && outcome.output.hasSuffix("commit;\n"))
        #expect(outcome.output.contains("shop_ingest"))
        #expect(!outcome.output.contains("makegood_ingest"))
    }

    @Test("roles --rabbitmq: the broker's address is read for its vhost, and reached by nobody")
    func printsPermissions() async throws {
        let outcome = try await BuiltProgram.run(
            "roles", "--rabbitmq",
            environment: [
                "MAKEGOOD_AMQP_URL": "amqp://nobody:secret@127.0.0.1:1/shop", "MAKEGOOD_QUEUE_PREFIX": "eu",
            ])
        #expect(outcome.status == 0, "\(outcome.complaint)")
        let lines = outcome.output.split(separator: "\n")
        #expect(lines.count == 7)
        #expect(lines.allSatisfy { $0.hasPrefix("rabbitmqctl set_permissions -p shop makegood_") })
        #expect(outcome.output.contains("eu"))
        #expect(!outcome.output.contains("secret"))
        let without = try await BuiltProgram.run("roles", "--rabbitmq")
        #expect(without.status != 0)
        #expect(without.complaint.contains("MAKEGOOD_AMQP_URL"))
    }

    @Test("roles, to be made: the database's address is missed by name")
    func makes() async throws {
        let outcome = try await BuiltProgram.run("roles")
        #expect(outcome.status != 0)
        #expect(outcome.complaint.contains("MAKEGOOD_POSTGRES_URL"))
    }
}
