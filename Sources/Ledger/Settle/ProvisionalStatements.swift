package import Foundation
package import Postgres
package import Purchases

extension Statements {
    package struct HistoryQuestion: Sendable {
        package var appID: String
        package var userID: String
        /// Purchases are counted no further than this.
        package var purchasesMax: Int

        package init(appID: String, userID: String, purchasesMax: Int) {
            self.appID = appID
            self.userID = userID
            self.purchasesMax = purchasesMax
        }
    }

    /// What trust rests on: one row. Key look-ups by user; what is itself only given on trust counts for nothing.
    package static let userHistory = Statement<HistoryQuestion, UserHistory>(
        "provisional.user_history",
        """
        select
          (select count(*) from (
            select from grants g where g.app_id = $1 and g.user_id = $2 and g.environment = 'Production'
              and g.binding_source <> 'shared'
              and not exists (select from provisional_grants p where p.transaction_id = g.transaction_id
                and p.receipt_id = g.receipt_id and p.granted_at is not null and p.confirmed_at is null)
            limit $3) confirmed),
          (select min(received_at) from receipts where app_id = $1 and user_id = $2),
          exists (select from grants g cross join lateral (
                select \(isRefund("transactions")) as is_refund from transactions
                where transaction_id = g.transaction_id offset 0) t
              where g.app_id = $1 and g.user_id = $2 and g.environment = 'Production' and t.is_refund
                -- Another user posted it as this one's.
                and g.binding_source <> '\(BindingSource.record.rawValue)')
            or exists (select from receipts r join outcomes o on o.receipt_id = r.id
              where r.app_id = $1 and r.user_id = $2 and (o.state = 'rejected' and o.reason = 'refunded'
                or o.state = 'granted' and o.reason in (\(takingBack))))
        """,
        bind: { [.text($0.appID), .text($0.userID), .int($0.purchasesMax)] },
        read: { row throws(PostgresError) in
            UserHistory(
                purchases: try row.int(0), firstReceivedAt: try row.optionalDate(1), hasRefund: try row.bool(2))
        })

    /// Purchases of one receipt that ask for places within the limits, which are its user's.
    package struct PlaceQuestion: Sendable {
        package var receiptID: UUID
        package var appID: String
        package var transactions: [Transaction]
        package var limits: AppPolicy.Provisional

        package init(receiptID: UUID, appID: String, transactions: [Transaction], limits: AppPolicy.Provisional) {
            self.receiptID = receiptID
            self.appID = appID
            self.transactions = transactions
            self.limits = limits
        }
    }

    /// The ids of those that have their place now: one taken here, or before by the same receipt. Others that ask at
    /// the same time wait for each other, so the limits are exact.
    package static let takePlaces = Statement<PlaceQuestion, String>(
        "provisional.take_places",
        """
        select id from (
          select id, take_provisional_place(id, purchase_key, $1, product, event, $6, $7) as is_taken
          from unnest($2::text[], $3::text[], $4::text[], $5::uuid[]) as i(id, purchase_key, product, event) offset 0) i
        where is_taken
        """,
        bind: { question in
            [
                .uuid(question.receiptID), .texts(question.transactions.map(\.id)),
                .texts(question.transactions.map(\.purchaseKey)), .texts(question.transactions.map(\.productID)),
                .uuids(
                    question.transactions.map {
                        DerivedID.event(appID: question.appID, transactionID: $0.id, type: .purchaseConfirmed)
                    }),
                .int32(question.limits.perUserPerDay), .int32(question.limits.perAppPerDay),
            ]
        },
        read: { row throws(PostgresError) in try row.text(0) })

    /// Of a row `p` of provisional_grants: whether it was given and Apple has not answered about it. Not for a WHERE
    /// clause: there the planner may walk the index of all that wait, which statistics of a quiet day call empty.
    static let waitsForAnswer = "(p.granted_at is not null and p.confirmed_at is null and p.revoked_at is null)"

    /// What is not decided for good in a receipt, with the facts that are stored: what was given on trust, held and open.
    package static let undecidedPurchases = Statement<UUID, TrustedReceipt.Purchase>(
        "provisional.undecided_purchases",
        """
        select p.purchase_key, o.state, o.reason, t.*
        from (
          select transaction_id from outcomes where receipt_id = $1 and state in ('open', 'held')
          union select transaction_id from provisional_grants where receipt_id = $1) i
        cross join lateral (select \(storedFacts) from transactions where transaction_id = i.transaction_id offset 0) t
        left join lateral (select state, reason from outcomes
          where receipt_id = $1 and transaction_id = i.transaction_id offset 0) o on true
        left join lateral (
          select g.purchase_key, \(waitsForAnswer) as waits from provisional_grants p
          join grants g on g.transaction_id = p.transaction_id and g.receipt_id = p.receipt_id
          where p.transaction_id = i.transaction_id and p.receipt_id = $1 offset 0) p on p.waits
        where p.waits or o.state in ('open', 'held')
        order by i.transaction_id
        """,
        bind: { [.uuid($0)] },
        read: { row throws(PostgresError) in
            guard let transaction = try row.transaction(from: 3) else { throw row.undecodable(3) }
            return TrustedReceipt.Purchase(
                transaction: transaction, grantKey: try row.optionalText(0), before: try row.waitingDecision(1, 2))
        })

    package struct Unconfirmed: Sendable {
        package let appID: String
        package let grants: Int
        /// How long the oldest of them has waited for Apple's answer; 0 where none does.
        package let seconds: Double
    }

    /// What is given on trust and not confirmed, by app, zeros included.
    package static let unconfirmed = Statement<Void, Unconfirmed>(
        "watch.unconfirmed",
        """
        select a.app_id, count(p.granted_at), greatest(0, coalesce(extract(epoch from now() - min(p.granted_at)), 0))::float8
        from apps a left join provisional_grants p on p.app_id = a.app_id and p.granted_at is not null
          and p.confirmed_at is null and p.revoked_at is null
        group by a.app_id
        """,
        read: { row throws(PostgresError) in
            Unconfirmed(appID: try row.text(0), grants: try row.int(1), seconds: try row.double(2))
        })
}
