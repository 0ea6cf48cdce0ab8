import AppStore
import Foundation
import Purchases
import Testing

@testable import Settings

/// Goal: the endpoints of an app are read as the file says, a wrong setting is named, no secret is shown, and an endpoint
/// changes the hash of the configuration but not that of the app. Method: a table of sections with one defect each.
@Suite struct EndpointSettingsTests {
    private static func parse(_ endpoints: String..., directory: URL = .temporaryDirectory) throws -> Configuration {
        let list = endpoints.map { "      - \($0)" }.joined(separator: "\n")
        return try Configuration.parse(EndpointSamples.yaml() + list, directory: directory)
    }

    private static func endpoint(_ members: String) throws -> EndpointSettings {
        try #require(
            try parse("{name: a, url: 'https://a.example/', secret: \(EndpointSamples.secret)\(members)}")
                .apps["game"]?.endpoints.first)
    }

    @Test("the defaults, and every member")
    func members() throws {
        let plain = try Self.endpoint("")
        #expect(plain.name == "a" && plain.url.text == "https://a.example/" && plain.secrets.count == 1)
        #expect(plain.types == nil && plain.environments == nil && plain.rate == nil)
        #expect(plain.concurrency == 16 && plain.timeout == .seconds(10) && plain.allowed == AllowedAddresses())
        let full = try Self.endpoint(
            """
            , types: [purchase.granted, order.paid], environments: Production, concurrency: 256, timeout: 1m,
            rate: {perSecond: 10000}, allowPrivate: [backend.internal, 10.0.0.0/8]
            """.replacing("\n", with: " "))
        #expect(full.types == [.purchaseGranted, .orderPaid] && full.environments == [.production])
        #expect(full.concurrency == 256 && full.timeout == .seconds(60))
        #expect(full.rate == Rate(perSecond: 10_000, burst: 10_000))
        #expect(full.allowed.hosts == ["backend.internal"] && full.allowed.ranges.count == 1)
    }

    @Test("an app without endpoints has none, and 16 at most")
    func count() throws {
        let none = try Configuration.parse(
            "apps: [{id: game, bundleId: a.b, environments: [Sandbox]}]", directory: .temporaryDirectory)
        #expect(none.apps["game"]?.endpoints.isEmpty == true)
        func list(_ count: Int) -> String {
            let entries = (0..<count).map {
                "{name: e\($0), url: 'https://a.example/', secret: \(EndpointSamples.secret)}"
            }
            return
                "apps: [{id: game, bundleId: a.b, environments: [Sandbox], endpoints: [\(entries.joined(separator: ", "))]}]"
        }
        let most = try Configuration.parse(list(16), directory: .temporaryDirectory)
        #expect(most.apps["game"]?.endpoints.map(\.name) == (0..<16).map { "e\($0)" })
        let error = #expect(throws: ConfigurationError.self) {
            try Configuration.parse(list(17), directory: .temporaryDirectory)
        }
        #expect(error?.key == "apps[0].endpoints")
    }

    @Test("names are of one app")
    func names() throws {
        let (url, secret) = ("url: 'https://a.example/'", "secret: \(EndpointSamples.secret)")
        let error = #expect(throws: ConfigurationError.self) {
            try Self.parse("{name: a, \(url), \(secret)}", "{name: a, \(url), \(secret)}")
        }
        #expect(error?.key == "apps[0].endpoints[1].name")
    }

    @Test("one secret or two, by value, by file with one a line, or by environment")
    func secrets() throws {
        let (old, new) = (EndpointSamples.secret, EndpointSamples.newSecret)
        let files = try ConfigurationFiles()
        defer { files.remove() }
        try files.write("\(old)\n\(new)\n", to: "two.key")
        try files.write("\(new)\n", to: "one.key")
        setenv("PROOF_HOOK_SECRET", "\(old) \(new)", 1)
        defer { unsetenv("PROOF_HOOK_SECRET") }
        for (member, expected) in [
            ("secret: \(old)", [old]), ("secret: '\(new) \(old)'", [new, old]), ("secretFile: two.key", [old, new]),
            ("secretFile: one.key", [new]), ("secretEnv: PROOF_HOOK_SECRET", [old, new]),
        ] as [(String, [String])] {
            let configuration = try Self.parse(
                "{name: a, url: 'https://a.example/', \(member)}", directory: files.directory)
            let endpoint = try #require(configuration.apps["game"]?.endpoints.first)
            #expect(endpoint.secrets == expected.map { WebhookSecret($0) }, "\(member)")
            #expect(configuration.holdsSecret == member.hasPrefix("secret:"), "\(member)")
            #expect(configuration.files.contains { $0.holdsSecret } == member.contains("File"), "\(member)")
        }
    }

    @Test("what is wrong is named", arguments: Self.defects)
    func wrong(members: String, key: String) throws {
        let files = try ConfigurationFiles()
        defer { files.remove() }
        try files.write("\n", to: "empty.key")
        try files.write("\(EndpointSamples.secret)\nwhsec_c2hvcnQ=\n", to: "short.key")
        let given = [("name", "a"), ("url", "'https://a.example/'"), ("secret", EndpointSamples.secret)]
        let rest = given.filter { member in
            !members.split(separator: ", ").contains { $0.hasPrefix(member.0) }
        }
        let section = (rest.map { "\($0.0): \($0.1)" } + [members]).joined(separator: ", ")
        let error = #expect(throws: ConfigurationError.self, "\(section)") {
            try Self.parse("{\(section)}", directory: files.directory)
        }
        #expect(error?.key == "apps[0].endpoints[0].\(key)", "\(section)")
        #expect(error?.place?.line == 7)
        #expect(error?.description.contains("MfKQ9r8") == false)
    }

    private static let defects: [(String, String)] = {
        let (secret, other) = (EndpointSamples.secret, EndpointSamples.newSecret)
        let urls = [
            "", "a.example", "ftp://a.example/", "https://", "https://a b/", "https://u:p@a.example/",
            "https://a.example/#x",
            "https://127.1/", "https://0x7f000001/", "https://2130706433/", "https://127.0.0.1/", "https://10.0.0.1/",
            "https://169.254.169.254/latest/meta-data/", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
            "https://[fd00::1]/", "https://a.example:0/", "https://a.example:99999/", "https://a_b.example/",
            "https://bücher.example/", "http://a.example/", "http://1.1.1.1/",
        ]
        let others: [(String, String)] = [
            ("url: 'http://a.example/', allowPrivate: [b.example]", "url"),
            ("url: 'http://10.0.0.1/', allowPrivate: [10.1.0.0/16]", "url"),
            ("name: ''", "name"), ("name: A", "name"), ("name: a.b", "name"), ("name: 'a b'", "name"),
            ("name: \(String(repeating: "a", count: 65))", "name"), ("name: [a]", "name"), ("name: null", "name"),
            ("secret: null", "secretFile"), ("secret: whsec_", "secret"), ("secret: word", "secret"),
            ("secret: whsec_c2hvcnQ=", "secret"), ("secret: '\(secret) \(secret)'", "secret"),
            ("secret: '\(secret) \(other) whsec_\(String(repeating: "A", count: 32))'", "secret"),
            ("secret: \(secret), secretFile: empty.key", "secret"), ("secretFile: none.key", "secretFile"),
            ("secretFile: empty.key", "secretFile"), ("secretFile: short.key", "secretFile"),
            ("secretEnv: NO_SUCH_VARIABLE_HERE", "secretEnv"), ("secretEnv: PATH", "secretEnv"),
            ("types: [purchase.sold]", "types"), ("types: []", "types"), ("types: {a: b}", "types"),
            ("environments: [production]", "environments"), ("environments: []", "environments"),
            ("concurrency: 0", "concurrency"), ("concurrency: 257", "concurrency"),
            ("concurrency: many", "concurrency"),
            ("rate: 5", "rate"), ("rate: {perSecond: 0}", "rate.perSecond"), ("rate: {burst: 1}", "rate.perSecond"),
            ("rate: {perSecond: 10001}", "rate.perSecond"), ("timeout: 0", "timeout"), ("timeout: 61s", "timeout"),
            ("timeout: 5", "timeout"), ("allowPrivate: ['10.0.0.1/8']", "allowPrivate"),
            ("allowPrivate: ['*']", "allowPrivate"), ("allowPrivate: [127.1]", "allowPrivate"),
            ("allowPrivate: ['https://a.example']", "allowPrivate"), ("retries: 3", "retries"), ("type: x", "type"),
        ]
        return urls.map { ("url: '\($0)'", "url") } + others
    }()

    @Test("an endpoint and its secrets are of the configuration's hash; the app's hash decides about receipts alone")
    func hashes() throws {
        let files = try ConfigurationFiles()
        defer { files.remove() }
        func hashes(_ secret: String, _ member: String = "") throws -> (whole: String, app: Data?) {
            try files.write(secret, to: "hook.key")
            let configuration = try Self.parse(
                "{name: a, url: 'https://a.example/', secretFile: hook.key\(member)}", directory: files.directory)
            return (configuration.hash, configuration.apps["game"]?.hash)
        }
        let first = try hashes(EndpointSamples.secret)
        let rotated = try hashes(EndpointSamples.newSecret)
        let slower = try hashes(EndpointSamples.secret, ", timeout: 20s")
        #expect(Set([first.whole, rotated.whole, slower.whole]).count == 3)
        #expect(first.app == rotated.app && first.app == slower.app)
        let none = try Configuration.parse(
            EndpointSamples.yaml().replacing("    endpoints:", with: ""), directory: files.directory)
        #expect(none.apps["game"]?.hash == first.app)
    }

    @Test("S1-12: no description or dump shows a secret")
    func notShown() throws {
        let configuration = try Self.parse("{name: a, url: 'https://a.example/', secret: \(EndpointSamples.secret)}")
        let endpoint = try #require(configuration.apps["game"]?.endpoints.first)
        var dumped = ""
        dump(configuration, to: &dumped)
        let bytes = try #require(endpoint.secrets.first).bytes.prefix(3).map(String.init).joined(separator: ", ")
        for text in [
            dumped, "\(configuration)", String(reflecting: configuration), "\(endpoint)", "\(endpoint.secrets)",
        ] {
            #expect(!text.contains("MfKQ9r8") && !text.contains(bytes))
        }
    }
}
