-- The states are drawn in common/files.sql. A transaction that writes is the only one, so it needs no lock on rows.

-- name: find_all
SELECT id, key, state, filename, content_type, size, sha256, etag, acl, scope, tenant_id, actor_id, expires_at, reserved,
       look_at, open_until, was_linked, lease, lease_until, attempts, created_at, updated_at
  FROM stored_file WHERE key IN (SELECT value FROM json_each(:keys));

-- name: lock
SELECT key, state, size IS NOT NULL AND lease IS NULL AND attempts = 0, acl
  FROM stored_file WHERE key IN (SELECT value FROM json_each(:keys));

-- name: link
INSERT INTO file_link (id, key, model, record_id, field, created_at, updated_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, :now, :now FROM json_each(:rows) WHERE true
    ON CONFLICT (key, model, record_id, field) DO NOTHING;

-- name: mark_linked
UPDATE stored_file SET state = 'linked', expires_at = NULL, updated_at = :now
 WHERE key IN (SELECT value FROM json_each(:keys)) AND state <> 'linked';

-- name: narrow_acl
UPDATE stored_file SET acl = :acl, updated_at = :now WHERE key IN (SELECT value FROM json_each(:keys));

-- name: unlink
DELETE FROM file_link WHERE (key, model, record_id, field) IN
    (SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows));

-- name: condemn_unlinked
UPDATE stored_file SET state = 'condemned', expires_at = NULL, updated_at = :now
 WHERE key IN (SELECT value FROM json_each(:keys)) AND state = 'linked'
   AND NOT EXISTS (SELECT 1 FROM file_link l WHERE l.key = stored_file.key)
RETURNING key;

-- name: keep_unlinked
UPDATE stored_file SET state = 'stored', was_linked = true, updated_at = :now
 WHERE key IN (SELECT value FROM json_each(:keys)) AND state = 'linked'
   AND NOT EXISTS (SELECT 1 FROM file_link l WHERE l.key = stored_file.key);

-- name: condemn
UPDATE stored_file SET state = 'condemned', expires_at = NULL, updated_at = :now
 WHERE key IN (SELECT value FROM json_each(:keys)) AND state IN ('pending', 'stored')
RETURNING key;

-- name: claim
UPDATE stored_file SET state = 'condemned', expires_at = NULL, lease = :lease, lease_until = :until, updated_at = :now
 WHERE id IN (
    SELECT id FROM stored_file
     WHERE (state = 'condemned' AND (lease_until IS NULL OR lease_until <= :now))
        OR (state IN ('pending', 'stored') AND expires_at <= :now)
     LIMIT :limit)
RETURNING key, attempts, open_until;

-- name: links_of_all
SELECT key, model, record_id, field FROM file_link WHERE key IN (SELECT value FROM json_each(:keys));
