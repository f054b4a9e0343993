-- The statements on files that are the same in both databases.
--
-- The states of a file, and the statements that change them:
--
--   begin ─▶ pending ──complete──▶ stored ──mark_linked──▶ linked
--               │                  │ ▲ ▲                    │ │
--               │                  │ │ └───keep_unlinked────┘ │
--               └─condemn, claim─▶ condemned ◀──condemn_unlinked
--                 (no row) ─give_up─▶ │ ▲
--                                  │ ├─ put_back: a removal that failed is tried again later
--                                  │ └─ keep_until: a client still has a URL to upload it to
--                                  └──remove──▶ (no row, no object)
--
-- A file is linked as long as a row of file_link names it. `claim` gives a file that is condemned, or whose time is
-- over, a lease; only its holder removes the object. What is condemned and was never leased still has its object, so a record
-- that names it again, as in one transaction that moves a file, takes it back: `mark_linked`.

-- name: schema_1
CREATE INDEX IF NOT EXISTS stored_file_condemned_idx ON stored_file (lease_until) WHERE state = 'condemned';

-- name: schema_2
CREATE INDEX IF NOT EXISTS stored_file_expires_idx ON stored_file (expires_at) WHERE expires_at IS NOT NULL;

-- name: schema_3
CREATE INDEX IF NOT EXISTS stored_file_look_at_idx ON stored_file (look_at) WHERE look_at IS NOT NULL;

-- name: begin
INSERT INTO stored_file (id, key, state, filename, content_type, etag, acl, scope, tenant_id, actor_id, expires_at, reserved,
                         look_at, open_until, was_linked, attempts, created_at, updated_at)
VALUES (:id, :key, 'pending', :filename, :content_type, '', :acl, :scope, :tenant_id, :actor_id, :expires_at, :reserved,
        :look_at, :open_until, false, 0, :now, :now)
    ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: adopt
INSERT INTO stored_file (id, key, state, filename, content_type, size, etag, acl, scope, was_linked, attempts, created_at,
                         updated_at)
VALUES (:id, :key, 'stored', :filename, :content_type, :size, :etag, 'private', '', false, 0, :now, :now)
    ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: forget
DELETE FROM stored_file WHERE id = :id AND state = 'pending';

-- name: give_up
-- A cleaner that holds the row loses it: it may have looked for the object before that was there. Where the row of this
-- upload is gone, another upload may have the key by now. What that one has stored is its own; while it is under way nobody
-- knows whose object is there, so both are given up.
INSERT INTO stored_file (id, key, state, filename, content_type, etag, acl, scope, was_linked, attempts, created_at, updated_at)
VALUES (:new_id, :key, 'condemned', '', '', '', 'private', '', false, 0, :now, :now)
    ON CONFLICT (key) DO UPDATE
   SET state = 'condemned', size = NULL, expires_at = NULL, lease = NULL, lease_until = NULL, updated_at = :now
 WHERE stored_file.state IN ('pending', 'condemned') OR (stored_file.state = 'stored' AND stored_file.id = :id);

-- name: give_up_lost
-- The same for an upload that may be tried again: only if its row is gone, or a cleaner's.
INSERT INTO stored_file (id, key, state, filename, content_type, etag, acl, scope, was_linked, attempts, created_at, updated_at)
VALUES (:new_id, :key, 'condemned', '', '', '', 'private', '', false, 0, :now, :now)
    ON CONFLICT (key) DO UPDATE
   SET size = NULL, lease = NULL, lease_until = NULL, updated_at = :now
 WHERE stored_file.state = 'condemned';

-- name: prolong
UPDATE stored_file SET expires_at = :expires_at, updated_at = :now WHERE id = :id AND state = 'pending' RETURNING id;

-- name: complete
UPDATE stored_file
   SET state = 'stored', content_type = :content_type, size = :size, sha256 = :sha256, etag = :etag,
       expires_at = :expires_at, reserved = NULL, look_at = NULL, updated_at = :now
 WHERE id = :id AND state = 'pending'
RETURNING id;

-- name: used_bytes
SELECT coalesce(sum(coalesce(size, reserved)), 0) FROM stored_file WHERE scope = :scope AND state <> 'condemned';

-- name: unseen_of
SELECT id, key, state, filename, content_type, size, sha256, etag, acl, scope, tenant_id, actor_id, expires_at, reserved,
       look_at, open_until, was_linked, lease, lease_until, attempts, created_at, updated_at
  FROM stored_file WHERE scope = :scope AND state = 'pending' AND reserved IS NOT NULL ORDER BY id LIMIT :limit;

-- name: to_look_at
SELECT id, key, state, filename, content_type, size, sha256, etag, acl, scope, tenant_id, actor_id, expires_at, reserved,
       look_at, open_until, was_linked, lease, lease_until, attempts, created_at, updated_at
  FROM stored_file WHERE look_at <= :now AND state = 'pending' ORDER BY look_at LIMIT :limit;

-- name: give_back
UPDATE stored_file SET reserved = NULL, look_at = :look_at, updated_at = :now WHERE id = :id AND state = 'pending';

-- name: find
SELECT id, key, state, filename, content_type, size, sha256, etag, acl, scope, tenant_id, actor_id, expires_at, reserved,
       look_at, open_until, was_linked, lease, lease_until, attempts, created_at, updated_at
  FROM stored_file WHERE key = :key;

-- name: page
SELECT id, key, state, filename, content_type, size, sha256, etag, acl, scope, tenant_id, actor_id, expires_at, reserved,
       look_at, open_until, was_linked, lease, lease_until, attempts, created_at, updated_at
  FROM stored_file WHERE id > :after ORDER BY id LIMIT :limit;

-- name: count
SELECT count(*) FROM stored_file;

-- name: due
SELECT 1 FROM stored_file
 WHERE (state = 'condemned' AND (lease_until IS NULL OR lease_until <= :now))
    OR (state IN ('pending', 'stored') AND expires_at <= :now)
 LIMIT 1;

-- name: put_back
UPDATE stored_file SET lease = NULL, lease_until = :retry_at, attempts = attempts + 1, updated_at = :now
 WHERE key = :key AND lease = :lease
RETURNING attempts;

-- name: keep_until
-- The object is gone, and may come again: it is removed once more when no URL leads to it.
UPDATE stored_file SET lease = NULL, lease_until = :until, size = NULL, updated_at = :now WHERE key = :key AND lease = :lease;

-- name: remove
DELETE FROM stored_file WHERE key = :key AND lease = :lease AND state = 'condemned' RETURNING id;

-- name: failing
SELECT count(*) FROM stored_file WHERE state = 'condemned' AND attempts > 0;

-- name: links_of
SELECT model, record_id, field FROM file_link WHERE key = :key ORDER BY model, record_id, field;

-- name: link_page
SELECT l.id, l.key, l.model, l.record_id, l.field, f.state
  FROM file_link l LEFT JOIN stored_file f ON f.key = l.key
 WHERE l.id > :after ORDER BY l.id LIMIT :limit;

-- name: linked_alone
SELECT f.key FROM stored_file f
 WHERE f.state = 'linked' AND NOT EXISTS (SELECT 1 FROM file_link l WHERE l.key = f.key) ORDER BY f.key;

-- name: keep_secret
INSERT INTO maniflex_secret (id, value, created_at, updated_at) VALUES (:id, :value, :now, :now)
    ON CONFLICT (id) DO NOTHING;

-- name: replace_secret
UPDATE maniflex_secret SET value = :value, updated_at = :now WHERE id = :id AND value = :stored;

-- name: secret
SELECT value FROM maniflex_secret WHERE id = :id;
