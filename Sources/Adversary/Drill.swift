import Foundation
import Service

/// One fault of the matrix: what the drill does to a running system under load, and what it must see.
package struct Drill: Sendable {
    /// The number in the matrix, with a letter where one fault has several forms.
    package let id: String
    package let name: String
    package let expected: String
    /// What the drill needs beyond the program and its servers.
    enum Need: Sendable { case crashPoints, faketime }

    let need: Need?
    /// Whether services may declare lost queues again; elsewhere they lack the right to.
    let declaresQueues: Bool
    /// The endpoints that the app's events go to, with two dispatchers; 0: no dispatcher runs.
    let endpoints: Int
    /// Called while the load runs. Afterwards the runner heals everything.
    let run: @Sendable (DrillContext) async throws -> Void

    init(
        _ id: String, _ name: String, expected: String, needs need: Need? = nil, declaresQueues: Bool = false,
        endpoints: Int = 0, _ run: @escaping @Sendable (DrillContext) async throws -> Void
    ) {
        self.id = id
        self.name = name
        self.expected = expected
        self.need = need
        self.declaresQueues = declaresQueues
        self.endpoints = endpoints
        self.run = run
    }

    /// The number of the fault.
    package var number: Int { Int(id.prefix { $0.isNumber }) ?? 0 }

    /// All drills, in the order of the matrix.
    package static let all =
        (processDrills + brokerDrills + databaseDrills + appleDrills + operationDrills + networkDrills
        + floodDrills + theftDrills + deliveryDrills)
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

    /// Why the drill cannot run here; nil: it can.
    func obstacle(_ plan: Matrix.Plan) -> String? {
        switch need {
        case .crashPoints where CrashPoint.areMissing(in: plan.executable):
            "the program has no crash points, as every release build"
        case .faketime where FaketimeLibrary.path == nil: "faketime is not installed (apt install faketime)"
        case .crashPoints, .faketime, nil: nil
        }
    }
}

extension CrashPoint {
    /// Whether the program lacks the crash points: its file does not name the variable that chooses one.
    fileprivate static func areMissing(in program: String) -> Bool {
        let content = try? Data(contentsOf: URL(filePath: program), options: .alwaysMapped)
        return content?.range(of: Data("MAKEGOOD_TEST_CRASH".utf8)) == nil
    }
}
