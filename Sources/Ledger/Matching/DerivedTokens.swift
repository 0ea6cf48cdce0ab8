import Caching
import Encoding
package import Foundation
import Synchronization

/// The tokens that an app's client derives from its users' ids, registered here by ingest when a user posts
/// (`accountTokens.derivedFrom`), each once in a process. A token that the app registered for another user stays that
/// user's.
package final class DerivedTokens: Sendable {
    private let ledger: Ledger
    private let known = Mutex(RecentDictionary<String, Bool>(generationMax: UserRegister.knownMax))

    package init(ledger: Ledger) {
        self.ledger = ledger
    }

    /// Registers the token for the user as `PUT /v1/users/{id}/tokens/{uuid}` does, if this process has not done so. A
    /// user with ``Statements/tokensPerUserMax`` tokens gets no further one.
    ///
    /// - Throws: nothing was registered; retryable as the error says.
    package func register(_ token: UUID, of user: UserName) async throws(LedgerError) {
        let name = "\(user.appID) \(token.text)"
        let isKnown = known.withLock { $0[name] ?? false }
        if isKnown { return }
        _ = try await ledger.run(
            Statements.registerToken, .init(appID: user.appID, userID: user.key, token: token))
        known.withLock { $0[name] = true }
    }
}
