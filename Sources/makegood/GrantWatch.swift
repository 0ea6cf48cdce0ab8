import Foundation
import Histogram
import NIOCore

/// Watches accepted receipts until each has ended, or time is up.
struct GrantWatch {
    /// The pause between two looks at the same receipt.
    private static let interval = Duration.milliseconds(100)
    private static let limit = Duration.seconds(60)
    /// States after which nothing more happens soon: ended, or waiting for a product, a policy or a person.
    private static let settled: Set<String> = ["granted", "already_granted", "rejected", "held", "parked"]

    private struct Receipt: Decodable {
        let id: String
        let state: String
    }

    let target: LoadTarget
    /// The number of requests at the same time.
    let connections: Int

    func watch(_ accepted: [LoadRecord.Accepted]) async -> LoadReport.Grants {
        var open: [(id: String, since: NIODeadline)] = []
        var states: [String: Int] = [:]
        var durations = Histogram<UInt64>.ofDurations
        for receipt in accepted {
            guard let shown = try? JSONDecoder().decode(Receipt.self, from: Data(receipt.body.readableBytesView)) else {
                states["unreadable", default: 0] += 1
                continue
            }
            if Self.settled.contains(shown.state) {
                states[shown.state, default: 0] += 1
                durations.record(.zero)
            } else {
                open.append((shown.id, receipt.at))
            }
        }
        let end = ContinuousClock.now + Self.limit
        while !open.isEmpty, .now < end {
            let round = ContinuousClock.now
            for (id, state) in await look(at: open.map(\.id)) where Self.settled.contains(state) {
                guard let index = open.firstIndex(where: { $0.id == id }) else { continue }
                durations.record(.now() - open[index].since)
                states[state, default: 0] += 1
                open.remove(at: index)
            }
            try? await Task.sleep(until: round + Self.interval, clock: .continuous)
        }
        if !open.isEmpty { states["open"] = open.count }
        return LoadReport.Grants(watched: accepted.count, states: states, milliseconds: .init(durations))
    }

    /// The states of the receipts that could be read, with at most `connections` requests at a time.
    private func look(at ids: [String]) async -> [(id: String, state: String)] {
        await withTaskGroup(of: (id: String, state: String)?.self) { group in
            var seen: [(id: String, state: String)] = []
            for (index, id) in ids.enumerated() {
                if index >= connections, let answer = await group.next(), let answer { seen.append(answer) }
                group.addTask {
                    guard let answer = try? await target.receipt(id), answer.status == 200,
                        let receipt = try? JSONDecoder().decode(Receipt.self, from: Data(answer.body))
                    else { return nil }
                    return (id, receipt.state)
                }
            }
            for await case let answer? in group { seen.append(answer) }
            return seen
        }
    }
}
