-- name: look
SELECT fingerprint, token, settled, answer, expires_at FROM idempotency_key WHERE id = :id AND expires_at > :now;

-- name: renew
UPDATE idempotency_key SET expires_at = :until WHERE id = :id AND token = :token AND NOT settled RETURNING id;

-- name: settle
UPDATE idempotency_key SET settled = true, answer = :answer, expires_at = :until
 WHERE id = :id AND token = :token AND NOT settled RETURNING id;

-- name: release
DELETE FROM idempotency_key WHERE id = :id AND token = :token AND NOT settled RETURNING id;
