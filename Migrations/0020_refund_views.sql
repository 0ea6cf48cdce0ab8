-- serves: 12
-- Why: support and operators see Apple's questions about refunds beside the reports of apps whose users asked (S3-45,
--   S3-64). They see how long each question may still be answered, and the answer.
-- Locks: none: the view is new.
-- Cost: none.

create view v_refund_requests as
select r.notification_id, r.case_id, r.app_id, r.environment, r.transaction_id, r.original_transaction_id,
    coalesce(t.product_id, '') as product_id,
    left(encode(sha256(convert_to(g.user_id, 'UTF8')), 'hex'), 12) as user_mask, g.transaction_id is not null as is_granted,
    coalesce(r.request_reason, '') as request_reason, r.asked_at, c.reported_at as user_reported_at,
    r.state, coalesce(r.reason, '') as reason,
    case when r.state = 'open' then extract(epoch from r.asked_at + interval '12 hours' - now())::float8 / 3600 end
        as hours_left,
    r.due_at, r.attempt, r.edited is not null as is_edited, r.edited_by,
    coalesce(r.answer ->> 'deliveryStatus', '') as delivery_status,
    (r.answer ->> 'consumptionPercentage')::integer as consumption_percentage,
    coalesce(r.answer ->> 'refundPreference', '') as refund_preference, r.api_version, r.http_status, r.code, r.ended_at
from refund_requests r
left join lateral (
    select product_id from transactions where transaction_id = r.transaction_id offset 0) t on true
left join lateral (
    select transaction_id, user_id, order_id from grants where transaction_id = r.transaction_id offset 0) g on true
left join lateral (
    select max(reported_at) as reported_at from (
        select app_id, kind, reported_at from client_reports where transaction_id = r.transaction_id
        union all
        select app_id, kind, reported_at from client_reports where order_id = g.order_id) said
    where app_id = r.app_id and kind = 'refund_requested' and reported_at < r.asked_at + interval '12 hours') c on true;
comment on view v_refund_requests is
    'A row: a question of Apple''s about a refund. The rows of one case are about one refund. user_reported_at: when the app said that its user had asked for the refund. hours_left: until Apple takes no answer any more. consumption_percentage: thousandths of a percent. Ask for a span of asked_at.';
