-- The states are drawn in common/runs.sql.

-- name: schema_1
-- What is waiting: lanes of one type and priority, each in the order it is due; those of groups on their
-- own, because many of them may wait for one.
CREATE INDEX IF NOT EXISTS workflow_run_waiting_idx
    ON workflow_run (type, priority DESC, ((group_key IS NOT NULL)::int), run_at, id)
    WHERE status = 'pending' AND deleted_at IS NULL;

-- name: schema_9
-- A queue rewrites its rows: room for it on the page, and its dead rows swept soon. Only once, because
-- both changes take locks that requests would wait for.
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conname = 'workflow_run_status_check'
                      AND conrelid = 'workflow_run'::regclass) THEN
        ALTER TABLE workflow_run SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
            autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
        ALTER TABLE workflow_run ADD CONSTRAINT workflow_run_status_check
            CHECK (status IN ('pending', 'leased', 'succeeded', 'failed', 'cancelled'));
    END IF;
END $$;

-- name: submit
WITH fresh AS (
    INSERT INTO workflow_run (id, type, status, priority, idempotency_key, payload, attempt, max_attempts, run_at,
                              timeout, group_key, actor_id, tenant_id, trace_id, traceparent, parent_id, about, created_at,
                              updated_at)
    SELECT d.id, :type, 'pending', :priority, d.key, d.payload::json, 0, :max_attempts, :run_at,
           :timeout, :group_key, :actor_id, :tenant_id, :trace_id, :traceparent, :parent_id, :about, :now, :now
      FROM unnest(:ids::text[], :payloads::text[], :keys::text[]) AS d (id, payload, key)
        ON CONFLICT DO NOTHING
    RETURNING id
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail + row_number() OVER ()), 12, '0'), id, 'created', :now, :now
      FROM fresh WHERE :logged
), told AS (
    SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '') FROM fresh WHERE :due LIMIT 1
)
SELECT id, (SELECT count(*) FROM told) FROM fresh;

-- name: submit_all (only here)
-- Without keys, nothing can be in the way of a run. Ids and payloads come as one text each, between separators
-- that JSON never holds: a quarter of what an array costs its sender.
WITH fresh AS (
    INSERT INTO workflow_run (id, type, status, priority, payload, attempt, max_attempts, run_at,
                              timeout, group_key, actor_id, tenant_id, trace_id, traceparent, parent_id, about, created_at,
                              updated_at)
    SELECT d.id, :type, 'pending', :priority, d.payload::json, 0, :max_attempts, :run_at,
           :timeout, :group_key, :actor_id, :tenant_id, :trace_id, :traceparent, :parent_id, :about, :now, :now
      FROM unnest(string_to_array(:ids, chr(30)), string_to_array(:payloads, chr(30))) AS d (id, payload)
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail + d.place), 12, '0'), d.id, 'created', :now, :now
      FROM unnest(string_to_array(:ids, chr(30))) WITH ORDINALITY AS d (id, place) WHERE :logged
)
SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '') WHERE :due;

-- name: by_keys
SELECT id, idempotency_key FROM workflow_run WHERE idempotency_key = ANY(:keys::text[]) AND deleted_at IS NULL;

