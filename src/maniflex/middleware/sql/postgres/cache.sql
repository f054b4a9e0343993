-- name: set
-- The commit is not waited for on disk: a value that is lost is a miss.
INSERT INTO cache_entry (id, value, number, expires_at)
SELECT :id, CAST(:value AS bytea), NULL, CAST(:until AS bigint)
  FROM (SELECT set_config('synchronous_commit', 'off', true)) quick (setting) WHERE quick.setting = 'off'
ON CONFLICT (id) DO UPDATE SET value = excluded.value, number = NULL, expires_at = excluded.expires_at;
