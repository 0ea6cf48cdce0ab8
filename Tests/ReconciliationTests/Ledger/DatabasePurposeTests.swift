import Foundation
import Testing

@testable import Encoding
@testable import Ledger
@testable import Settings

/// Goal: no database accepts unsigned data beside production purchases, whatever configuration files its processes
/// have. Method: configurations of each kind on databases of their own, one after the other and many at once.
@Suite(.timeLimit(.minutes(5))) struct DatabasePurposeTests {
    private static func configuration(_ environment: String, _ more: String = "") throws -> Configuration {
        try Configuration.parse(
            "apps:\n  - {id: game, bundleId: b, appAppleId: 1, environments: [\(environment)]\(more)}\n",
            directory: .temporaryDirectory)
    }

    private let production: Configuration
    private let unsigned: Configuration
    private let sandbox: Configuration

    init() throws {
        production = try Self.configuration("Production")
        unsigned = try Self.configuration("Xcode", ", acceptUnsignedXcodeData: true")
        sandbox = try Self.configuration("Sandbox")
    }

    @Test("The first process decides; another kind does not start, the sandbox stands beside either")
    func agreement() async throws {
        for (ours, others, key) in [
            (production, unsigned, "acceptUnsignedXcodeData"), (unsigned, production, "environments"),
        ] {
            try await LedgerLab.with { lab in
                try await DatabasePurpose.agree(sandbox, in: lab.database)
                #expect(try await lab.number("select count(*) from database_purpose") == 0)
                try await DatabasePurpose.check(ours, in: lab.database)
                try await DatabasePurpose.check(others, in: lab.database)
                for _ in 0..<2 { try await DatabasePurpose.agree(ours, in: lab.database) }
                try await DatabasePurpose.agree(sandbox, in: lab.database)
                for ask in [DatabasePurpose.agree, DatabasePurpose.check] {
                    let error = await #expect(throws: ConfigurationError.self) { try await ask(others, lab.database) }
                    #expect(error?.key == key)
                }
            }
        }
    }

    @Test("Of many that start at once those of one kind start")
    func atOnce() async throws {
        try await LedgerLab.with(connections: 8) { lab in
            let started = await withTaskGroup(of: Bool.self) { group in
                for number in 0..<8 {
                    group.addTask {
                        let ours = number.isMultiple(of: 2) ? production : unsigned
                        return (try? await DatabasePurpose.agree(ours, in: lab.ledger.database)) != nil
                    }
                }
                return await group.reduce(0) { $0 + ($1 ? 1 : 0) }
            }
            #expect(started == 4)
        }
    }
}