-- name: claim
-- Lease up to :limit due runs. The waiting runs lie in lanes of one type and priority; looking into
-- each lane's first rows alone keeps the cost free of what is not due, not ours or behind a busy group.
-- Of a prefix, only so many types are looked at: those that have a handler come with ranges of their own, and
-- the others wait for nothing but to be failed.
WITH RECURSIVE kinds (type, high, seen) AS (
    SELECT (SELECT min(r.type) FROM workflow_run r
             WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type >= d.low AND r.type < d.high), d.high, 1
      FROM unnest(:lows::text[], :highs::text[]) AS d (low, high) WHERE cardinality(:types::text[]) = 0
    UNION ALL
    SELECT (SELECT min(r.type) FROM workflow_run r
             WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type > k.type AND r.type < k.high), k.high,
           k.seen + 1
      FROM kinds k WHERE k.type IS NOT NULL AND k.seen < 100
), found (type, priority) AS (
    SELECT k.type, (SELECT max(r.priority) FROM workflow_run r
                     WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = k.type)
      FROM (SELECT DISTINCT type FROM kinds WHERE type IS NOT NULL) k
    UNION ALL
    SELECT l.type, (SELECT max(r.priority) FROM workflow_run r
                     WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type
                       AND r.priority < l.priority)
      FROM found l WHERE l.priority IS NOT NULL
), lanes (type, priority, run_at, id) AS (
    -- All that were found, from their beginning; or those the last claim was in, from where it left off.
    SELECT type, priority, '-infinity'::timestamptz, '' COLLATE "C" FROM found WHERE priority IS NOT NULL
    UNION ALL
    SELECT * FROM unnest(:types::text[], :priorities::bigint[], :run_ats::timestamptz[], :last_ids::text[])
    UNION ALL -- and what is more urgent of the same types
    SELECT d.type, (SELECT max(r.priority) FROM workflow_run r WHERE r.status = 'pending' AND r.deleted_at IS NULL
                       AND r.type = d.type AND r.priority > d.highest), '-infinity'::timestamptz, '' COLLATE "C"
      FROM (SELECT type, max(priority) AS highest
              FROM unnest(:types::text[], :priorities::bigint[]) AS s (type, priority) GROUP BY type) d
), loose AS MATERIALIZED (
    SELECT c.id FROM lanes l CROSS JOIN LATERAL (
        SELECT r.id, r.priority, r.run_at FROM workflow_run r
         WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type AND r.priority = l.priority
           AND (r.group_key IS NOT NULL)::int = 0 AND r.run_at <= :now AND (r.run_at, r.id) > (l.run_at, l.id)
         ORDER BY r.run_at, r.id LIMIT least(:limit * 2, :limit + 100)) c
     ORDER BY c.priority DESC, c.run_at, c.id LIMIT least(:limit * 2, :limit + 100)
), front AS MATERIALIZED (
    SELECT l.type, c.*, (SELECT 1 FROM workflow_run b -- not EXISTS: that might look at all that is leased
                          WHERE b.group_key = c.group_key AND b.lease_until IS NOT NULL LIMIT 1) IS NULL AS free
      FROM lanes l CROSS JOIN LATERAL (
        SELECT r.id, r.priority, r.run_at, r.group_key FROM workflow_run r
         WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type AND r.priority = l.priority
           AND (r.group_key IS NOT NULL)::int = 1 AND r.run_at <= :now
         ORDER BY r.run_at, r.id LIMIT :limit + 100) c
), walk (type, priority, group_key, id, run_at, free, seen, found) AS (
    -- Where those in front are of busy groups, go on from group to group.
    SELECT f.type, f.priority, '' COLLATE "C", NULL::text COLLATE "C", NULL::timestamptz, false, 0, 0
      FROM front f GROUP BY f.type, f.priority
    HAVING count(*) = :limit + 100 AND :limit > (SELECT count(DISTINCT group_key) FROM front WHERE free)
    UNION ALL
    SELECT w.type, w.priority, c.group_key, c.id, c.run_at, c.free, w.seen + 1, w.found + c.free::int
      FROM walk w CROSS JOIN LATERAL (
        SELECT r.id, r.run_at, r.group_key, r.run_at <= :now AND (SELECT 1 FROM workflow_run b
                WHERE b.group_key = r.group_key AND b.lease_until IS NOT NULL LIMIT 1) IS NULL AS free
          FROM workflow_run r
         WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = w.type AND r.priority = w.priority
           AND r.group_key > w.group_key
         ORDER BY r.group_key, r.run_at, r.id LIMIT 1) c
     WHERE w.seen < 500 AND w.found < :limit
), first AS (
    SELECT id FROM loose
    UNION ALL
    SELECT id FROM (
        SELECT DISTINCT ON (group_key) id FROM (
            SELECT group_key, priority, run_at, id FROM front WHERE free
            UNION ALL
            SELECT group_key, priority, run_at, id FROM walk WHERE free) g
         ORDER BY group_key, priority DESC, run_at, id) h
), taken AS MATERIALIZED ( -- a fence: as a plain subquery it may run twice and overshoot
    SELECT r.id FROM workflow_run r
     WHERE r.id = ANY(ARRAY(SELECT id FROM first))
       AND coalesce(r.status, '') = 'pending' -- in this form no partial index tempts the planner
       AND r.deleted_at IS NULL AND r.run_at <= :now
       AND (r.group_key IS NULL OR pg_try_advisory_xact_lock(hashtextextended(r.group_key, 6277001)))
     ORDER BY r.priority DESC, r.run_at, r.id LIMIT :limit FOR UPDATE SKIP LOCKED
), held AS (
    UPDATE workflow_run r
       SET status = 'leased', lease = :lease, leased_by = :owner, attempt = r.attempt + 1, updated_at = :now,
           lease_until = coalesce((:untils::jsonb ->> r.type)::timestamptz, :until), waiting_for = NULL
      FROM taken t WHERE r.id = t.id AND r.status = 'pending'
    RETURNING r.id, r.type, r.payload, r.attempt, r.max_attempts, r.timeout, r.priority, r.run_at,
              r.group_key, r.actor_id, r.tenant_id, r.trace_id, r.traceparent, r.parent_id, r.idempotency_key IS NOT NULL
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail + row_number() OVER ()), 12, '0'), id, 'leased',
           json_build_object('attempt', attempt, 'worker', :owner::text), :now, :now
      FROM held WHERE :logged
)
SELECT * FROM held ORDER BY priority DESC, run_at, id;

