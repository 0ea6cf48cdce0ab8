-- serves: 1
-- Why: binding an order to its purchase wrote it anew into five indexes: each of the columns that change with it stood in
--   one, or in the condition of one, and where one has to be written all are. They stand in none now: the new version
--   lies beside the old one and no index knows of it (a heap-only update). Whoever looks for the order of a purchase asks
--   its grant, which is as unique.
-- Locks: access exclusive on orders for a moment while indexes go; SHARE while the new ones are built: new orders and
--   bindings wait. Cost: about two seconds for each million orders. The program before this one asks by the index that
--   goes: what support and players read of purchases is slow until it is replaced.
drop index orders_of_transaction;
drop index orders_bound_at;
drop index orders_open;
drop index orders_of_installation;
-- What somebody may be about to buy: those that are bound by then are passed over.
create index orders_of_product on orders (app_id, user_id, product_id, placed_at);
create index orders_of_installation on orders (app_id, installation_id, placed_at) where installation_id is not null;
create index orders_placed_at on orders using brin (placed_at) with (autosummarize = on);
-- An order is bound once: room for each one's second version. Pages from now on.
alter table orders set (fillfactor = 50);
