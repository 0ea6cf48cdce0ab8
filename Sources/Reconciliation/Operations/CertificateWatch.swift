import AppStore
package import AppleGateway
package import Foundation
package import Logging
import Metrics
import ServiceLifecycle
package import Settings

/// Reports when a certificate in use ends: always as a metric, and in the log from 60 days before. Reports as a metric
/// when an access key ends.
package struct CertificateWatch: Service {
    package static let interval: Duration = .seconds(60)
    /// How long before its end a certificate is named in the log.
    package static let warning: TimeInterval = 60 * 86_400
    /// How often such a certificate is named in the log.
    package static let warningInterval: TimeInterval = 86_400

    private let apps: AppDirectory
    private let configuration: ConfigurationHolder
    private let logger: Logger

    package init(apps: AppDirectory, configuration: ConfigurationHolder, logger: Logger) {
        self.apps = apps
        self.configuration = configuration
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            var warnings = Warnings()
            var keys: [String: Date] = [:]
            while !Task.isCancelled {
                for id in apps.ids {
                    guard let app = apps[id] else { continue }
                    look(at: app, now: Date(), &warnings)
                }
                keys = Self.ends(of: configuration.current.access, before: keys)
                for (name, end) in keys {
                    Gauge(label: "makegood_access_key_not_after_timestamp_seconds", dimensions: [("key", name)])
                        .record(end.timeIntervalSince1970)
                }
                try? await Task.sleep(for: Self.interval)
            }
        }
    }

    func look(at app: AppServices, now: Date, _ warnings: inout Warnings) {
        let certificates = Set(app.verifier.certificatesInUse)
        for (kind, end) in Self.firstEnds(certificates, now: now) {
            Gauge(
                label: "makegood_certificate_not_after_timestamp_seconds",
                dimensions: [("app", app.configuration.id), ("kind", kind.rawValue)]
            ).record(end.timeIntervalSince1970)
        }
        for certificate in certificates.sorted(by: { $0.end < $1.end })
        where warnings.isDue(certificate, of: app.configuration.id, now: now) {
            logger.warning(
                certificate.kind == .configuredRoot
                    ? "a configured root certificate ends: add its successor to rootCertificates"
                    : "a certificate of Apple's ends: Apple replaces it, and the successor comes with the data",
                metadata: [
                    "app.id": "\(app.configuration.id)", "certificate.kind": "\(certificate.kind.rawValue)",
                    "certificate.subject": "\(certificate.subject)",
                    "certificate.serial": "\(certificate.serialNumber)",
                    "certificate.not_after": "\(certificate.end.formatted(.iso8601))",
                ])
        }
    }

    /// When the keys of each name end. A name that has no key any more gets `AccessKey.never`, because its metric must
    /// not keep its last value.
    static func ends(of keys: [AccessKey], before: [String: Date]) -> [String: Date] {
        before.mapValues { _ in AccessKey.never }.merging(AccessKey.lastEnds(keys)) { $1 }
    }

    /// The first end for each kind of certificate; infinity where there is none. An Apple certificate that has ended
    /// does not count: old data still presents the certificates that were valid when it was signed.
    static func firstEnds(
        _ certificates: Set<CertificateInUse>, now: Date
    ) -> [CertificateInUse.Kind: Date] {
        var ends = Dictionary(
            uniqueKeysWithValues: CertificateInUse.Kind.allCases.map {
                ($0, Date(timeIntervalSince1970: .infinity))
            })
        for certificate in certificates where certificate.kind == .configuredRoot || certificate.end > now {
            ends[certificate.kind] = min(ends[certificate.kind] ?? certificate.end, certificate.end)
        }
        return ends
    }

    /// When each certificate was last named in the log, so that none is named twice a day.
    struct Warnings {
        private struct Key: Hashable {
            let app: String
            let certificate: CertificateInUse
        }

        private var named: [Key: Date] = [:]

        mutating func isDue(_ certificate: CertificateInUse, of app: String, now: Date) -> Bool {
            guard certificate.end < now + CertificateWatch.warning,
                certificate.kind == .configuredRoot || certificate.end > now
            else { return false }
            named = named.filter { now < $0.value + CertificateWatch.warningInterval }
            let key = Key(app: app, certificate: certificate)
            guard named[key] == nil else { return false }
            named[key] = now
            return true
        }
    }
}