-- name: renew
-- A cancelled run keeps its lease while its handler goes on, and with it its group. A row that is locked
-- is being settled or belongs to an open transaction: we do not wait for it here, or one such transaction
-- would cost all our other runs their leases.
WITH mine AS MATERIALIZED (
    SELECT r.id, d.until
      FROM unnest(:ids::text[], :leases::text[], :untils::timestamptz[]) AS d (id, lease, until)
      JOIN workflow_run r ON r.id = d.id AND r.lease = d.lease
     WHERE r.status IN ('leased', 'cancelled') FOR NO KEY UPDATE OF r SKIP LOCKED
), renewed AS (
    UPDATE workflow_run r SET lease_until = greatest(r.lease_until, m.until) FROM mine m WHERE r.id = m.id
)
SELECT r.id, r.status, NOT EXISTS (SELECT 1 FROM mine m WHERE m.id = r.id)
  FROM unnest(:ids::text[], :leases::text[]) AS d (id, lease)
  JOIN workflow_run r ON r.id = d.id AND r.lease = d.lease
 WHERE r.status IN ('leased', 'cancelled');

-- name: succeed
-- One run that somebody's open transaction has locked must not hold up the outcomes of all others for long;
-- `succeed_unlocked` is for when that happens, and dearer.
WITH done AS (
    UPDATE workflow_run r
       SET status = 'succeeded', result = d.result::json, error = NULL, lease = NULL, lease_until = NULL, leased_by = NULL,
           updated_at = :now
      FROM unnest(:ids::text[], :leases::text[], :results::text[]) AS d (id, lease, result)
     WHERE (SELECT set_config('lock_timeout', '50ms', true)) IS NOT NULL
       AND r.id = d.id AND r.lease = d.lease AND r.status = 'leased'
    RETURNING r.id, r.attempt
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail + row_number() OVER ()), 12, '0'), id, 'succeeded',
           json_build_object('attempt', attempt), :now, :now
      FROM done WHERE :logged
)
SELECT id FROM done;

