import Encoding
import Service
import Settings

extension Caller {
    /// The app that a request is about.
    ///
    /// - Parameter known: the apps of the configuration.
    func app(_ given: String?, of known: Set<String>) throws(Problem) -> String {
        if let given {
            // The id is spelled as in the configuration: the Kelvin sign is no K.
            let appID = given.plainASCII
            guard apps.contains(appID), known.contains(appID) else { throw .appNotAllowed }
            return appID
        }
        let reachable = apps.intersection(known)
        guard reachable.count == 1, let appID = reachable.first else {
            throw .incomplete(.noApp, "must be there: the caller has more than one app", field: "appId")
        }
        return appID
    }

    /// The user that a request is about; nil where a service key names none.
    func user(_ given: String?) throws(Problem) -> String? {
        guard let userID else { return given }
        if let given, !given.isSameText(as: userID) { throw .otherUser }
        return userID
    }

    /// As ``user(_:)``, for a request that needs no user: a placeholder names nobody.
    func user(_ given: String?, orNobody placeholders: PlaceholderUsers) throws(Problem) -> String? {
        let user = try user(placeholders.contains(given) ? nil : given)
        return placeholders.contains(user) ? nil : user
    }

    /// As ``user(_:)``, for a request that gives the user something to keep.
    ///
    /// - Throws: 422 for a placeholder, in the request or in the caller's token.
    func user(_ given: String?, noneOf placeholders: PlaceholderUsers) throws(Problem) -> String? {
        guard !placeholders.contains(given), !placeholders.contains(userID) else { throw .userPlaceholder("userId") }
        return try user(given)
    }
}
