import AppStore
import Crypto
import Encoding
package import Foundation
import Purchases

/// The file with the apps: what they sell, how they decide, who may ask. It is checked whole, and taken or refused
/// whole.
package struct Configuration: Sendable {
    package let apps: [String: AppConfiguration]
    package let appIDs: Set<String>
    package let access: [AccessKey]
    package let gatewayJWT: GatewayJWTConfiguration?
    package let userLimits: UserLimits
    /// Nil: the tables hold user ids as they are (`users.protect`).
    package let userKeys: UserKeys?
    /// What names nobody where a user is named (`users.placeholders`).
    package let placeholders: PlaceholderUsers
    /// How many days payloads stay at least (`retention.payloads`).
    package let payloadDays: Int
    /// How many days payloads of ended notifications stay (`retention.notifications`).
    package let notificationDays: Int
    /// Every file that it names.
    package let files: [NamedFile]
    /// Whether a secret stands in the file itself.
    package let holdsSecret: Bool
    /// SHA-256 of the file and of every file it names, in hexadecimal: shown in logs and /health/ready.
    package let hash: String

    /// Reads and checks the file. YAML, so JSON is accepted too.
    package static func load(_ path: String) throws(ConfigurationError) -> Configuration {
        guard let data = try? Data(contentsOf: URL(filePath: path)) else {
            throw ConfigurationError(key: "MAKEGOOD_CONFIG", problem: "names a file that cannot be read")
        }
        return try parse(
            String(decoding: data, as: UTF8.self), directory: URL(filePath: path).deletingLastPathComponent(),
            name: path)
    }

    /// - Parameters:
    ///   - directory: the directory to which names of files are relative.
    ///   - name: the file's name, as errors say it.
    package static func parse(
        _ yaml: String, directory: URL, name: String = "makegood.yaml"
    ) throws(ConfigurationError) -> Configuration {
        var reader = try ConfigurationReader(yaml: yaml, name: name)
        let (userKeys, placeholders) = try readUsers(&reader, directory: directory)
        var apps: [String: AppConfiguration] = [:]
        guard let sections = try reader.sections("apps"), !sections.isEmpty else {
            throw reader.error("apps", "must list at least one app")
        }
        var unsigned: ConfigurationReader?
        var bundleIDs: [(owner: String, id: String, isAlias: Bool)] = []
        for section in sections {
            var app = try AppConfiguration.read(section, directory: directory)
            if app.identity.acceptsUnsignedXcodeData { unsigned = section }
            // The purchases of a bundle id would be two apps'.
            for id in app.identity.bundleIdAliases {
                guard let other = bundleIDs.first(where: { $0.id == id }) else { continue }
                throw section.error("bundleIdAliases", "names \(id), which is the app \(other.owner)'s")
            }
            if let alias = bundleIDs.first(where: { $0.isAlias && $0.id == app.identity.bundleId }) {
                throw section.error("bundleId", "is an alias of the app \(alias.owner) (bundleIdAliases)")
            }
            bundleIDs.append((owner: app.id, id: app.identity.bundleId, isAlias: false))
            bundleIDs += app.identity.bundleIdAliases.map { (owner: app.id, id: $0, isAlias: true) }
            // Receipts hold the keys of users, so testers are looked up by their keys.
            if let userKeys { app.policy.testers = app.policy.testers.map { userKeys.key(of: $0, app: app.id) } }
            guard apps.updateValue(app, forKey: app.id) == nil else { throw section.error("id", "is used twice") }
        }
        // Anybody who writes unsigned data can write any transaction id: beside production it could be one that another
        // app sold.
        if let unsigned, apps.values.contains(where: { $0.identity.environments.contains(.production) }) {
            throw unsigned.error(
                "acceptUnsignedXcodeData",
                "cannot stand beside an app that serves Production: use a database of its own")
        }
        let appIDs = Set(apps.keys)
        var access: [AccessKey] = []
        for section in try reader.sections("access") ?? [] {
            access.append(try AccessKey.read(section, apps: appIDs))
        }
        let gatewayJWT = try reader.section("gatewayJwt").map { section throws(ConfigurationError) in
            try GatewayJWTConfiguration.read(section, directory: directory, apps: appIDs)
        }
        let (payloadDays, notificationDays) = try readRetention(&reader)
        let userLimits = try UserLimits.read(&reader)
        try reader.finish()
        var hash = SHA256()
        hash.update(data: Data(yaml.utf8))
        for app in apps.values.sorted(by: { $0.id < $1.id }) { hash.update(data: app.hash) }
        for secret in apps.values.sorted(by: { $0.id < $1.id }).flatMap(\.endpoints).flatMap(\.secrets) {
            hash.update(data: secret.bytes)
        }
        for key in gatewayJWT?.keys ?? [] { hash.update(data: Data(key.utf8)) }
        if let userKeys { hash.update(data: Data(userKeys.description.utf8)) }
        return Configuration(
            apps: apps, appIDs: appIDs, access: access, gatewayJWT: gatewayJWT, userLimits: userLimits,
            userKeys: userKeys, placeholders: placeholders, payloadDays: payloadDays,
            notificationDays: notificationDays, files: reader.files.named,
            holdsSecret: reader.files.holdsSecret,
            hash: hash.finalize().hexadecimal)
    }

    /// `protect` names the file with the keys, `protectEnv` the environment variable that holds them. `placeholders`
    /// replaces the list of the texts that name nobody.
    private static func readUsers(
        _ reader: inout ConfigurationReader, directory: URL
    ) throws(ConfigurationError) -> (UserKeys?, PlaceholderUsers) {
        guard var section = try reader.section("users") else { return (nil, .standard) }
        let file = try section.text("protect")
        let variable = try section.text("protectEnv")
        let placeholders = try section.texts("placeholders").map { PlaceholderUsers($0) } ?? .standard
        try section.finish()
        let text: String
        switch (file, variable) {
        case (nil, nil): return (nil, placeholders)
        case (let file?, nil):
            text = String(
                decoding: try section.readFile(file, key: "protect", relativeTo: directory, holdsSecret: true),
                as: UTF8.self)
        case (nil, let variable?):
            guard let value = ProcessInfo.processInfo.environment[variable] else {
                throw section.error("protectEnv", "names an environment variable that is not set")
            }
            text = value
        default: throw section.error("protect", "is given more than once (protect, protectEnv)")
        }
        guard let keys = UserKeys(file: text) else {
            throw section.error(
                file == nil ? "protectEnv" : "protect",
                "must hold secrets of at least \(UserKeys.secretBytesMin) bytes, one a line")
        }
        return (keys, placeholders)
    }

    private static func readRetention(
        _ reader: inout ConfigurationReader
    ) throws(ConfigurationError) -> (payloads: Int, notifications: Int) {
        guard var section = try reader.section("retention") else { return (90, 180) }
        let payloads = try section.duration("payloads") ?? .seconds(90 * 86_400)
        let notifications = try section.duration("notifications") ?? .seconds(180 * 86_400)
        try section.finish()
        // Payloads are dropped by day, so only whole days are possible.
        func days(_ key: String, _ duration: Duration) throws(ConfigurationError) -> Int {
            guard duration.components.seconds % 86_400 == 0, (1...3650).contains(duration.components.seconds / 86_400)
            else { throw section.error(key, "must be whole days from 1d to 3650d") }
            return Int(duration.components.seconds / 86_400)
        }
        return (try days("payloads", payloads), try days("notifications", notifications))
    }
}
