import AppStore
import AppStoreSimulator
import Crypto
import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Settings

/// Goal: a configuration is taken whole, or it is refused with the name of the wrong key; it never shows a secret.
/// Method: the sample that names every key, then one change at a time.
@Suite struct ConfigurationTests {
    /// The sample names each key once, each credential, address and hash included.
    static let sample = """
        apps:
          - id: game
            bundleId: com.example.game
            appAppleId: 1234567890            # needed for Production
            environments: [Production, Sandbox]
            sandboxPurchases: testers         # testers (default) | grant | hold, for what Apple signed as Sandbox (not listed in environments: rejected)
            testers: {users: [u1, u2], others: {perUserPerDay: 0, perAppPerDay: 0}}      # raise others for App Review
            grantFrom: 2026-03-01T00:00:00Z   # purchases before this were another system's duty; default: the app's first start here, stored once
            makeUp: {maxAge: 7d, usersPerCustomer: 3, perUserPerDay: 0}     # brakes on 5.1 row 10, 0 = no limit
            confirmWithApple: stale           # never | stale | always
            rootCertificates: [roots/test.der]        # optional, PEM or DER, relative to this file; Apple's roots are pinned in the program
            serverApi: {issuerId: an-issuer, keyId: a-key, privateKeyFile: key.p8, productionUrl: https://p.example, sandboxUrl: https://s.example}     # optional; urls default to Apple's
            verifyReceipt: {sharedSecret: top-secret-word, productionUrl: https://p.example/v, sandboxUrl: http://127.0.0.1:1/v}                               # optional
            products:
              - {id: com.example.game.coins6, type: consumable, goods: [{item: coins, amount: 6000}]}
        access:
          - {name: gateway, keySha256: \(hash), scopes: [intake], apps: [game]}     # sent as `Authorization: Bearer <key>`; apps is required, "*" must be written
          - {name: support-desk, keySha256: \(hash), scopes: [support], apps: [game]}
        gatewayJwt: {issuer: an-issuer, audience: makegood, algorithms: [ES256], keys: [gateway.pem], userClaim: sub, scopes: [intake], apps: [game], leewaySeconds: 30}    # or a JWKS file
        """
    static let hash = String(repeating: "0aF", count: 21) + "1"

    /// Returns the sample with one change.
    static func change(_ from: String, _ to: String) throws -> String {
        try #require(sample.contains(from), "the sample has no \(from)")
        return sample.replacing(from, with: to, maxReplacements: 1)
    }

    private static func parse(_ yaml: String, secretKey: String? = nil) throws -> Configuration {
        let files = try ConfigurationFiles(privateKey: secretKey)
        defer { files.remove() }
        return try Configuration.parse(yaml, directory: files.directory)
    }

    static func refusal(of yaml: String) throws -> ConfigurationError? {
        let files = try ConfigurationFiles()
        defer { files.remove() }
        do throws(ConfigurationError) {
            _ = try Configuration.parse(yaml, directory: files.directory)
            return nil
        } catch {
            return error
        }
    }

