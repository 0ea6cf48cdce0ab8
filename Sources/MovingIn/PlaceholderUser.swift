import Foundation

/// Whether the id is what clients and scripts write where they have no user: it would make one account the owner of
/// many users' purchases. Case, and white space around the id, do not matter.
func isPlaceholderUser(_ userID: String) -> Bool {
    placeholderUsers.contains(userID.trimmingCharacters(in: .whitespacesAndNewlines).lowercased())
}

private let placeholderUsers: Set<String> = [
    "", "undefined", "null", "(null)", "[object object]", "nan", "none", "0", "-1",
]
