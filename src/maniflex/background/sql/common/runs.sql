-- The statements on runs that are the same in both databases.
--
-- The status of a run, and the statements that change it:
--
--   submit ─▶ pending ──claim──▶ leased ──succeed──▶ succeeded
--              │   ▲               │ │
--              │   ├─settle, reap──┘ ├─settle, reap─▶ failed ─────┐
--              │   │                 │                            │
--              └───┼──cancel─────────┴──────────────▶ cancelled ──┤
--                  │                                              │
--                  └──retry───────────────────────────────────────┘
--
-- A leased run has a lease, which `renew` prolongs. A cancelled one keeps it until its worker has stopped (`let_go`).
-- `delete` marks a run in any status; `prune` removes those that are over.

-- name: schema_2
CREATE INDEX IF NOT EXISTS workflow_run_lease_idx ON workflow_run (lease_until) WHERE lease_until IS NOT NULL;

-- name: schema_3
CREATE UNIQUE INDEX IF NOT EXISTS workflow_run_idempotency_idx
    ON workflow_run (idempotency_key) WHERE idempotency_key IS NOT NULL AND deleted_at IS NULL;

-- name: schema_4
-- At most one run of a group is ever worked on, whatever two claimers see; one that was cancelled is,
-- until its worker has let it go.
CREATE UNIQUE INDEX IF NOT EXISTS workflow_run_group_idx
    ON workflow_run (group_key) WHERE group_key IS NOT NULL AND lease_until IS NOT NULL;

-- name: schema_5
CREATE INDEX IF NOT EXISTS workflow_run_actor_idx ON workflow_run (actor_id, id) WHERE actor_id IS NOT NULL;

-- name: schema_6
CREATE INDEX IF NOT EXISTS workflow_run_parent_idx ON workflow_run (parent_id) WHERE parent_id IS NOT NULL;

-- name: schema_7
CREATE UNIQUE INDEX IF NOT EXISTS workflow_step_name_idx ON workflow_step (workflow_id, name);

-- name: schema_8
CREATE INDEX IF NOT EXISTS workflow_signal_run_idx ON workflow_signal (workflow_id, name, id);

-- name: schema_10
-- The same lanes group by group: a way around groups that are busy.
CREATE INDEX IF NOT EXISTS workflow_run_grouped_idx
    ON workflow_run (type, priority DESC, group_key, run_at, id)
    WHERE status = 'pending' AND deleted_at IS NULL AND group_key IS NOT NULL;

-- name: schema_11
DROP INDEX IF EXISTS workflow_run_ready_idx;

-- name: schema_12
-- Who waits for a run: its parent, and all others that asked for it by its idempotency key.
CREATE INDEX IF NOT EXISTS workflow_run_waiting_for_idx
    ON workflow_run (waiting_for) WHERE waiting_for IS NOT NULL;

-- name: schema_13
-- What was done about a record.
CREATE INDEX IF NOT EXISTS workflow_run_about_idx ON workflow_run (about, id) WHERE about IS NOT NULL;

-- name: schema_14
-- Runs that wait for another attempt, and those that failed: overviews count them without passing all others.
CREATE INDEX IF NOT EXISTS workflow_run_retrying_idx ON workflow_run (run_at)
    WHERE status = 'pending' AND deleted_at IS NULL AND attempt > 0;

-- name: schema_15
CREATE INDEX IF NOT EXISTS workflow_run_failed_idx ON workflow_run (updated_at)
    WHERE status = 'failed' AND deleted_at IS NULL;

-- name: expired
SELECT 1 FROM workflow_run WHERE lease_until < :now LIMIT 1;

-- name: state
SELECT status, lease FROM workflow_run WHERE id = :id;

-- name: prunable
-- Ids rise with time, so the oldest rows come first and no further index is needed; only so many are
-- looked at, because those that are not finished stay for as long as they like.
SELECT id, (status IN ('succeeded', 'failed', 'cancelled') OR deleted_at IS NOT NULL)
           AND lease_until IS NULL AND updated_at < :before
  FROM workflow_run WHERE id > :after AND id < :below ORDER BY id LIMIT :look;

-- name: allow
-- Undoing gets attempts of its own: a crash on the way back must not leave it half done.
UPDATE workflow_run SET max_attempts = attempt + :more, updated_at = :now
 WHERE id = :id AND lease = :lease AND status = 'leased'
RETURNING id;

-- name: under_way
SELECT 1 FROM workflow_run WHERE id = :id AND status IN ('pending', 'leased') AND deleted_at IS NULL;

-- name: has_signal
SELECT 1 FROM workflow_signal WHERE workflow_id = :id AND name = :name LIMIT 1;
