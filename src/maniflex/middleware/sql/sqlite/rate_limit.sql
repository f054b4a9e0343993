-- name: take (lossy)
-- Move the moment at which the bucket is full by the price of the tokens, unless it would be later than :latest,
-- the moment at which an empty bucket is full. A moment beyond :absurd is from a clock that ran ahead.
-- The commit is not waited for on disk: a crash of the machine gives back the tokens of its last moment.
INSERT INTO rate_limit (id, full_at, granted, expires_at) VALUES (:id, :full, true, :kept)
ON CONFLICT (id) DO UPDATE SET
    granted = CASE
        WHEN rate_limit.full_at <= :now OR rate_limit.full_at > :absurd THEN true
        ELSE rate_limit.full_at + :price <= :latest
    END,
    full_at = CASE
        WHEN rate_limit.full_at <= :now OR rate_limit.full_at > :absurd THEN :full
        WHEN rate_limit.full_at + :price <= :latest THEN rate_limit.full_at + :price
        ELSE rate_limit.full_at
    END,
    expires_at = CASE WHEN rate_limit.expires_at > :kept THEN rate_limit.expires_at ELSE :kept END
RETURNING full_at, granted;
