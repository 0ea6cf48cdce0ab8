-- Why: this migration holds what the database knows of the apps that it serves: when each app was first seen and when
--   it went live, what it sells for which goods and when, and whether the database takes purchases of production or
--   data that nobody signed. Here also stand the commands that people ran.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- What the services remember of an app between two starts.
create table apps (
    app_id text collate "C" primary key,
    first_started_at timestamptz not null default now(),
    configuration_sha256 bytea not null,        -- a change makes held rows due
    live_since timestamptz
);
comment on column apps.live_since is
    'Since when the app''s goods are given here: the default of grantFrom. Null: it is in shadow.';

-- The catalogues: what an app sells. A catalogue changes more often than a configuration file, by other people, and
-- must never change what was promised. Each `makegood catalog apply` writes a whole catalogue of one app; the newest is
-- in force. No row is ever changed, so earlier catalogues can always be read again.
create table catalogues (
    app_id text collate "C" not null,
    revision bigint not null,
    document jsonb not null,                    -- as `makegood catalog show --json` prints it
    applied_at timestamptz not null default now(),
    applied_by text collate "C" not null,
    primary key (app_id, revision),
    constraint catalogues_revision check (revision > 0)
);

-- Apps whose records name their users as `userId` does. The `uid` of another app's record may mean anything.
create table record_apps (
    app_id text collate "C" primary key,
    noted_at timestamptz not null default now()
);

-- Whether this database takes purchases of production, or data that nobody signed: never both, because a client that
-- writes unsigned data may write any transaction id. The first process that has one of the two in its configuration
-- writes the row. A database of signed sandbox purchases alone has no row.
create table database_purpose (
    is_only boolean primary key default true,
    purpose text collate "C" not null,
    since timestamptz not null default now(),
    constraint database_purpose_is_only check (is_only),
    constraint database_purpose_known check (purpose in ('production', 'unsigned'))
);

-- The commands that people ran: who, what, to how many.
create table audits (
    id bigint primary key generated always as identity,
    at timestamptz not null default now(),
    actor text collate "C" not null,
    action text collate "C" not null,
    details jsonb not null
);
create index audits_by_app on audits ((details ->> 'app') collate "C", at);
