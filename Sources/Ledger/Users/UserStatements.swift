package import Postgres
package import Settings

extension Statements {
    /// Enters users that are not there yet; an erased user stays erased.
    package static let enterUsers = Statement<[EnteredUser], Void>(
        "users.enter",
        """
        insert into users (app_id, user_key, sealed, key_id)
        select app, key, sealed, key_id from unnest($1::text[], $2::text[], $3::bytea[], $4::text[])
          as i(app, key, sealed, key_id)
        order by app, key
        on conflict (app_id, user_key) do nothing
        """,
        bind: { users in
            [
                .texts(users.map(\.appID)), .texts(users.map(\.key)), .bytesArray(users.map(\.sealed.bytes)),
                .texts(users.map(\.sealed.keyID)),
            ]
        })

    package struct RegisteredUser: Sendable, Equatable {
        package let name: UserName
        /// Nil: erased.
        package let sealed: UserKeys.Sealed?
    }

    package static let registeredUsers = Statement<[UserName], RegisteredUser>(
        "users.registered",
        """
        select u.app_id, u.user_key, u.sealed, u.key_id
        from unnest($1::text[], $2::text[]) as i(app, key)
        cross join lateral (select * from users where app_id = i.app and user_key = i.key offset 0) u
        """,
        bind: { [.texts($0.map(\.appID)), .texts($0.map(\.key))] },
        read: { row throws(PostgresError) in
            var sealed: UserKeys.Sealed?
            if let bytes = try row.optionalBytes(2) { sealed = UserKeys.Sealed(bytes: bytes, keyID: try row.text(3)) }
            return RegisteredUser(name: UserName(appID: try row.text(0), key: try row.text(1)), sealed: sealed)
        })

    /// The fingerprint of the key that this database is protected by; empty: users are not protected. The first process
    /// decides. No row where another process decides at this moment.
    package static let agreeOnUserProtection = Statement<String, String>(
        "users.agree",
        """
        with agreed as (
          insert into user_protection (fingerprint) values ($1) on conflict do nothing returning fingerprint)
        select fingerprint from user_protection union all select fingerprint from agreed
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in try row.text(0) })

    package static let userProtection = Statement<Void, String>(
        "users.protection", "select fingerprint from user_protection",
        read: { row throws(PostgresError) in try row.text(0) })

    /// The secret with which the security log hashes users; a row once ``UserProtection/agree(_:in:)`` has returned.
    package static let logSecret = Statement<Void, [UInt8]>(
        "users.log_secret", "select log_secret from user_protection",
        read: { row throws(PostgresError) in try row.bytes(0) })

    package struct Erasure: Sendable {
        package var appID: String
        /// The user's key; the id where users are not protected.
        package var user: String
        /// The tombstone that takes the id's place where users are not protected.
        package var tombstone: String
        package var actor: String
    }

    package static let eraseProtectedUser = Statement<Erasure, Int>(
        "users.erase_protected", "select erase_protected_user($1, $2, $3)",
        bind: { [.text($0.appID), .text($0.user), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Begins an erasure. Once all transactions have ended that run now (``running``), no verdict names this user any
    /// more.
    package static let beginErasure = Statement<UserName, Void>(
        "users.begin_erasure", "select begin_erasure($1, $2)", bind: { [.text($0.appID), .text($0.key)] },
        read: { _ throws(PostgresError) in })

    /// Ends an erasure: the tables have the id no more, so later matches do not find it.
    package static let endErasure = Statement<UserName, Void>(
        "users.end_erasure", "select end_erasure($1, $2)", bind: { [.text($0.appID), .text($0.key)] },
        read: { _ throws(PostgresError) in })

    /// The transactions that run now in this database, except this one, by the virtual ids that they have before they
    /// write anything.
    package static let running = Statement<Void, String>(
        "users.running",
        """
        select virtualtransaction from pg_locks join pg_stat_activity using (pid)
        where locktype = 'virtualxid' and datname = current_database() and pid <> pg_backend_pid()
        """,
        bind: { _ in [] },
        read: { row throws(PostgresError) in try row.text(0) })

    package static let eraseClearUser = Statement<Erasure, Int>(
        "users.erase_clear", "select erase_clear_user($1, $2, $3, $4)",
        bind: { [.text($0.appID), .text($0.user), .text($0.tombstone), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Empties ended receipts that name no user and hold purchases of this one. Runs after the erasure: the key is the
    /// user's name in grants since then. Returns how many receipts.
    package static let emptyUnnamedPosts = Statement<UserName, Int>(
        "users.empty_unnamed_posts", "select empty_unnamed_posts($1, $2)",
        bind: { [.text($0.appID), .text($0.key)] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Erases the user from the rows that follow after grants (revocations, subscriptions, consents, notifications),
    /// and returns the number of emptied payloads. Runs after the erasure of the user: since then the owner is the
    /// user's name in grants.
    package static let eraseHeardOfUser = Statement<(user: UserName, owner: String), Int>(
        "users.erase_heard", "select erase_heard_of_user($1, $2, $3)",
        bind: { [.text($0.user.appID), .text($0.user.key), .text($0.owner)] },
        read: { row throws(PostgresError) in try row.int(0) })

    package static let readmitUser = Statement<(user: EnteredUser, actor: String), Int>(
        "users.readmit", "select readmit_user($1, $2, $3, $4, $5)",
        bind: {
            [
                .text($0.user.appID), .text($0.user.key), .bytes($0.user.sealed.bytes), .text($0.user.sealed.keyID),
                .text($0.actor),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })

    package struct UserTraces: Sendable, Equatable {
        package var receipts = 0
        package var openReceipts = 0
        package var grants = 0
        package var orders = 0
        package var tokens = 0
        package var reports = 0
        package var imported = 0

        package init() {}
    }

    /// Counts of what is stored under a user's key, or under the id where users are not protected.
    package static let userTraces = Statement<UserName, UserTraces>(
        "users.traces",
        """
        select (select count(*) from v_receipts where app_id = $1 and user_id = $2),
          (select count(*) from v_receipts where app_id = $1 and user_id = $2 and settled_at is null),
          (select count(*) from v_grants where app_id = $1 and user_id = $2),
          (select count(*) from v_orders where app_id = $1 and user_id = $2),
          (select count(*) from user_tokens where app_id = $1 and user_id = $2),
          (select count(*) from v_client_reports where app_id = $1 and user_id = $2),
          (select count(*) from v_imported_grants where app_id = $1 and user_id = $2)
        """,
        bind: { [.text($0.appID), .text($0.key)] },
        read: { row throws(PostgresError) in
            var traces = UserTraces()
            traces.receipts = try row.int(0)
            traces.openReceipts = try row.int(1)
            traces.grants = try row.int(2)
            traces.orders = try row.int(3)
            traces.tokens = try row.int(4)
            traces.reports = try row.int(5)
            traces.imported = try row.int(6)
            return traces
        })
}
