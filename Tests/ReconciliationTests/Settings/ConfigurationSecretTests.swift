import Foundation
import Testing

@testable import Encoding
@testable import Settings

/// Goal: secrets are read from where the operator keeps them and are never shown; a configuration's hash changes with
/// every setting that decides about receipts.
@Suite struct ConfigurationSecretTests {
    private static let sharedSecret = "ultra-secret-shared-word"

    private static func yaml(_ secret: String = "sharedSecret: \(sharedSecret)", _ more: String = "") -> String {
        """
        apps:
          - id: game
            bundleId: com.example.game
            environments: [Sandbox]
            rootCertificates: [roots/test.der]
            serverApi: {issuerId: i, keyId: k, privateKeyFile: key.p8}
            verifyReceipt: {\(secret)}
            products:
              - {id: coins, type: consumable, goods: [{item: coin, amount: 60}]}
        \(more)
        """
    }

    private static func withFiles<Value>(_ body: (ConfigurationFiles) throws -> Value) throws -> Value {
        let files = try ConfigurationFiles(privateKey: "private-key-text")
        defer { files.remove() }
        return try body(files)
    }

    @Test("a secret by value, by file without its last line break, or by environment")
    func sources() throws {
        try Self.withFiles { files in
            try files.write("from-a-file\n", to: "secret.txt")
            setenv("PROOF_SHARED_SECRET", "from-the-environment", 1)
            defer { unsetenv("PROOF_SHARED_SECRET") }
            for (line, expected) in [
                ("sharedSecret: by-value", "by-value"), ("sharedSecretFile: secret.txt", "from-a-file"),
                ("sharedSecretEnv: PROOF_SHARED_SECRET", "from-the-environment"), ("sharedSecret: 0123", "0123"),
                ("sharedSecret: 'null'", "null"),
            ] {
                let configuration = try Configuration.parse(Self.yaml(line), directory: files.directory)
                #expect(configuration.apps["game"]?.verifyReceipt?.sharedSecret == expected)
            }
            #expect(
                try Configuration.parse(Self.yaml(""), directory: files.directory).apps["game"]?.verifyReceipt?
                    .sharedSecret
                    == nil)
        }
    }

    @Test(
        "a secret that is missing, or given twice, is refused by its key",
        arguments: [
            ("sharedSecretFile: none.txt", "sharedSecretFile"),
            ("sharedSecretEnv: NO_SUCH_VARIABLE_HERE", "sharedSecretEnv"),
            ("sharedSecret: a, sharedSecretFile: key.p8", "sharedSecret"),
            ("sharedSecretFile: key.p8, sharedSecretEnv: HOME", "sharedSecret"),
            ("sharedSecret: {a: b}", "sharedSecret"),
        ])
    func refused(line: String, key: String) throws {
        try Self.withFiles { files in
            let error = #expect(throws: ConfigurationError.self) {
                try Configuration.parse(Self.yaml(line), directory: files.directory)
            }
            #expect(error?.key == "apps[0].verifyReceipt.\(key)")
        }
    }

    @Test("S1-12: no description, dump or error shows a secret")
    func notShown() throws {
        try Self.withFiles { files in
            let configuration = try Configuration.parse(Self.yaml(), directory: files.directory)
            var dumped = ""
            dump(configuration, to: &dumped)
            let app = try #require(configuration.apps["game"])
            let serverAPI = try #require(app.serverAPI)
            let verifyReceipt = try #require(app.verifyReceipt)
            for text in [
                dumped, "\(configuration)", String(reflecting: configuration), "\(app)", String(reflecting: app),
                "\(serverAPI)", "\(verifyReceipt)", String(reflecting: verifyReceipt),
            ] {
                #expect(!text.contains(Self.sharedSecret) && !text.contains("private-key-text"))
            }
            // If the secret stands in the place of another value, the error names the key only.
            for line in ["sharedSecret: x, \(Self.sharedSecret): y", "productionUrl: \(Self.sharedSecret)"] {
                let error = #expect(throws: ConfigurationError.self) {
                    try Configuration.parse(Self.yaml(line), directory: files.directory)
                }
                if !line.contains("y") { #expect("\(String(describing: error))".contains(Self.sharedSecret) == false) }
            }
        }
    }

    @Test("settings show no password of the database or the broker")
    func settings() throws {
        let settings = try Settings(environment: [
            "MAKEGOOD_POSTGRES_URL": "postgresql://app:database-password@db/makegood",
            "MAKEGOOD_AMQP_URL": "amqp://app:broker-password@mq/%2f",
        ])
        var dumped = ""
        dump(settings, to: &dumped)
        for text in [dumped, "\(settings)", String(reflecting: settings)] { #expect(!text.contains("password")) }
        #expect(settings.postgresURL.contains("database-password") && settings.amqpURL.contains("broker-password"))
    }

    @Test(
        "settings: an address is asked of who needs it, and then missed by name",
        arguments: [[:], ["MAKEGOOD_POSTGRES_URL": "", "MAKEGOOD_AMQP_URL": ""]])
    func addresses(environment: [String: String]) throws {
        let settings = try Settings(environment: environment)
        let database = #expect(throws: ConfigurationError.self) { try settings.requiredPostgresURL() }
        #expect(database?.key == "MAKEGOOD_POSTGRES_URL")
        let broker = #expect(throws: ConfigurationError.self) { try settings.requiredAMQPURL() }
        #expect(broker?.key == "MAKEGOOD_AMQP_URL")
    }

    @Test(
        "settings: a typo and a wrong value are refused by name, without the value",
        arguments: [
            ("MAKEGOOD_POSTGRESS_URL", "secret-value"), ("MAKEGOOD_HTTP_PORT", "secret-value"),
            ("MAKEGOOD_HTTP_PORT", "65536"), ("MAKEGOOD_POSTGRES_NAMED_STATEMENTS", "secret-value"),
            ("MAKEGOOD_TIME_SCALE", "0"), ("MAKEGOOD_TIME_SCALE", "1.5"), ("MAKEGOOD_LOG_LEVEL", "secret-value"),
            ("MAKEGOOD_BODY_BYTES_MAX", "1"), ("MAKEGOOD_LOG_FORMAT", "secret-value"),
            // A variable and its `_FILE` variant are both set, and the file does not exist.
            ("MAKEGOOD_POSTGRES_URL_FILE", "/secret-value"), ("MAKEGOOD_AMQP_URL_FILE", "/secret-value"),
        ])
    func wrongSettings(key: String, value: String) throws {
        let error = #expect(throws: ConfigurationError.self) {
            try Settings(environment: ["MAKEGOOD_POSTGRES_URL": "postgresql://db"].merging([key: value]) { $1 })
        }
        let named = key == "MAKEGOOD_POSTGRES_URL_FILE" ? "MAKEGOOD_POSTGRES_URL" : key
        #expect(error?.key == named && error?.problem.contains("secret-value") == false)
    }

    @Test("settings: addresses from files, without the last line break; an empty one is refused")
    func addressesFromFiles() throws {
        try Self.withFiles { files in
            try files.write("postgresql://app:p@db/makegood\n", to: "postgres-url")
            try files.write("amqp://app:p@mq/%2f\r\n", to: "amqp-url")
            try files.write("\n", to: "empty")
            func file(_ name: String) -> String { files.directory.appending(path: name).path }
            let settings = try Settings(environment: [
                "MAKEGOOD_POSTGRES_URL_FILE": file("postgres-url"), "MAKEGOOD_AMQP_URL_FILE": file("amqp-url"),
            ])
            #expect(settings.postgresURL == "postgresql://app:p@db/makegood")
            #expect(settings.amqpURL == "amqp://app:p@mq/%2f")
            let error = #expect(throws: ConfigurationError.self) {
                try Settings(environment: ["MAKEGOOD_AMQP_URL_FILE": file("empty")])
            }
            #expect(error?.key == "MAKEGOOD_AMQP_URL_FILE")
        }
    }

    @Test("a change that decides about receipts changes the app's hash, and the file's")
    func hashes() throws {
        try Self.withFiles { files in
            let parse = { (yaml: String) in try Configuration.parse(yaml, directory: files.directory) }
            let first = try parse(Self.yaml())
            let firstHash = try #require(first.apps["game"]?.hash)
            #expect(try parse(Self.yaml()).hash == first.hash)
            let comment = try parse(Self.yaml() + "\n# a comment")
            #expect(comment.apps["game"]?.hash == firstHash, "held rows are not made due for a comment")
            #expect(comment.hash != first.hash)
            var seen: Set<Data> = [firstHash]
            for (from, to) in [
                ("amount: 60", "amount: 61"), ("item: coin,", "item: gem,"), ("id: coins", "id: coins2"),
                ("type: consumable", "type: nonConsumable"), ("bundleId: com.example.game", "bundleId: b"),
                ("keyId: k", "keyId: k2"), ("issuerId: i", "issuerId: i2"), (Self.sharedSecret, "another"),
                ("environments: [Sandbox]", "environments: [Sandbox, Xcode]"),
                ("id: game", "id: game\n    sandboxPurchases: grant"), ("id: game", "id: game\n    finishHeld: false"),
                ("id: game", "id: game\n    testers: {users: [u1]}"), ("id: game", "id: game\n    mode: shadow"),
                ("id: game", "id: game\n    finishAtApple: afterGrant"),
                ("id: game", "id: game\n    makeUp: {maxAge: 8d}"),
                ("id: game", "id: game\n    grantFrom: 2026-03-01T00:00:00Z"),
                ("id: game", "id: game\n    confirmWithApple: never"), ("id: game", "id: game\n    shared: reject"),
                ("    rootCertificates: [roots/test.der]\n", ""),
            ] {
                let changed = try parse(Self.yaml().replacing(from, with: to, maxReplacements: 1))
                #expect(seen.insert(try #require(changed.apps["game"]?.hash)).inserted, "\(to)")
                #expect(changed.hash != first.hash)
            }
            try files.write("another-private-key", to: "key.p8")
            #expect(try parse(Self.yaml()).apps["game"]?.hash != firstHash, "a file that is named counts")
        }
    }

    @Test("the hash is over every file that is named, the gateway's keys too")
    func gatewayKeys() throws {
        try Self.withFiles { files in
            let yaml = Self.yaml(
                "", "gatewayJwt: {issuer: i, audience: a, keys: [gateway.pem], scopes: [intake], apps: ['*']}")
            let first = try Configuration.parse(yaml, directory: files.directory).hash
            try files.write("another key", to: "gateway.pem")
            #expect(try Configuration.parse(yaml, directory: files.directory).hash != first)
        }
    }
}
