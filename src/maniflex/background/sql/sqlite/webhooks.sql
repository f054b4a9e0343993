-- The way of a delivery is told in common/webhooks.sql.

-- name: schema_7
CREATE INDEX IF NOT EXISTS webhook_delivery_number_idx ON webhook_delivery (seq);

-- name: make
-- Deliveries of events to endpoints; one behind others of its line that wait waits as long as they do.
INSERT INTO webhook_delivery (id, seq, endpoint_id, event_id, type, status, attempt_count, tries, line, is_visible, retry_at,
                              actor_id, tenant_id, created_at, updated_at)
SELECT m.id, (SELECT coalesce(max(seq), 0) FROM webhook_delivery) + m.place + 1, m.endpoint_id, m.event_id, m.type,
       'pending', 0, 0, m.line, m.is_declared,
       max(:now, coalesce((SELECT max(w.retry_at) FROM webhook_delivery w
                            WHERE w.endpoint_id = m.endpoint_id AND w.line = m.line AND w.status = 'pending'), :now)),
       m.actor_id, m.tenant_id, :now, :now
  FROM (SELECT d.value ->> 0 AS id, p.id AS endpoint_id, e.id AS event_id, d.value ->> 2 AS type, p.is_declared,
               p.actor_id, p.tenant_id, d.key AS place,
               CASE p.ordering WHEN 'record' THEN e.subject WHEN 'endpoint' THEN '*' END AS line
          FROM json_each(:rows) d
          JOIN event_log e ON e.id = d.value ->> 1
          JOIN webhook_endpoint p ON p.id = d.value ->> 3 AND p.status = 'enabled') m
 ORDER BY m.place
RETURNING id;

-- name: claim
-- The oldest due deliveries of one endpoint, each the first of its line.
UPDATE webhook_delivery
   SET lease = :lease, lease_until = :until, attempt_count = attempt_count + 1, tries = tries + 1
 WHERE id IN (
    SELECT due.id FROM (
        SELECT id, seq, line FROM webhook_delivery
         WHERE endpoint_id = :endpoint_id AND status = 'pending' AND retry_at <= :now
           AND (lease_until IS NULL OR lease_until <= :now)
         ORDER BY seq LIMIT 200) due
     WHERE due.line IS NULL OR NOT EXISTS (
            SELECT 1 FROM webhook_delivery b
             WHERE b.endpoint_id = :endpoint_id AND b.line = due.line AND b.status = 'pending' AND b.seq < due.seq)
     ORDER BY due.seq LIMIT :limit)
RETURNING id, event_id, type, line, attempt_count, tries, is_visible;

-- name: serve
-- A process with the code of an endpoint says so.
INSERT INTO webhook_endpoint (id, url, patterns, description, format, ordering, signing, timeout, status, is_declared,
                              served_at, created_at, updated_at)
VALUES (:id, :url, :patterns, :description, :format, :ordering, :signing, :timeout, 'enabled', 1, :now, :now, :now)
    ON CONFLICT (id) DO UPDATE SET url = excluded.url, patterns = excluded.patterns, description = excluded.description,
        format = excluded.format, ordering = excluded.ordering, signing = excluded.signing, timeout = excluded.timeout,
        served_at = excluded.served_at,
        status = CASE webhook_endpoint.disabled_reason WHEN 'unserved' THEN 'enabled' ELSE webhook_endpoint.status END,
        disabled_reason = nullif(webhook_endpoint.disabled_reason, 'unserved')
RETURNING id;

-- name: touch_declared
UPDATE webhook_endpoint SET served_at = :now WHERE id IN (SELECT value FROM json_each(:ids)) AND is_declared RETURNING id;

-- name: prune_attempts
DELETE FROM webhook_attempt WHERE delivery_id IN (SELECT value FROM json_each(:ids));

-- name: add
INSERT INTO webhook_endpoint (id, url, patterns, description, format, ordering, signing, headers, timeout, status, secret,
                              public_key, actor_id, tenant_id, is_declared, created_at, updated_at)
VALUES (:id, :url, :patterns, :description, :format, :ordering, :signing, :headers, :timeout, 'enabled', :secret,
        :public_key, :actor_id, :tenant_id, false, :now, :now)
RETURNING id;

-- name: set_patterns
UPDATE webhook_endpoint SET patterns = :value, updated_at = :now WHERE id = :id RETURNING id;

-- name: lock_owner
-- There is one writer at a time anyway.
SELECT :owner;

-- name: waiting
-- What waits for endpoints, counted up to so many, and since when.
SELECT e.value, (SELECT count(*) FROM (SELECT 1 FROM webhook_delivery d
                                 WHERE d.endpoint_id = e.value AND d.status = 'pending' LIMIT :most) AS few),
       (SELECT d.created_at FROM webhook_delivery d
         WHERE d.endpoint_id = e.value AND d.status = 'pending' ORDER BY d.seq LIMIT 1)
  FROM json_each(:ids) e;
