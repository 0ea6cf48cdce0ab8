import Foundation
import Reconciliation

/// One fault of the matrix (reliability.md 6): what is done to a running system under load, and what must be seen.
package struct Drill: Sendable {
    /// The number in the matrix, with a letter where one fault has several forms.
    package let id: String
    package let name: String
    package let expected: String
    /// Nil: it can run here; else why not.
    let obstacle: @Sendable () -> String?
    /// Called while the load runs. Afterwards everything is healed.
    let run: @Sendable (Stage) async throws -> Void

    init(
        _ id: String, _ name: String, expected: String, obstacle: @escaping @Sendable () -> String? = { nil },
        _ run: @escaping @Sendable (Stage) async throws -> Void
    ) {
        self.id = id
        self.name = name
        self.expected = expected
        self.obstacle = obstacle
        self.run = run
    }

    /// The number of the fault.
    package var number: Int { Int(id.prefix { $0.isNumber }) ?? 0 }

    /// All of them, in the order of the matrix.
    package static let all = (processDrills + brokerDrills + databaseDrills + appleDrills + operationDrills)
        .sorted { ($0.number, $0.id) < ($1.number, $1.id) }

    /// `all`, or numbers, ranges and ids: `1,2,7-9,23a`. Nil if it names nothing that exists.
    package static func select(_ text: String) -> [Drill]? {
        if text == "all" { return all }
        var selected: Set<String> = []
        for word in text.split(separator: ",") {
            let bounds = word.split(separator: "-").compactMap { Int($0) }
            let found = all.filter { drill in
                switch bounds.count {
                case 2: bounds[0] <= drill.number && drill.number <= bounds[1]
                case 1: drill.number == bounds[0]
                default: drill.id == word
                }
            }
            if found.isEmpty { return nil }
            selected.formUnion(found.map(\.id))
        }
        return all.filter { selected.contains($0.id) }
    }

    static let needsCrashPoints: @Sendable () -> String? = {
        CrashPoint.isCompiledIn ? nil : "crash points are compiled into debug builds only"
    }
}
