-- Schedules and their firings. A transaction here holds the database, so a claim is only a read in it.

-- name: schema_2
-- The promise: one firing for each due time, whoever else has the same idea.
CREATE UNIQUE INDEX IF NOT EXISTS schedule_firing_once ON schedule_firing (schedule_id, due_at) WHERE manual = 0;

-- name: next_due
SELECT next_run_at FROM schedules
 WHERE status = 'active' AND next_run_at IS NOT NULL AND id NOT IN (SELECT value FROM json_each(:passed))
 ORDER BY next_run_at LIMIT 1;

-- name: claim
SELECT id, name, cron, timezone, kind, target, CAST(payload AS BLOB), policy, attempts, allow_private, next_run_at,
       tenant_id, actor_id
  FROM schedules
 WHERE status = 'active' AND next_run_at <= :now AND id NOT IN (SELECT value FROM json_each(:passed))
 ORDER BY next_run_at, id LIMIT :limit;

-- name: claim_one
SELECT id, name, cron, timezone, kind, target, CAST(payload AS BLOB), policy, attempts, allow_private, next_run_at,
       tenant_id, actor_id
  FROM schedules
 WHERE id = :id AND status = 'active' AND next_run_at <= :now;

-- name: fire
INSERT INTO schedule_firing (id, created_at, updated_at, schedule_id, schedule_name, due_at, fired_at, outcome,
                             manual, skipped_until, run_id, tenant_id)
SELECT value ->> 0, :now, :now, value ->> 1, value ->> 2, value ->> 3, :now, value ->> 4, :manual, value ->> 5, NULL,
       value ->> 6
  FROM json_each(:rows) WHERE true
    ON CONFLICT (schedule_id, due_at) WHERE manual = 0 DO NOTHING
RETURNING id;

-- name: ran
UPDATE schedule_firing SET run_id = f.value ->> 1
  FROM json_each(:rows) AS f WHERE schedule_firing.id = f.value ->> 0;

-- name: advance
UPDATE schedules SET next_run_at = a.value ->> 1, last_run_at = coalesce(a.value ->> 2, schedules.last_run_at),
       last_error = a.value ->> 3, updated_at = :now,
       status = CASE WHEN a.value ->> 1 IS NULL THEN 'inactive' ELSE 'active' END
  FROM json_each(:rows) AS a
 WHERE schedules.id = a.value ->> 0;

-- name: remove
DELETE FROM schedules WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING id;

-- name: bring_back
UPDATE schedules SET next_run_at = a.value ->> 2, updated_at = :now
  FROM json_each(:rows) a
 WHERE schedules.id = a.value ->> 0 AND schedules.next_run_at = a.value ->> 1 AND schedules.status = 'active'
RETURNING schedules.id;

-- name: unskip
-- Due times that were passed over before they came.
DELETE FROM schedule_firing WHERE outcome = 'skipped' AND NOT manual AND due_at > :now AND schedule_id IN (SELECT value FROM json_each(:ids));
