-- The states are drawn in common/files.sql.

-- name: find_all
SELECT id, key, state, filename, content_type, size, sha256, etag, acl, scope, tenant_id, actor_id, expires_at, reserved,
       look_at, open_until, was_linked, lease, lease_until, attempts, created_at, updated_at
  FROM stored_file WHERE key = ANY(:keys::text[]);

-- name: lock
-- A statement of its own: the ones behind it look at file_link as it is once the rows are locked, which the
-- condition of an update that had to wait for them would not.
SELECT key, state, size IS NOT NULL AND lease IS NULL AND attempts = 0, acl
  FROM stored_file WHERE key = ANY(:keys::text[]) ORDER BY key FOR UPDATE;

-- name: link
INSERT INTO file_link (id, key, model, record_id, field, created_at, updated_at)
SELECT d.id, d.key, d.model, d.record_id, d.field, :now::timestamptz, :now::timestamptz
  FROM unnest(:ids::text[], :keys::text[], :models::text[], :record_ids::text[], :fields::text[])
       AS d (id, key, model, record_id, field)
    ON CONFLICT (key, model, record_id, field) DO NOTHING;

-- name: mark_linked
UPDATE stored_file SET state = 'linked', expires_at = NULL, updated_at = :now
 WHERE key = ANY(:keys::text[]) AND state <> 'linked';

-- name: narrow_acl
UPDATE stored_file SET acl = :acl, updated_at = :now WHERE key = ANY(:keys::text[]);

-- name: unlink
DELETE FROM file_link l
 USING unnest(:keys::text[], :models::text[], :record_ids::text[], :fields::text[]) AS d (key, model, record_id, field)
 WHERE l.key = d.key AND l.model = d.model AND l.record_id = d.record_id AND l.field = d.field;

-- name: condemn_unlinked
UPDATE stored_file SET state = 'condemned', expires_at = NULL, updated_at = :now
 WHERE key = ANY(:keys::text[]) AND state = 'linked'
   AND NOT EXISTS (SELECT 1 FROM file_link l WHERE l.key = stored_file.key)
RETURNING key;

-- name: keep_unlinked
UPDATE stored_file SET state = 'stored', was_linked = true, updated_at = :now
 WHERE key = ANY(:keys::text[]) AND state = 'linked'
   AND NOT EXISTS (SELECT 1 FROM file_link l WHERE l.key = stored_file.key);

-- name: condemn
UPDATE stored_file SET state = 'condemned', expires_at = NULL, updated_at = :now
 WHERE key = ANY(:keys::text[]) AND state IN ('pending', 'stored')
RETURNING key;

-- name: claim
-- A row that a record is just being linked to is locked, and passed over.
UPDATE stored_file SET state = 'condemned', expires_at = NULL, lease = :lease, lease_until = :until, updated_at = :now
 WHERE id = ANY(ARRAY(
    SELECT id FROM stored_file
     WHERE (state = 'condemned' AND (lease_until IS NULL OR lease_until <= :now))
        OR (state IN ('pending', 'stored') AND expires_at <= :now)
     LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING key, attempts, open_until;

-- name: links_of_all
SELECT key, model, record_id, field FROM file_link WHERE key = ANY(:keys::text[]);
