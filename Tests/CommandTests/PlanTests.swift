import Testing

/// Goal: `makegood plan` answers without any server and refuses nonsense. Method: the built program.
@Suite struct PlanTests {
    @Test func saysWhatIsNeeded() async throws {
        let plan = try await BuiltProgram.run("plan", "--purchases-per-day", "1000000", "--apple-ms", "300")
        #expect(plan.status == 0, "\(plan.complaint)")
        for word in ["ingest ", "workers ", "PostgreSQL ", "RabbitMQ ", "Apple ", "first limit: Apple's on calls"] {
            #expect(plan.output.contains(word), "\(plan.output)")
        }
        let json = try await BuiltProgram.run(
            "plan", "--purchases-per-day", "1000000", "--asked-percent", "0", "--json"
        ).json
        #expect(json["callsAtPeak"] as? Double == 0)
        #expect((json["limits"] as? [String: Double])?.keys.sorted() == ["broker", "database"])
    }

    @Test(arguments: [
        [], ["--purchases-per-day", "0"], ["--purchases-per-day", "1", "--peak", "0.5"],
        ["--purchases-per-day", "1", "--asked-percent", "101"], ["--purchases-per-day", "1", "--apple-ms", "0"],
    ])
    func refusesNonsense(_ arguments: [String]) async throws {
        let outcome = try await BuiltProgram(arguments: ["plan"] + arguments).run()
        #expect(outcome.status == 64, "\(outcome.output)")
    }
}
