import Purchases

// The owner of a purchase's chain: parts of `Statements/evidence`, for a question `i`.
extension Statements {
    /// The ids by which Apple knows the chain: one, or two after a migration or a change between a subscription and a
    /// bundle. The SQL looks up each id by itself, so that the latest purchase of both costs two walks of an index.
    private static let names = "unnest(array[i.original, i.previous]) as chain(id)"

    /// The owner of the chain: one row, `user_id` and `is_moved`, or none.
    static let ownerOfChain = """
        select h.user_id, o.is_moved and h.user_id = \(person("o.user_id", of: "i.app")) as is_moved
          from (
            (select x.user_id, x.move > 0 as is_moved, x.purchased_at, x.decided_at as at
              from \(names) cross join lateral (
                select user_id, move, purchased_at, transaction_id, decided_at from ownerships
                where i.is_chain and app_id = i.app and environment = i.environment
                  and original_transaction_id = chain.id
                order by purchased_at desc, transaction_id desc, move desc limit 1) x
              order by x.purchased_at desc, x.transaction_id desc, x.move desc limit 1)
            union all
            -- What was granted without an ownership, such as what is shared.
            (select g.user_id, false, g.purchased_at, g.at from (\(latestGrant(where: "i.is_chain"))) g)
            limit 1) o
          -- Bought anew by its owner while another's claim moved it: his again from that purchase on.
          left join lateral (\(latestGrant(where: "o.is_moved and t.purchased_at > o.purchased_at"))) l on true
          cross join lateral (
            select \(person("coalesce(l.user_id, o.user_id)", of: "i.app")) as user_id, coalesce(l.at, o.at) as at
            offset 0) h
          -- Where its owner was erased, what it renews is a purchase that nobody is known for: it was paid for all the same.
          where not \(isForgotten("h.user_id", since: "h.at")) offset 0
        """

    private static func latestGrant(where condition: String) -> String {
        """
        select k.* from \(names) cross join lateral (
            select g.user_id, t.purchased_at, g.granted_at as at from transactions t
              cross join lateral (select user_id, granted_at from grants where transaction_id = t.transaction_id
                and (binding_source <> '\(BindingSource.shared.rawValue)' or i.is_shared) offset 0) g
            where \(condition) and t.original_transaction_id = chain.id and t.app_id = i.app
              and t.environment = i.environment
            order by t.purchased_at desc limit 1) k
          order by k.purchased_at desc limit 1
        """
    }

    /// The latest purchase of the chain before this one, granted or not: `product_id` and `expires_at`.
    static let purchaseBefore = """
        select k.product_id, k.expires_at from \(names) cross join lateral (
            select product_id, expires_at, purchased_at from transactions t
            where i.is_chain and i.is_unposted and t.original_transaction_id = chain.id and t.app_id = i.app
              and t.environment = i.environment and t.purchased_at < i.purchased_at and t.transaction_id <> i.id
            order by t.purchased_at desc limit 1) k
          order by k.purchased_at desc limit 1
        """
}
