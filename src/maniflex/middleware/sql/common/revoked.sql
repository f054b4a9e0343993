-- name: revoke_token
INSERT INTO revoked_token (id, expires_at) VALUES (:id, :until)
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at WHERE excluded.expires_at > revoked_token.expires_at;

-- name: revoke_user
-- Calls may arrive in any order; both moments only move forward.
INSERT INTO revoked_user (id, cutoff, expires_at) VALUES (:id, :cutoff, :until)
ON CONFLICT (id) DO UPDATE SET
    cutoff = CASE WHEN excluded.cutoff > revoked_user.cutoff THEN excluded.cutoff ELSE revoked_user.cutoff END,
    expires_at = CASE
        WHEN excluded.expires_at > revoked_user.expires_at THEN excluded.expires_at ELSE revoked_user.expires_at
    END;

-- name: look_up
SELECT (SELECT 1 FROM revoked_token WHERE id = :token AND expires_at > :now),
       (SELECT max(cutoff) FROM revoked_user WHERE id IN (:owner, :member) AND expires_at > :now);
