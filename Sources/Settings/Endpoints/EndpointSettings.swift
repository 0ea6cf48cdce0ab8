package import AppStore
import Encoding
import Foundation
package import Purchases

/// A URL of an app's backend to which its events go as webhooks, and how (`apps[].endpoints`).
package struct EndpointSettings: Sendable {
    package static let perAppMax = 16

    /// Of `a` to `z`, `0` to `9` and `-`, once in an app. Its state in the database goes by the name.
    package let name: String
    package let url: EndpointURL
    /// One or two: each webhook is signed with each of them.
    package let secrets: [WebhookSecret]
    /// Nil: all types, also those that later versions bring.
    package let types: Set<EventType>?
    /// Nil: all environments. An event without an environment passes every filter.
    package let environments: Set<StoreEnvironment>?
    /// Webhooks on the way at a time.
    package let concurrency: Int
    /// Nil: no limit.
    package let rate: Rate?
    /// The time of a webhook from the look-up of the name to the last byte that is read of the answer.
    package let timeout: Duration
    package let allowed: AllowedAddresses

    /// The filter in the words of the table of events; nil: all.
    package var typeNames: [String]? { types?.map(\.rawValue).sorted() }
    package var environmentNames: [String]? { environments?.map(\.rawValue).sorted() }

    /// Reads `endpoints`; without it there are none.
    static func read(
        _ app: inout ConfigurationReader, directory: URL
    ) throws(ConfigurationError) -> [EndpointSettings] {
        guard let sections = try app.sections("endpoints") else { return [] }
        guard sections.count <= perAppMax else { throw app.error("endpoints", "must be at most \(perAppMax)") }
        var endpoints: [EndpointSettings] = []
        for section in sections {
            let endpoint = try EndpointSettings(section, directory: directory)
            guard !endpoints.contains(where: { $0.name.isSameText(as: endpoint.name) }) else {
                throw section.error("name", "is used twice")
            }
            endpoints.append(endpoint)
        }
        return endpoints
    }

    private init(_ section: ConfigurationReader, directory: URL) throws(ConfigurationError) {
        var reader = section
        name = try reader.requiredText("name")
        guard name.utf8.count <= 64, name.wholeMatch(of: /[a-z0-9\-]+/) != nil else {
            throw reader.error("name", "must be 1 to 64 of the characters a to z, 0 to 9 and -")
        }
        allowed = try reader.allowedAddresses("allowPrivate")
        url = try reader.endpointURL("url", allowed: allowed)
        secrets = try reader.webhookSecrets(relativeTo: directory)
        types = try reader.words("types")
        guard types?.isEmpty != true else { throw reader.error("types", "must list a type, or be left out for all") }
        environments = try reader.environments("environments")
        guard environments?.isEmpty != true else {
            throw reader.error("environments", "must list an environment, or be left out for all")
        }
        concurrency = try reader.integer("concurrency", in: 1...256) ?? 16
        rate = try Rate.read(&reader, max: 10_000)
        timeout = try reader.duration("timeout") ?? .seconds(10)
        guard (.seconds(1) ... .seconds(60)).contains(timeout) else {
            throw reader.error("timeout", "must be from 1s to 60s")
        }
        try reader.finish()
    }
}

extension ConfigurationReader {
    /// Host names, addresses and networks.
    fileprivate mutating func allowedAddresses(_ key: String) throws(ConfigurationError) -> AllowedAddresses {
        var allowed = AllowedAddresses()
        for text in try texts(key) ?? [] {
            guard allowed.add(text) else {
                throw error(key, "must list host names, addresses or networks such as 10.0.0.0/8")
            }
        }
        return allowed
    }

    fileprivate mutating func endpointURL(
        _ key: String, allowed: AllowedAddresses
    ) throws(ConfigurationError) -> EndpointURL {
        let text = try requiredText(key)
        let url: EndpointURL
        do throws(EndpointURL.Defect) {
            url = try EndpointURL(text)
        } catch {
            throw self.error(key, error.problem)
        }
        if let address = url.address, let kind = allowed.refusal(of: address, host: url.host) {
            throw error(key, "leads to \(kind.rawValue), which allowPrivate does not list")
        }
        guard url.isSecure || allowed.allows(host: url.host) || url.address.map(allowed.allows) == true else {
            throw error(key, "must be https, unless allowPrivate lists its host")
        }
        return url
    }

    /// One or two secrets with white space between, as `secret`, in the file of `secretFile`, or in the variable of
    /// `secretEnv`.
    fileprivate mutating func webhookSecrets(
        relativeTo directory: URL
    ) throws(ConfigurationError) -> [WebhookSecret] {
        guard let text = try secret("secret", relativeTo: directory) else { throw error("secretFile", "is missing") }
        let file = try self.text("secretFile").map { _ in "secretFile" }
        let variable = try self.text("secretEnv").map { _ in "secretEnv" }
        let key = file ?? variable ?? "secret"
        do throws(WebhookSecret.Invalid) {
            return try WebhookSecret.list(text)
        } catch let invalid {
            throw error(key, invalid.problem)
        }
    }
}
