-- name: beat
INSERT INTO work_process (id, host, pid, role, version, types, kinds, schedules, concurrency, running, started_at,
                          seen_at, lag_ms, created_at, updated_at)
VALUES (:id, :host, :pid, :role, :version, :types::json, :kinds::json, :schedules, :concurrency, :running, :started_at,
        :now, :lag_ms, :now, :now)
    ON CONFLICT (id) DO UPDATE SET types = excluded.types, kinds = excluded.kinds, schedules = excluded.schedules,
       concurrency = excluded.concurrency, running = excluded.running, seen_at = excluded.seen_at, stopped_at = NULL,
       lag_ms = excluded.lag_ms, updated_at = excluded.updated_at;

-- name: record
INSERT INTO work_stat (id, minute, seconds, process_id, kind, type, started, succeeded, failed, retried, busy_ms,
                       wait_ms, created_at, updated_at)
SELECT d.id, d.minute, 60, :process, d.kind, d.type, d.started, d.succeeded, d.failed, d.retried, d.busy, d.wait,
       :now, :now
  FROM unnest(:ids::text[], :minutes::timestamptz[], :kinds::text[], :types::text[], :starts::bigint[],
              :successes::bigint[], :failures::bigint[], :retries::bigint[], :busies::bigint[], :waits::bigint[])
       AS d (id, minute, kind, type, started, succeeded, failed, retried, busy, wait)
    ON CONFLICT (minute, kind, type, process_id, seconds) DO UPDATE SET started = excluded.started,
       succeeded = excluded.succeeded, failed = excluded.failed, retried = excluded.retried,
       busy_ms = excluded.busy_ms, wait_ms = excluded.wait_ms, updated_at = excluded.updated_at;

-- name: fold
-- Two processes may fold at once: the second waits for the rows and then finds them gone. Of runs that were due, an
-- hour keeps the most there were at once.
WITH minutes AS (
    DELETE FROM work_stat WHERE minute >= :hour AND minute < :until AND seconds = 60 RETURNING *
)
INSERT INTO work_stat AS s (id, minute, seconds, process_id, kind, type, started, succeeded, failed, retried, busy_ms,
                            wait_ms, created_at, updated_at)
SELECT min(id) || '-h', :hour, 3600, '', kind, type, CASE kind WHEN 'due' THEN max(started) ELSE sum(started) END,
       sum(succeeded), sum(failed), sum(retried), sum(busy_ms),
       CASE kind WHEN 'due' THEN max(wait_ms) ELSE sum(wait_ms) END, :now, :now
  FROM minutes GROUP BY kind, type
    ON CONFLICT (minute, kind, type, process_id, seconds) DO UPDATE SET
       started = CASE s.kind WHEN 'due' THEN greatest(s.started, excluded.started) ELSE s.started + excluded.started END,
       succeeded = s.succeeded + excluded.succeeded, failed = s.failed + excluded.failed,
       retried = s.retried + excluded.retried, busy_ms = s.busy_ms + excluded.busy_ms,
       wait_ms = CASE s.kind WHEN 'due' THEN greatest(s.wait_ms, excluded.wait_ms) ELSE s.wait_ms + excluded.wait_ms END,
       updated_at = excluded.updated_at;

-- name: messages
-- How many wait and how many are dead, each up to so many, and since when the oldest of the first few waits.
WITH pending AS MATERIALIZED (
    SELECT created_at FROM outbox_event WHERE CASE status WHEN 'pending' THEN 1 END IS NOT NULL LIMIT :most
)
SELECT (SELECT count(*) FROM pending),
       (SELECT count(*) FROM (SELECT 1 FROM outbox_event WHERE status = 'dead' LIMIT :most) AS dead),
       (SELECT min(created_at) FROM pending);

-- name: ahead
-- Due runs of the same type that a worker takes before this one, lane by lane as in `claim`; of a lane, at most so
-- many are counted.
WITH RECURSIVE lanes (priority) AS (
    SELECT (SELECT max(r.priority) FROM workflow_run r
             WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = :type)
    UNION ALL
    SELECT (SELECT max(r.priority) FROM workflow_run r
             WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = :type AND r.priority < l.priority)
      FROM lanes l WHERE l.priority > :priority
)
SELECT coalesce(sum(n), 0)::bigint FROM (
    SELECT (SELECT count(*) FROM (
                SELECT 1 FROM workflow_run r
                 WHERE r.status = 'pending' AND r.deleted_at IS NULL AND r.type = :type AND r.priority = l.priority
                   AND (r.group_key IS NOT NULL)::int = g.grouped AND r.run_at <= :now
                   AND (l.priority > :priority OR (r.run_at, r.id) < (:run_at, :id)) LIMIT :most) AS lane) AS n
      FROM lanes l CROSS JOIN (SELECT 0 AS grouped UNION ALL SELECT 1) AS g
     WHERE l.priority >= :priority) AS ahead;
