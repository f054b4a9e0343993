-- name: schema_1
CREATE INDEX IF NOT EXISTS schedules_due ON schedules (next_run_at, id) WHERE status = 'active';

-- name: schema_3
CREATE INDEX IF NOT EXISTS schedule_firing_fired ON schedule_firing (fired_at);

-- name: schema_4
-- Names were unique among the schedules of all tenants once.
DROP INDEX IF EXISTS uq_schedules_name;

-- name: schema_5
-- A unique index over tenant and name tells no two rows apart that have no tenant.
CREATE UNIQUE INDEX IF NOT EXISTS schedules_name_without_tenant ON schedules (name) WHERE tenant_id IS NULL;

-- name: overdue
SELECT count(*), min(next_run_at) FROM (
    SELECT next_run_at FROM schedules WHERE status = 'active' AND next_run_at <= :now
    ORDER BY next_run_at LIMIT 10001
) AS late;

-- name: touched
UPDATE schedules SET last_run_at = :now, updated_at = :now WHERE id = :id;

-- name: prune
DELETE FROM schedule_firing WHERE id IN (
    SELECT id FROM schedule_firing WHERE fired_at < :before ORDER BY fired_at LIMIT :limit
) RETURNING id;

-- name: active
-- A page of the active schedules, to see whether their due times are possible.
SELECT id, name, cron, timezone, next_run_at FROM schedules
 WHERE status = 'active' AND id > :after AND next_run_at > :now ORDER BY id LIMIT :limit;
