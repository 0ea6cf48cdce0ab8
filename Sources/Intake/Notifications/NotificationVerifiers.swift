import AppStore
import Settings
import Synchronization

/// The verifiers of the configuration in force, made anew after a reload has changed it.
///
/// Each app's verifier believes Apple's roots and those that the app names. Ingest verifies Apple's signature over the
/// whole notification, which covers the data inside. A worker verifies the data inside too, and asks a responder
/// whether a certificate was revoked, before the worker believes a notification.
final class NotificationVerifiers: Sendable {
    struct OfConfiguration: Sendable {
        fileprivate struct App: Sendable {
            let configuration: AppConfiguration
            let verifier: SignedDataVerifier
        }

        fileprivate let hash: String
        /// In the order of their ids.
        fileprivate let apps: [App]
        /// The verifier for notifications whose bundle id no app has. It believes every root that an app believes.
        fileprivate let ofStrangers: SignedDataVerifier

        fileprivate init(_ configuration: Configuration) throws(ConfigurationError) {
            hash = configuration.hash
            var apps: [App] = []
            for app in configuration.apps.values.sorted(by: { $0.id < $1.id }) {
                let verifier = SignedDataVerifier(app: app.identity.inBothEnvironments, anchors: try app.anchors)
                apps.append(App(configuration: app, verifier: verifier))
            }
            let roots = Set(configuration.apps.values.flatMap(\.rootCertificates)).sorted {
                $0.lexicographicallyPrecedes($1)
            }
            do {
                ofStrangers = SignedDataVerifier(app: .nobody, anchors: try TrustAnchors(rootCertificates: roots))
            } catch {
                throw ConfigurationError(key: "rootCertificates", problem: "holds no certificate")
            }
            self.apps = apps
        }

        /// Verifies a notification, and finds its app. The unverified payload chooses the app; afterwards the verified
        /// data is compared with the app. Of an object that is newer than this program the bundle id
        /// alone tells the app: a worker holds the notification, and it takes no place of strangers.
        ///
        /// - Returns: the notification, without an app where no app has its bundle id, or in production its number at
        ///   Apple. The environment may be one that the app is not served in: a worker decides about that.
        func verified(
            _ signedPayload: String
        ) async throws(VerificationFailure) -> (notification: SignedNotification, app: AppConfiguration?) {
            let jws = try CompactJWS(signedPayload, bytesMax: CompactJWS.notificationBytesMax)
            let shown = try? SignedNotification.unverified(jws.payload)
            let bundleID = shown?.bundleId ?? SignedNotification.bundleIDOfNewerObject(in: jws.payload)
            let ofBundle = apps.filter { $0.configuration.identity.admits(bundleID) }
            let app =
                ofBundle.first { app in
                    shown?.environment.map(app.configuration.identity.environments.contains) ?? false
                } ?? ofBundle.first
            let notification = try await (app?.verifier ?? ofStrangers).notification(
                ofAnyApp: jws, verifiesInside: false)
            let isOfApp = app.map { notification.isOf($0.configuration.identity, bundleID: bundleID) } ?? false
            return (notification, isOfApp ? app?.configuration : nil)
        }
    }

    private let current = Mutex<OfConfiguration?>(nil)

    /// - Throws: for roots that cannot be read, which reading the file has excluded.
    func of(_ configuration: Configuration) throws(ConfigurationError) -> OfConfiguration {
        if let made = current.withLock({ $0 }), made.hash == configuration.hash { return made }
        let made = try OfConfiguration(configuration)
        current.withLock { $0 = made }
        return made
    }
}
