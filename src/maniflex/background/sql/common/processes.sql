-- Processes, and what they did in each minute. Minutes are folded to hours after two days; a folded row has no process.

-- name: stop_process
UPDATE work_process SET stopped_at = :now, seen_at = :now, running = 0, updated_at = :now WHERE id = :id;

-- name: prune_processes
DELETE FROM work_process WHERE seen_at < :before;

-- name: prune_stats
DELETE FROM work_stat WHERE minute < :before;

-- name: has_due
SELECT 1 FROM work_stat WHERE minute = :minute AND kind = 'due' LIMIT 1;

-- name: foldable
SELECT min(minute) FROM work_stat WHERE minute < :before AND seconds = 60;

-- name: rates
-- What was done of each type since a moment.
SELECT kind, type, sum(started), sum(succeeded), sum(failed), sum(retried), sum(busy_ms), sum(wait_ms)
  FROM work_stat WHERE minute >= :since AND kind <> 'due' GROUP BY kind, type;

-- name: plot
SELECT minute, kind, sum(started), sum(succeeded), sum(failed), sum(retried), sum(busy_ms), sum(wait_ms)
  FROM work_stat WHERE minute >= :since AND minute < :until AND kind <> 'due' GROUP BY minute, kind ORDER BY minute;

-- name: plot_due
-- Every process may have looked in the same minute, so the largest number counts.
SELECT minute, sum(started), max(wait_ms) FROM (
    SELECT minute, type, max(started) AS started, max(wait_ms) AS wait_ms
      FROM work_stat WHERE minute >= :since AND minute < :until AND kind = 'due' GROUP BY minute, type) AS by_type
 GROUP BY minute ORDER BY minute;

-- name: running
-- Each counted up to so many; those of workers that died count until they are taken back.
SELECT type, count(*) FROM (
    SELECT type FROM workflow_run WHERE lease_until IS NOT NULL AND status = 'leased' LIMIT :most) AS leased
 GROUP BY type;

-- name: failing
SELECT (SELECT count(*) FROM (
            SELECT 1 FROM workflow_run
             WHERE status = 'pending' AND deleted_at IS NULL AND attempt > 0 LIMIT :most) AS retrying),
       (SELECT count(*) FROM (
            SELECT 1 FROM workflow_run
             WHERE status = 'failed' AND deleted_at IS NULL AND updated_at >= :since LIMIT :most) AS failed);

-- name: group_holder
SELECT id FROM workflow_run WHERE group_key = :group AND group_key IS NOT NULL AND lease_until IS NOT NULL LIMIT 1;
