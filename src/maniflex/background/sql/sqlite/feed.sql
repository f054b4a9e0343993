-- The way of an event is told in common/feed.sql. The order of writing is that of the row ids here, because there is one
-- writer at a time; `seq` is of PostgreSQL.

-- name: schema_1
-- What waits for a position, in the order it was written.
CREATE INDEX IF NOT EXISTS event_log_unrouted_idx ON event_log (position) WHERE position IS NULL;

-- name: is_taker_behind
SELECT EXISTS (SELECT 1 FROM event_group g, event_position p
                WHERE g.name IN (SELECT value FROM json_each(:names)) AND g.position < p.last);

-- name: begin
INSERT INTO event_position (id, epoch, last, pruned, created_at, updated_at) VALUES ('feed', :epoch, 0, 0, :now, :now)
    ON CONFLICT (id) DO NOTHING;

-- name: lock_position
SELECT epoch, last FROM event_position WHERE id = 'feed';

-- name: insert
-- The event of one change: the text of its model, and few values. It gives nothing back, which would cost a third more.
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id,
                       traceparent, schema_version, changed, dataref, data, erased, created_at, updated_at)
VALUES (?1, 0, ?1, {type}, {source}, {noun} || '/' || ?2, ?3, {noun} || '/' || ?2, {model}, {suffix}, ?2, ?4, ?5, ?6,
        {schema_version}, ?7, ?8, ?9, 0, ?3, ?3);

-- name: append
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id, traceparent,
                       schema_version, changed, headers, dataref, data, erased, scope, created_at, updated_at)
SELECT :id, 0, :event_id, :type, :source, :subject, :time, :key, :model,
       :operation, :record_id, :actor_id, :tenant_id, :traceparent, :schema_version, :changed, :headers, :dataref, :data,
       0, :scope, :now, :now
  FROM (SELECT 1) AS of_write
 WHERE true
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: append_many
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id, traceparent,
                       schema_version, changed, headers, dataref, data, erased, scope, created_at, updated_at)
SELECT d.value ->> 'id', 0, d.value ->> 'event_id',
       d.value ->> 'type', d.value ->> 'source', d.value ->> 'subject', d.value ->> 'time', d.value ->> 'key',
       d.value ->> 'model', d.value ->> 'operation', d.value ->> 'record_id', d.value ->> 'actor_id',
       d.value ->> 'tenant_id', d.value ->> 'traceparent', d.value ->> 'schema_version', d.value ->> 'changed',
       d.value ->> 'headers', d.value ->> 'dataref', d.value ->> 'data', 0, d.value ->> 'scope', d.value ->> 'time',
       d.value ->> 'time'
  FROM json_each(:rows) d
 WHERE true
 ORDER BY d.key
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: append_letter
-- The letter of a delivery that was given up, if that was ours to do.
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id, traceparent,
                       schema_version, changed, headers, dataref, data, erased, scope, created_at, updated_at)
SELECT :id, 0, :event_id, :type, :source, :subject, :time, :key, :model,
       :operation, :record_id, :actor_id, :tenant_id, :traceparent, :schema_version, :changed, :headers, :dataref, :data,
       0, :scope, :time, :time
  FROM outbox_event m
 WHERE m.id = :message AND m.status = 'delivered' AND m.published_at = :now AND m.last_error = :reason
RETURNING id;

-- name: place
-- Give what waits, in the order it was written, the positions behind :last.
UPDATE event_log SET position = :last + d.place
  FROM (SELECT rowid AS row, row_number() OVER (ORDER BY rowid) AS place
          FROM event_log WHERE position IS NULL ORDER BY rowid LIMIT :limit) d
 WHERE event_log.rowid = d.row
RETURNING id, type, key, tenant_id, position;

-- name: deliver
-- A message of a key that waits is not due before those ahead of it. Hardly ever does one wait, so first it is asked of
-- which :kinds any does.
INSERT INTO outbox_event (id, seq, kind, key, payload, actor_id, tenant_id, about, trace_id, traceparent, status,
                          attempts, claimed_with, retry_at, created_at, updated_at)
