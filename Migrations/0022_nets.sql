-- serves: 12
-- Why: this server asks Apple for purchases that nobody told of. An operator must see what each such question caught,
--   and which differences between Apple's books and ours are left.
-- Locks: notifications, for a moment, for a column and a constraint that reads no row. Everything else is new.
-- Cost: none.

alter table notifications add column came_by text collate "C" not null default 'notification';
alter table notifications add constraint notifications_came_by
    check (came_by in ('notification', 'notification_history')) not valid;
comment on column notifications.came_by is
    'The net that brought it: notification, Apple sent it; notification_history, this server asked for what Apple could not bring.';

-- What a question to Apple told first. A row is never changed.
create table net_catches (
    transaction_id text collate "C" not null,
    kind text collate "C" not null,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    net text collate "C" not null,
    caught_at timestamptz not null default now(),
    primary key (transaction_id, kind),
    constraint net_catches_kind check (kind in ('purchase', 'end', 'reversal')),
    constraint net_catches_net check (net in ('notification_history', 'subscription', 'customer', 'refund'))
);
create index net_catches_caught_at on net_catches using brin (caught_at) with (autosummarize = on);
comment on table net_catches is
    'A row: a question to Apple told this purchase, its end or the reversal of its end before anybody else did.';

-- Differences between Apple's books and ours.
create table differences (
    category text collate "C" not null,
    subject text collate "C" not null,          -- a transaction id, as it is stored; of a state, the chain's
    app_id text collate "C" not null,
    environment text collate "C" not null,
    net text collate "C" not null,              -- the question whose answer showed it
    details jsonb not null default '{}',
    found_at timestamptz not null default now(),
    seen_at timestamptz not null default now(), -- the last look that found it
    ended_at timestamptz,                       -- a look found it gone, or a person closed it
    ended_by text collate "C",                  -- null: it healed
    primary key (category, subject),
    constraint differences_category check (category in
        ('purchase_missing', 'end_missing', 'end_undone', 'state_differs', 'grant_unlisted', 'goods_differ'))
);
create index differences_open on differences (app_id, found_at) where ended_at is null;
comment on table differences is 'A row: Apple''s books and ours differ about this subject. Most rows heal.';
