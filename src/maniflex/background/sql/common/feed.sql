-- The statements on the feed that are the same in both databases.
--
-- An event is written with its change and has no position. `place` gives it the next one after the commit, in the
-- transaction that makes the messages of its groups (`deliver`), under the lock of the one row of `event_position`.

-- name: schema_2
CREATE UNIQUE INDEX IF NOT EXISTS event_log_position_idx ON event_log (position) WHERE position IS NOT NULL;

-- name: schema_4
-- Events of others, whose rows have ids of their own. Those of this application are called by the ids of their rows.
CREATE UNIQUE INDEX IF NOT EXISTS event_log_once_idx ON event_log (source, event_id) WHERE id <> event_id;

-- name: is_behind
-- Whether the router has something to do: events without a position, or groups that are behind.
SELECT EXISTS (SELECT 1 FROM event_log WHERE position IS NULL)
    OR EXISTS (SELECT 1 FROM event_group g, event_position p WHERE g.kind = 'handler' AND g.position < p.last);

-- name: look
-- What a tick of the router has to know: one row without a name if there is something to do, and the paused groups.
SELECT NULL AS name WHERE EXISTS (SELECT 1 FROM event_log WHERE position IS NULL)
    OR EXISTS (SELECT 1 FROM event_group g, event_position p WHERE g.kind = 'handler' AND g.position < p.last)
 UNION ALL SELECT name FROM event_group WHERE paused;

-- name: read_position
SELECT epoch, last, pruned FROM event_position WHERE id = 'feed';

-- name: read_scope_key
SELECT scope_key FROM event_position WHERE id = 'feed' AND scope_key IS NOT NULL;

-- name: make_scope_key
-- Once, and never another: digests that stand beside events would mean nothing any more.
UPDATE event_position SET scope_key = :key WHERE id = 'feed' AND scope_key IS NULL RETURNING scope_key;

-- name: note_pruned
-- Removed events leave holes where an older one is still needed, so the oldest that is kept says too little.
UPDATE event_position SET pruned = :position, updated_at = :now WHERE id = 'feed' AND pruned < :position RETURNING pruned;

-- name: renew
UPDATE event_position SET epoch = :epoch, updated_at = :now WHERE id = 'feed' RETURNING epoch;

-- name: unrouted_count
SELECT count(*) FROM event_log WHERE position IS NULL;

-- name: routed
-- What a group that is behind has to catch up with.
SELECT id, type, key, tenant_id, position FROM event_log WHERE position > :after AND position <= :until ORDER BY position LIMIT :limit;

-- name: find_from
SELECT position, created_at FROM event_log WHERE position >= :position ORDER BY position LIMIT 1;

-- name: groups
SELECT name, kind, patterns, is_ordered, position, paused FROM event_group ORDER BY name;

-- name: standings
-- How far each group is behind, and of which time the first event is that it has not come to.
SELECT g.name, g.kind, g.patterns, g.position, p.last - g.position, g.paused, g.served_at,
       (SELECT e.time FROM event_log e WHERE e.position > g.position ORDER BY e.position LIMIT 1)
  FROM event_group g JOIN event_position p ON p.id = 'feed' ORDER BY g.name;

-- name: advance
UPDATE event_position SET last = :last, updated_at = :now WHERE id = 'feed' RETURNING last;

-- name: taker_position
SELECT position FROM event_group WHERE name = :name;

-- name: advance_taker
UPDATE event_group SET position = :last WHERE name = :name AND position = :before RETURNING name;

-- name: move_group
UPDATE event_group SET position = :position WHERE name = :name RETURNING name;

-- name: pause
UPDATE event_group SET paused = :paused, updated_at = :now WHERE name = :name RETURNING name;

-- name: forget_group
DELETE FROM event_group WHERE name = :name RETURNING name;

-- name: forget_deliveries
DELETE FROM outbox_event WHERE kind = :kind AND status <> 'delivered' RETURNING id;

-- name: group_dead
-- Of which groups the newest dead deliveries are, up to so many.
SELECT kind, count(*) FROM (SELECT kind FROM outbox_event WHERE status = 'dead' ORDER BY seq DESC LIMIT :most) AS dead
 WHERE kind LIKE 'maniflex.event.%' GROUP BY kind;

-- name: leave_bridge
UPDATE event_group SET lease = NULL, lease_until = NULL WHERE name = :name AND lease = :lease RETURNING name;
