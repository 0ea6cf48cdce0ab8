import Foundation
import HTTPTypes
import Logging
import Synchronization
import Testing

@testable import Encoding
@testable import Service

/// Goal: a caller's trace is taken as the standard says, or not at all, and stands in the log beside the receipt.
/// Method: the standard's own examples (W3C Trace Context, 3.2.2 and 4.3) as a table; a logger that keeps its lines.
@Suite struct TraceContextTests {
    private static let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    @Test(
        arguments: [
            (given, given),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
            ),
            // From a later version, the known fields are read.
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", given),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes", given),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.", nil),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", nil),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", nil),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", nil),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", nil),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", nil),
            ("00-4bf92f3577b34da6a3ce929d0e0e473-000f067aa0ba902b7-01", nil),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01", nil),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g", nil),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", nil),
            ("", nil), ("00-x", nil),
        ] as [(String, String?)])
    func asTheStandardSays(_ text: String, _ taken: String?) {
        #expect(TraceContext(text)?.traceparent == taken)
    }

    @Test func whatItSays() throws {
        let trace = try #require(TraceContext(Self.given))
        #expect(trace.traceID == "4bf92f3577b34da6a3ce929d0e0e4736")
        #expect(trace.isSampled)
        let begun = (0..<1000).map { _ in TraceContext.begun() }
        #expect(Set(begun.map(\.traceID)).count == begun.count)
        for trace in begun { #expect(TraceContext(trace.traceparent) == trace && !trace.isSampled) }
    }

    @Test func ofARequest() throws {
        let name = try #require(HTTPField.Name("traceparent"))
        #expect(TraceContext.of([:]) == nil)
        #expect(TraceContext.of([name: Self.given])?.traceparent == Self.given)
        let bad = try #require(TraceContext.of([name: "00-x"]))
        #expect(!bad.isSampled)
        // Two headers count as none (3.2.1), even if both are the same.
        var headers = HTTPFields()
        for _ in 0..<2 { headers.append(HTTPField(name: name, value: Self.given)) }
        let begun = try #require(TraceContext.of(headers))
        #expect(begun.traceID != TraceContext(Self.given)?.traceID)
    }

    @Test func inTheLogAsJSON() async throws {
        let lines = Mutex<[String]>([])
        var logger = Logger(label: "test") { _ in
            JSONLogHandler(metadataProvider: TraceContext.metadata) { line in lines.withLock { $0.append(line) } }
        }
        logger[metadataKey: "worker"] = "w\"1"
        var trace = try #require(TraceContext(Self.given))
        let id = UUID()
        trace.receiptID = id
        logger.info("before")
        TraceContext.$current.withValue(trace) { [logger] in
            logger.notice("a \"line\"\nof two", metadata: ["app.id": "game"])
        }
        let printed = lines.withLock { $0 }
        #expect(printed.allSatisfy { $0.hasSuffix("}\n") && $0.count { $0 == "\n" } == 1 })
        let objects = try printed.map { line in
            try #require(JSONSerialization.jsonObject(with: Data(line.utf8)) as? [String: String])
        }
        #expect(objects[0]["trace_id"] == nil)
        #expect(objects[0]["worker"] == "w\"1")
        #expect(objects[1]["message"] == "a \"line\"\nof two")
        #expect(objects[1]["level"] == "notice")
        #expect(objects[1]["app.id"] == "game")
        #expect(objects[1]["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736")
        #expect(objects[1]["receipt.id"] == id.uuidString.lowercased())
        let time = try #require(objects[1]["time"])
        let style = Date.ISO8601FormatStyle(includingFractionalSeconds: true)
        #expect(abs(try style.parse(time).timeIntervalSinceNow) < 60)
    }
}