-- name: succeed_unlocked (only here)
WITH mine AS MATERIALIZED (
    SELECT r.id, d.result
      FROM unnest(:ids::text[], :leases::text[], :results::text[]) AS d (id, lease, result)
      JOIN workflow_run r ON r.id = d.id AND r.lease = d.lease
     WHERE r.status = 'leased' FOR NO KEY UPDATE OF r SKIP LOCKED
), done AS (
    UPDATE workflow_run r
       SET status = 'succeeded', result = m.result::json, error = NULL, lease = NULL, lease_until = NULL, leased_by = NULL,
           updated_at = :now
      FROM mine m WHERE r.id = m.id AND r.status = 'leased'
    RETURNING r.id, r.attempt
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail + row_number() OVER ()), 12, '0'), id, 'succeeded',
           json_build_object('attempt', attempt), :now, :now
      FROM done WHERE :logged
)
SELECT id FROM done;

-- name: settle
WITH mine AS MATERIALIZED (
    SELECT d.*
      FROM unnest(:ids::text[], :leases::text[], :statuses::text[], :run_ats::timestamptz[], :unspents::int[],
                  :errors::text[], :last_errors::text[], :waits::text[], :events::text[], :datas::text[])
        AS d (id, lease, status, run_at, unspent, error, last_error, waiting_for, event, data)
      JOIN workflow_run r ON r.id = d.id AND r.lease = d.lease
     WHERE r.status = 'leased' FOR NO KEY UPDATE OF r SKIP LOCKED
), done AS (
    UPDATE workflow_run r
       SET status = d.status, run_at = coalesce(d.run_at, r.run_at), attempt = r.attempt - d.unspent,
           error = coalesce(d.error::json, r.error), last_error = coalesce(d.last_error, r.last_error),
           waiting_for = d.waiting_for, lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
      FROM mine d WHERE r.id = d.id AND r.status = 'leased'
    RETURNING r.id, d.event, d.data
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail + row_number() OVER ()), 12, '0'), id, event, data::json, :now, :now
      FROM done WHERE :logged
)
SELECT id FROM done;

