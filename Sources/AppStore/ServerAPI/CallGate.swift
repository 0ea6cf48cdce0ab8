/// Where a call to Apple goes: what is down, slow or back as one, whichever app asks.
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

/// Who lets calls to Apple through, one by one, so that they stay within Apple's limits and spare an Apple that is down.
///
/// Given to a client by `through(_:)`; without one every call is made at once.
package protocol CallGate: Sendable {
    /// Makes a call as soon as it may be made, once at most, and learns from its answer.
    ///
    /// - Parameter endpoint: of the App Store Server API; nil: verifyReceipt.
    /// - Throws: ``AppStoreError/notAdmitted(until:)``, ``AppStoreError/hostDown`` or ``AppStoreError/halted`` if it may
    ///   not be made soon: Apple was not asked.
    func pass<Value>(
        _ host: AppleHost, _ endpoint: ServerAPIClient.Endpoint?, _ call: () async -> CallAnswer<Value>
    ) async throws(AppStoreError) -> CallAnswer<Value>
}
