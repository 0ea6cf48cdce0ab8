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

    @Test("a little is not nothing, and big receipts are told of where there are any")
    func smallLoads() async throws {
        let small = try await BuiltProgram.run("plan", "--purchases-per-day", "1000")
        #expect(small.status == 0)
        #expect(small.output.contains("processes, under 0.1 cores in all"), "\(small.output)")
        #expect(!small.output.contains(" 0.0 "), "\(small.output)")
        #expect(!small.output.contains("bulk lane"))
        let big = try await BuiltProgram.run("plan", "--purchases-per-day", "8640000", "--big-percent", "10")
        #expect(big.output.contains("bulk lane   30 big receipts a second at the peak, of 80 that"), "\(big.output)")
    }

    @Test(arguments: [
        [], ["--purchases-per-day", "0"], ["--purchases-per-day", "1", "--peak", "0.5"],
        ["--purchases-per-day", "1", "--asked-percent", "101"], ["--purchases-per-day", "1", "--apple-ms", "0"],
        ["--purchases-per-day", "1", "--big-percent", "-1"], ["--purchases-per-day", "1", "--apple-in-flight", "0"],
    ])
    func refusesNonsense(_ arguments: [String]) async throws {
        let outcome = try await BuiltProgram(arguments: ["plan"] + arguments).run()
        #expect(outcome.status == 64, "\(outcome.output)")
    }
}
