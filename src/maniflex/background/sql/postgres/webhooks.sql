-- The way of a delivery is told in common/webhooks.sql.

-- name: schema_7
CREATE SEQUENCE IF NOT EXISTS webhook_delivery_seq;

-- name: make
-- Deliveries of events to endpoints; one behind others of its line that wait waits as long as they do.
INSERT INTO webhook_delivery (id, seq, endpoint_id, event_id, type, status, attempt_count, tries, line, is_visible, retry_at,
                              actor_id, tenant_id, created_at, updated_at)
SELECT m.id, nextval('webhook_delivery_seq'), m.endpoint_id, m.event_id, m.type, 'pending', 0, 0, m.line, m.is_declared,
       greatest(:now::timestamptz, (SELECT max(w.retry_at) FROM webhook_delivery w
                                     WHERE w.endpoint_id = m.endpoint_id AND w.line = m.line AND w.status = 'pending')),
       m.actor_id, m.tenant_id, :now::timestamptz, :now::timestamptz
  FROM (SELECT d.id, p.id AS endpoint_id, e.id AS event_id, d.type, p.is_declared, p.actor_id, p.tenant_id, d.place,
               CASE p.ordering WHEN 'record' THEN e.subject WHEN 'endpoint' THEN '*' END AS line
          FROM unnest(:ids::text[], :events::text[], :types::text[], :endpoints::text[])
               WITH ORDINALITY AS d (id, event, type, endpoint, place)
          JOIN event_log e ON e.id = d.event
          JOIN webhook_endpoint p ON p.id = d.endpoint AND p.status = 'enabled') m
 ORDER BY m.place
RETURNING id;

-- name: claim
-- The oldest due deliveries of one endpoint, each the first of its line. The first of a line is asked for as a scalar,
-- which is one look into its index whatever the planner knows of the table; as NOT EXISTS it became a join of all rows.
WITH due AS MATERIALIZED (
    SELECT w.id, w.seq, w.line FROM webhook_delivery w
     WHERE w.endpoint_id = :endpoint_id AND w.status = 'pending' AND w.retry_at <= :now
       AND (w.lease_until IS NULL OR w.lease_until <= :now)
     ORDER BY w.seq LIMIT 200
), heads AS MATERIALIZED (
    SELECT due.id FROM due
     WHERE due.line IS NULL OR due.seq = (
            SELECT b.seq FROM webhook_delivery b
             WHERE b.endpoint_id = :endpoint_id AND b.line = due.line AND b.status = 'pending'
             ORDER BY b.seq LIMIT 1)
     ORDER BY due.seq LIMIT :limit
), ours AS MATERIALIZED (
    SELECT w.id FROM webhook_delivery w
     WHERE w.id = ANY(ARRAY(SELECT id FROM heads)) AND w.status = 'pending'
       AND (w.lease_until IS NULL OR w.lease_until <= :now)
       FOR UPDATE SKIP LOCKED
)
UPDATE webhook_delivery w
   SET lease = :lease, lease_until = :until, attempt_count = w.attempt_count + 1, tries = w.tries + 1
 WHERE w.id = ANY(ARRAY(SELECT id FROM ours))
RETURNING w.id, w.event_id, w.type, w.line, w.attempt_count, w.tries, w.is_visible;

-- name: serve
-- A process with the code of an endpoint says so.
INSERT INTO webhook_endpoint (id, url, patterns, description, format, ordering, signing, timeout, status, is_declared,
                              served_at, created_at, updated_at)
VALUES (:id, :url, :patterns::json, :description, :format, :ordering, :signing, :timeout, 'enabled', true, :now, :now, :now)
    ON CONFLICT (id) DO UPDATE SET url = excluded.url, patterns = excluded.patterns, description = excluded.description,
        format = excluded.format, ordering = excluded.ordering, signing = excluded.signing, timeout = excluded.timeout,
        served_at = excluded.served_at,
        status = CASE webhook_endpoint.disabled_reason WHEN 'unserved' THEN 'enabled' ELSE webhook_endpoint.status END,
        disabled_reason = nullif(webhook_endpoint.disabled_reason, 'unserved')
RETURNING id;

-- name: touch_declared
UPDATE webhook_endpoint SET served_at = :now WHERE id = ANY(:ids::text[]) AND is_declared RETURNING id;

-- name: prune_attempts
DELETE FROM webhook_attempt WHERE delivery_id = ANY(:ids::text[]);

-- name: add
INSERT INTO webhook_endpoint (id, url, patterns, description, format, ordering, signing, headers, timeout, status, secret,
                              public_key, actor_id, tenant_id, is_declared, created_at, updated_at)
VALUES (:id, :url, :patterns::json, :description, :format, :ordering, :signing, :headers, :timeout, 'enabled', :secret,
        :public_key, :actor_id, :tenant_id, false, :now, :now)
RETURNING id;

-- name: set_patterns
UPDATE webhook_endpoint SET patterns = :value::json, updated_at = :now WHERE id = :id RETURNING id;

-- name: lock_owner
SELECT pg_advisory_xact_lock(hashtextextended(:owner::text, 0));

-- name: waiting
-- What waits for endpoints, counted up to so many, and since when.
SELECT e.id, (SELECT count(*) FROM (SELECT 1 FROM webhook_delivery d
                                 WHERE d.endpoint_id = e.id AND d.status = 'pending' LIMIT :most) AS few),
       (SELECT d.created_at FROM webhook_delivery d
         WHERE d.endpoint_id = e.id AND d.status = 'pending' ORDER BY d.seq LIMIT 1)
  FROM unnest(:ids::text[]) AS e (id);
