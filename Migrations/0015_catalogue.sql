-- serves: 1
-- Why: what is sold, for which goods and when is changed more often than a configuration file, by other people, and must
--   never change what was promised. Each change is a whole catalogue of one app; the newest is in force (S3-9, B6).
-- Locks: none worth naming, everything is new. Cost: none.

-- One row per `makegood catalog apply`. Rows are never changed: what was valid when can always be read again.
create table catalogues (
    app_id text not null,
    revision bigint not null,
    document jsonb not null,                    -- as `makegood catalog show --json` prints it
    applied_at timestamptz not null default now(),
    applied_by text not null,
    primary key (app_id, revision),
    constraint catalogues_revision check (revision > 0)
);

-- What is sold by the catalogues in force, a row per version of an item.
create view v_catalogue as
select c.app_id, c.revision, c.applied_at, p.product ->> 'id' as product_id, p.product ->> 'type' as type,
    i.item ->> 'id' as item, i.item ->> 'id' = p.product ->> 'default' as is_default, i.item -> 'limits' as limits,
    v.version ->> 'promotion' as promotion, (v.version ->> 'from')::timestamptz as valid_from,
    (v.version ->> 'until')::timestamptz as valid_until, v.version -> 'goods' as goods,
    v.version -> 'bonuses' as bonuses, (v.version ->> 'priceMilliunits')::bigint as price_milliunits,
    v.version ->> 'currency' as currency
from catalogues c
cross join lateral jsonb_array_elements(c.document -> 'products') as p(product)
cross join lateral jsonb_array_elements(p.product -> 'items') as i(item)
cross join lateral jsonb_array_elements(i.item -> 'versions') as v(version)
where c.revision = (select max(revision) from catalogues where app_id = c.app_id);
