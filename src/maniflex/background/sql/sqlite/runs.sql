-- The states are drawn in common/runs.sql.

-- name: schema_1
-- What is waiting: lanes of one type and priority, each in the order it is due; those of groups on their
-- own, because many of them may wait for one.
CREATE INDEX IF NOT EXISTS workflow_run_waiting_idx
    ON workflow_run (type, priority DESC, (group_key IS NOT NULL), run_at, id)
    WHERE status = 'pending' AND deleted_at IS NULL;

-- name: submit
INSERT INTO workflow_run (id, type, status, priority, idempotency_key, payload, attempt, max_attempts, run_at,
                          timeout, group_key, actor_id, tenant_id, trace_id, traceparent, parent_id, about, created_at,
                          updated_at)
SELECT value ->> 0, :type, 'pending', :priority, value ->> 2, value ->> 1, 0, :max_attempts, :run_at,
       :timeout, :group_key, :actor_id, :tenant_id, :trace_id, :traceparent, :parent_id, :about, :now, :now
  FROM json_each(:rows) WHERE true
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL AND deleted_at IS NULL DO NOTHING
RETURNING id;

-- name: log_submit (only here)
INSERT INTO workflow_event (id, workflow_id, event_type, created_at, updated_at)
SELECT printf('%s%012x', :event, :tail + d.key), r.id, 'created', :now, :now
  FROM (SELECT key, value FROM json_each(:rows)) d CROSS JOIN workflow_run r WHERE r.id = d.value ->> 0;

-- name: by_keys
SELECT r.id, r.idempotency_key FROM (SELECT value FROM json_each(:keys)) d CROSS JOIN workflow_run r
 WHERE r.idempotency_key = d.value AND r.idempotency_key IS NOT NULL AND r.deleted_at IS NULL;

-- name: claim
-- Lease up to :limit due runs. The waiting runs lie in lanes of one type and priority; looking into
-- each lane's first rows alone keeps the cost free of what is not due, not ours or behind a busy group.
-- Of a prefix, only so many types are looked at: those that have a handler come with ranges of their own, and
-- the others wait for nothing but to be failed.
UPDATE workflow_run
   SET status = 'leased', lease = :lease, leased_by = :owner, attempt = attempt + 1, updated_at = :now,
       lease_until = coalesce(json_extract(:untils, '$."' || type || '"'), :until), waiting_for = NULL
 WHERE rowid IN (
    WITH RECURSIVE kinds (type, high, seen) AS (
        SELECT (SELECT min(r.type) FROM workflow_run r
                 WHERE r.status = 'pending' AND r.deleted_at IS NULL
                   AND r.type >= d.value ->> 0 AND r.type < d.value ->> 1), d.value ->> 1, 1
          FROM json_each(:ranges) d
        UNION ALL
        SELECT (SELECT min(r.type) FROM workflow_run r
                 WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type > k.type AND r.type < k.high),
               k.high, k.seen + 1
          FROM kinds k WHERE k.type IS NOT NULL AND k.seen < 100
    ), lanes (type, priority) AS (
        SELECT k.type, (SELECT max(r.priority) FROM workflow_run r
                         WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = k.type)
          FROM (SELECT DISTINCT type FROM kinds WHERE type IS NOT NULL) k
        UNION ALL
        SELECT l.type, (SELECT max(r.priority) FROM workflow_run r
                         WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type
                           AND r.priority < l.priority)
          FROM lanes l WHERE l.priority IS NOT NULL
    ), loose AS (
        SELECT r.rowid AS row, r.id, r.priority, r.run_at
          FROM lanes l CROSS JOIN workflow_run r
         WHERE l.priority IS NOT NULL AND r.rowid IN (
            SELECT c.rowid FROM workflow_run c
             WHERE c.status = 'pending' AND c.deleted_at IS NULL AND c.type = l.type AND c.priority = l.priority
               AND (c.group_key IS NOT NULL) = 0 AND c.run_at <= :now
             ORDER BY c.run_at, c.id LIMIT :limit)
    ), front AS MATERIALIZED (
        SELECT r.rowid AS row, r.type, r.id, r.priority, r.run_at, r.group_key, NOT EXISTS (
               SELECT 1 FROM workflow_run b WHERE b.group_key = r.group_key AND b.lease_until IS NOT NULL) AS free
          FROM lanes l CROSS JOIN workflow_run r
         WHERE l.priority IS NOT NULL AND r.rowid IN (
            SELECT c.rowid FROM workflow_run c
             WHERE c.status = 'pending' AND c.deleted_at IS NULL AND c.type = l.type AND c.priority = l.priority
               AND (c.group_key IS NOT NULL) = 1 AND c.run_at <= :now
             ORDER BY c.run_at, c.id LIMIT :limit + 100)
    ), walk (type, priority, group_key, row, id, run_at, free, seen, found) AS (
        -- Where those in front are of busy groups, go on from group to group.
        SELECT f.type, f.priority, '', NULL, NULL, NULL, 0, 0, 0 FROM front f GROUP BY f.type, f.priority
        HAVING count(*) = :limit + 100 AND :limit > (SELECT count(DISTINCT group_key) FROM front WHERE free)
        UNION ALL
        SELECT w.type, w.priority, r.group_key, r.rowid, r.id, r.run_at,
               r.run_at <= :now AND NOT EXISTS (
               SELECT 1 FROM workflow_run b WHERE b.group_key = r.group_key AND b.lease_until IS NOT NULL),
               w.seen + 1, w.found + w.free
          FROM walk w CROSS JOIN workflow_run r
         WHERE w.seen < 500 AND w.found < :limit AND r.rowid = (
            SELECT c.rowid FROM workflow_run c
             WHERE c.status = 'pending' AND c.deleted_at IS NULL AND c.type = w.type AND c.priority = w.priority
               AND c.group_key > w.group_key
             ORDER BY c.group_key, c.run_at, c.id LIMIT 1)
    ), first AS (
        SELECT row, priority, run_at, id FROM loose
        UNION ALL
        SELECT row, priority, run_at, id FROM (
            SELECT *, row_number() OVER (PARTITION BY group_key ORDER BY priority DESC, run_at, id) AS place FROM (
                SELECT group_key, row, priority, run_at, id FROM front WHERE free
                UNION ALL
                SELECT group_key, row, priority, run_at, id FROM walk WHERE free)) WHERE place = 1
    )
    SELECT row FROM first ORDER BY priority DESC, run_at, id LIMIT :limit);

