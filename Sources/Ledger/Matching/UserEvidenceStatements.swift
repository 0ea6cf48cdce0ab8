import Encoding
import Postgres
import Purchases

// Users as evidence: whom a person, a token, a record, an Apple customer or an installation names. Key look-ups only,
// in the manner of the orders.
extension Statements {
    /// How many users of one token are read: more than two count as many, but several may be one person.
    private static let tokenUsersMax = 8
    /// How many users of one Apple customer are read: two count as many, but each may have the order.
    private static let customerUsersMax = 16

    /// A person's decision about each purchase, and whether another purchase was granted under the key of its ids. A
    /// decision that names the environment too goes before one about the id alone.
    static let decisionsOfSupport = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.support_decisions",
        [.app, .id, .idBehindEnvironment, .purchaseKey, .purchasedAt],
        sql: { questions in
            """
            select i.n - 1, d.user_id, d.item, d.token, (
              select true from (select transaction_id from grants
                  where purchase_key = i.purchase_key and transaction_id <> i.id offset 0) had
                cross join lateral (select purchased_at from transactions
                  where transaction_id = had.transaction_id offset 0) t
              where date_trunc('second', t.purchased_at) <> date_trunc('second', i.purchased_at)), d.is_apart
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select \(person("support_decisions.user_id", of: "i.app")) as user_id, item, token,
                transaction_id = i.apart_id as is_apart from support_decisions
              where app_id = i.app and transaction_id in (i.id, i.apart_id)
                and not \(isForgotten("support_decisions.user_id", since: "decided_at"))
              order by is_apart desc limit 1) d
            """
        },
        read: { row throws(PostgresError) in
            let decision = Evidence.SupportDecision(
                userID: try row.text(1), item: try row.optionalText(2), token: try row.optionalUUID(3),
                isOfKeyInUse: try row.optionalBool(4) ?? false, isOfIDInUse: try row.bool(5))
            return EvidencePart(of: try row.int(0)) { $0.found.supportDecision = decision }
        })

    /// The users of each token: for whom it is registered, and to whom it was granted; and whether this server wrote it
    /// for the purchase's chain.
    static let usersOfToken = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.users_of_token",
        [.app, .token, .environment, .original, .previous, .isOfChain],
        sql: { questions in
            """
            select i.n - 1, r.user_id, coalesce(u.users, '{}'), s.is_written
            from \(questions.rows(as: "raw", ordinality: "n"))
            cross join lateral (select raw.*, raw.token_text::uuid as token offset 0) i
            left join lateral (
              select \(person("user_tokens.user_id", of: "i.app")) as user_id from user_tokens
              where app_id = i.app and token = i.token
                and (not i.is_chain or not \(isForgotten("user_tokens.user_id", since: "registered_at"))) offset 0) r on true
            left join lateral (
              select array_agg(distinct user_id) as users from (
                select \(person("granted_tokens.user_id", of: "i.app")) as user_id from granted_tokens
                  -- It stands on a purchase that stands.
                  cross join lateral (select from transactions where transaction_id = granted_tokens.transaction_id
                    and revoked_at is null offset 0) standing
                where i.environment = '\(Transaction.production)' and app_id = i.app and token = i.token
                  and (not i.is_chain or not \(isForgotten("granted_tokens.user_id", since: "granted_at")))
                limit \(tokenUsersMax)) t) u on true
            left join lateral (
              select true as is_written from apple_updates
              where i.is_chain and original_transaction_id = any(array[i.original, i.previous]) and kind = 'set_token'
                and (token = i.token or i.token = any(former_tokens))
                and app_id = i.app and environment = i.environment limit 1) s on true
            """
        },
        read: { row throws(PostgresError) in
            let (registered, remembered) = (try row.optionalText(1), try row.texts(2))
            let isWritten = try row.optionalBool(3) ?? false
            return EvidencePart(of: try row.int(0)) { search in
                search.found.registeredUserID = registered
                search.found.rememberedUserIDs = remembered
                search.found.isTokenWritten = isWritten
            }
        })

    /// The questions whose poster has a registered token, under any id that is part of the poster by now.
    static let postersWithToken = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.posters_with_token",
        [.app, .poster],
        sql: { questions in
            """
            select i.n - 1
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select from user_tokens where app_id = i.app and user_id = any(
                i.usr || array(select user_id from merges where app_id = i.app and into_user_id = i.usr)) limit 1) t
            """
        },
        read: { row throws(PostgresError) in
            EvidencePart(of: try row.int(0)) { $0.found.posterHasToken = true }
        })

    /// Whom each record names, if the user is known here by that name; else whether the records of the app name users.
    static let usersOfRecord = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.users_of_record",
        [.app, .text("record") { $0.recordUserID }],
        sql: { questions in
            """
            select i.n - 1, x.user_id, case when x.user_id is null then (
              select true from record_apps where app_id = i.app) end
            from \(questions.rows(as: "i", ordinality: "n"))
            left join lateral (
              select \(person("k.user_id", of: "i.app")) as user_id from (
                (select user_id from orders where app_id = i.app and user_id = i.record limit 1)
                union all
                (select user_id from user_tokens where app_id = i.app and user_id = i.record limit 1)
                union all
                (select user_id from grants where app_id = i.app and user_id = i.record limit 1)
                limit 1) k offset 0) x on true
            """
        },
        read: { row throws(PostgresError) in
            let (userID, isOfUnknown) = (try row.optionalText(1), try row.optionalBool(2) ?? false)
            return EvidencePart(of: try row.int(0)) { search in
                search.found.recordUserID = userID
                search.found.isRecordOfUnknown = isOfUnknown
            }
        })

    /// The users whom purchases of each Apple customer were granted to.
    static let usersOfCustomer = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.users_of_customer",
        [.app, .text("customer") { $0.customerID }],
        sql: { questions in
            """
            select i.n - 1, coalesce(g.users, '{}')
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select array_agg(user_id) as users from (
                select distinct \(person("grants.user_id", of: "i.app")) as user_id
                from (select app_id, user_id, granted_at from grants where customer_id = i.customer offset 0) grants
                where app_id = i.app and not \(isForgotten("grants.user_id", since: "granted_at"))
                limit \(customerUsersMax)) known) g
            """
        },
        read: { row throws(PostgresError) in
            let users = try row.texts(1)
            return EvidencePart(of: try row.int(0)) { $0.found.customerUserIDs = users }
        })

    /// The questions about whose purchase a receipt of a user is open or held: one that a worker has judged, or one
    /// that says of itself that it is of this purchase. A bare id for which nobody vouches is no such receipt: a stranger
    /// who knows the id of another user's purchase may post it.
    static let postsOfPurchases = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.posts_of_purchases",
        [.app, .id],
        sql: { questions in
            """
            select i.n - 1
            from \(questions.rows(as: "i", ordinality: "n"))
            where coalesce(
              (select true from (select receipt_id from outcomes where transaction_id = i.id and state <> 'granted'
                  and state in ('open', 'held') offset 0) o
                cross join lateral (\(postOfUser) where id = o.receipt_id offset 0) r
                where \(isOpenPost)),
              (select true from (\(postOfUser)
                  where shown_transaction_id = i.id and state not in ('granted', 'already_granted') offset 0) r
                where \(isOpenPost)))
            """
        },
        read: { row throws(PostgresError) in
            EvidencePart(of: try row.int(0)) { $0.found.isPostedByUser = true }
        })

    /// SQL: of receipts `r`, one that a user posted in the app of a row `i`, with possession, and that has not ended.
    private static let postOfUser = "select app_id, source, settled_at, kind, is_vouched from receipts"
    private static let isOpenPost = """
        r.app_id = i.app and r.source = 'post' and r.settled_at is null
          and (r.kind <> '\(Proof.Kind.identifier.rawValue)' or r.is_vouched) limit 1
        """

    /// The questions whose installation was issued here, not revoked, and seen with one Apple customer only.
    static let provenInstallations = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.proven_installations",
        [.app, .installation, .environment],
        sql: { questions in
            """
            select i.n - 1
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (select app_id, revoked_at from installations where id = i.installation offset 0) v
            where v.app_id = i.app and v.revoked_at is null
              and (select count(*) from (select from installation_customers
                where installation_id = i.installation and environment = i.environment limit 2) c) < 2
            """
        },
        read: { row throws(PostgresError) in
            EvidencePart(of: try row.int(0)) { $0.isInstallationProven = true }
        })

    /// Whether each purchase is granted under its id or its key, here or by the system before this one.
    static let areGranted = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.are_granted",
        [.id, .purchaseKey, .environment, .original, .purchasedAt],
        sql: { questions in
            """
            select i.n - 1, coalesce(
              (select true from grants where transaction_id = i.id),
              (select true from grants where purchase_key = i.purchase_key),
              (select true from (\(importedGrant("i"))) imported), false)
            from \(questions.rows(as: "i", ordinality: "n"))
            """
        },
        read: { row throws(PostgresError) in
            let isGranted = try row.bool(1)
            return EvidencePart(of: try row.int(0)) { $0.isGranted = isGranted }
        })
}
