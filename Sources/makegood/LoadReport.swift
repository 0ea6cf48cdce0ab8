import Commands
import Encoding
import Foundation
import Histogram
import NIOCore

/// What one load run found, as JSON and for a person.
struct LoadReport: Encodable {
    struct Answers: Encodable, Equatable {
        var ended = 0
        var accepted = 0
        /// The number of created orders (201).
        var created = 0
        var refused = 0
        var unavailable = 0
        var other = 0
        var error = 0

        enum CodingKeys: String, CodingKey {
            case ended = "200"
            case accepted = "202"
            case created = "201"
            case refused = "4xx"
            case unavailable = "503"
            case other, error
        }

        var total: Int { ended + accepted + created + refused + unavailable + other + error }

        mutating func count(_ status: Int) {
            switch status {
            case 200: ended += 1
            case 202: accepted += 1
            case 201: created += 1
            case 400..<500: refused += 1
            case 503: unavailable += 1
            default: other += 1
            }
        }
    }

    /// In milliseconds.
    struct Percentiles: Encodable {
        let count: Int
        let p50, p90, p99, p999, max: Double

        /// Nil for an empty histogram.
        init?(_ histogram: Histogram<UInt64>) {
            guard histogram.totalCount > 0 else { return nil }
            func at(_ percentile: Double) -> Double {
                (Double(histogram.valueAtPercentile(percentile)) / 1000).rounded(to: 3)
            }
            count = Int(histogram.totalCount)
            p50 = at(50)
            p90 = at(90)
            p99 = at(99)
            p999 = at(99.9)
            max = (Double(histogram.max) / 1000).rounded(to: 3)
        }

        var text: String { "p50 \(p50)   p90 \(p90)   p99 \(p99)   p99.9 \(p999)   max \(max)" }
    }

    /// Open loop only: how well this program kept its own timetable.
    struct Timetable: Encodable {
        let planned: Int
        /// Requests that started more than 10 ms after their time.
        let late: Int
        let worstLateMilliseconds: Double
        /// Requests that never started; the percentiles are too good by these.
        let notStarted: Int
    }

    struct Grants: Encodable {
        /// The number of accepted receipts that were watched (`GrantWatch`).
        let watched: Int
        /// The number of receipts by state; `open` counts those that had not ended when time was up.
        let states: [String: Int]
        /// From the accepting answer until the answer to a waiting question showed an end state.
        let milliseconds: Percentiles?

        var open: Int { states["open"] ?? 0 }
    }

    /// `open` or `closed`.
    let loop: String
    /// The intended requests a second; left out in a closed loop.
    let rate: Double?
    let connections: Int
    let seconds: Double
    let sent: Int
    let sentPerSecond: Double
    let acceptedPerSecond: Double
    let answers: Answers
    /// The latency of the answers 200 and 202: from the intended start in an open loop, from sending in a closed one.
    let acceptMilliseconds: Percentiles?
    let timetable: Timetable?
    let tokensUsedUp: Bool
    /// The number of times that a sender waited for its next token.
    let tokenWaits: Int
    var grants: Grants?

    var json: [UInt8] {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        // Encoding cannot fail here: no value is infinite.
        return (try? encoder.encode(self)).map { Array($0) } ?? []
    }

    var text: String {
        var lines: [String] = []
        if let rate {
            lines.append("open loop, \(rate) a second, \(connections.counted("connection")), \(seconds) s")
            lines.append("  latency counts from the intended start: waiting for a slow server is in it")
        } else {
            lines.append(
                "closed loop, as fast as \(connections.counted("connection goes", "connections go")), \(seconds) s")
            lines.append(
                "  each connection waits for its answer, so a slow server slows the load; for latency use --rate")
        }
        lines.append("sent        \(sent), \(sentPerSecond) a second; accepted \(acceptedPerSecond) a second")
        lines.append(
            "answers     200: \(answers.ended)   201: \(answers.created)   202: \(answers.accepted)   4xx: \(answers.refused)   "
                + "503: \(answers.unavailable)   other: \(answers.other)   error: \(answers.error)")
        lines.append("accept ms   \(acceptMilliseconds?.text ?? "nothing was accepted")")
        if let timetable {
            lines.append(
                "timetable   \(timetable.late) of \(timetable.planned) started more than 10 ms late, "
                    + "the worst \(timetable.worstLateMilliseconds) ms")
            if timetable.notStarted > 0 {
                lines.append("            \(timetable.notStarted) never started: the percentiles are too good")
            }
        }
        if tokenWaits > 0 {
            lines.append("tokens      waited for \(tokenWaits.counted("time")): their source is too slow")
        }
        if tokensUsedUp { lines.append("tokens      used up: the run ended early") }
        if let grants {
            let states = grants.states.sorted { $0.key < $1.key }.map { "\($0.key): \($0.value)" }
            lines.append("grants      of \(grants.watched) watched   \(states.joined(separator: "   "))")
            lines.append("grant ms    \(grants.milliseconds?.text ?? "none ended")")
        }
        return lines.joined(separator: "\n")
    }
}

extension Histogram<UInt64> {
    /// Durations in microseconds up to an hour, with three digits.
    static var ofDurations: Self {
        Self(highestTrackableValue: 3_600_000_000, numberOfSignificantValueDigits: .three)
    }

    mutating func record(_ duration: TimeAmount) {
        record(UInt64(Swift.min(Swift.max(duration.nanoseconds / 1000, 0), 3_600_000_000)))
    }
}
