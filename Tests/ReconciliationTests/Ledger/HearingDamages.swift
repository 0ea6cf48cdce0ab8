extension InvariantTests {
    /// Damages of notifications, revocations and chains, for the tests of the invariants.
    static let hearingDamages = [
        Damage(
            "a receipt of a notification was counted as a post",
            "update receipts set source = 'notification' where state = 'received'", "conservation"),
        Damage(
            "a notification that is neither ended nor due",
            """
            do $$ begin
              alter table notifications drop constraint notifications_due;
              insert into notifications (id, version, app_id, type, payload_sha256)
              values (gen_random_uuid(), 2, 'game', 'REFUND', '');
            end $$
            """, "notifications"),
        Damage(
            "a notification that nobody works on",
            """
            insert into notifications (id, version, app_id, type, payload_sha256, due_at)
            values (gen_random_uuid(), 2, 'game', 'REFUND', '', now() - interval '3 hours')
            """, "notifications"),
        Damage(
            "a mark that nobody follows up",
            """
            insert into chain_marks (app_id, environment, original_transaction_id, marked_at)
            values ('game', 'Production', 'mine', now() - interval '3 hours')
            """, "follow_ups"),
        Damage("a chain that nobody looks at", chain(due: "now() - interval '3 hours'", state: "null"), "follow_ups"),
        Damage(
            "a gap in the ordinals", revocations("(1, 'revoked', true, 60)", "(3, 'reinstated', true, 60)"),
            "revocations"),
        Damage("given back before it was taken back", revocations("(1, 'reinstated', true, 0)"), "revocations"),
        Damage(
            "more taken back than was granted", revocations("(1, 'revoked', true, 30)", "(2, 'revoked', true, 31)"),
            "revocations"),
        Damage(
            "more given back than was taken back",
            revocations("(1, 'revoked', true, 30)", "(2, 'reinstated', true, 31)"), "revocations"),
        Damage("goods of an end that takes nothing back", revocations("(1, 'revoked', false, 1)"), "revocations"),
        Damage(
            "a refund that nobody was told of",
            """
            do $$ begin
              update transactions set revoked_at = now() where transaction_id = 'mine';
              delete from chain_marks;
            end $$
            """, "refunds_revoked"),
        Damage(
            "a running subscription without a next look", chain(due: "null", state: "'active'"), "told_subscriptions"),
        Damage(
            "a running subscription whose next look is long after its end",
            chain(due: "now() + interval '3 days'", state: "'in_grace'"), "told_subscriptions"),
        Damage(
            "a subscription that runs although it was taken back",
            """
            do $$ begin
              update transactions set revoked_at = now() where transaction_id = 'mine';
              delete from chain_marks;
              \(revocations("(1, 'revoked', true, 60)"));
              \(chain(due: "now() + interval '1 day'", state: "'active'"));
            end $$
            """, "told_subscriptions"),
    ]

    private static func chain(due: String, state: String) -> String {
        """
        insert into chains (app_id, environment, original_transaction_id, state, transaction_id, product_id, expires_at,
          told_user_id, followed_at, due_at)
        values ('game', 'Production', 'mine', \(state), 'mine', 'coins', now() + interval '1 day', 'u1', now(), \(due))
        """
    }

    /// - Parameter rows: ordinal, kind, whether it takes goods back, and how many coins.
    private static func revocations(_ rows: String...) -> String {
        """
        insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason, takes_back, percentage,
          goods, at)
        select 'mine', ordinal, 'game', 'Production', 'u1', kind, 'refunded', takes_back, 50000,
          case coins when 0 then '[]' else jsonb_build_array(jsonb_build_object('item', 'coin', 'amount', coins)) end, now()
        from (values \(rows.joined(separator: ", "))) v(ordinal, kind, takes_back, coins)
        """
    }
}