-- name: log_claim (only here)
INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
SELECT printf('%s%012x', :event, :tail + row_number() OVER ()), id, 'leased',
       json_object('attempt', attempt, 'worker', leased_by), :now, :now
  FROM workflow_run
 WHERE lease_until IN (SELECT :until UNION ALL SELECT value FROM json_each(:untils)) AND lease = :lease;

-- name: just_claimed (only here)
-- What the claim took, in one row: each row that is fetched by itself has to wait for the interpreter's lock.
SELECT json_group_array(json_array(id, type, payload, attempt, max_attempts, timeout, priority, run_at, group_key,
                                   actor_id, tenant_id, trace_id, traceparent, parent_id, idempotency_key IS NOT NULL))
  FROM workflow_run
 WHERE lease_until IN (SELECT :until UNION ALL SELECT value FROM json_each(:untils)) AND lease = :lease;

-- name: renew
-- A cancelled run keeps its lease while its handler goes on, and with it its group.
UPDATE workflow_run SET lease_until = max(lease_until, d.value ->> 2)
  FROM (SELECT value FROM json_each(:rows)) d
 WHERE id = d.value ->> 0 AND lease = d.value ->> 1 AND status IN ('leased', 'cancelled')
RETURNING id, status;

-- name: log_settle (only here)
-- Before the change, while the lease still tells whose it is.
INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
SELECT printf('%s%012x', :event, :tail + d.key), r.id, d.value ->> 2,
       coalesce(d.value ->> 3, json_object('attempt', r.attempt)), :now, :now
  FROM (SELECT key, value FROM json_each(:rows)) d CROSS JOIN workflow_run r
 WHERE r.id = d.value ->> 0 AND r.lease = d.value ->> 1 AND r.status = 'leased';

-- name: log_succeed (only here)
-- The same for those that succeeded, most of all runs.
INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
SELECT printf('%s%012x', :event, :tail + d.key), r.id, 'succeeded', '{"attempt":' || r.attempt || '}', :now, :now
  FROM (SELECT key, value FROM json_each(:rows)) d CROSS JOIN workflow_run r
 WHERE r.id = d.value ->> 0 AND r.lease = d.value ->> 1 AND r.status = 'leased';

