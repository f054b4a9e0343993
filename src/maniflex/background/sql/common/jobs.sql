-- name: schema_1
CREATE INDEX IF NOT EXISTS job_status_actor_idx ON job_status (actor_id, id) WHERE actor_id IS NOT NULL;

-- name: schema_2
CREATE INDEX IF NOT EXISTS job_status_over_idx ON job_status (completed_at) WHERE completed_at IS NOT NULL;

-- name: cancelled
UPDATE job_status SET status = 'cancelled', completed_at = :now, updated_at = :now
 WHERE id = :id AND status IN ('enqueued', 'failed');

-- name: make_room
-- A job that is over leaves its id to the next one.
DELETE FROM job_status WHERE id = :id AND status IN ('succeeded', 'dead', 'cancelled');

-- name: forget
DELETE FROM job_status WHERE id = :id AND status = 'enqueued';

-- name: prune
DELETE FROM job_status WHERE id IN (
    SELECT id FROM job_status WHERE completed_at < :before ORDER BY completed_at LIMIT :limit)
RETURNING id;