-- name: let_go
-- A worker stops working on runs that were cancelled under it; the status is the canceller's.
WITH mine AS MATERIALIZED (
    SELECT r.id FROM unnest(:ids::text[], :leases::text[]) AS d (id, lease)
      JOIN workflow_run r ON r.id = d.id AND r.lease = d.lease
     WHERE r.status = 'cancelled' FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE workflow_run r SET lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
  FROM mine m WHERE r.id = m.id AND r.status = 'cancelled'
RETURNING r.id;

-- name: try_lock (only here)
SELECT id FROM workflow_run WHERE id = ANY(:ids::text[]) FOR UPDATE SKIP LOCKED;

-- name: turn_back
-- A run whose worker died in its last attempt takes its steps back, if any of them can be.
WITH gone AS MATERIALIZED (
    SELECT r.id, r.max_attempts FROM workflow_run r
     WHERE r.lease_until < :now AND r.status = 'leased' AND r.attempt >= r.max_attempts AND EXISTS (
        SELECT 1 FROM workflow_step s WHERE s.workflow_id = r.id AND s.undoable AND NOT s.compensated)
     ORDER BY r.lease_until LIMIT :limit FOR UPDATE SKIP LOCKED
)
INSERT INTO workflow_step (id, workflow_id, name, result, undoable, compensated, created_at, updated_at)
SELECT :event || lpad(to_hex(:tail + row_number() OVER ()), 12, '0'), id, '@failed',
       json_build_object('reason', 'lease_expired', 'max_attempts', max_attempts), false, false, :now, :now
  FROM gone ON CONFLICT (workflow_id, name) DO NOTHING
RETURNING workflow_id;

-- name: types_of
SELECT id, type FROM workflow_run WHERE id = ANY(:ids::text[]);

-- name: allow_turned
UPDATE workflow_run SET max_attempts = attempt + :more, updated_at = :now WHERE id = ANY(:ids::text[]);

-- name: reap
-- Take back what a dead worker holds: it may be tried again, or its attempts are spent. To give it up is
-- for those who know its handler, and with it its dead letters; where none is left, for anybody.
WITH gone AS MATERIALIZED (
    SELECT id, status AS was, leased_by AS worker FROM workflow_run WHERE lease_until < :now
       AND (attempt < max_attempts OR status <> 'leased' OR type = ANY(:known::text[]) OR lease_until < :forsaken)
     ORDER BY lease_until LIMIT :limit FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE workflow_run r
       SET status = CASE WHEN g.was <> 'leased' THEN g.was WHEN r.attempt < r.max_attempts THEN 'pending'
                         ELSE 'failed' END,
           run_at = CASE WHEN g.was = 'leased' AND r.attempt < r.max_attempts THEN :now ELSE r.run_at END,
           error = CASE WHEN g.was = 'leased' THEN json_build_object(
                        'code', CASE WHEN r.attempt >= r.max_attempts AND EXISTS (
                            SELECT 1 FROM workflow_step s
                             WHERE s.workflow_id = r.id AND s.undoable AND NOT s.compensated)
                            THEN 'compensation_failed' ELSE 'lease_expired' END,
                        'message', 'the worker did not renew its lease', 'worker', g.worker) ELSE r.error END,
           last_error = CASE WHEN g.was = 'leased' THEN 'lease_expired' ELSE r.last_error END,
           lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
      FROM gone g WHERE r.id = g.id
    RETURNING r.id, r.type, r.status, r.attempt, g.was, g.worker
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail + row_number() OVER ()), 12, '0'), id,
           CASE WHEN status = 'failed' THEN 'failed' ELSE 'retried' END,
           json_build_object('attempt', attempt, 'worker', worker, 'error', 'lease_expired'), :now, :now
      FROM freed WHERE :logged AND was = 'leased'
)
SELECT id, type, status, was FROM freed;

-- name: cancel
WITH done AS (
    UPDATE workflow_run SET status = 'cancelled', updated_at = :now
     WHERE id = :id AND status IN ('pending', 'leased') AND deleted_at IS NULL
       AND (:running OR status = 'pending')
    RETURNING id
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail::bigint), 12, '0'), id, 'cancelled', :now, :now FROM done WHERE :logged
)
SELECT id FROM done;

-- name: retry
WITH done AS (
    UPDATE workflow_run SET status = 'pending', attempt = 0, run_at = :now, waiting_for = NULL, error = NULL,
           lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
     WHERE id = :id AND status IN ('failed', 'cancelled') AND deleted_at IS NULL AND lease_until IS NULL
    RETURNING id
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail::bigint), 12, '0'), id, 'retried', :now, :now FROM done WHERE :logged
), told AS (
    SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '') FROM done
)
SELECT id, (SELECT count(*) FROM told) FROM done;

-- name: hurry
-- A run that waits for a signal or another run is not due before that comes.
WITH done AS (
    UPDATE workflow_run SET run_at = :now, updated_at = :now
     WHERE id = :id AND status = 'pending' AND run_at > :now AND waiting_for IS NULL AND deleted_at IS NULL
    RETURNING id
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail::bigint), 12, '0'), id, 'hurried', :now, :now FROM done WHERE :logged
), told AS (
    SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '') FROM done
)
SELECT id, (SELECT count(*) FROM told) FROM done;

-- name: delete
WITH done AS (
    UPDATE workflow_run SET deleted_at = :now, delete_reason = :reason, updated_at = :now
     WHERE id = :id AND deleted_at IS NULL
    RETURNING id
), log AS (
    INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
    SELECT :event || lpad(to_hex(:tail::bigint), 12, '0'), id, 'deleted', json_build_object('reason', :reason::text), :now, :now
      FROM done WHERE :logged
)
SELECT id FROM done;

