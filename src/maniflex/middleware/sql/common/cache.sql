-- name: get
SELECT value, number FROM cache_entry WHERE id = :id AND (expires_at IS NULL OR expires_at > :now);

-- name: increment
-- A value that is no number, and still counts, is left as it is: then there is no row.
INSERT INTO cache_entry (id, value, number, expires_at) VALUES (:id, NULL, :by, :until)
ON CONFLICT (id) DO UPDATE SET
    value = NULL,
    number = CASE WHEN cache_entry.expires_at <= :now THEN :by ELSE cache_entry.number + :by END,
    expires_at = CASE WHEN cache_entry.expires_at <= :now THEN :until ELSE cache_entry.expires_at END
 WHERE cache_entry.number IS NOT NULL OR cache_entry.expires_at <= :now
RETURNING number;
