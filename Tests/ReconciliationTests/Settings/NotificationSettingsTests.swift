import Foundation
import Testing

@testable import Settings

/// Goal: an app's notifications are sent on to an encrypted address or to this machine alone. Method: files of one app,
/// each with one line.
@Suite struct NotificationSettingsTests {
    private func parse(_ line: String) throws(ConfigurationError) -> AppConfiguration? {
        try Configuration.parse(
            "apps:\n  - {id: a, bundleId: b.c, environments: [Sandbox]\(line)}\n",
            directory: FileManager.default.temporaryDirectory
        ).apps["a"]
    }

    @Test("an https address, or one of this machine; without it nothing is sent on, and receipts are judged as before")
    func addresses() throws {
        let plain = try #require(try parse(""))
        #expect(plain.notifications.forwardTo == nil)
        #expect(try parse(", notifications: {}")?.notifications.forwardTo == nil)
        for address in [
            "https://hooks.example.com/apple?a=1", "https://10.0.0.1:8443/", "http://127.0.0.1:9000/hook",
            "http://localhost/", "http://[::1]:9000/",
        ] {
            let app = try #require(try parse(", notifications: {forwardTo: '\(address)'}"))
            #expect(app.notifications.forwardTo?.absoluteString == address)
            #expect(app.hash == plain.hash)
        }
    }

    @Test(
        "another address, and another key, are refused by their names",
        arguments: [
            ("forwardTo: 'http://hooks.example.com/'", "forwardTo"),
            ("forwardTo: 'http://127.0.0.1.example.com/'", "forwardTo"),
            ("forwardTo: 'ftp://127.0.0.1/'", "forwardTo"), ("forwardTo: hooks", "forwardTo"),
            ("forwardTo: [a]", "forwardTo"), ("forwardsTo: 'https://a.example/'", "forwardsTo"),
        ])
    func refused(_ line: String, _ key: String) throws {
        do throws(ConfigurationError) {
            _ = try parse(", notifications: {\(line)}")
            Issue.record("taken: \(line)")
        } catch {
            #expect(error.key == "apps[0].notifications.\(key)")
        }
    }
}
