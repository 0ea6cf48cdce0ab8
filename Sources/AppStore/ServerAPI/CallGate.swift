package import Foundation

/// Who lets calls to the App Store Server API through, one by one, so that they stay within Apple's limits.
///
/// Given to a client by ``ServerAPIClient/through(_:)``; without one every call is made at once.
package protocol CallGate: Sendable {
    /// Returns when one call may be made now.
    ///
    /// - Throws: ``AppStoreError/notAdmitted(until:)`` if it may not be made soon.
    func admit(_ endpoint: ServerAPIClient.Endpoint, in environment: StoreEnvironment) async throws(AppStoreError)

    /// Apple answered 429: nobody should ask there before `until`, where Apple says it.
    func limited(_ endpoint: ServerAPIClient.Endpoint, in environment: StoreEnvironment, until: Date?) async
}
