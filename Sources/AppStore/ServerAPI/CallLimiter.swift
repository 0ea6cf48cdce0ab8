/// The host of a call to Apple. It is down, slow or up for all apps alike.
package struct AppleHost: Sendable, Hashable {
    package let service: ServiceCall.Service
    package let environment: StoreEnvironment

    package init(_ service: ServiceCall.Service, _ environment: StoreEnvironment) {
        self.service = service
        self.environment = environment
    }
}

/// One call's answer, read, and its record.
package typealias CallAnswer<Value> = (result: Result<Value, AppStoreError>, call: ServiceCall)

/// Lets calls to Apple through, one by one, so that they stay within Apple's limits and spare Apple while it is down.
///
/// A client gets its limiter by `through(_:)`; a client without a limiter makes every call at once.
package protocol CallLimiter: Sendable {
    /// Makes a call as soon as it may be made, once at most, and learns from its answer.
    ///
    /// - Parameter endpoint: of the App Store Server API; nil: verifyReceipt.
    /// - Throws: ``AppStoreError/notAdmitted(until:)``, ``AppStoreError/hostDown`` or ``AppStoreError/halted`` if the
    ///   call may not be made soon: Apple was not asked.
    func pass<Value>(
        _ host: AppleHost, _ endpoint: ServerAPIClient.Endpoint?, _ call: () async -> CallAnswer<Value>
    ) async throws(AppStoreError) -> CallAnswer<Value>
}