-- name: states
SELECT id, status, lease, attempt, updated_at FROM workflow_run WHERE id = ANY(:ids::text[]);

-- name: ends
-- Runs that are over, as their events tell of them.
SELECT id, type, status, attempt, result::text, error::text, actor_id, tenant_id, traceparent
  FROM workflow_run WHERE id = ANY(:ids::text[]) AND status IN ('succeeded', 'failed', 'cancelled') ORDER BY id;

-- name: claimed
-- What a claim took whose answer was lost.
SELECT id, type, payload, attempt, max_attempts, timeout, priority, run_at, group_key, actor_id, tenant_id,
       trace_id, traceparent, parent_id, idempotency_key IS NOT NULL
  FROM workflow_run WHERE lease_until IS NOT NULL AND lease = :lease AND status = 'leased';

-- name: bring_back
-- Leases that no clock of ours can have meant: they end far later than those of their type do.
UPDATE workflow_run r SET lease_until = d.until
  FROM unnest(:types::text[], :latests::timestamptz[], :untils::timestamptz[]) AS d (type, latest, until)
 WHERE r.lease_until > :soonest AND r.type = d.type AND r.lease_until > d.latest
RETURNING r.id;

-- name: prune
WITH old AS MATERIALIZED (
    SELECT id FROM workflow_run
     WHERE id = ANY(:ids::text[]) AND (status IN ('succeeded', 'failed', 'cancelled') OR deleted_at IS NOT NULL)
       AND lease_until IS NULL AND updated_at < :before
       FOR UPDATE SKIP LOCKED
), events AS (
    DELETE FROM workflow_event e USING old WHERE e.workflow_id = old.id
), steps AS (
    DELETE FROM workflow_step s USING old WHERE s.workflow_id = old.id
), signals AS (
    DELETE FROM workflow_signal s USING old WHERE s.workflow_id = old.id
)
DELETE FROM workflow_run r USING old WHERE r.id = old.id RETURNING r.id;

-- name: depth
-- Lane by lane, as in `claim`, so that what is not due yet costs nothing; of a lane, at most so many are counted.
WITH RECURSIVE kinds (type) AS (
    SELECT (SELECT min(r.type) FROM workflow_run r WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type > '')
    UNION ALL
    SELECT (SELECT min(r.type) FROM workflow_run r
             WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type > k.type)
      FROM kinds k WHERE k.type IS NOT NULL
), lanes (type, priority) AS (
    SELECT k.type, (SELECT max(r.priority) FROM workflow_run r
                     WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = k.type)
      FROM kinds k WHERE k.type IS NOT NULL
    UNION ALL
    SELECT l.type, (SELECT max(r.priority) FROM workflow_run r
                     WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type
                       AND r.priority < l.priority)
      FROM lanes l WHERE l.priority IS NOT NULL
)
SELECT l.type, sum(d.count)::bigint, min(d.oldest)
  FROM lanes l CROSS JOIN (VALUES (0), (1)) AS g (grouped) CROSS JOIN LATERAL (
    SELECT count(*), min(run_at) AS oldest FROM (
        SELECT r.run_at FROM workflow_run r
         WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type AND r.priority = l.priority
           AND (r.group_key IS NOT NULL)::int = g.grouped AND r.run_at <= :now
         ORDER BY r.run_at LIMIT :most) bounded) d
 WHERE d.count > 0 GROUP BY l.type;

-- name: steps
SELECT name, result, compensated, undoable FROM workflow_step WHERE workflow_id = :id;

