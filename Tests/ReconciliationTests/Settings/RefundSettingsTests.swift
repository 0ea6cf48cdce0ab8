import Foundation
import Ledger
import Purchases
import Testing

@testable import Settings

/// Goal: how an app answers Apple about refunds is read as the file says it, and a wrong setting is named. Method: a
/// table of sections.
@Suite struct RefundSettingsTests {
    private static func read(_ section: String) throws -> RefundPolicy {
        let yaml = """
            apps:
              - id: game
                bundleId: com.example.game
                environments: [Sandbox]
                products: []
                \(section)
            """
        return try #require(try Configuration.parse(yaml, directory: .temporaryDirectory).apps["game"]).policy.refunds
    }

    @Test("the defaults, and every member")
    func members() throws {
        #expect(try Self.read("") == RefundPolicy())
        #expect(RefundPolicy().answerAfter == .seconds(36_000) && RefundPolicy().preference == .noPreference)
        #expect(try Self.read("refunds: {preference: none}") == RefundPolicy())
        let whole = try Self.read(
            """
            refunds: {preference: byConsumption, declineFrom: 60, grantUpTo: 5, sampleContent: true, answerAfter: 90m, \
            apiVersion: 1}
            """)
        var expected = RefundPolicy()
        expected.preference = .byConsumption
        expected.declineFrom = 60_000
        expected.grantUpTo = 5000
        expected.providesSample = true
        expected.answerAfter = .seconds(5400)
        expected.apiVersion = 1
        #expect(whole == expected)
        #expect(try Self.read("refunds: {answerAfter: 630m}").answerAfter == RefundPolicy.answerAfterMax)
        #expect(RefundPolicy.answerAfterMax < Statements.refundRequestsLateAfter)
    }

    @Test(
        "what is wrong is named",
        arguments: [
            ("{preference: maybe}", "preference"), ("{preference: byConsumption}", "declineFrom"),
            ("{preference: byConsumption, declineFrom: 50}", "grantUpTo"),
            ("{preference: byConsumption, declineFrom: 50, grantUpTo: 50}", "grantUpTo"),
            ("{preference: byConsumption, declineFrom: 101, grantUpTo: 5}", "declineFrom"),
            ("{preference: decline, declineFrom: 50}", "declineFrom"), ("{grantUpTo: 5}", "grantUpTo"),
            ("{answerAfter: 12h}", "answerAfter"), ("{answerAfter: 631m}", "answerAfter"),
            ("{answerAfter: 11h}", "answerAfter"),
            ("{answerAfter: soon}", "answerAfter"),
            ("{sampleContent: perhaps}", "sampleContent"), ("{apiVersion: 3}", "apiVersion"),
            ("{preferance: none}", "preferance"),
        ])
    func wrong(section: String, key: String) {
        #expect {
            try Self.read("refunds: \(section)")
        } throws: { error in
            (error as? ConfigurationError)?.key == "apps[0].refunds.\(key)"
        }
    }
}
