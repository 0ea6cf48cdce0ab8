/// Whose data a verifier accepts: one app in the environments it is served in.
package struct AppIdentity: Sendable, Hashable {
    package let bundleId: String
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
        appAppleId: Int64? = nil,
        environments: Set<StoreEnvironment>,
        acceptsUnsignedXcodeData: Bool = false
    ) throws(UnsignedDataInProduction) {
        if acceptsUnsignedXcodeData && environments.contains(.production) { throw UnsignedDataInProduction() }
        self.bundleId = bundleId
        self.appAppleId = appAppleId
        self.environments = environments
        self.acceptsUnsignedXcodeData = acceptsUnsignedXcodeData
    }

    /// Unsigned Xcode data and production were asked for together.
    package struct UnsignedDataInProduction: Error, CustomStringConvertible {
        package var description: String { "an app that serves Production must not accept unsigned Xcode data" }
    }
}
