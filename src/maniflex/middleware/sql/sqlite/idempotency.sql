-- name: claim (lossy)
-- Take a key that is new or whose time is over, and nothing else: a read says who has it. The commit
-- is not waited for on disk: that of the settlement comes later, and brings it along.
INSERT INTO idempotency_key (id, fingerprint, token, settled, answer, expires_at)
VALUES (:id, :fingerprint, :token, false, NULL, :until)
ON CONFLICT (id) DO UPDATE SET
    fingerprint = excluded.fingerprint, token = excluded.token, settled = false, answer = NULL,
    expires_at = excluded.expires_at
 WHERE idempotency_key.expires_at <= :now;