-- name: remember
-- Only while the run is ours; the lock keeps it so until this is committed. A row of the same id is our own,
-- of a try whose answer was lost.
INSERT INTO workflow_step (id, workflow_id, name, result, undoable, compensated, created_at, updated_at)
SELECT CAST(:step AS text), CAST(:id AS text), CAST(:name AS text), CAST(:result AS json),
       CAST(:undoable AS boolean), false, CAST(:now AS timestamptz), CAST(:now AS timestamptz)
  FROM workflow_run r WHERE r.id = :id AND r.lease = :lease AND r.status = 'leased' FOR SHARE OF r
    ON CONFLICT (workflow_id, name) DO UPDATE SET id = excluded.id WHERE workflow_step.id = excluded.id
RETURNING id;

-- name: compensated
UPDATE workflow_step SET compensated = true, updated_at = :now
 WHERE workflow_id = :id AND name = :name AND EXISTS (
    SELECT 1 FROM workflow_run r WHERE r.id = :id AND r.lease = :lease AND r.status = 'leased')
RETURNING id;

-- name: restore_attempts
-- As many as it had before it got more to take its steps back.
UPDATE workflow_run SET max_attempts = coalesce((
    SELECT CAST(f.result ->> 'max_attempts' AS int) FROM workflow_step f
     WHERE f.workflow_id = :id AND f.name = '@failed' AND f.compensated), max_attempts)
 WHERE id = :id;

-- name: forget_undone
-- A run that took all its steps back begins anew.
DELETE FROM workflow_step s WHERE s.workflow_id = :id AND EXISTS (
    SELECT 1 FROM workflow_step f WHERE f.workflow_id = :id AND f.name = '@failed' AND f.compensated);

-- name: forget_calls
-- A call that did not succeed is made anew, and so is one whose child ended before its parent heard of it.
-- A step whose result could not be stored is done anew, unless it waits to be taken back.
DELETE FROM workflow_step s WHERE s.workflow_id = :id AND (
    s.result IS NULL AND NOT s.undoable
    OR s.name LIKE '@call:%' AND s.result ->> 'status' <> 'succeeded'
    OR s.name LIKE '@child:%' AND NOT EXISTS (
        SELECT 1 FROM workflow_step c WHERE c.workflow_id = :id AND c.name = '@call:' || substr(s.name, 8)
           AND c.result ->> 'status' = 'succeeded')
       AND NOT EXISTS (
        SELECT 1 FROM workflow_run r WHERE r.id = s.result #>> '{}' AND r.deleted_at IS NULL
           AND r.status IN ('pending', 'leased', 'succeeded')));

-- name: lock
SELECT status, waiting_for, type, CASE WHEN left(payload::text, 5) = '"enc:' THEN payload::text END FROM workflow_run WHERE id = :id AND deleted_at IS NULL FOR UPDATE;

-- name: add_signal
INSERT INTO workflow_signal (id, workflow_id, name, payload, created_at, updated_at)
VALUES (:signal, :id, :name, CAST(:payload AS json), :now, :now);

-- name: awaken
WITH done AS (
    UPDATE workflow_run SET run_at = :now, updated_at = :now
     WHERE id = :id AND status = 'pending' AND waiting_for = :name AND run_at > :now
    RETURNING id
), told AS (
    SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '') FROM done
)
SELECT id, (SELECT count(*) FROM told) FROM done;

-- name: awaken_parents
WITH done AS (
    UPDATE workflow_run p SET run_at = :now, updated_at = :now FROM workflow_run c
     WHERE c.id = ANY(:ids::text[]) AND p.waiting_for = 'run:' || c.id AND p.waiting_for IS NOT NULL
       AND (c.status NOT IN ('pending', 'leased') OR c.deleted_at IS NOT NULL)
       AND p.status = 'pending' AND p.run_at > :now
    RETURNING p.id
), told AS (
    SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '') FROM done LIMIT 1
)
SELECT id, (SELECT count(*) FROM told) FROM done;

-- name: take_signal
DELETE FROM workflow_signal WHERE id = (
    SELECT id FROM workflow_signal WHERE workflow_id = :id AND name = :name ORDER BY id LIMIT 1)
RETURNING payload;
