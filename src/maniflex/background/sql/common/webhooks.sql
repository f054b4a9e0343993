-- A delivery is made `pending` in the router's transaction. A worker claims it (`claim`, with a lease and a number of
-- the attempt) and settles it while the lease is still its own (`settle`): `delivered`, `pending` again at a later
-- time, or `failed` after the last pause. Disabling the endpoint makes what is pending `cancelled`. By hand, `failed`
-- and `cancelled` become `pending` again. What the owner of the endpoint may not see is removed before it is sent.

-- name: schema_1
CREATE INDEX IF NOT EXISTS webhook_delivery_due_idx ON webhook_delivery (endpoint_id, retry_at) WHERE status = 'pending';

-- name: schema_2
CREATE INDEX IF NOT EXISTS webhook_delivery_line_idx ON webhook_delivery (endpoint_id, line, seq) WHERE status = 'pending';

-- name: schema_3
CREATE INDEX IF NOT EXISTS webhook_delivery_event_idx ON webhook_delivery (event_id) WHERE status = 'pending';

-- name: schema_4
CREATE INDEX IF NOT EXISTS webhook_delivery_old_idx ON webhook_delivery (updated_at) WHERE status <> 'pending';

-- name: schema_5
CREATE INDEX IF NOT EXISTS webhook_endpoint_owner_idx ON webhook_endpoint (tenant_id, actor_id);

-- name: schema_6
CREATE INDEX IF NOT EXISTS webhook_delivery_seq_idx ON webhook_delivery (endpoint_id, seq) WHERE status = 'pending';

-- name: schema_8
-- The deliveries of an endpoint, the newest first.
CREATE INDEX IF NOT EXISTS webhook_delivery_of_idx ON webhook_delivery (endpoint_id, id);

-- name: schema_9
-- The same of one status: what failed is found among what was delivered.
CREATE INDEX IF NOT EXISTS webhook_delivery_status_idx ON webhook_delivery (endpoint_id, status, id);

-- name: takers
-- Who is told of events.
SELECT id, patterns, tenant_id, is_declared FROM webhook_endpoint WHERE status = 'enabled';

-- name: due_endpoints
-- Endpoints that something is due for.
SELECT e.id FROM webhook_endpoint e
 WHERE e.status = 'enabled' AND (e.paused_until IS NULL OR e.paused_until <= :now)
   AND EXISTS (SELECT 1 FROM webhook_delivery d
                WHERE d.endpoint_id = e.id AND d.status = 'pending' AND d.retry_at <= :now
                  AND (d.lease_until IS NULL OR d.lease_until <= :now));

-- name: settle
UPDATE webhook_delivery
   SET status = :status, retry_at = :retry_at, delivered_at = :delivered_at, last_status = :last_status,
       last_error = :last_error, lease = NULL, lease_until = NULL, updated_at = :now
 WHERE id = :id AND lease = :lease AND status = 'pending'
RETURNING id;

-- name: hold_line
-- Those behind a delivery that waits wait as long; they are then found again in their order.
UPDATE webhook_delivery SET retry_at = :retry_at
 WHERE endpoint_id = :endpoint_id AND line = :line AND status = 'pending' AND retry_at < :retry_at AND lease IS NULL
RETURNING id;

-- name: hand_back
-- It was claimed and not tried.
UPDATE webhook_delivery SET attempt_count = attempt_count - 1, tries = tries - 1, lease = NULL, lease_until = NULL
 WHERE id = :id AND lease = :lease AND status = 'pending'
RETURNING id;

-- name: withhold
DELETE FROM webhook_delivery WHERE id = :id AND lease = :lease RETURNING id;

-- name: forget_attempts
DELETE FROM webhook_attempt WHERE delivery_id = :id;

-- name: note_attempt
INSERT INTO webhook_attempt (id, delivery_id, number, duration_ms, status, error, answer, created_at, updated_at)
VALUES (:id, :delivery_id, :number, :duration_ms, :status, :error, :answer, :now, :now);

-- name: note_success
UPDATE webhook_endpoint SET failing_since = NULL WHERE id = :id AND failing_since IS NOT NULL RETURNING id;

-- name: note_failure
-- Since when it fails and nothing else.
UPDATE webhook_endpoint SET failing_since = coalesce(failing_since, :now) WHERE id = :id RETURNING failing_since;

