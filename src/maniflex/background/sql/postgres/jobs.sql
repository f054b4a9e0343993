-- name: put
-- A worker that was given up for dead must not overwrite what its successor wrote.
INSERT INTO job_status (id, type, status, attempt, max_retry, actor_id, tenant_id, trace_id, result_url, output, error,
                        error_code, completed_at, created_at, updated_at)
VALUES (:id, :type, :status, :attempt, :max_retry, :actor_id, :tenant_id, :trace_id, :result_url, CAST(:output AS json),
        :error, :error_code, :completed_at, :now, :now)
    ON CONFLICT (id) DO UPDATE
       SET status = excluded.status, attempt = excluded.attempt, result_url = excluded.result_url,
           output = excluded.output, error = coalesce(excluded.error, job_status.error),
           error_code = CASE WHEN excluded.error IS NULL THEN job_status.error_code ELSE excluded.error_code END,
           completed_at = excluded.completed_at, updated_at = excluded.updated_at
     WHERE job_status.attempt < excluded.attempt
        OR (job_status.attempt = excluded.attempt AND job_status.status NOT IN ('succeeded', 'dead', 'cancelled'));
