-- serves: 1
-- Why: the security log says who was refused without an id that a reader of logs may know: a hash, keyed by a secret that all
--   processes of this database share and that no log holds.
-- Locks: access exclusive on user_protection, a table of one row, for a moment. Cost: none.

alter table user_protection
    add column log_secret bytea not null default (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
comment on column user_protection.log_secret is
    'user.hash in the security log is left(encode(sha256(log_secret || convert_to(user_id, ''UTF8'')), ''hex''), 16).';
