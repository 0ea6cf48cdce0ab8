-- serves: 1
-- Why: v_storefronts read the orders of seven days by when they were bound, which no index knows: with nine million orders it
--   ran into the dashboards' time limit. It reads what was placed within a day now, by the index of `placed_at`.
-- Locks: access exclusive on the view for a moment. Cost: none.

create or replace view v_storefronts as
select app_id, environment, order_country, storefront, purchases,
    purchases = max(purchases) over (partition by app_id, environment, order_country) as is_usual
from (
    select o.app_id, t.environment, coalesce(o.target ->> 'country', '') as order_country,
        coalesce(t.facts ->> 'storefront', '') as storefront, count(*) as purchases
    from orders o join transactions t on t.transaction_id = o.transaction_id
    where o.placed_at > now() - interval '1 day'
    group by 1, 2, 3, 4) s;
comment on view v_storefronts is
    'Where Apple sold against where the order was placed for: orders placed in the last 24 hours that a purchase was bound to. A row: app, environment, country of the order''s target (as the client wrote it), Apple''s storefront (three letters). Purchases; is_usual: no other storefront is as frequent for that country.';