-- name: lost (only here)
-- Which of them are not ours any more, in one text: each row that is fetched by itself has to wait for the
-- interpreter's lock.
SELECT json_group_array(d.value ->> 0) FROM json_each(:rows) d
 WHERE NOT EXISTS (SELECT 1 FROM workflow_run r
                    WHERE r.id = d.value ->> 0 AND r.lease = d.value ->> 1 AND r.status = 'leased');

-- name: succeed
UPDATE workflow_run
   SET status = 'succeeded', result = d.value ->> 2, error = NULL, lease = NULL, lease_until = NULL, leased_by = NULL,
       updated_at = :now
  FROM (SELECT value FROM json_each(:rows)) d
 WHERE id = d.value ->> 0 AND lease = d.value ->> 1 AND status = 'leased';

-- name: settle
UPDATE workflow_run
   SET status = d.value ->> 2, run_at = coalesce(d.value ->> 3, run_at), attempt = attempt - (d.value ->> 4),
       error = coalesce(d.value ->> 5, error), last_error = coalesce(d.value ->> 6, last_error),
       waiting_for = d.value ->> 7,
       lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
  FROM (SELECT value FROM json_each(:rows)) d
 WHERE id = d.value ->> 0 AND lease = d.value ->> 1 AND status = 'leased'
RETURNING id;

-- name: let_go
-- A worker stops working on runs that were cancelled under it; the status is the canceller's.
UPDATE workflow_run SET lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
  FROM (SELECT value FROM json_each(:rows)) d
 WHERE id = d.value ->> 0 AND lease = d.value ->> 1 AND status = 'cancelled'
RETURNING id;

-- name: log_reap (only here)
INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
SELECT printf('%s%012x', :event, :tail + row_number() OVER ()), id,
       CASE WHEN attempt < max_attempts THEN 'retried' ELSE 'failed' END,
       json_object('attempt', attempt, 'worker', leased_by, 'error', 'lease_expired'), :now, :now
  FROM (SELECT * FROM workflow_run WHERE lease_until < :now
           AND (attempt < max_attempts OR status <> 'leased' OR lease_until < :forsaken
                OR type IN (SELECT value FROM json_each(:known)))
         ORDER BY lease_until LIMIT :limit)
 WHERE status = 'leased';

-- name: turn_back
-- A run whose worker died in its last attempt takes its steps back, if any of them can be.
INSERT INTO workflow_step (id, workflow_id, name, result, undoable, compensated, created_at, updated_at)
SELECT printf('%s%012x', :event, :tail + row_number() OVER ()), id, '@failed',
       json_object('reason', 'lease_expired', 'max_attempts', max_attempts), 0, 0, :now, :now
  FROM (SELECT r.id, r.max_attempts FROM workflow_run r
         WHERE r.lease_until < :now AND r.status = 'leased' AND r.attempt >= r.max_attempts AND EXISTS (
            SELECT 1 FROM workflow_step s WHERE s.workflow_id = r.id AND s.undoable AND NOT s.compensated)
         ORDER BY r.lease_until LIMIT :limit)
 WHERE true ON CONFLICT (workflow_id, name) DO NOTHING
RETURNING workflow_id;

-- name: types_of
SELECT id, type FROM workflow_run WHERE id IN (SELECT value FROM json_each(:ids));

-- name: allow_turned
UPDATE workflow_run SET max_attempts = attempt + :more, updated_at = :now
 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: reap
-- Take back what a dead worker holds: it may be tried again, or its attempts are spent. To give it up is
-- for those who know its handler, and with it its dead letters; where none is left, for anybody.
UPDATE workflow_run
   SET status = CASE WHEN status <> 'leased' THEN status WHEN attempt < max_attempts THEN 'pending'
                     ELSE 'failed' END,
       run_at = CASE WHEN status = 'leased' AND attempt < max_attempts THEN :now ELSE run_at END,
       error = CASE WHEN status = 'leased' THEN json_object(
                    'code', CASE WHEN attempt >= max_attempts AND EXISTS (
                        SELECT 1 FROM workflow_step s
                         WHERE s.workflow_id = workflow_run.id AND s.undoable AND NOT s.compensated)
                        THEN 'compensation_failed' ELSE 'lease_expired' END,
                    'message', 'the worker did not renew its lease', 'worker', leased_by) ELSE error END,
       last_error = CASE WHEN status = 'leased' THEN 'lease_expired' ELSE last_error END,
       lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
 WHERE rowid IN (SELECT rowid FROM workflow_run WHERE lease_until < :now
                    AND (attempt < max_attempts OR status <> 'leased' OR lease_until < :forsaken
                         OR type IN (SELECT value FROM json_each(:known)))
                  ORDER BY lease_until LIMIT :limit)
