import Foundation
import Purchases
import Testing

@testable import Settings

/// Goal: how often Apple is asked for what nobody told is read as the file says it, and a wrong setting is named.
/// Method: a table of sections.
@Suite struct SweepSettingsTests {
    private static func read(_ section: String) throws -> SweepPolicy {
        let yaml = """
            apps:
              - id: game
                bundleId: com.example.game
                environments: [Sandbox]
                products: []
                \(section)
            """
        return try #require(try Configuration.parse(yaml, directory: .temporaryDirectory).apps["game"]).policy.sweeps
    }

    @Test("the defaults, and every member")
    func members() throws {
        #expect(try Self.read("") == SweepPolicy())
        #expect(SweepPolicy().customersEvery == .seconds(30 * 86_400) && SweepPolicy().samplePerDay == 100)
        var expected = SweepPolicy()
        expected.customersEvery = .seconds(7 * 86_400)
        expected.refundsEvery = .seconds(6 * 3600)
        expected.samplePerDay = 0
        #expect(try Self.read("sweeps: {customersEvery: 7d, refundsEvery: 6h, samplePerDay: 0}") == expected)
        (expected.customersEvery, expected.refundsEvery, expected.samplePerDay) = (nil, nil, 100)
        #expect(try Self.read("sweeps: {customersEvery: off, refundsEvery: 'off'}") == expected)
    }

    @Test(
        "what is wrong is named",
        arguments: [
            ("{customersEvery: 0}", "customersEvery"), ("{customersEvery: 59s}", "customersEvery"),
            ("{customersEvery: 366d}", "customersEvery"), ("{refundsEvery: never}", "refundsEvery"),
            ("{refundsEvery: 5}", "refundsEvery"), ("{samplePerDay: -1}", "samplePerDay"),
            ("{samplePerDay: 100001}", "samplePerDay"), ("{customers: 1d}", "customers"),
        ])
    func wrong(section: String, key: String) {
        #expect {
            try Self.read("sweeps: \(section)")
        } throws: { error in
            (error as? ConfigurationError)?.key == "apps[0].sweeps.\(key)"
        }
    }
}