-- name: pause
UPDATE webhook_endpoint SET paused_until = :until WHERE id = :id AND (paused_until IS NULL OR paused_until < :until) RETURNING id;

-- name: disable
UPDATE webhook_endpoint SET status = 'disabled', disabled_at = :now, disabled_reason = :reason, updated_at = :now
 WHERE id = :id AND status = 'enabled'
RETURNING url, tenant_id, actor_id;

-- name: enable
UPDATE webhook_endpoint
   SET status = 'enabled', disabled_at = NULL, disabled_reason = NULL, failing_since = NULL, paused_until = NULL,
       updated_at = :now
 WHERE id = :id AND status = 'disabled'
RETURNING id;

-- name: cancel
UPDATE webhook_delivery SET status = 'cancelled', lease = NULL, lease_until = NULL, updated_at = :now
 WHERE endpoint_id = :endpoint_id AND status = 'pending'
RETURNING id;

-- name: resend
UPDATE webhook_delivery SET status = 'pending', tries = 0, retry_at = :now, delivered_at = NULL, updated_at = :now
 WHERE id = :id AND status <> 'pending'
RETURNING id;

-- name: recover
UPDATE webhook_delivery SET status = 'pending', tries = 0, retry_at = :now, updated_at = :now
 WHERE endpoint_id = :endpoint_id AND status IN ('failed', 'cancelled') AND created_at >= :since
RETURNING id;

-- name: owned_count
SELECT count(*) FROM webhook_endpoint WHERE NOT is_declared AND tenant_id = :tenant_id;

-- name: own_count
SELECT count(*) FROM webhook_endpoint WHERE NOT is_declared AND tenant_id IS NULL AND actor_id = :actor_id;

-- name: pending_count
SELECT count(*) FROM webhook_delivery WHERE status = 'pending';

-- name: endpoint
SELECT id, url, patterns, format, ordering, signing, headers, timeout, status, secret, old_secret, old_until, actor_id,
       tenant_id, is_declared
  FROM webhook_endpoint WHERE id = :id;

-- name: set_secret
UPDATE webhook_endpoint
   SET old_secret = secret, old_until = :old_until, secret = :secret, public_key = :public_key, updated_at = :now
 WHERE id = :id
RETURNING id;

-- name: forget_declared
-- Endpoints of code that no process has had for long.
SELECT id FROM webhook_endpoint WHERE is_declared AND status = 'enabled' AND served_at < :before;

-- name: forget_deliveries
DELETE FROM webhook_delivery WHERE endpoint_id = :endpoint_id RETURNING id;

-- name: show
UPDATE webhook_delivery SET is_visible = true WHERE id = :id AND NOT is_visible RETURNING id;

-- name: prune
DELETE FROM webhook_delivery WHERE id IN (
    SELECT id FROM webhook_delivery WHERE status <> 'pending' AND updated_at < :before ORDER BY updated_at LIMIT :limit)
RETURNING id;

-- name: forget_attempts_of
DELETE FROM webhook_attempt WHERE delivery_id IN (SELECT id FROM webhook_delivery WHERE endpoint_id = :endpoint_id);

-- name: remove
DELETE FROM webhook_endpoint WHERE id = :id AND NOT is_declared RETURNING id;

-- name: set_url
UPDATE webhook_endpoint SET url = :value, updated_at = :now WHERE id = :id RETURNING id;

-- name: set_description
UPDATE webhook_endpoint SET description = :value, updated_at = :now WHERE id = :id RETURNING id;

-- name: set_format
UPDATE webhook_endpoint SET format = :value, updated_at = :now WHERE id = :id RETURNING id;

-- name: set_ordering
UPDATE webhook_endpoint SET ordering = :value, updated_at = :now WHERE id = :id RETURNING id;

-- name: set_headers
UPDATE webhook_endpoint SET headers = :value, updated_at = :now WHERE id = :id RETURNING id;

-- name: set_timeout
UPDATE webhook_endpoint SET timeout = :value, updated_at = :now WHERE id = :id RETURNING id;

-- name: set_actor_id
UPDATE webhook_endpoint SET actor_id = :value, updated_at = :now WHERE id = :id RETURNING id;
