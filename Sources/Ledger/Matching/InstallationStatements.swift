package import Postgres

extension Statements {
    /// How long the token before the newest one still counts, in days: an installation must survive the loss of an
    /// answer.
    package static let installationTokenOverlapDays = 7
    /// How many tokens of one installation count side by side.
    package static let installationTokensMax = 4

    /// How many tokens one user is issued in a UTC day.
    package static let installationTokensPerUserMax = 20

    package struct InstallationRequest: Sendable {
        package var appID: String
        /// The id of a new installation; ignored where the shown token leads to an installation.
        package var id: String
        /// SHA-256 of the token that is issued.
        package var token: [UInt8]
        /// SHA-256 of the token that the installation has.
        package var shown: [UInt8]?
        /// The user whose daily limit counts the token; nil where the caller named no user.
        package var userID: String?

        package init(appID: String, id: String, token: [UInt8], shown: [UInt8]? = nil, userID: String? = nil) {
            self.appID = appID
            self.id = id
            self.token = token
            self.shown = shown
            self.userID = userID
        }
    }

    /// Issues a token: to the installation whose token is shown, whose older tokens then end, or to a new installation.
    /// A client that shows a token which does not count any more gets a new installation, so that a client that lost
    /// everything is not stuck. No row: the user has reached the day's limit.
    package static let issueInstallationToken = Statement<InstallationRequest, Bool>(
        "installations.issue",
        """
        with allowed as materialized (
          select where case when $5::text is null then true else take_limit_place(
            $1, 'installations', encode(sha256(convert_to($5, 'UTF8')), 'hex'), (now() at time zone 'UTC')::date,
            encode($3, 'hex'), \(installationTokensPerUserMax)) end),
        known as (
          select t.installation_id as id from installation_tokens t
          where exists (select from allowed) and t.token_sha256 = $4 and t.app_id = $1 and (t.expires_at is null or t.expires_at > now())
            and (select revoked_at is null from installations where id = t.installation_id)),
        made as (
          insert into installations (id, app_id) select $2, $1 where exists (select from allowed) and not exists (select from known) returning id),
        ended as (
          update installation_tokens t
          set expires_at = case when p.place < \(installationTokensMax)
            then least(coalesce(t.expires_at, 'infinity'), now() + interval '\(installationTokenOverlapDays) days') else now() end
          from (
            select token_sha256, row_number() over (order by issued_at desc, token_sha256) as place from installation_tokens
            where installation_id in (select id from known)) p
          where t.token_sha256 = p.token_sha256)
        insert into installation_tokens (token_sha256, installation_id, app_id)
        select $3, id, $1 from (select id from known union all select id from made) i
        returning true
        """,
        bind: { [.text($0.appID), .text($0.id), .bytes($0.token), .bytes($0.shown), .text($0.userID)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Ends an installation: posts with its tokens prove nothing any more, also those that wait for a verdict. Returns
    /// the installation's id; no row: no such token is known.
    package static let revokeInstallation = Statement<(appID: String, token: [UInt8]), String>(
        "installations.revoke",
        """
        update installations set revoked_at = coalesce(revoked_at, now())
        where id in (select installation_id from installation_tokens where token_sha256 = $2) and app_id = $1
        returning id
        """,
        bind: { [.text($0.appID), .bytes($0.token)] },
        read: { row throws(PostgresError) in try row.text(0) })

    package struct ShownCustomer: Sendable, Hashable {
        package let installationID: String
        package let environment: String
        package let customerID: String

        package init(installationID: String, environment: String, customerID: String) {
            self.installationID = installationID
            self.environment = environment
            self.customerID = customerID
        }
    }

    /// Notes the Apple customers whose purchases installations have shown. Passes over unknown installations.
    package static let showCustomers = Statement<[ShownCustomer], Void>(
        "installations.show",
        """
        insert into installation_customers (installation_id, environment, customer_id)
        select i.id, i.environment, i.customer from unnest($1::text[], $2::text[], $3::text[]) as i(id, environment, customer)
          cross join lateral (select from installations where id = i.id offset 0) known
        order by 1, 2, 3
        on conflict do nothing
        """,
        bind: {
            [
                .texts($0.map(\.installationID)), .texts($0.map(\.environment)), .texts($0.map(\.customerID)),
            ]
        })

    /// The SQL of the installation that a token leads to. The statement that stores a submission looks it up, so that
    /// the token was certainly issued before.
    ///
    /// - Parameter token: SHA-256 of the token of a row `i`, or null.
    static func installation(ofToken token: String) -> String {
        """
        (select installation_id from installation_tokens t where t.token_sha256 = \(token) and t.app_id = i.app
              and (t.expires_at is null or t.expires_at > now()))
        """
    }

    /// Notes that an app's records name their users as `userId` does.
    package static let noteRecordApp = Statement<String, Void>(
        "records.note_app", "insert into record_apps (app_id) values ($1) on conflict do nothing", bind: { [.text($0)] }
    )
}
