-- Schedules and their firings.

-- name: schema_2
-- The promise: one firing for each due time, whoever else has the same idea.
CREATE UNIQUE INDEX IF NOT EXISTS schedule_firing_once ON schedule_firing (schedule_id, due_at) WHERE NOT manual;

-- name: next_due
SELECT next_run_at FROM schedules
 WHERE status = 'active' AND next_run_at IS NOT NULL AND id <> ALL (:passed::text[])
 ORDER BY next_run_at LIMIT 1;

-- name: claim
-- Hold up to :limit due schedules for this transaction, the longest due first.
SELECT id, name, cron, timezone, kind, target, payload::text, policy, attempts, allow_private, next_run_at,
       tenant_id, actor_id
  FROM schedules
 WHERE status = 'active' AND next_run_at <= :now AND id <> ALL (:passed::text[])
 ORDER BY next_run_at, id LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: claim_one
SELECT id, name, cron, timezone, kind, target, payload::text, policy, attempts, allow_private, next_run_at,
       tenant_id, actor_id
  FROM schedules
 WHERE id = :id AND status = 'active' AND next_run_at <= :now FOR UPDATE SKIP LOCKED;

-- name: fire
INSERT INTO schedule_firing (id, created_at, updated_at, schedule_id, schedule_name, due_at, fired_at, outcome,
                             manual, skipped_until, run_id, tenant_id)
SELECT f.id, :now::timestamptz, :now, f.schedule_id, f.name, f.due_at, :now, f.outcome, :manual::boolean, f.until, NULL,
       f.tenant_id
  FROM unnest(:ids::text[], :schedules::text[], :names::text[], :dues::timestamptz[], :outcomes::text[],
              :untils::timestamptz[], :tenants::text[]) AS f (id, schedule_id, name, due_at, outcome, until, tenant_id)
    ON CONFLICT (schedule_id, due_at) WHERE NOT manual DO NOTHING
RETURNING id;

-- name: ran
UPDATE schedule_firing SET run_id = f.run_id
  FROM unnest(:ids::text[], :runs::text[]) AS f (id, run_id) WHERE schedule_firing.id = f.id;

-- name: advance
UPDATE schedules SET next_run_at = a.next_run_at, last_run_at = coalesce(a.last_run_at, schedules.last_run_at),
       last_error = a.error, updated_at = :now,
       status = CASE WHEN a.next_run_at IS NULL THEN 'inactive' ELSE 'active' END
  FROM unnest(:ids::text[], :nexts::timestamptz[], :lasts::timestamptz[], :errors::text[])
       AS a (id, next_run_at, last_run_at, error)
 WHERE schedules.id = a.id;

-- name: remove
DELETE FROM schedules WHERE id = ANY (:ids::text[]) RETURNING id;

-- name: bring_back
UPDATE schedules SET next_run_at = a.next_run_at, updated_at = :now
  FROM unnest(:ids::text[], :olds::timestamptz[], :nexts::timestamptz[]) AS a (id, old, next_run_at)
 WHERE schedules.id = a.id AND schedules.next_run_at = a.old AND schedules.status = 'active'
RETURNING schedules.id;

-- name: unskip
-- Due times that were passed over before they came.
DELETE FROM schedule_firing WHERE outcome = 'skipped' AND NOT manual AND due_at > :now AND schedule_id = ANY (:ids::text[]);
