import Foundation
import Purchases
import Testing

@testable import Settings

/// Goal: the configuration says what subscriptions give and how long purchases last, or is refused by its key.
/// Method: the sample of all keys with one change at a time.
@Suite struct SubscriptionSettingsTests {
    @Test("what subscriptions give, and what products say for entitlements; a state's policy is not of the app's hash")
    func subscriptions() throws {
        let files = try ConfigurationFiles()
        defer { files.remove() }
        func app(_ line: String, product: String = "") throws -> AppConfiguration {
            var yaml = try ConfigurationTests.change("confirmWithApple: stale", line)
            if !product.isEmpty {
                yaml.replace("    products:\n", with: "    products:\n      - {id: other, \(product)}\n")
            }
            return try #require(try Configuration.parse(yaml, directory: files.directory).apps["game"])
        }
        let defaults = try app("confirmWithApple: stale")
        #expect(defaults.policy.subscriptions == SubscriptionPolicy())
        #expect(try app("subscriptions: {}").policy.subscriptions == SubscriptionPolicy())
        #expect(defaults.policy.subscriptions.graceEntitles && !defaults.policy.subscriptions.retryEntitles)
        let other = try app("subscriptions: {grace: not, retry: entitled, goods: atStart}")
        #expect(!other.policy.subscriptions.graceEntitles && other.policy.subscriptions.retryEntitles)
        #expect(other.policy.subscriptions.goods == .atStart && other.hash != defaults.hash)
        #expect(try app("subscriptions: {grace: not, retry: entitled, goods: everyPeriod}").hash == defaults.hash)
        for (text, key) in [
            ("{grace: no}", "grace"), ("{retry: true}", "retry"), ("{goods: never}", "goods"), ("{days: 3}", "days"),
        ] {
            let yaml = try ConfigurationTests.change("confirmWithApple: stale", "subscriptions: \(text)")
            #expect(try ConfigurationTests.refusal(of: yaml)?.key == "apps[0].subscriptions.\(key)", "\(text)")
        }
        let (plain, said) = (
            try app("confirmWithApple: stale", product: "type: nonRenewing"),
            try app("confirmWithApple: stale", product: "type: nonRenewing, duration: P1Y")
        )
        #expect(said.policy.terms == ["other": EntitlementTerms(duration: CalendarPeriod("P1Y"))])
        #expect(said.policy.catalogue.products["other"]?.terms.duration == CalendarPeriod("P1Y"))
        // Services keep the catalogue of an app by its hash.
        #expect(plain.policy.terms.isEmpty && plain.hash != said.hash)
    }
}
