-- name: set
INSERT INTO cache_entry (id, value, number, expires_at) VALUES (:id, :value, NULL, :until)
ON CONFLICT (id) DO UPDATE SET value = excluded.value, number = NULL, expires_at = excluded.expires_at;
