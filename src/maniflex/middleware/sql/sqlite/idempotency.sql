-- name: claim (lossy)
-- Take a key that is new or whose time is over; otherwise write the row as it is, to have it returned. The commit
-- is not waited for on disk: that of the settlement comes later, and brings it along.
INSERT INTO idempotency_key (id, fingerprint, token, settled, answer, expires_at)
VALUES (:id, :fingerprint, :token, false, NULL, :until)
ON CONFLICT (id) DO UPDATE SET
    fingerprint = CASE WHEN expires_at <= :now THEN excluded.fingerprint ELSE fingerprint END,
    token = CASE WHEN expires_at <= :now THEN excluded.token ELSE token END,
    settled = CASE WHEN expires_at <= :now THEN false ELSE settled END,
    answer = CASE WHEN expires_at <= :now THEN NULL ELSE answer END,
    expires_at = CASE WHEN expires_at <= :now THEN excluded.expires_at ELSE expires_at END
RETURNING fingerprint, token, settled, answer, expires_at;
