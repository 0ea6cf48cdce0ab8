package import Foundation
package import Postgres

/// A token that an app uses as `appAccountToken` for all purchases of a user.
package struct UserToken: Sendable, Equatable {
    package enum Source: String, Sendable, CaseIterable {
        /// The app uses the token already.
        case registered
        /// This server made the token; one per user.
        case issued
    }

    package let token: UUID
    package let userID: String
    package let source: Source
    package let registeredAt: Date
    package let isNew: Bool
}

extension Statements {
    package struct TokenRequest: Sendable {
        package var appID: String
        package var userID: String
        /// The token to register; or the token to issue if the user has none.
        package var token: UUID

        package init(appID: String, userID: String, token: UUID) {
            self.appID = appID
            self.userID = userID
            self.token = token
        }
    }

    /// Tokens of one user and app; the next one is answered 409.
    package static let tokensPerUserMax = 100

    /// Registers a token, or returns the one that is there with its user. No row: the user has too many, or another
    /// request registers it at this moment.
    package static let registerToken = Statement<TokenRequest, UserToken>(
        "tokens.register",
        """
        with new as (
          insert into user_tokens (app_id, token, user_id, source)
          select $1, $2, $3, 'registered'
          where (select count(*) from user_tokens where app_id = $1 and user_id = $3) < \(tokensPerUserMax)
          on conflict do nothing
          returning token, user_id, source, registered_at)
        select token, user_id, source, registered_at, true from new
        union all
        select token, user_id, source, registered_at, false from user_tokens where app_id = $1 and token = $2
        """,
        bind: { [.text($0.appID), .uuid($0.token), .text($0.userID)] }, read: readToken)

    /// Issues a token, or returns the one that the user has. No row: another request issues one at this moment.
    package static let issueToken = Statement<TokenRequest, UserToken>(
        "tokens.issue",
        """
        with new as (
          insert into user_tokens (app_id, token, user_id, source) values ($1, $2, $3, 'issued')
          on conflict do nothing
          returning token, user_id, source, registered_at)
        select token, user_id, source, registered_at, true from new
        union all
        select token, user_id, source, registered_at, false from user_tokens
        where app_id = $1 and user_id = $3 and source = 'issued'
        """,
        bind: { [.text($0.appID), .uuid($0.token), .text($0.userID)] }, read: readToken)

    private static let readToken: @Sendable (borrowing RowReader) throws(PostgresError) -> UserToken = {
        row throws(PostgresError) in
        UserToken(
            token: try row.uuid(0), userID: try row.text(1), source: try row.word(2), registeredAt: try row.date(3),
            isNew: try row.bool(4))
    }
}
