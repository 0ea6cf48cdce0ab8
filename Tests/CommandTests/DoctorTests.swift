import AppStoreSimulator
import Foundation
import Logging
import Postgres
import Purchases
import RabbitMQ
import Settings
import TestServers
import Testing
import WorkQueue

@testable import Ledger
@testable import makegood

/// Goal: the contract of `makegood doctor`: one line for each check, what to do, and the exit code. Method: each
/// judgement as a value; then the built program where nothing is right. The end-to-end tests cover a system where all
/// is well.
@Suite struct DoctorTests {
    @Test func oldLibrariesFail() {
        #expect(Doctor.libPQ(.init(number: 150_000)).verdict == .ok)
        #expect(Doctor.libPQ(.init(number: 140_019)).verdict == .fail)
        #expect(Doctor.libRabbitMQ(.init(number: 0x00_0B_00_01)).verdict == .ok)
        let old = Doctor.libRabbitMQ(.init(number: 0x00_0A_00_01))
        #expect(old.verdict == .fail)
        #expect(old.toDo?.contains("0.11.0") == true)
    }

    /// Compared by dpkg's own rules, which no comparison of texts follows.
    @Test(
        .enabled(if: FileManager.default.isExecutableFile(atPath: "/usr/bin/dpkg")),
        arguments: [
            ("0.11.0-1+deb12u3", true), ("0.11.0-1+deb12u10", true), ("0.11.0-1+deb12u2", false), ("0.11.0-1", false),
            ("0.11.0-1build2", false), ("0.15.0-1", true), ("0.9.0-1", false), ("1:0.1-1", true),
        ])
    func debianVersions(_ version: String, _ isPatched: Bool) {
        #expect(DebianPackage.isVersion(version, atLeast: "0.11.0-1+deb12u3") == isPatched)
    }

    @Test func packages() {
        #expect(DebianPackage(name: "no-such-package-anywhere", patched: "1").finding == nil)
        guard let finding = DebianPackage(name: "dpkg", patched: "99999").finding else { return }
        #expect(finding.verdict == .warn)
        #expect(finding.toDo?.contains("--only-upgrade dpkg") == true)
        #expect(DebianPackage(name: "dpkg", patched: "1").finding?.verdict == .ok)
    }

    @Test(arguments: [
        (0.0, "ok", "0 ms ahead"), (1.9, "ok", "1900 ms ahead"), (-1.9, "ok", "1900 ms behind"),
        (2.1, "warn", "2100 ms"),
        (-29, "warn", "29000 ms behind"), (31, "fail", "31000 ms ahead"), (-3600, "fail", "3600000 ms behind"),
    ])
    func clocks(_ ahead: Double, _ verdict: String, _ words: String) {
        let finding = Doctor.clock(ahead)
        #expect(finding.verdict.rawValue == verdict)
        #expect(finding.found.contains(words))
        #expect((finding.toDo == nil) == (verdict == "ok"))
    }

    @Test func aDatabaseWithAClockOfTheLaboratoryFails() {
        let finding = Doctor.clock(0, isOwn: false)
        #expect(finding.verdict == .fail)
        #expect(finding.found.contains("now()") && finding.toDo?.contains("search_path") == true)
    }

    @Test("F24: a locale that the C library sorts otherwise than it did is reported")
    func collations() {
        #expect(Doctor.collation(recorded: nil, actual: nil)?.verdict == nil)
        #expect(Doctor.collation(recorded: "2.36", actual: nil)?.verdict == nil)
        #expect(Doctor.collation(recorded: "2.36", actual: "2.36")?.verdict == .ok)
        let moved = Doctor.collation(recorded: "2.36", actual: "2.41")
        #expect(moved?.verdict == .warn)
        #expect(moved?.found.contains("2.36") == true && moved?.toDo?.contains("REINDEX") == true)
    }