RETURNING id, type, status, CASE WHEN last_error = 'lease_expired' THEN 'leased' ELSE status END;

-- name: cancel
UPDATE workflow_run SET status = 'cancelled', updated_at = :now
 WHERE id = :id AND status IN ('pending', 'leased') AND deleted_at IS NULL AND (:running OR status = 'pending')
RETURNING id;

-- name: retry
UPDATE workflow_run SET status = 'pending', attempt = 0, run_at = :now, waiting_for = NULL, error = NULL,
       lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
 WHERE id = :id AND status IN ('failed', 'cancelled') AND deleted_at IS NULL AND lease_until IS NULL
RETURNING id;

-- name: hurry
-- A run that waits for a signal or another run is not due before that comes.
UPDATE workflow_run SET run_at = :now, updated_at = :now
 WHERE id = :id AND status = 'pending' AND run_at > :now AND waiting_for IS NULL AND deleted_at IS NULL
RETURNING id;

-- name: delete
UPDATE workflow_run SET deleted_at = :now, delete_reason = :reason, updated_at = :now
 WHERE id = :id AND deleted_at IS NULL
RETURNING id;

-- name: log_one (only here)
-- Only when the statement before it, in the same transaction, changed the run.
INSERT INTO workflow_event (id, workflow_id, event_type, data, created_at, updated_at)
SELECT printf('%s%012x', :event, :tail), :id, :event_type, :data, :now, :now WHERE changes() > 0;

-- name: states
SELECT id, status, lease, attempt, updated_at FROM workflow_run WHERE id IN (SELECT value FROM json_each(:ids));

-- name: ends
-- Runs that are over, as their events tell of them.
SELECT id, type, status, attempt, result, error, actor_id, tenant_id, traceparent
  FROM workflow_run
 WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('succeeded', 'failed', 'cancelled') ORDER BY id;

-- name: claimed
-- What a claim took whose answer was lost.
SELECT json_group_array(json_array(id, type, payload, attempt, max_attempts, timeout, priority, run_at, group_key,
                                   actor_id, tenant_id, trace_id, traceparent, parent_id, idempotency_key IS NOT NULL))
  FROM workflow_run WHERE lease_until IS NOT NULL AND lease = :lease AND status = 'leased';

-- name: claimed_ids (only here)
SELECT id FROM workflow_run WHERE lease_until IS NOT NULL AND lease = :lease AND status = 'leased';

-- name: claimed_one (only here)
SELECT id, type, payload, attempt, max_attempts, timeout, priority, run_at, group_key, actor_id, tenant_id, trace_id,
       traceparent, parent_id, idempotency_key IS NOT NULL
  FROM workflow_run WHERE id = :id;

-- name: claimed_unreadable (only here)
-- The same of a run that somebody wrote something into that is no text.
SELECT id, type, NULL, attempt, max_attempts, timeout, priority, run_at, NULL, NULL, NULL, NULL, NULL, NULL, 0
  FROM workflow_run WHERE id = :id;

-- name: bring_back
-- Leases that no clock of ours can have meant: they end far later than those of their type do.
UPDATE workflow_run AS r SET lease_until = d.value ->> 2
  FROM json_each(:rows) d
 WHERE r.lease_until > :soonest AND r.type = d.value ->> 0 AND r.lease_until > d.value ->> 1
RETURNING id;

-- name: prune
DELETE FROM workflow_run
 WHERE id IN (SELECT value FROM json_each(:ids))
   AND (status IN ('succeeded', 'failed', 'cancelled') OR deleted_at IS NOT NULL)
   AND lease_until IS NULL AND updated_at < :before
RETURNING id;

-- name: prune_events (only here)
DELETE FROM workflow_event WHERE workflow_id IN (SELECT value FROM json_each(:ids));

-- name: prune_steps (only here)
DELETE FROM workflow_step WHERE workflow_id IN (SELECT value FROM json_each(:ids));

