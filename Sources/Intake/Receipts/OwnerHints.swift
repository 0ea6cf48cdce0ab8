package import Ledger
import Settings

/// The masked ids of the users who have what other users posted (S3-71): the first and the last character of the id.
///
/// A poster who has shown a purchase is told where it went, without the other user's id. The mask is made of the id that
/// the register holds, where the tables hold keys. Its length says nothing about the length of the id.
package struct OwnerHints: Sendable {
    private var masks: [UserName: String] = [:]

    package init() {}

    /// - Parameter ids: the ids of users by their names in the tables.
    package init(_ ids: [UserName: String]) { masks = ids.compactMapValues(Self.mask) }

    package subscript(user: UserName) -> String? { masks[user] }

    /// Nil for an id that is too short to be masked.
    package static func mask(_ id: String) -> String? {
        guard id.count >= shortest, let first = id.first, let last = id.last else { return nil }
        return "\(first)***\(last)"
    }

    /// Of a shorter id the two characters would be half.
    private static let shortest = 5

    /// The hints for answers about these receipts. An app whose configuration says so gives none, and an erased user has
    /// none. A register that cannot be read now gives none either: the answer is not held up by it.
    static func hints(
        for views: [ReceiptView], _ configuration: Configuration, _ users: UserRegister
    ) async -> OwnerHints {
        let holders = Set(
            views.filter { configuration.apps[$0.appID]?.ownerHint ?? false }.flatMap { view in
                view.transactions.compactMap { $0.holder.map { UserName(appID: view.appID, key: $0) } }
            })
        guard !holders.isEmpty else { return OwnerHints() }
        guard let keys = configuration.userKeys else {
            let ids = holders.filter { $0.key.firstMatch(of: tombstone) == nil }.map { ($0, $0.key) }
            return OwnerHints(Dictionary(ids, uniquingKeysWith: { first, _ in first }))
        }
        let revealed = (try? await users.reveal(holders, keys)) ?? [:]
        return OwnerHints(
            revealed.compactMapValues { user in if case .id(let id) = user { id } else { nil } })
    }

    /// The name that an erased user has in the tables where users are not protected.
    private static var tombstone: Regex<Substring> { /^erased_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/ }
}
