-- serves: 1
-- Why: a person's decision about whose a chain is goes to Apple as its token, in place of one that may have been written
--   before, which Apple may still send: it stays known as ours.
-- Locks: access exclusive on errands for a moment: a constant default rewrites nothing. Cost: none.
alter table errands add column former_tokens uuid[] not null default '{}';