-- name: prune_signals (only here)
DELETE FROM workflow_signal WHERE workflow_id IN (SELECT value FROM json_each(:ids));

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
SELECT type, sum(due), min(oldest) FROM (
    SELECT l.type, (
           SELECT count(*) FROM (
               SELECT 1 FROM workflow_run r
                WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type AND r.priority = l.priority
                  AND (r.group_key IS NOT NULL) = g.grouped AND r.run_at <= :now LIMIT :most)) AS due, (
           SELECT min(r.run_at) FROM workflow_run r
            WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = l.type AND r.priority = l.priority
              AND (r.group_key IS NOT NULL) = g.grouped AND r.run_at <= :now) AS oldest
      FROM lanes l CROSS JOIN (SELECT 0 AS grouped UNION ALL SELECT 1) g)
 WHERE due > 0 GROUP BY type;

-- name: steps
-- As bytes: SQLite takes anything for a text, and one that is none must not hide the others.
SELECT name, CAST(result AS BLOB), compensated, undoable FROM workflow_step WHERE workflow_id = :id;

-- name: remember
-- Only while the run is ours; the lock keeps it so until this is committed. A row of the same id is our own,
-- of a try whose answer was lost.
INSERT INTO workflow_step (id, workflow_id, name, result, undoable, compensated, created_at, updated_at)
SELECT :step, :id, :name, :result,
       :undoable, 0, :now, :now
  FROM workflow_run r WHERE r.id = :id AND r.lease = :lease AND r.status = 'leased'
    ON CONFLICT (workflow_id, name) DO UPDATE SET id = excluded.id WHERE workflow_step.id = excluded.id
RETURNING id;

-- name: compensated
UPDATE workflow_step SET compensated = 1, updated_at = :now
 WHERE workflow_id = :id AND name = :name AND EXISTS (
    SELECT 1 FROM workflow_run r WHERE r.id = :id AND r.lease = :lease AND r.status = 'leased')
RETURNING id;

-- name: restore_attempts
-- As many as it had before it got more to take its steps back.
UPDATE workflow_run SET max_attempts = coalesce((
    SELECT f.result ->> 'max_attempts' FROM workflow_step f
     WHERE f.workflow_id = :id AND f.name = '@failed' AND f.compensated), max_attempts)
 WHERE id = :id;

-- name: forget_undone
-- A run that took all its steps back begins anew.
DELETE FROM workflow_step WHERE workflow_id = :id AND EXISTS (
    SELECT 1 FROM workflow_step f WHERE f.workflow_id = :id AND f.name = '@failed' AND f.compensated);

-- name: forget_calls
-- A call that did not succeed is made anew, and so is one whose child ended before its parent heard of it.
-- A step whose result could not be stored is done anew, unless it waits to be taken back.
DELETE FROM workflow_step WHERE workflow_id = :id AND (
    result IS NULL AND NOT undoable
    OR name LIKE '@call:%' AND result ->> 'status' <> 'succeeded'
    OR name LIKE '@child:%' AND NOT EXISTS (
        SELECT 1 FROM workflow_step c WHERE c.workflow_id = :id AND c.name = '@call:' || substr(workflow_step.name, 8)
           AND c.result ->> 'status' = 'succeeded')
       AND NOT EXISTS (
        SELECT 1 FROM workflow_run r WHERE r.id = workflow_step.result ->> '$' AND r.deleted_at IS NULL
           AND r.status IN ('pending', 'leased', 'succeeded')));

-- name: lock
SELECT status, waiting_for, type, CASE WHEN substr(payload, 1, 5) = '"enc:' THEN payload END FROM workflow_run WHERE id = :id AND deleted_at IS NULL;

-- name: add_signal
INSERT INTO workflow_signal (id, workflow_id, name, payload, created_at, updated_at)
VALUES (:signal, :id, :name, :payload, :now, :now);

-- name: awaken
UPDATE workflow_run SET run_at = :now, updated_at = :now
 WHERE id = :id AND status = 'pending' AND waiting_for = :name AND run_at > :now
RETURNING id;

-- name: awaken_parents
UPDATE workflow_run SET run_at = :now, updated_at = :now
 WHERE status = 'pending' AND run_at > :now AND waiting_for IN (
    SELECT 'run:' || c.id FROM json_each(:ids) d CROSS JOIN workflow_run c
     WHERE c.id = d.value AND (c.status NOT IN ('pending', 'leased') OR c.deleted_at IS NOT NULL))
RETURNING id;

-- name: take_signal
DELETE FROM workflow_signal WHERE id = (
    SELECT id FROM workflow_signal WHERE workflow_id = :id AND name = :name ORDER BY id LIMIT 1)
RETURNING CAST(payload AS BLOB);
