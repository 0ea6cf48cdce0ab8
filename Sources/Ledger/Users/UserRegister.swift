import Caching
import Foundation
import Purchases
package import Settings
import Synchronization

/// The one place where a protected user's id is written and read: ingest enters it, and the event feed reveals it.
package final class UserRegister: Sendable {
    /// How many users a process remembers as entered; at most twice as many, about 100 bytes each.
    package static let knownMax = 20_000

    private let ledger: Ledger
    private let known = Mutex(RecentDictionary<String, Bool>(generationMax: knownMax))

    package init(ledger: Ledger) {
        self.ledger = ledger
    }

    /// Enters a user whom this process has not entered yet: committed when this returns. Ingest calls it before it
    /// stores the receipt, so that no receipt has a user whom nobody can name. A crash between the two leaves a user
    /// without a receipt, which does no harm. An erased user stays erased.
    ///
    /// - Throws: nothing was stored; retryable as the error says.
    package func enter(_ userID: String, key: String, app: String, _ keys: UserKeys) async throws(LedgerError) {
        let name = "\(app) \(key)"
        let isKnown = known.withLock { $0[name] ?? false }
        if isKnown { return }
        try await ledger.enter(EnteredUser(appID: app, key: key, sealed: keys.seal(userID, key: key, app: app)))
        known.withLock { $0[name] = true }
    }

    /// The ids of these users. A user whom the register does not know is missing from the result.
    package func reveal(_ users: Set<UserName>, _ keys: UserKeys) async throws(LedgerError) -> [UserName: RevealedUser]
    {
        guard !users.isEmpty else { return [:] }
        return Self.reveal(try await ledger.run(Statements.registeredUsers, Array(users)), keys)
    }

    package static func reveal(_ rows: [Statements.RegisteredUser], _ keys: UserKeys) -> [UserName: RevealedUser] {
        var revealed: [UserName: RevealedUser] = [:]
        for row in rows {
            guard let sealed = row.sealed else {
                revealed[row.name] = .erased
                continue
            }
            revealed[row.name] =
                keys.open(sealed, key: row.name.key, app: row.name.appID).map { .id($0) } ?? .unreadable
        }
        return revealed
    }
}

/// A user in the form of all tables but `users`.
package struct UserName: Sendable, Hashable {
    package let appID: String
    package let key: String

    package init(appID: String, key: String) {
        self.appID = appID
        self.key = key
    }
}

package enum RevealedUser: Sendable, Equatable {
    case id(String)
    case erased
    /// Sealed with a key that is not in the configuration file: our misconfiguration.
    case unreadable
}

/// A user with the sealed id.
package struct EnteredUser: Sendable {
    package let appID: String
    package let key: String
    package let sealed: UserKeys.Sealed

    package init(appID: String, key: String, sealed: UserKeys.Sealed) {
        self.appID = appID
        self.key = key
        self.sealed = sealed
    }
}
