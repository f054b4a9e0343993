-- name: claim
-- Take a key that is new or whose time is over. A key that somebody has is read without its lock, which the
-- transaction that settles it holds until its end; of two that find it free at once, one gets no row. The commit
-- is not waited for on disk: that of the settlement comes later, and brings it along.
WITH known AS (
    SELECT fingerprint, token, settled, answer, expires_at FROM idempotency_key WHERE id = :id AND expires_at > :now
), claimed AS (
    INSERT INTO idempotency_key (id, fingerprint, token, settled, answer, expires_at)
    SELECT :id, :fingerprint, :token, false, NULL, CAST(:until AS bigint)
      FROM (SELECT set_config('synchronous_commit', 'off', true)) quick (setting)
     WHERE quick.setting = 'off' AND NOT EXISTS (SELECT 1 FROM known)
    ON CONFLICT (id) DO UPDATE SET
        fingerprint = excluded.fingerprint, token = excluded.token, settled = false, answer = NULL,
        expires_at = excluded.expires_at
     WHERE idempotency_key.expires_at <= :now
    RETURNING fingerprint, token, settled, answer, expires_at
)
SELECT * FROM claimed UNION ALL SELECT * FROM known;
