import Encoding

/// Whose data a verifier accepts: one app in the environments it is served in.
package struct AppIdentity: Sendable, Hashable {
    package let bundleId: String
    /// Bundle ids of the app's other builds, such as Mac Catalyst's and the App Clip's: data about them are data about
    /// the app.
    package let bundleIdAliases: [String]
    /// Apple's numeric id of the app. Notifications and app transactions of production carry it and are refused without
    /// it; sandbox data may lack it (AppleFacts 1.2, step 11).
    package let appAppleId: Int64?
    package let environments: Set<StoreEnvironment>
    /// Takes data of `Xcode` and `LocalTesting`, where listed in `environments`, without any signature check.
    package let acceptsUnsignedXcodeData: Bool

    /// - Throws: ``UnsignedDataInProduction`` if unsigned data would be accepted beside production; not retryable, a
    ///   configuration that must not start.
    package init(
        bundleId: String,
        bundleIdAliases: [String] = [],
        appAppleId: Int64? = nil,
        environments: Set<StoreEnvironment>,
        acceptsUnsignedXcodeData: Bool = false
    ) throws(UnsignedDataInProduction) {
        if acceptsUnsignedXcodeData && environments.contains(.production) { throw UnsignedDataInProduction() }
        self.bundleId = bundleId
        self.bundleIdAliases = bundleIdAliases
        self.appAppleId = appAppleId
        self.environments = environments
        self.acceptsUnsignedXcodeData = acceptsUnsignedXcodeData
    }

    private init(signed app: AppIdentity) {
        bundleId = app.bundleId
        bundleIdAliases = app.bundleIdAliases
        appAppleId = app.appAppleId
        environments = StoreEnvironment.ofApple
        acceptsUnsignedXcodeData = false
    }

    private init(bundleId: String) {
        self.bundleId = bundleId
        bundleIdAliases = []
        appAppleId = nil
        environments = StoreEnvironment.ofApple
        acceptsUnsignedXcodeData = false
    }

    /// The same app in both of Apple's environments, whichever it is served in. Nothing is believed unsigned.
    package var inBothEnvironments: AppIdentity { AppIdentity(signed: self) }

    /// No app: no signed data is about this identity.
    package static let nobody = AppIdentity(bundleId: "")

    /// Whether data that names this bundle id is about the app.
    package func admits(_ bundleId: String?) -> Bool {
        bundleId.isSameText(as: self.bundleId) || bundleIdAliases.contains { bundleId.isSameText(as: $0) }
    }

    /// Whether a bundle id that is none of the app's has the form that Apple's tools give to the Mac Catalyst build
    /// (`maccatalyst.` and the app's id) or the App Clip of the app (the app's id and one more word with `clip` in it).
    package func resembles(_ bundleId: String) -> Bool {
        guard !admits(bundleId) else { return false }
        let base =
            bundleId.hasPrefix(Self.catalystPrefix) ? bundleId.dropFirst(Self.catalystPrefix.count) : bundleId[...]
        if String(base).isSameText(as: self.bundleId) { return true }
        guard base.hasPrefix(self.bundleId + ".") else { return false }
        let word = base.dropFirst(self.bundleId.count + 1)
        return !word.contains(".") && word.lowercased().contains("clip")
    }

    private static let catalystPrefix = "maccatalyst."

    /// Unsigned Xcode data and production were asked for together.
    package struct UnsignedDataInProduction: Error, CustomStringConvertible {
        package var description: String { "an app that serves Production must not accept unsigned Xcode data" }
    }
}
