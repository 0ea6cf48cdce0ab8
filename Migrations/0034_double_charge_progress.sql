-- serves: 1
-- Why: every scheduler looked for double charges by itself: each minute at three minutes of grants, and at an hour of them
--   when it started. With three of them at 560 purchases a second that was more work than the verdicts. Now they share one
--   place, and each grant is looked at twice.
-- Locks: none. Cost: none.

-- How far purchases have been compared with those before them, by `grants.granted_at`. One row.
create table double_charge_progress (
    is_only boolean primary key default true,
    searched_to timestamptz not null,
    taken_at timestamptz not null,              -- when a scheduler last began to look; others leave it alone for a while
    constraint double_charge_progress_one_row check (is_only)
);

insert into double_charge_progress (searched_to, taken_at) values (now() - interval '1 hour', '-infinity');
