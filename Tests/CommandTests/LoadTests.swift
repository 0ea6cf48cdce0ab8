import AppStoreSimulator
import Foundation
import Logging
import TestServers
import Testing

/// Goal: `makegood load` sends what it reports, counts every answer, measures from the intended start, and never loads
/// a machine by accident. Method: the built program against a stub of ingest on this machine.
@Suite struct LoadTests {
    private func load(_ url: String, _ more: [String]) async throws -> BuiltProgram.Outcome {
        try await BuiltProgram(arguments: ["load", "--url", url, "--key", "secret", "--json"] + more).run()
    }

    /// Writes lines that look like tokens.
    private func tokens(_ count: Int, in folder: String) throws -> String {
        try (0..<count).map { "header.payload-\($0).signature\n" }.joined().written(to: folder, as: "tokens")
    }

    @Test func eachTokenOnce() async throws {
        let stub = IngestStub()
        try await stub.serve { url in
            try await withFolder { folder in
                let file = try tokens(2500, in: folder)
                let outcome = try await load(
                    url, ["--tokens", file, "--app", "game\"", "--users", "7", "--seconds", "50"])
                #expect(outcome.status == 0)
                #expect(outcome.json["loop"] as? String == "closed")
                #expect(outcome.json["sent"] as? Int == 2500)
                #expect(outcome.json["tokensUsedUp"] as? Bool == true)
                #expect((outcome.json["answers"] as? [String: Int])?["202"] == 2500)
                let accept = outcome.json["acceptMilliseconds"] as? [String: Double] ?? [:]
                #expect(accept["count"] == 2500)
                #expect(accept["p50"] ?? 0 > 0 && accept["p50"] ?? 0 <= accept["max"] ?? 0)
            }
        }
        #expect(Set(stub.submissions.map(\.signedTransaction)).count == 2500)
        #expect(stub.submissions.count == 2500)
        #expect(Set(stub.submissions.map(\.userId)) == Set((0..<7).map { "load-\($0)" }))
        #expect(stub.submissions.allSatisfy { $0.appId == "game\"" })
        #expect(stub.authorizations == ["Bearer secret"])
    }