SELECT d.value ->> 0, (SELECT coalesce(max(seq), 0) FROM outbox_event) + d.key + 1, d.value ->> 2, d.value ->> 3,
       json_object('event', e.id), e.actor_id, e.tenant_id, 'event/' || e.id, substr(e.traceparent, 4, 32),
       e.traceparent, 'pending', 0, 0,
       max(:now, coalesce(CASE WHEN d.value ->> 2 IN (
            SELECT k.value FROM json_each(:kinds) k
             WHERE EXISTS (SELECT 1 FROM outbox_event o
                            WHERE o.status = 'pending' AND o.kind = k.value AND o.retry_at > :now))
           THEN (SELECT o.retry_at FROM outbox_event o
                  WHERE o.status = 'pending' AND o.key = d.value ->> 3 AND o.key IS NOT NULL
                  ORDER BY o.seq DESC LIMIT 1) END, :now)),
       :now, :now
  FROM json_each(:rows) d JOIN event_log e ON e.id = d.value ->> 1
 ORDER BY d.key;

-- name: serve_group
-- A process with the code of a group says so; a new group begins at :position.
INSERT INTO event_group (id, name, kind, patterns, is_ordered, position, paused, served_at, created_at, updated_at)
VALUES (:id, :name, :kind, :patterns, :is_ordered,
        CASE WHEN :from_now THEN (SELECT last FROM event_position WHERE id = 'feed') ELSE 0 END, false, :now, :now, :now)
    ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, patterns = excluded.patterns,
        is_ordered = excluded.is_ordered, served_at = excluded.served_at
RETURNING name;

-- name: note_served
-- A process with the code of these groups still runs.
UPDATE event_group SET served_at = :now WHERE name IN (SELECT value FROM json_each(:names)) RETURNING name;

-- name: advance_groups
-- Those whose messages were made now. A group that was committed meanwhile has none of them, so it stays behind.
UPDATE event_group SET position = :last WHERE name IN (SELECT value FROM json_each(:names)) RETURNING name;

-- name: prune
DELETE FROM event_log WHERE id IN (
    SELECT e.id FROM event_log e
     WHERE e.position <= :until AND e.created_at < :before{needed}
       AND e.position <= coalesce((SELECT min(g.position) FROM event_group g
                                    WHERE g.kind = 'handler' OR g.served_at >= :before), e.position)
       AND NOT EXISTS (SELECT 1 FROM outbox_event o WHERE o.about = 'event/' || e.id AND o.status <> 'delivered')
     ORDER BY e.position LIMIT :limit)
RETURNING position;

-- name: erase
UPDATE event_log SET data = NULL, scope = NULL, headers = NULL, erased = true, updated_at = :now WHERE subject = :subject RETURNING id;

-- name: lead_bridge
-- One process at a time copies the feed; it says so again with every batch.
UPDATE event_group SET lease = :lease, lease_until = :until
 WHERE name = :name AND NOT paused AND (lease IS NULL OR lease = :lease OR lease_until <= :now)
RETURNING position;

-- name: move_bridge
UPDATE event_group SET position = :position, lease_until = :until WHERE name = :name AND lease = :lease RETURNING paused;

-- name: give_up
-- What a broker can never take: a dead delivery with its reason, so that the bridge goes on.
INSERT INTO outbox_event (id, seq, kind, key, payload, actor_id, tenant_id, about, status, attempts, claimed_with,
                          last_error, retry_at, created_at, updated_at)
SELECT :id, (SELECT coalesce(max(seq), 0) + 1 FROM outbox_event), :kind, NULL,
       json_object('event', e.id), e.actor_id, e.tenant_id, 'event/' || e.id, 'dead', 1, 0, :reason,
       :now, :now, :now
  FROM event_log e WHERE e.id = :event
RETURNING id;

-- name: group_depth
-- What waits for each group, counted up to so many, and since when the oldest of these waits.
SELECT g.name, (SELECT count(*) FROM (SELECT 1 FROM outbox_event
                                       WHERE status = 'pending' AND kind = 'maniflex.event.' || g.name LIMIT :most)),
       (SELECT min(created_at) FROM (SELECT created_at FROM outbox_event
                                      WHERE status = 'pending' AND kind = 'maniflex.event.' || g.name LIMIT :most))
  FROM event_group g ORDER BY g.name;