    @Test("P16: ocsp is off unless the file says otherwise, quoted or not, and belongs to the app's hash")
    func ocsp() throws {
        // All configurations use one set of files: a set has a key of its own, which belongs to the hash.
        let files = try ConfigurationFiles()
        defer { files.remove() }
        func app(_ line: String) throws -> AppConfiguration {
            let yaml = try Self.change("confirmWithApple: stale", line)
            return try #require(try Configuration.parse(yaml, directory: files.directory).apps["game"])
        }
        for (line, mode) in [
            ("confirmWithApple: stale", .off), ("ocsp: off", .off), ("ocsp: 'off'", .off), (#"ocsp: "off""#, .off),
            ("ocsp: soft", .soft), (#"ocsp: "soft""#, .soft), ("ocsp: hard", .hard),
        ] as [(String, OCSPMode)] {
            #expect(try app(line).ocsp == mode, "\(line)")
        }
        #expect(try app("ocsp: off").hash == app("confirmWithApple: stale").hash)
        #expect(try Set([app("ocsp: off").hash, app("ocsp: soft").hash, app("ocsp: hard").hash]).count == 3)
    }

    @Test("P17: the hash covers what is in the files of the roots")
    func rootHash() throws {
        let files = try ConfigurationFiles()
        defer { files.remove() }
        let before = try Configuration.parse(Self.sample, directory: files.directory)
        let other = try AppStoreSimulator(logger: .silent)
        try Data(other.rootCertificateDER).write(to: files.directory.appending(path: "roots/test.der"))
        let after = try Configuration.parse(Self.sample, directory: files.directory)
        #expect(before.hash != after.hash)
        #expect(before.apps["game"]?.hash != after.apps["game"]?.hash)
    }

    @Test(
        "payloads stay 90 days, or whole days from one to ten years",
        arguments: [
            ("", 90), ("{notifications: 9d}", 90), ("{payloads: 24h}", 1), ("{payloads: 3650d}", 3650),
        ])
    func retention(text: String, days: Int) throws {
        let file = try Self.parse("\(Self.sample)\nretention: \(text)")
        #expect(file.payloadDays == days && file.notificationDays == (text.contains("notifications") ? 9 : 180))
    }

    @Test("any other time that payloads stay is refused by its key", arguments: ["0", "36h", "3651d", "never"])
    func retentionRefused(text: String) throws {
        #expect(try Self.refusal(of: "\(Self.sample)\nretention: {payloads: \(text)}")?.key == "retention.payloads")
        #expect(try Self.refusal(of: "\(Self.sample)\nretention: {notifications: \(text)}") != nil)
        #expect(try Self.refusal(of: "\(Self.sample)\nretention: {receipts: 1d}")?.key == "retention.receipts")
    }

    @Test("S3-43: an offer holds for 48 hours and a tap for 5 seconds, unless the file says otherwise")
    func orders() throws {
        func orders(_ text: String) throws -> AppConfiguration.Orders? {
            try Self.parse(Self.change("confirmWithApple: stale", "orders: \(text)")).apps["game"]?.orders
        }
        for text in ["{}", "{payBy: 48h}", "{debounce: 5s}"] {
            let defaults = try #require(try orders(text))
            #expect(defaults.payBy == .seconds(172_800) && defaults.debounce == .seconds(5), "\(text)")
        }
        let own = try #require(try orders("{payBy: 7d, debounce: 0}"))
        #expect(own.payBy == .seconds(604_800) && own.debounce == .zero)
        for (text, key) in [
            ("{payBy: 59s}", "payBy"), ("{payBy: 366d}", "payBy"), ("{debounce: 2h}", "debounce"),
            ("{wait: 1s}", "wait"),
        ] {
            let yaml = try Self.change("confirmWithApple: stale", "orders: \(text)")
            #expect(try Self.refusal(of: yaml)?.key == "apps[0].orders.\(key)", "\(text)")
        }
    }

    @Test("B3, B5: what Apple is told about decided purchases; what cannot be told there is refused by its key")
    func appleUpdates() throws {
        func policy(_ line: String) throws -> AppPolicy? {
            try Self.parse(Self.change("confirmWithApple: stale", line)).apps["game"]?.policy
        }
        let defaults = try #require(try policy("confirmWithApple: stale"))
        #expect(defaults.finishAtApple == .never && defaults.writesBackTokens)
        #expect(try policy("finishAtApple: afterGrant")?.finishAtApple == .afterGrant)
        #expect(try policy("finishAtApple: afterReceipt")?.finishAtApple == .afterReceipt)
        #expect(try policy("writeBackTokens: false")?.writesBackTokens == false)
        let serverAPI = try #require(Self.sample.split(separator: "\n").first { $0.contains("serverApi:") })
        let without = Self.sample.replacing(serverAPI, with: "")
        #expect(try Self.parse(without).apps["game"]?.policy.writesBackTokens == false)
        #expect(
            try Self.parse(without.replacing("confirmWithApple: stale", with: "finishAtApple: never")).apps.count == 1)
        for (yaml, line, key) in [
            (without, "finishAtApple: afterGrant", "finishAtApple"),
            (without, "finishAtApple: afterReceipt", "finishAtApple"),
            (without, "writeBackTokens: true", "writeBackTokens"),
            (Self.sample, "finishAtApple: always", "finishAtApple"),
            (Self.sample, "finishAtApple: afterReceipt\n    finishHeld: false", "finishAtApple"),
            (Self.sample, "writeBackTokens: maybe", "writeBackTokens"),
        ] {
            let changed = yaml.replacing("confirmWithApple: stale           # never | stale | always", with: line)
            #expect(try Self.refusal(of: changed)?.key == "apps[0].\(key)", "\(line)")
        }
    }

    @Test("the sample is understood, key by key")
    func design() throws {
        let configuration = try Self.parse(Self.sample)
        let app = try #require(configuration.apps["game"])
        #expect(app.identity.bundleId == "com.example.game" && app.identity.appAppleId == 1_234_567_890)
        #expect(app.identity.environments == [.production, .sandbox] && !app.identity.acceptsUnsignedXcodeData)
        let grantFrom = try Date("2026-03-01T00:00:00Z", strategy: .iso8601)
        var policy = AppPolicy(
            id: "game", sandboxPurchases: .testers, testers: ["u1", "u2"], sandboxPerUserPerDay: 0,
            sandboxPerAppPerDay: 0, grantFrom: grantFrom, makeUpMaxAge: .seconds(7 * 86_400), makeUpUsersPerCustomer: 3,
            makeUpPerUserPerDay: 0, confirmWithApple: .stale,
            products: [
                .init(id: "com.example.game.coins6", kind: .consumable, goods: [.init(item: "coins", amount: 6000)])
            ])
        policy.legacyReceipts = [.serverApi, .verifyReceipt]
        policy.writesBackTokens = true
        #expect(app.policy == policy && app.hasGrantFrom && app.finishHeld)
        #expect(app.rootCertificates.count == 1)
        #expect(app.serverAPI?.issuerID == "an-issuer" && app.serverAPI?.keyID == "a-key")
        #expect(app.serverAPI?.privateKeyPEM.hasPrefix("-----BEGIN PRIVATE KEY-----") == true)
        #expect(app.serverAPI?.productionURL == "https://p.example" && app.serverAPI?.sandboxURL == "https://s.example")
        #expect(app.verifyReceipt?.sharedSecret == "top-secret-word")
        #expect(app.verifyReceipt?.sandboxURL == "http://127.0.0.1:1/v")
        #expect(configuration.access.map(\.name) == ["gateway", "support-desk"])
        #expect(configuration.access.map(\.scopes) == [[.intake], [.support]])
        #expect(configuration.access.allSatisfy { $0.keySHA256.count == 32 && $0.apps == ["game"] })
        let jwt = try #require(configuration.gatewayJWT)
        #expect(jwt.issuer == "an-issuer" && jwt.audience == "makegood" && jwt.algorithms == [.es256])
        #expect(jwt.promotionsClaim == "promotions", "unless the file says otherwise")
        #expect(jwt.userClaim == "sub" && jwt.scopes == [.intake] && jwt.apps == ["game"] && jwt.leeway == .seconds(30))
        #expect(jwt.lifetimeMax == .seconds(86_400))
        #expect(jwt.keys.count == 1 && configuration.hash.count == 64)
    }

    @Test(
        "a legacy receipt is judged as the app says, in this order; unsaid, by what there are credentials for",
        arguments: [
            ("verifyReceipt", [.verifyReceipt]), ("serverApi", [.serverApi]), ("local", [.local]),
            ("[local]", [.local]), ("[serverApi, local]", [.serverApi, .local]),
            ("[verifyReceipt, serverApi, local]", [.verifyReceipt, .serverApi, .local]),
            ("", [.serverApi, .verifyReceipt]),
        ] as [(String, [AppPolicy.LegacyStrategy])])
    func legacyReceipts(text: String, strategies: [AppPolicy.LegacyStrategy]) throws {
        let yaml = try Self.change("    serverApi:", "    legacyReceipts: \(text)\n    serverApi:")
        let key = P256.Signing.PrivateKey().pemRepresentation
        let app = try #require(try Self.parse(yaml, secretKey: key).apps["game"])
        #expect(app.policy.legacyReceipts == strategies)
        let unsaid = try #require(try Self.parse(Self.sample, secretKey: key).apps["game"])
        #expect((app.hash == unsaid.hash) == (strategies == unsaid.policy.legacyReceipts), "held rows become due")
    }

    @Test("what is unsaid follows the sections that are there")
    func legacyReceiptsBySection() throws {
        for (section, strategies) in [
            ("", []), ("verifyReceipt: {}", [.verifyReceipt]),
            ("serverApi: {issuerId: i, keyId: k, privateKeyFile: key.p8}", [.serverApi]),
        ] as [(String, [AppPolicy.LegacyStrategy])] {
            let yaml = """
                apps:
                  - id: game
                    bundleId: b
                    environments: [Sandbox]
                    \(section)
                """
            #expect(try Self.parse(yaml).apps["game"]?.policy.legacyReceipts == strategies)
        }
    }

    @Test(
        "an unknown, repeated or missing strategy is refused by its key",
        arguments: [
            ("storekit", "be one of verifyReceipt, serverApi, local"), ("[serverApi, storekit]", "be one of"),
            ("[local, local]", "local twice"), ("[]", "at least one"), ("''", "be one of"), ("{local: 1}", "list"),
            ("[[local]]", "text"),
        ])
    func brokenLegacyReceipts(text: String, words: String) throws {
        let yaml = try Self.change("    serverApi:", "    legacyReceipts: \(text)\n    serverApi:")
        let error = try #require(try Self.refusal(of: yaml))
        #expect(error.key.hasPrefix("apps[0].legacyReceipts") && error.problem.contains(words), "\(error)")
    }

    @Test("a strategy needs its section", arguments: ["serverApi", "verifyReceipt", "[local, serverApi]"])
    func legacyReceiptsWithoutSection(text: String) throws {
        let yaml = "apps: [{id: game, bundleId: b, environments: [Sandbox], legacyReceipts: \(text)}]"
        let error = try #require(try Self.refusal(of: yaml))
        #expect(error.key == "apps[0].legacyReceipts" && error.problem.contains("needs a section"), "\(error)")
    }

    @Test("what is left out has design's default")
    func defaults() throws {
        let yaml = """
            apps: [{id: game, bundleId: com.example.game, environments: [Sandbox]}]
            """
        let app = try #require(try Self.parse(yaml).apps["game"])
        #expect(app.policy == AppPolicy(id: "game", grantFrom: .distantPast, products: []))
        #expect(!app.hasGrantFrom && app.finishHeld && app.serverAPI == nil && app.verifyReceipt == nil)
        #expect(app.identity.appAppleId == nil && app.rootCertificates.isEmpty)
        let json =
            #"{"apps": [{"id": "game", "bundleId": "b", "appAppleId": 1}], "access": [{"name": "k", "#
            + #""keySha256": "\#(Self.hash)", "scopes": ["intake", "claim", "events"], "apps": ["*"]}]}"#
        let configuration = try Self.parse(json)
        #expect(configuration.apps["game"]?.identity.environments == [.production])
        #expect(configuration.access.first?.apps == ["game"] && configuration.access.first?.scopes.count == 3)
    }

    @Test("B10: what may be given on trust is off; both limits must be written, trust has defaults")
    func provisional() throws {
        let given = { (limits: String, product: String) in
            try Self.change("    products:", "    provisional: \(limits)\n    products:").replacing(
                "type: consumable", with: "type: consumable\(product)")
        }
        let marked = ", provisional: true"
        let policy = { (yaml: String) in try #require(try Self.parse(yaml).apps["game"]).policy }
        #expect(try policy(Self.sample).provisional == nil)
        let least = try policy(given("{perUserPerDay: 3, perAppPerDay: 500}", marked))
        #expect(least.provisional == .init(perUserPerDay: 3, perAppPerDay: 500, purchasesMin: 1, knownFor: .zero))
        #expect(least.products.values.map(\.isProvisional) == [true])
        let full = try policy(
            given("{perUserPerDay: 1, perAppPerDay: 100000, purchasesMin: 0, knownFor: 7d}", ", provisional: false"))
        #expect(
            full.provisional
                == .init(perUserPerDay: 1, perAppPerDay: 100_000, purchasesMin: 0, knownFor: .seconds(604_800)))
        #expect(full.products.values.map(\.isProvisional) == [false])
        for (limits, product, key) in [
            ("", marked, "apps[0].products[0].provisional"), ("{}", marked, "apps[0].provisional.perUserPerDay"),
            ("{perUserPerDay: 1}", "", "apps[0].provisional.perAppPerDay"),
            ("{perUserPerDay: 0, perAppPerDay: 1}", "", "apps[0].provisional.perUserPerDay"),
            ("{perUserPerDay: 1, perAppPerDay: 100001}", "", "apps[0].provisional.perAppPerDay"),
            ("{perUserPerDay: 1, perAppPerDay: 1, purchasesMin: -1}", "", "apps[0].provisional.purchasesMin"),
            ("{perUserPerDay: 1, perAppPerDay: 1, knownFor: soon}", "", "apps[0].provisional.knownFor"),
            ("{perUserPerDay: 1, perAppPerDay: 1}", ", provisional: 2", "apps[0].products[0].provisional"),
            ("true", "", "apps[0].provisional"),
        ] {
            #expect(try Self.refusal(of: given(limits, product))?.key == key, "\(limits) \(product)")
        }
        // The limits belong to the hash, because a change of them may free held rows.
        let hashes = try ["{perUserPerDay: 1, perAppPerDay: 1}", "{perUserPerDay: 1, perAppPerDay: 2}"].map {
            try #require(try Self.parse(given($0, "")).apps["game"]).hash
        }
        #expect(hashes[0] != hashes[1])
    }

    @Test(
        "an unknown key is refused with its path, at every level",
        arguments: [
            ("apps:", "retry: 3\napps:", "retry"),
            ("    bundleId:", "    bundelId: x\n    bundleId:", "apps[0].bundelId"),
            ("{users: [u1, u2]", "{user: u3, users: [u1, u2]", "apps[0].testers.user"),
            (
                "{perUserPerDay: 0, perAppPerDay", "{perDay: 1, perUserPerDay: 0, perAppPerDay",
                "apps[0].testers.others.perDay"
            ),
            ("{maxAge: 7d", "{maxage: 8d, maxAge: 7d", "apps[0].makeUp.maxage"),
            ("{issuerId: an-issuer, keyId", "{issuer: x, issuerId: an-issuer, keyId", "apps[0].serverApi.issuer"),
            ("{sharedSecret: ", "{password: x, sharedSecret: ", "apps[0].verifyReceipt.password"),
            ("{id: com.example.game.coins6", "{price: 6, id: com.example.game.coins6", "apps[0].products[0].price"),
            ("{item: coins, ", "{bonus: 1, item: coins, ", "apps[0].products[0].goods[0].bonus"),
            (
                "    products:", "    provisional: {perUserPerDay: 1, perAppPerDay: 1, perDay: 1}\n    products:",
                "apps[0].provisional.perDay"
            ),
            ("{name: support-desk, ", "{key: x, name: support-desk, ", "access[1].key"),
            ("userClaim: sub", "userClaim: sub, claim: x", "gatewayJwt.claim"),
        ])
    func unknownKeys(from: String, to: String, key: String) throws {
        let error = try #require(try Self.refusal(of: Self.change(from, to)))
        #expect(error.key == key && error.problem.hasPrefix("is not a known setting"), "\(error)")
    }

    @Test(
        "an error names file, line, column and key, and the known key that is spelled nearly so",
        arguments: [
            ("", "1:1: must be a mapping"),
            ("apps: [game]", "1:8: apps[0]: must be a mapping"),
            ("{[1]: 2}", "1:2: has a key that is no text"),
            ("apps:\n  - bundleId: b", "2:5: apps[0].id: is missing"),
            ("apps:\n  - id: game\n    bundelId: b", "2:5: apps[0].bundleId: is missing"),
            (
                "apps:\n  - id: game\n    bundleId: b\n    environments: [Sandbox]\n    testers: {user: [u1]}",
                "5:15: apps[0].testers.user: is not a known setting; did you mean users?"
            ),
            (
                "apps:\n  - id: game\n    bundleId: b\n    environments: [Sandbox]\n    testers: {users: [u1, [u2]]}",
                "5:27: apps[0].testers.users[1]: must be a text"
            ),
            (
                "apps:\n  - {id: game, bundleId: b, environments: [Sandbox]}\nretry: 3",
                "3:1: retry: is not a known setting"
            ),
            (
                "apps:\n  - id: game\n    bundleId: [a",
                "4:1: is no YAML: while parsing a flow sequence, did not find expected ',' or ']'"
            ),
            (
                "apps:\n  - id: game\n   bundleId: b",
                "3:4: is no YAML: while parsing a block collection, did not find expected '-' indicator"
            ),
            ("apps: []\naccess: []\napps: []", "1:1: is no YAML: a mapping has a key twice: apps"),
            ("apps: []\nß: é\u{1}", "2:5: is no YAML: control characters are not allowed"),
            (
                "apps: []\n---\napps: []",
                "2:1: is no YAML: expected a single document in the stream, but found another document"
            ),
        ])
    func places(yaml: String, text: String) throws {
        let files = try ConfigurationFiles()
        defer { files.remove() }
        try files.write(yaml, to: "makegood.yaml")
        let path = files.directory.appending(path: "makegood.yaml").path(percentEncoded: false)
        let error = #expect(throws: ConfigurationError.self) { try Configuration.load(path) }
        #expect(error?.description == "\(path):\(text)")
    }

    @Test("an unknown variable names the known one that is spelled nearly so")
    func unknownVariables() {
        for (name, suggestion) in [
            ("MAKEGOOD_POSTGRS_URL", "; did you mean MAKEGOOD_POSTGRES_URL?"), ("MAKEGOOD_QUITE_ANOTHER_THING", ""),
        ] {
            let error = #expect(throws: ConfigurationError.self) { try Settings(environment: [name: "x"]) }
            #expect(error?.description == "configuration: \(name): is not a known setting\(suggestion)")
        }
    }

    @Test(
        "a value that is wrong names its key",
        arguments: [
            ("id: game\n", "id: ''\n", "apps[0].id"),
            ("id: game\n", "id: \(String(repeating: "x", count: 65))\n", "apps[0].id"),
            ("id: game\n", "id: gäme\n", "apps[0].id"), ("id: game\n", "id: \"a b\"\n", "apps[0].id"),
            ("bundleId: com.example.game", "bundleId: [a]", "apps[0].bundleId"),
            ("    bundleId: com.example.game\n", "", "apps[0].bundleId"),
            ("appAppleId: 1234567890", "appAppleId: many", "apps[0].appAppleId"),
            ("appAppleId: 1234567890", "appAppleId: 0", "apps[0].appAppleId"),
            ("appAppleId: 1234567890", "appAppleId:", "apps[0].appAppleId"),
            ("[Production, Sandbox]", "[Production, Staging]", "apps[0].environments"),
            ("[Production, Sandbox]", "{Production: true}", "apps[0].environments"),
            ("sandboxPurchases: testers", "sandboxPurchases: everybody", "apps[0].sandboxPurchases"),
            ("sandboxPurchases: testers", "mode: dark", "apps[0].mode"),
            ("users: [u1, u2]", "users: [u1, [u2]]", "apps[0].testers.users[1]"),
            (
                "perUserPerDay: 0, perAppPerDay", "perUserPerDay: -1, perAppPerDay",
                "apps[0].testers.others.perUserPerDay"
            ),
            ("2026-03-01T00:00:00Z", "yesterday", "apps[0].grantFrom"),
            ("2026-03-01T00:00:00Z", "2026-03-01", "apps[0].grantFrom"),
            ("maxAge: 7d", "maxAge: 7", "apps[0].makeUp.maxAge"),
            ("maxAge: 7d", "maxAge: week", "apps[0].makeUp.maxAge"),
            ("usersPerCustomer: 3", "usersPerCustomer: 3.5", "apps[0].makeUp.usersPerCustomer"),
            ("confirmWithApple: stale", "confirmWithApple: sometimes", "apps[0].confirmWithApple"),
            ("confirmWithApple: stale", "ocsp: false", "apps[0].ocsp"),
            ("confirmWithApple: stale", "shared: never", "apps[0].shared"),
            ("[roots/test.der]", "[roots/none.der]", "apps[0].rootCertificates"),
            ("[roots/test.der]", "[gateway.pem]", "apps[0].rootCertificates"),
            ("privateKeyFile: key.p8", "privateKeyFile: none.p8", "apps[0].serverApi.privateKeyFile"),
            ("privateKeyFile: key.p8, ", "", "apps[0].serverApi.privateKeyFile"),
            ("issuerId: an-issuer, keyId", "keyId", "apps[0].serverApi.issuerId"),
            ("productionUrl: https://p.example,", "productionUrl: p.example,", "apps[0].serverApi.productionUrl"),
            (
                "productionUrl: https://p.example/v", "productionUrl: 'file:///etc'",
                "apps[0].verifyReceipt.productionUrl"
            ),
            ("type: consumable", "type: Consumable", "apps[0].products[0].type"),
            ("amount: 6000", "amount: 0", "apps[0].products[0].goods[0].amount"),
            (", amount: 6000", "", "apps[0].products[0].goods[0].amount"),
            ("goods: [{item: coins, amount: 6000}]", "goods: {item: coins}", "apps[0].products[0].goods"),
            ("keySha256: \(hash), scopes: [intake]", "keySha256: abc, scopes: [intake]", "access[0].keySha256"),
            ("scopes: [intake], apps: [game]}  ", "scopes: [all], apps: [game]}  ", "access[0].scopes"),
            ("scopes: [intake], apps: [game]}  ", "scopes: [intake]}  ", "access[0].apps"),
            ("scopes: [intake], apps: [game]}  ", "scopes: [intake], apps: [gaem]}  ", "access[0].apps"),
            (
                "scopes: [intake], apps: [game]}  ", "scopes: [intake], apps: [game], expires: 2027}  ",
                "access[0].expires"
            ),
            ("algorithms: [ES256]", "algorithms: [none]", "gatewayJwt.algorithms"),
            ("keys: [gateway.pem]", "keys: []", "gatewayJwt.keys"),
            ("leewaySeconds: 30", "leewaySeconds: 301", "gatewayJwt.leewaySeconds"),
            ("leewaySeconds: 30", "lifetimeMax: 59s", "gatewayJwt.lifetimeMax"),
            ("leewaySeconds: 30", "lifetimeMax: 366d", "gatewayJwt.lifetimeMax"),
            ("audience: makegood, ", "", "gatewayJwt.audience"),
        ])
    func wrongValues(from: String, to: String, key: String) throws {
        #expect(try Self.refusal(of: Self.change(from, to))?.key == key)
    }

    @Test(
        "what cannot stand together is refused",
        arguments: [
            ("environments: [Production, Sandbox]", "acceptUnsignedXcodeData: true", "apps[0].acceptUnsignedXcodeData"),
            ("confirmWithApple: stale", "confirmWithApple: always", "apps[0].confirmWithApple"),
        ])
    func contradictions(from: String, to: String, key: String) throws {
        let yaml = """
            apps:
              - {id: game, bundleId: b, appAppleId: 1, environments: [Production, Xcode], \(to)}
            """
        #expect(try Self.refusal(of: yaml)?.key == key)
    }

    @Test("Unsigned data beside production is refused, whichever app is named first; beside the sandbox it is not")
    func unsignedBesideProduction() throws {
        let xcode = "{id: dev, bundleId: b, environments: [Xcode], acceptUnsignedXcodeData: true}"
        func app(_ environment: String) -> String {
            "{id: game, bundleId: c, appAppleId: 1, environments: [\(environment)]}"
        }
        func refusal(_ first: String, _ second: String) throws -> String? {
            try Self.refusal(of: "apps:\n  - \(first)\n  - \(second)\n")?.key
        }
        #expect(try refusal(xcode, app("Production")) == "apps[0].acceptUnsignedXcodeData")
        #expect(try refusal(app("Production"), xcode) == "apps[1].acceptUnsignedXcodeData")
        #expect(try refusal(xcode, app("Sandbox")) == nil)
    }

    @Test("no apps, no YAML, no mapping, the same id twice")
    func shapes() throws {
        for (yaml, key) in [
            ("", "(file)"), ("[]", "(file)"), ("apps: [", "(file)"), ("apps:", "apps"), ("apps: []", "apps"),
            ("apps: game", "apps"), ("apps: [game]", "apps[0]"), ("{[1]: 2}", "(file)"),
            ("apps: [{id: a, bundleId: b, environments: [Sandbox], id: c}]", "(file)"),
            (
                "apps: [{id: a, bundleId: b, environments: [Sandbox]}, {id: a, bundleId: c, environments: [Sandbox]}]",
                "apps[1].id"
            ),
            (
                "apps: [{id: a, bundleId: b, environments: [Sandbox], products: [{id: p, type: consumable}, {id: p, type: consumable}]}]",
                "apps[0].products[1].id"
            ),
        ] {
            #expect(try Self.refusal(of: yaml)?.key == key, "\(yaml)")
        }
        #expect(throws: ConfigurationError.self) { try Configuration.load("/no/such/file.yaml") }
    }

    @Test(
        "durations: a whole number with its unit",
        arguments: [
            ("0", 0), ("0s", 0), ("90s", 90), ("10m", 600), ("48h", 172_800), ("7d", 604_800),
            ("1000000d", 86_400_000_000),
        ])
    func durations(text: String, seconds: Int) throws {
        #expect(Duration(setting: text) == .seconds(seconds))
        let app = try Self.parse(Self.change("maxAge: 7d", "maxAge: \(text)")).apps["game"]
        #expect(app?.policy.makeUpMaxAge == .seconds(seconds))
    }
}