    @Test func answersAreCounted() async throws {
        let statuses = [200, 202, 401, 503, 500, 307, 422]
        let stub = IngestStub { number in
            IngestStub.Reply(status: statuses[number % statuses.count])
        }
        try await stub.serve { url in
            try await withFolder { folder in
                let outcome = try await load(url, ["--tokens", try tokens(70, in: folder), "--connections", "3"])
                #expect(outcome.status == 0)
                #expect(
                    outcome.json["answers"] as? [String: Int]
                        == ["200": 10, "201": 0, "202": 10, "4xx": 20, "503": 10, "other": 20, "error": 0])
                #expect((outcome.json["acceptMilliseconds"] as? [String: Double])?["count"] == 20)
                #expect(outcome.complaint.contains("first trouble"))
            }
        }
        #expect(stub.other.isEmpty, "a redirection was followed")
    }

    /// One connection, a hundred requests a second, one stall of 600 ms: some sixty requests could not start in time.
    /// Measured from sending, one request of a hundred would be slow; measured from the intended start, half of them.
    @Test func openLoopChargesTheStall() async throws {
        let stub = IngestStub { number in IngestStub.Reply(delay: number == 10 ? .milliseconds(600) : .zero) }
        try await stub.serve { url in
            try await withFolder { folder in
                let outcome = try await load(
                    url,
                    ["--tokens", try tokens(500, in: folder), "--connections", "1", "--rate", "100", "--seconds", "1"])
                #expect(outcome.status == 0)
                #expect(outcome.json["loop"] as? String == "open")
                #expect(outcome.json["sent"] as? Int == 100)
                #expect(outcome.json["tokensUsedUp"] as? Bool == false)
                let accept = outcome.json["acceptMilliseconds"] as? [String: Double] ?? [:]
                #expect(accept["p90"] ?? 0 > 200)
                let timetable = outcome.json["timetable"] as? [String: Double] ?? [:]
                #expect(timetable["planned"] == 100)
                #expect(timetable["late"] ?? 0 > 20)
                #expect(timetable["notStarted"] == 0)
            }
        }
    }

    @Test func watchesUntilGranted() async throws {
        let stub = IngestStub(grantedAt: 3) { number in
            number == 0 ? IngestStub.Reply(status: 200, state: "already_granted") : IngestStub.Reply()
        }
        try await stub.serve { url in
            try await withFolder { folder in
                let outcome = try await load(
                    url, ["--tokens", try tokens(20, in: folder), "--connections", "20", "--until-granted"])
                #expect(outcome.status == 0)
                let grants = outcome.json["grants"] as? [String: Any] ?? [:]
                #expect(grants["watched"] as? Int == 20)
                #expect(grants["states"] as? [String: Int] == ["granted": 19, "already_granted": 1])
                // Granted at the third look: two intervals of 100 ms later at the earliest.
                #expect((grants["milliseconds"] as? [String: Double])?["p50"] ?? 0 > 190)
            }
        }
    }

    /// The run takes two seconds, and each receipt is granted at once: a look after the run would see half of them a
    /// second late.
    @Test func notesGrantsWhenTheyHappen() async throws {
        try await IngestStub().serve { url in
            try await withFolder { folder in
                let outcome = try await load(
                    url, ["--tokens", try tokens(40, in: folder), "--rate", "20", "--seconds", "2", "--until-granted"])
                #expect(outcome.status == 0)
                let grants = outcome.json["grants"] as? [String: Any] ?? [:]
                #expect(grants["watched"] as? Int ?? 0 >= 20)
                #expect((grants["milliseconds"] as? [String: Double])?["p50"] ?? 9999 < 400)
            }
        }
    }

    @Test func buysFromASimulator() async throws {
        let store = try AppStoreSimulator(logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        try await RunningService.with(store) {
            let simulator = "http://127.0.0.1:\(try await store.boundPort)"
            let stub = IngestStub()
            try await stub.serve { url in
                let outcome = try await load(
                    url, ["--simulator", simulator, "--rate", "50", "--seconds", "1", "--connections", "4"])
                #expect(outcome.status == 0)
                #expect(outcome.json["sent"] as? Int == 50)
            }
            #expect(store.ledger.count == 50)
            #expect(Set(stub.submissions.map(\.signedTransaction)).count == 50)
        }
    }

    @Test func givesUpWhereNothingIsAccepted() async throws {
        let stub = IngestStub { _ in IngestStub.Reply(status: 401) }
        try await stub.serve { url in
            try await withFolder { folder in
                let outcome = try await load(url, ["--tokens", try tokens(5000, in: folder)])
                #expect(outcome.status == 1)
                #expect(outcome.complaint.contains("401"))
                #expect(outcome.json["sent"] as? Int ?? 5000 < 300)
            }
        }
    }

    @Test func nobodyThere() async throws {
        try await withFolder { folder in
            // Port 1 of this machine: no server listens there.
            let outcome = try await load("http://127.0.0.1:1", ["--tokens", try tokens(1, in: folder)])
            #expect(outcome.status == 1)
            #expect(outcome.complaint.contains("nothing answers"))
        }
    }

    @Test(arguments: [
        "http://example.com", "https://10.0.0.1:8080", "http://127.0.0.1.example.com", "http://localhost.example.com",
        "http://127.0.0.1@example.com", "http://example.com#127.0.0.1", "http://0x7f.0.0.1.example.com",
        "http://[2001:db8::1]:8080", "http://0.0.0.0:8080", "http://127.1", "ftp://127.0.0.1", "127.0.0.1:8080", "",
    ]) func otherMachinesAreRefused(_ url: String) async throws {
        try await withFolder { folder in
            let file = try tokens(1, in: folder)
            let target = try await load(url, ["--tokens", file])
            #expect(target.status == 1)
            #expect(target.output.isEmpty)
            #expect(target.complaint.contains("--url"))
            let buyer = try await load("http://127.0.0.1:1", ["--simulator", url])
            #expect(buyer.status == 1)
            #expect(buyer.complaint.contains("--simulator"))
        }
    }

    @Test(arguments: [
        ["--connections", "0"], ["--connections", "2000"], ["--rate", "fast"], ["--rate", "-1"], ["--seconds", "0"],
        ["--seconds", "nan"], ["--users", "0"], ["--rate", "100000", "--seconds", "60"],
        ["--simulator", "http://127.0.0.1:1"],
    ]) func wrongOptions(_ options: [String]) async throws {
        let outcome = try await load("http://127.0.0.1:1", ["--tokens", "none"] + options)
        #expect(outcome.status == 64)
        #expect(outcome.output.isEmpty)
    }
}
