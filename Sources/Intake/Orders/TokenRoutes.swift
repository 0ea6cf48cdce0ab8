import Encoding
import Foundation
import HTTPTypes
import Hummingbird
package import Ledger
import Purchases
package import Service
package import Settings

/// `PUT /v1/users/{id}/tokens/{uuid}` and `POST /v1/users/{id}/token`: one token, one user, per app.
///
/// A token leads every purchase that carries it to its user, also where another user posts the purchase. So only a service key may say
/// whose token it is: a user could claim a stranger's token. Nobody else can know a token that is issued here.
package struct TokenRoutes: Sendable {
    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let authenticator: Authenticator
    private let users: UserRegister

    package init(ledger: Ledger, configuration: ConfigurationHolder, authenticator: Authenticator) {
        self.ledger = ledger
        self.configuration = configuration
        self.authenticator = authenticator
        users = UserRegister(ledger: ledger)
    }

    package func add(to router: some RouteTable) {
        router.serve("/v1/users/:id/tokens/:token", [.put: Endpoint("appId") { try await put($0, $1) }])
        router.serve("/v1/users/:id/token", [.post: Endpoint("appId") { try await issue($0, $1) }])
    }

    /// Answers 201 where the token is new, 200 where it was this user's already, and 409 where it is another user's,
    /// who is not named.
    private func put(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let user = try caller.user(in: request, context, of: configuration.current)
        guard caller.userID == nil else { throw Problem.needsKey }
        guard let token = context.parameters.get("token").flatMap(UUID.init(uuidString:)) else {
            throw Problem.badParameter("token", "a UUID")
        }
        guard !AccountToken.isNone(token) else {
            throw Problem.incomplete(
                .tokenPlaceholder, "is what libraries write where they have no token: it names nobody", field: "token")
        }
        let registered = try await store(user, .registered, token)
        guard let registered else {
            throw Problem.conflict(
                .tooManyTokens, "this user has \(Statements.tokensPerUserMax) tokens", field: "token")
        }
        // The tokens of an account that became part of this user's are this user's.
        guard
            try await ledger.isSamePerson(UserName(appID: user.appID, key: user.key), registered.userID)
        else {
            throw Problem(
                .conflict, .tokenTaken, "is another user's", field: "token", refusal: .tokenTaken)
        }
        return Self.response(registered)
    }

    /// Answers the user's own token; makes one where the user has none.
    private func issue(_ request: Request, _ context: HTTPContext) async throws -> Response {
        let caller = try await authenticator.admit(request.headers)
        try caller.require(.intake)
        let user = try caller.user(in: request, context, of: configuration.current)
        guard let issued = try await store(user, .issued, UUID()) else { throw Problem.unavailable() }
        return Self.response(issued)
    }

    private func store(
        _ user: PathUser, _ source: UserToken.Source, _ token: UUID
    ) async throws(LedgerError) -> UserToken? {
        if let keys = configuration.current.userKeys {
            try await users.enter(user.id, key: user.key, app: user.appID, keys)
        }
        let registration = Statements.TokenRequest(appID: user.appID, userID: user.key, token: token)
        let statement = source == .issued ? Statements.issueToken : Statements.registerToken
        // The statement runs twice: only the second run sees a row that another session inserts at the same time.
        for _ in 0..<2 {
            if let row = try await ledger.run(statement, registration).first { return row }
        }
        return nil
    }

    private static func response(_ token: UserToken) -> Response {
        Response(
            json: .object([
                .init("token", .string(token.token.text)),
                .init("source", .string(token.source.rawValue)),
                .init("registeredAt", .string(token.registeredAt.rfc3339)),
            ]), status: token.isNew ? .created : .ok)
    }
}

/// The user that a path names.
struct PathUser: Sendable {
    let appID: String
    let id: String
    /// The user's name in the tables.
    let key: String
}

extension Caller {
    /// The user of `/v1/users/{id}/…` and the user's app, `?appId=` where the caller has several. For a user's token
    /// every other user is not found, as other users' orders are.
    ///
    /// - Parameter readsPlaceholder: whether a service key may name a placeholder, to read what an earlier version gave to
    ///   it.
    /// - Throws: 422 for a placeholder.
    func user(
        in request: Request, _ context: HTTPContext, of configuration: Configuration, readsPlaceholder: Bool = false
    ) throws(Problem) -> PathUser {
        let appID = try app(request.parameter("appId"), of: configuration.appIDs)
        guard let id = context.parameters.get("id")?.percentDecoded, !id.isEmpty, !id.utf8.contains(0),
            id.utf8.count <= IntakeFields.userBytesMax
        else {
            throw .badParameter("id", "a user's id, percent-encoded, of at most \(IntakeFields.userBytesMax) bytes")
        }
        if let userID, !userID.isSameText(as: id) { throw .notYours }
        let isRead = readsPlaceholder && userID == nil
        guard isRead || !configuration.placeholders.contains(id) else { throw .userPlaceholder("id") }
        return PathUser(appID: appID, id: id, key: configuration.userKeys?.key(of: id, app: appID) ?? id)
    }
}

extension String {
    /// A part of a path, percent-decoded (RFC 3986, 2.1); nil for invalid UTF-8: `removingPercentEncoding` would make
    /// all such parts one user.
    package var percentDecoded: String? {
        var decoded: [UInt8] = []
        var rest = utf8[...]
        while let byte = rest.popFirst() {
            guard byte == UInt8(ascii: "%") else {
                decoded.append(byte)
                continue
            }
            guard let value = UInt8(decoding: rest.prefix(2)) else { return nil }
            decoded.append(value)
            rest = rest.dropFirst(2)
        }
        return String(validating: decoded, as: UTF8.self)
    }
}

extension UInt8 {
    /// Two hexadecimal digits.
    fileprivate init?(decoding digits: Substring.UTF8View) {
        let text = String(Substring(digits))
        guard text.utf8.count == 2, !text.hasPrefix("+"), !text.hasPrefix("-"), let value = UInt8(text, radix: 16)
        else {
            return nil
        }
        self = value
    }
}

extension Problem {
    static let needsKey = Problem(
        .forbidden, .needsKey, "is for a service key: a user's token cannot say whose a token is",
        refusal: .needsKey)
}
