import Ledger
import Service

/// A statement that some roles must be refused with 42501.
struct Refusal: Sendable {
    let roles: [DatabaseRole]
    let sql: String

    private init(_ roles: [DatabaseRole], _ sql: String) {
        self.roles = roles
        self.sql = sql
    }

    private static let services: [DatabaseRole] = [.ingest, .worker, .scheduler, .dispatcher, .all]
    private static let everybody = DatabaseRole.allCases

    static let all = [
        // No role may delete.
        Refusal(everybody, "delete from receipts"),
        Refusal(everybody, "delete from stored_payloads"),
        Refusal(everybody, "delete from proof_headers"),
        Refusal(everybody, "delete from grants"),
        Refusal(everybody, "delete from outcomes"),
        Refusal(everybody, "delete from events"),
        // Ingest stores the cursors of backends, and forgets a group by a function that does no more.
        Refusal(everybody, "delete from feed_groups"),
        Refusal(everybody, "update feed_groups set name = 'other'"),
        Refusal(
            [.worker, .scheduler, .support, .dashboard],
            "insert into feed_groups (app_id, name, place, id) values ('game', 'shop', 0, 0)"),
        Refusal([.worker, .scheduler, .support, .dashboard], "select forget_feed_group('game', 'shop')"),
        Refusal(everybody, "delete from halts"),
        Refusal(everybody, "delete from audits"),
        Refusal(everybody, "truncate tallies"),
        // Only a scheduler seals, and nobody takes a seal back.
        Refusal(everybody, "delete from seals"),
        Refusal(everybody, "update seals set form = 2"),
        Refusal(
            [.ingest, .worker, .support, .dashboard],
            "insert into seals (number, form, first_xid, end_xid, names, hashes, previous_hash, hash) values (1, 1, 0, 1, '{}', '{}', '', '')"
        ),
        Refusal(everybody, "insert into seal_corrections (name, tombstone) values ('grant 1', 'erased')"),
        // A grant never changes, and only a worker writes one.
        Refusal(everybody, "update grants set user_id = 'thief'"),
        Refusal(everybody, "update grants set goods = '[]'"),
        Refusal(
            [.ingest, .scheduler, .support, .dashboard],
            """
            insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
              quantity, goods, binding_source)
            values ('1', '1', 'game', 'Production', 'thief', gen_random_uuid(), 'p', 1, '[]', 'poster')
            """),
        // Scheduler and support check the invariants, which compare owners, and bonuses with goods; ingest and support
        // tell a purchase's timeline.
        Refusal([.dashboard], "select user_id from grants"),
        Refusal([.dashboard], "select goods from grants"),
        // A worker gives a bonus, once, and the bonus never changes.
        Refusal(everybody, "delete from given_bonuses"),
        Refusal(everybody, "update given_bonuses set user_id = 'thief'"),
        Refusal(
            [.ingest, .scheduler, .support, .dashboard],
            "insert into given_bonuses (app_id, user_id, bonus, period, transaction_id, goods) values ('game', 'u', 'b', '', '1', '[]')"
        ),
        Refusal(everybody, "insert into ordering_apps values ('game')"),
        // A support decision is written by a person, through support, and never deleted.
        Refusal(everybody, "delete from support_decisions"),
        Refusal(
            [.ingest, .worker, .scheduler, .all, .dashboard],
            "insert into support_decisions (app_id, transaction_id, user_id) values ('game', '1', 'thief')"),
        Refusal([.ingest, .worker, .scheduler, .all, .dashboard], "update support_decisions set user_id = 'thief'"),
        Refusal([.ingest, .scheduler, .support, .dashboard], "select customer_id from grants"),
        Refusal([.ingest, .scheduler, .support, .dashboard], "select customer_id from transactions"),
        Refusal(everybody, "update events set user_id = 'thief'"),
        // An order's promise is written once, and so is a token's user.
        Refusal(everybody, "update orders set user_id = 'thief'"),
        Refusal(everybody, "update orders set goods = '[]'"),
        Refusal(everybody, "update orders set reserved_for = '1'"),
        Refusal(everybody, "update user_tokens set user_id = 'thief'"),
        Refusal(everybody, "delete from orders"),
        Refusal(everybody, "update catalogues set document = '{}'"),
        Refusal(everybody, "delete from client_reports"),
        Refusal(
            [.ingest, .worker, .scheduler, .dashboard], "insert into catalogues values ('game', 9, '{}', now(), 'x')"),
        Refusal([.scheduler, .dashboard], "select details from orders"),
        // Only the owner of the schema writes the grants of another system.
        Refusal(
            everybody,
            "insert into imported_grants values ('1', 'game', 'Production', '1', 'thief', 'coins', now(), now())"),
        Refusal(everybody, "update imported_grants set user_id = 'thief'"),
        Refusal(everybody, "delete from imported_grants"),
        Refusal(everybody, "delete from shadow_decisions"),
        Refusal(everybody, "update stored_payloads set body = ''"),
        Refusal(everybody, "update proof_headers set header = ''"),
        Refusal(everybody, "update receipts set received_at = now()"),
        Refusal(everybody, "update receipts set user_id = 'thief'"),
        Refusal([.ingest, .scheduler, .support, .dashboard], "select customer from history_walks"),
        Refusal(everybody, "update history_walks set customer = 'other'"),
        Refusal(everybody, "update tallies set app_id = 'other'"),
        // A row begins as received: ingest does not write an outcome.
        Refusal([.ingest], "update receipts set state = 'granted'"),
        Refusal([.ingest], "update receipts set settled_at = now()"),
        Refusal([.ingest], "update receipts set lane = 'local'"),
        Refusal(
            [.ingest],
            """
            insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, state, settled_at)
            values (gen_random_uuid(), 'game', 'u', 'receipt', 'apple', false, '{}', '', 'granted', now())
            """),
        Refusal(
            [.ingest],
            "insert into outcomes (receipt_id, transaction_id, state) values (gen_random_uuid(), '', 'granted')"),
        // A worker stores what nobody posted.
        Refusal(
            [.scheduler, .support, .dashboard],
            "insert into stored_payloads (receipt_id, received_on, body) values (gen_random_uuid(), now(), '')"),
        Refusal(
            [.scheduler, .support, .dashboard],
            "insert into proof_headers (sha256, header) values (sha256('x'), 'x')"),
        // Only a dispatcher numbers events, and nobody takes a number back.
        Refusal(everybody, "delete from event_sequences"),
        Refusal(everybody, "update event_sequences set sequence = 9"),
        Refusal(everybody, "delete from deliveries"),
        Refusal(everybody, "delete from endpoints"),
        Refusal(everybody, "update event_users set user_id = 'thief'"),
        Refusal(
            [.ingest, .worker, .scheduler, .support, .dashboard],
            "insert into event_sequences (stream, sequence, xid, id) values (1, 1, '0', 1)"),
        Refusal([.ingest, .worker, .scheduler, .support, .dashboard], "update event_progress set id = 1"),
        Refusal([.ingest, .worker, .scheduler, .support, .dashboard], "update endpoints set turn_until = null"),
        Refusal([.ingest, .worker, .scheduler, .dashboard], "update deliveries set due_at = now()"),
        // Replays are asked for by ingest and support, and sent by a dispatcher.
        Refusal(everybody, "delete from replays"),
        Refusal([.ingest, .worker, .scheduler, .support, .dashboard], "update replays set sent = 9"),
        Refusal([.worker, .scheduler, .dispatcher, .dashboard], "update replays set cancelled_by = 'nobody'"),
        Refusal(everybody, "select feed_place('game', now())"),
        Refusal(
            [.worker, .scheduler, .dispatcher, .dashboard],
            "select count_replay('game', null, null, null, 'u1', null, null, null)"),
        // A dispatcher knows events, and neither proofs nor purchases.
        Refusal([.dispatcher], "select id from receipts"),
        Refusal([.dispatcher], "select transaction_id from grants"),
        Refusal([.dispatcher], "select facts from transactions"),
        Refusal([.dispatcher], "select body from payloads"),
        Refusal([.dispatcher], "update receipts set due_at = now()"),
        // A role that needs no proof reads none.
        Refusal([.ingest, .scheduler, .support, .dashboard], "select body from payloads"),
        Refusal(everybody, "select body from stored_payloads"),
        Refusal(everybody, "select body from payloads_default"),
        Refusal(everybody, "select header from proof_headers"),
        Refusal(everybody, "select details from receipts"),
        Refusal(everybody, "select * from receipts"),
        Refusal([.dashboard], "select user_id from receipts"),
        Refusal([.scheduler, .support, .dashboard], "select body from kept_payloads"),
        Refusal([.ingest, .worker, .dashboard], "select changed_proofs(60)"),
        Refusal([.scheduler, .dashboard], "select facts from transactions"),
        // The clear ids of protected users: delivery, which ingest serves, and support read them; no role rewrites one.
        Refusal([.worker, .scheduler, .dashboard], "select sealed from users"),
        Refusal([.scheduler, .dashboard], "select user_key from users"),
        Refusal(everybody, "update users set sealed = null"),
        Refusal(everybody, "delete from users"),
        Refusal(services + [.dashboard], "select erase_protected_user('game', 'key', 'me')"),
        Refusal(services + [.dashboard], "select erase_clear_user('game', 'u1', 'gone', 'me')"),
        Refusal(services + [.dashboard], "select empty_unnamed_posts('game', 'u1')"),
        Refusal(services + [.dashboard], "select forget_merges('game', 'u1', 'gone')"),
        Refusal([.worker, .scheduler, .support, .dashboard], "select merge_users('game', 'u1', 'u2', 9, 'me')"),
        Refusal(everybody, "insert into merges (app_id, user_id, into_user_id) values ('game', 'u1', 'thief')"),
        Refusal(everybody, "update merges set into_user_id = 'thief'"),
        Refusal(everybody, "update ownerships set user_id = 'thief'"),
        Refusal(services + [.dashboard], "select readmit_user('game', 'key', '', 'key', 'me')"),
        Refusal([.support, .worker, .dashboard], "select user_id from events"),
        // Dashboards: the views and nothing else.
        Refusal([.dashboard], "select id from receipts"),
        Refusal([.dashboard], "select transaction_id from grants"),
        Refusal([.dashboard], "select * from events"),
        Refusal([.dashboard], "select * from orders"),
        Refusal([.dashboard], "select * from audits"),
        Refusal([.dashboard], "select * from halts"),
        Refusal([.dashboard], "select * from schema_migrations"),
        // Functions that run with the owner's rights are open only to the roles that need them.
        Refusal([.ingest, .worker, .support, .dashboard], "select create_payload_partitions(1)"),
        Refusal([.ingest, .scheduler, .dashboard], "select end_halt('game', '*', '*', 'operator')"),
        Refusal([.ingest, .scheduler, .support, .dashboard], "select end_stale_halts('game', '{}')"),
        // The audit of people's actions stays, and no service changes it.
        Refusal(everybody, "update audits set actor = 'somebody else'"),
        Refusal(services + [.dashboard], "insert into audits (actor, action, details) values ('a', 'b', '{}')"),
        // Only the owner changes the schema or the history of migrations.
        Refusal(everybody, "create table mine (id int)"),
        Refusal(everybody, "create temporary table mine (id int)"),
        Refusal(everybody, "alter table receipts add column mine int"),
        Refusal(everybody, "drop table payloads_default"),
        Refusal(everybody, "create index mine on receipts (id)"),
        Refusal(everybody, "create function mine() returns int language sql as 'select 1'"),
        Refusal(everybody, "insert into schema_migrations (number, name, checksum) values (99, 'mine', '')"),
        Refusal(everybody, "create role mine"),
        Refusal(everybody, "copy (select 1) to program 'true'"),
        Refusal(everybody, "set role postgres"),
    ]
}