    @Test func termsThatAreMissing() {
        let said = Catalogue(products: [
            .init(id: "coins", kind: .consumable, goods: []), .init(id: "sword", kind: .nonConsumable, goods: []),
            .init(id: "gold", kind: .autoRenewable, goods: [], terms: .init(group: "pass", level: 1)),
            .init(id: "season", kind: .nonRenewing, goods: [], terms: .init(duration: CalendarPeriod("P30D"))),
        ])
        #expect(Doctor.terms(said, of: "game") == nil)
        let lacking = Catalogue(products: [
            .init(id: "loose", kind: .autoRenewable, goods: []), .init(id: "endless", kind: .nonRenewing, goods: []),
            .init(id: "flat", kind: .autoRenewable, goods: [], terms: .init(group: "pass")),
        ])
        let finding = Doctor.terms(lacking, of: "game")
        #expect(finding?.verdict == .warn)
        #expect(finding?.found == "game: endless has no duration, flat has no level, loose has no group")
    }

    @Test func whetherNotificationsCame() {
        let now = Date()
        func place(
            _ app: String, _ environment: String, minutes: Double?, problem: String? = nil
        ) -> Statements.NotificationHealth {
            .init(
                place: .init(appID: app, environment: environment), heardAt: minutes.map { now - $0 * 60 },
                heardType: nil, usualGap: nil, days: 0, testAskedAt: nil, testProblem: problem, now: now)
        }
        let findings = Doctor.notifications(
            [
                place("heard", "Production", minutes: nil), place("heard", "Sandbox", minutes: 5),
                place("never", "Production", minutes: nil), place("never", "Sandbox", minutes: nil),
                place("nowhere", "Production", minutes: 9, problem: "no_url"),
                place("former", "Production", minutes: 1),
            ], of: ["heard", "never", "nowhere", "unstarted"])
        #expect(findings.map(\.verdict) == [.ok, .warn, .warn, .warn])
        #expect(
            findings.map(\.found) == [
                "the last one for heard came 5 minutes ago", "none ever came for never",
                "App Store Connect has no URL for nowhere", "none ever came for unstarted",
            ])
        #expect(findings[1].toDo?.contains("makegood apple test-notification --app never") == true)
    }

    @Test("an app that wants to ask Apple on a rota, and cannot, is named")
    func sweepsThatCannotAsk() throws {
        func finding(_ line: String) throws -> Diagnosis? {
            let yaml = """
                apps:
                  - id: game
                    bundleId: com.example.game
                    environments: [Sandbox]
                    \(line)
                """
            let app = try #require(Configuration.parse(yaml, directory: .temporaryDirectory).apps["game"])
            return Doctor.sweeps(app)
        }
        #expect(try finding("")?.verdict == .warn)
        #expect(try finding("sweeps: {customersEvery: off}")?.found.contains("game has no serverApi") == true)
        #expect(try finding("sweeps: {customersEvery: off, refundsEvery: off}") == nil)
    }

    @Test("an endpoint that gets webhooks without TLS is named, and no other one")
    func endpointsWithoutTLS() throws {
        let secret = "secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        let yaml = """
            apps:
              - id: game
                bundleId: com.example.game
                environments: [Sandbox]
                endpoints:
                  - {name: safe, url: 'https://a.example/', \(secret)}
                  - {name: inside, url: 'http://backend.internal/', \(secret), allowPrivate: [backend.internal]}
            """
        let app = try #require(Configuration.parse(yaml, directory: .temporaryDirectory).apps["game"])
        let findings = Doctor.endpoints(app)
        #expect(findings.map(\.verdict) == [.warn])
        #expect(findings.map(\.found) == ["inside of game gets webhooks without TLS"])
    }

    @Test func fewFiles() throws {
        let settings = try Settings(environment: [:])
        #expect(Doctor.files(64, settings).verdict == .ok)
        let finding = Doctor.files(63, settings)
        #expect(finding.verdict == .fail)
        #expect(finding.toDo?.contains("at least 64") == true)
    }

    @Test func metricsThatNobodySees() throws {
        let outside = ["MAKEGOOD_HTTP_HOST": "0.0.0.0"]
        #expect(Doctor.metrics(try Settings(environment: outside)).map(\.verdict) == [.warn])
        let both = outside.merging(["MAKEGOOD_OPERATIONS_PORT": "9464"]) { $1 }
        #expect(Doctor.metrics(try Settings(environment: both)).isEmpty)
        #expect(Doctor.metrics(try Settings(environment: [:])).isEmpty)
    }

    @Test(
        "What every user may do to a file is reported: worst first, and by the name of its setting",
        arguments: [
            (0o600, 0o755, true, nil), (0o640, 0o755, true, nil), (0o644, 0o755, false, nil),
            (0o644, 0o755, true, .warn), (0o646, 0o755, true, .fail), (0o602, 0o755, false, .fail),
            (0o600, 0o777, true, .fail), (0o600, 0o1777, true, nil), (0o644, 0o1777, true, .warn),
        ] as [(Int, Int, Bool, Diagnosis.Verdict?)])
    func modes(file: Int, directory: Int, holdsSecret: Bool, verdict: Diagnosis.Verdict?) throws {
        let folder = URL.temporaryDirectory.appending(path: "makegood-modes-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: false)
        defer { try? FileManager.default.removeItem(at: folder) }
        let path = folder.appending(path: "key").path(percentEncoded: false)
        try Data("secret".utf8).write(to: URL(filePath: path))
        #expect(chmod(path, mode_t(file)) == 0 && chmod(folder.path(percentEncoded: false), mode_t(directory)) == 0)
        let findings = Doctor.access(to: [NamedFile(key: "users.protect", path: path, holdsSecret: holdsSecret)])
        #expect(findings.count == 1)
        #expect(findings[0].verdict == verdict ?? .ok)
        #expect(findings[0].found.contains("users.protect") == (verdict != nil))
        #expect(!findings[0].found.contains(path) && findings[0].toDo?.contains(path) ?? true)
    }

    @Test("The built program looks at the configuration, and at each file that it names")
    func openFiles() async throws {
        try await withFolder { folder in
            let secret = try "0123456789abcdef0123456789abcdef".written(to: folder, as: "users.key")
            let file = try """
            apps: [{id: game, bundleId: com.example.game, environments: [Sandbox]}]
            users: {protect: users.key}
            """.written(to: folder, as: "makegood.yaml")
            #expect(chmod(secret, 0o666) == 0 && chmod(file, 0o644) == 0)
            let outcome = try await BuiltProgram.run("doctor", environment: ["MAKEGOOD_CONFIG": file])
            #expect(outcome.status == 1)
            let lines = outcome.output.split(separator: "\n").filter { $0.contains("  modes ") }
            #expect(lines.count == 1 && lines[0].hasPrefix("fail") && lines[0].contains("users.protect"), "\(lines)")
        }
    }

    @Test func rootsThatEnd() throws {
        let store = try AppStoreSimulator(logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        let root = (of: "app game", der: store.rootCertificateDER)
        func verdict(_ days: Double) -> Diagnosis.Verdict? {
            Doctor.expiry(of: [root], now: Date().addingTimeInterval(days * 86_400)).first?.verdict
        }
        #expect(verdict(0) == .ok)
        #expect(verdict(100 * 365) == .fail)
        // The warning begins on some day between the two, and before the last.
        let warned = stride(from: 0.0, to: 100 * 365, by: 10).filter { verdict($0) == .warn }
        #expect((8...10).contains(warned.count))
        #expect(Doctor.expiry(of: [(of: "app game", der: [1, 2, 3])], now: Date()).first?.verdict == .fail)
        #expect(Doctor.expiry(of: [], now: Date()).map(\.verdict) == [.ok])
    }

    @Test("An access key that ends is reported a month before, by its last successor; one without an end always")
    func keysThatEnd() throws {
        let now = Date(timeIntervalSince1970: 1_790_000_000)
        func findings(_ keys: [(String, Double?)]) throws -> [Diagnosis] {
            let entries = keys.map { name, days in
                let end = days.map { ", expires: \(now.addingTimeInterval($0 * 86_400).formatted(.iso8601))" } ?? ""
                return "  - {name: \(name), keySha256: \(String(repeating: "0", count: 64)), scopes: [intake], "
                    + "apps: [game]\(end)}"
            }
            let file = """
                apps: [{id: game, bundleId: com.example.game, environments: [Sandbox]}]
                access:
                \(entries.joined(separator: "\n"))
                """
            return Doctor.keys(try Configuration.parse(file, directory: .temporaryDirectory).access, now: now)
        }
        for (keys, expected) in [
            ([("a", 31)], [.ok]), ([("a", 29)], [.warn]), ([("a", 0)], [.warn]), ([("a", 1), ("a", 400)], [.ok]),
            ([("a", 400), ("b", 1)], [.ok, .warn]), ([("a", nil), ("b", nil), ("c", 400)], [.ok, .warn]),
            ([("a", 1), ("a", nil)], [.warn]), ([], []),
        ] as [([(String, Double?)], [Diagnosis.Verdict])] {
            #expect(try findings(keys).map(\.verdict) == expected, "\(keys)")
        }
        #expect(try findings([("shop", -1)])[0].found.contains("shop ended"))
    }

    @Test("Nothing set: the missing variables are named, exit 1")
    func noSettings() async throws {
        let outcome = try await BuiltProgram.run("doctor")
        #expect(outcome.status == 1)
        for (check, name) in [
            ("configuration", "MAKEGOOD_CONFIG"), ("database", "MAKEGOOD_POSTGRES_URL"),
            ("broker", "MAKEGOOD_AMQP_URL"),
        ] {
            let line = outcome.output.split(separator: "\n").first { $0.hasPrefix("fail  \(check)") }
            #expect(line?.contains("\(name): is not set") == true, "\(outcome.output)")
        }
        #expect(outcome.output.contains("ok    libpq"))
    }

    @Test("A setting that is none: named, nothing else is looked at, exit 1")
    func wrongSettings() async throws {
        let outcome = try await BuiltProgram.run("doctor", environment: ["MAKEGOOD_HTTP_PORT": "no port"])
        #expect(outcome.status == 1)
        #expect(outcome.output.contains("fail  settings"))
        #expect(outcome.output.contains("MAKEGOOD_HTTP_PORT"))
        #expect(!outcome.output.contains("broker"))
    }

    /// The broker users of deploy/local: support's, who has no right at all, and the one with every right, as whom
    /// `doctor` must not create anything either. Their permissions are those that `makegood roles --rabbitmq` prints.
    @Test("The broker: looked at with no right, and nothing is made with every right", arguments: [true, false])
    func queues(isRestricted: Bool) async throws {
        try await TestBroker.run { broker in
            let prefix = String(broker.queue("x").dropLast(2))
            let queues = Queues(prefix: prefix)
            for queue in queues.topology.queues { _ = broker.queue(String(queue.name.dropFirst(prefix.count + 1))) }
            var parts = try #require(URLComponents(string: broker.url))
            if isRestricted { (parts.user, parts.password) = ("makegood_support", "makegood_support") }
            let environment = ["MAKEGOOD_AMQP_URL": try #require(parts.string), "MAKEGOOD_QUEUE_PREFIX": prefix]
            func findings() async throws -> [String: [String: String]] {
                let outcome = try await BuiltProgram.run("doctor", "--json", environment: environment)
                let findings = try #require(outcome.json["findings"] as? [[String: String]])
                return Dictionary(findings.map { ($0["check"] ?? "", $0) }) { first, _ in first }
            }
            // Twice: the second run would find whatever the first had created.
            for _ in 0..<2 {
                let before = try await findings()
                #expect(before["broker"]?["verdict"] == "ok")
                #expect(before["queues"]?["verdict"] == "warn")
                #expect(before["queues"]?["found"] == "\(queues.dead) is not there")
                #expect(before["queues"]?["toDo"]?.contains("makegood queue declare") == true)
            }
            let declared = try await BuiltProgram.run(
                "queue", "declare", environment: environment.merging(["MAKEGOOD_AMQP_URL": broker.url]) { $1 })
            #expect(declared.status == 0, "\(declared.complaint)")
            // The publisher waits for the broker's confirm: a message that was only sent need not be counted yet.
            let publisher = Publisher(
                try BrokerConfiguration(url: broker.url), topology: queues.topology,
                logger: Logger(label: "quiet") { _ in SwiftLogNoOpLogHandler() })
            try await publisher.publish("poison", to: queues.dead)
            await publisher.close()
            let after = try await findings()
            #expect(after["queues"]?["verdict"] == "ok")
            #expect(after["queues"]?["found"] == "\(queues.topology.queues.count) there, 0 messages ready")
            #expect(after["dead letters"]?["verdict"] == "warn")
        }
    }

    @Test(
        "A variable that is not set is said to be not set, and nobody is asked to mend what is not there",
        arguments: [
            ("MAKEGOOD_POSTGRES_URL", "database"), ("MAKEGOOD_AMQP_URL", "broker"),
            ("MAKEGOOD_CONFIG", "configuration"),
        ])
    func unset(variable: String, check: String) async throws {
        try await withFolder { folder in
            var environment = [
                "MAKEGOOD_POSTGRES_URL": "postgresql://makegood@127.0.0.1:1/none",
                "MAKEGOOD_AMQP_URL": "amqp://makegood@127.0.0.1:1/%2f",
                "MAKEGOOD_CONFIG": try "apps: []".written(to: folder, as: "makegood.yaml"),
            ]
            environment[variable] = nil
            let outcome = try await BuiltProgram.run("doctor", "--json", environment: environment)
            #expect(outcome.status == 1)
            let findings = try #require(outcome.json["findings"] as? [[String: String]])
            let finding = try #require(findings.first { $0["check"] == check })
            #expect(finding["verdict"] == "fail")
            #expect(finding["found"]?.contains("\(variable)") == true)
            #expect(finding["found"]?.contains("is not set") == true)
            #expect(finding["toDo"]?.hasPrefix("set \(variable)") == true, "\(finding)")
            // The other checks name their own fault, and not this variable.
            for other in findings where other["check"] != check {
                #expect(other["toDo"]?.contains(variable) != true, "\(other)")
                #expect(other["found"]?.contains("is not set") != true, "\(other)")
            }
        }
    }

    @Test("Nothing there: each part is named with what to do, and no password")
    func nothingThere() async throws {
        try await withFolder { folder in
            let environment = [
                "MAKEGOOD_POSTGRES_URL": "postgresql://makegood:first-secret@127.0.0.1:1/none",
                "MAKEGOOD_AMQP_URL": "amqp://makegood:second-secret@127.0.0.1:1/%2f",
                "MAKEGOOD_CONFIG": try "apps: [{id: game, bundelId: x}]".written(to: folder, as: "makegood.yaml"),
            ]
            let outcome = try await BuiltProgram.run("doctor", "--json", environment: environment)
            #expect(outcome.status == 1)
            let findings = try #require(outcome.json["findings"] as? [[String: String]])
            func finding(_ check: String) -> [String: String] { findings.first { $0["check"] == check } ?? [:] }
            #expect(finding("settings")["verdict"] == "ok")
            for check in ["configuration", "database", "broker"] {
                #expect(finding(check)["verdict"] == "fail", "\(check)")
                #expect(finding(check)["toDo"]?.isEmpty == false, "\(check)")
            }
            #expect(finding("configuration")["found"]?.contains("apps[0].bund") == true)
            let lines = try await BuiltProgram.run("doctor", environment: environment)
            let shown = lines.output.split(separator: "\n")
            #expect(shown.count == findings.count + 1)
            let failed = findings.count { $0["verdict"] == "fail" }
            #expect(shown.last?.hasPrefix("\(findings.count) checks: ") == true)
            #expect(shown.last?.hasSuffix(", \(failed) fail") == true, "\(lines.output)")
            for text in [outcome.output, outcome.complaint, lines.output, lines.complaint] {
                #expect(!text.contains("secret"))
            }
        }
    }
}
