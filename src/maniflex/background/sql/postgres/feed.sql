-- The way of an event is told in common/feed.sql.

-- name: schema_1
-- What waits for a position, in the order it was written.
CREATE INDEX IF NOT EXISTS event_log_unrouted_idx ON event_log (seq) WHERE position IS NULL;

-- name: schema_3
CREATE SEQUENCE IF NOT EXISTS event_log_seq;

-- name: is_taker_behind
SELECT EXISTS (SELECT 1 FROM event_group g, event_position p WHERE g.name = ANY(:names::text[]) AND g.position < p.last);

-- name: begin
INSERT INTO event_position (id, epoch, last, pruned, created_at, updated_at)
VALUES ('feed', :epoch::text, 0, 0, :now::timestamptz, :now::timestamptz)
    ON CONFLICT (id) DO NOTHING;

-- name: lock_position
SELECT epoch, last FROM event_position WHERE id = 'feed' FOR UPDATE;

-- name: insert
-- The event of one change: the text of its model, and few values. The number is taken once the row that was written is
-- locked, so that events of one row are in its order.
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id, traceparent,
                       schema_version, changed, headers, dataref, data, erased, scope, created_at, updated_at)
SELECT $1::text, nextval('event_log_seq'), $1::text, {type}, {source}, {noun} || '/' || $2::text, $3::timestamptz,
       {noun} || '/' || $2::text, {model}, {suffix}, $2::text, $4::text, $5::text, $6::text, {schema_version}, $7::text,
       NULL, $8::text, $9::json, false, NULL, $3::timestamptz, $3::timestamptz
  FROM (SELECT 1) AS of_write
RETURNING id;

-- name: append
-- The number is taken once the row that was written is locked, so that events of one row are in its order.
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id, traceparent,
                       schema_version, changed, headers, dataref, data, erased, scope, created_at, updated_at)
SELECT :id::text, nextval('event_log_seq'), :event_id::text, :type::text, :source::text, :subject::text, :time::timestamptz,
       :key::text, :model::text, :operation::text, :record_id::text, :actor_id::text, :tenant_id::text, :traceparent::text,
       :schema_version::bigint, :changed::text, :headers::json, :dataref::text, :data::json, false, :scope::json,
       :now::timestamptz, :now::timestamptz
  FROM (SELECT 1) AS of_write
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: append_many
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id, traceparent,
                       schema_version, changed, headers, dataref, data, erased, scope, created_at, updated_at)
SELECT d.value ->> 'id', nextval('event_log_seq'), d.value ->> 'event_id',
       d.value ->> 'type', d.value ->> 'source', d.value ->> 'subject', (d.value ->> 'time')::timestamptz, d.value ->> 'key',
       d.value ->> 'model', d.value ->> 'operation', d.value ->> 'record_id', d.value ->> 'actor_id',
       d.value ->> 'tenant_id', d.value ->> 'traceparent', (d.value ->> 'schema_version')::bigint, d.value ->> 'changed',
       (d.value ->> 'headers')::json, d.value ->> 'dataref', (d.value ->> 'data')::json, false, (d.value ->> 'scope')::json,
       (d.value ->> 'time')::timestamptz, (d.value ->> 'time')::timestamptz
  FROM jsonb_array_elements(:rows::jsonb) WITH ORDINALITY AS d (value, place)
 ORDER BY d.place
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: append_letter
-- The letter of a delivery that was given up, if that was ours to do.
INSERT INTO event_log (id, seq, event_id, type, source, subject, time, key, model, operation, record_id, actor_id, tenant_id, traceparent,
                       schema_version, changed, headers, dataref, data, erased, scope, created_at, updated_at)
SELECT :id::text, nextval('event_log_seq'), :event_id::text, :type::text, :source::text, :subject::text, :time::timestamptz,
       :key::text, :model::text, :operation::text, :record_id::text, :actor_id::text, :tenant_id::text, :traceparent::text,
       :schema_version::bigint, :changed::text, :headers::json, :dataref::text, :data::json, false, :scope::json,
       :time::timestamptz, :time::timestamptz
  FROM outbox_event m
 WHERE m.id = :message AND m.status = 'delivered' AND m.published_at = :now AND m.last_error = :reason
RETURNING id;

-- name: notify (only here)
SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '');

-- name: place
-- Give what waits, in the order it was written, the positions behind :last. A copy of a SQLite database has no numbers.
-- The ids are an array, so that the planner takes them for few and finds each by its key.
UPDATE event_log e SET position = :last::bigint + d.place
  FROM unnest(ARRAY(SELECT id FROM event_log WHERE position IS NULL ORDER BY seq, created_at, id LIMIT :limit))
       WITH ORDINALITY AS d (id, place)
 WHERE e.id = d.id
RETURNING e.id, e.type, e.key, e.tenant_id, e.position;

-- name: deliver
-- A message of a key that waits is not due before those ahead of it. Hardly ever does one wait, so first it is asked of
-- which :kinds any does.
INSERT INTO outbox_event (id, seq, kind, key, payload, actor_id, tenant_id, about, trace_id, traceparent, status,
                          attempts, claimed_with, retry_at, created_at, updated_at)
SELECT d.value ->> 0, nextval('outbox_event_seq'), d.value ->> 2, d.value ->> 3, json_build_object('event', e.id),
       e.actor_id, e.tenant_id, 'event/' || e.id, substr(e.traceparent, 4, 32), e.traceparent, 'pending', 0, 0,
       greatest(:now::timestamptz, CASE WHEN d.value ->> 2 = ANY(ARRAY(
            SELECT k.kind FROM unnest(:kinds::text[]) AS k (kind)
             WHERE EXISTS (SELECT 1 FROM outbox_event o
                            WHERE CASE o.status WHEN 'pending' THEN 1 END IS NOT NULL AND o.kind = k.kind
                              AND o.retry_at > :now::timestamptz)))
           THEN (SELECT o.retry_at FROM outbox_event o
                  WHERE CASE o.status WHEN 'pending' THEN 1 END IS NOT NULL AND o.key = d.value ->> 3
                  ORDER BY o.seq DESC LIMIT 1) END),
       :now::timestamptz, :now::timestamptz
  FROM json_array_elements(:rows::text::json) WITH ORDINALITY AS d (value, place)
  JOIN event_log e ON e.id = d.value ->> 1
 ORDER BY d.place;

-- name: serve_group
-- A process with the code of a group says so; a new group begins now, or at the beginning.
INSERT INTO event_group (id, name, kind, patterns, is_ordered, position, paused, served_at, created_at, updated_at)
VALUES (:id::text, :name::text, :kind::text, :patterns::json, :is_ordered::boolean,
        CASE WHEN :from_now::boolean THEN (SELECT last FROM event_position WHERE id = 'feed') ELSE 0 END, false,
        :now::timestamptz, :now::timestamptz, :now::timestamptz)
    ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, patterns = excluded.patterns,
        is_ordered = excluded.is_ordered, served_at = excluded.served_at
RETURNING name;

-- name: note_served
-- A process with the code of these groups still runs.
UPDATE event_group SET served_at = :now::timestamptz WHERE name = ANY(:names::text[]) RETURNING name;

-- name: advance_groups
-- Those whose messages were made now. A group that was committed meanwhile has none of them, so it stays behind.
UPDATE event_group SET position = :last::bigint WHERE name = ANY(:names::text[]) RETURNING name;

-- name: prune
DELETE FROM event_log WHERE id = ANY(ARRAY(
    SELECT e.id FROM event_log e
     WHERE e.position <= :until AND e.created_at < :before{needed}
       AND e.position <= coalesce((SELECT min(g.position) FROM event_group g
                                    WHERE g.kind = 'handler' OR g.served_at >= :before), e.position)
       AND NOT EXISTS (SELECT 1 FROM outbox_event o WHERE o.about = 'event/' || e.id AND o.status <> 'delivered')
     ORDER BY e.position LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING position;

-- name: erase
UPDATE event_log SET data = NULL, scope = NULL, headers = NULL, erased = true, updated_at = :now::timestamptz WHERE subject = :subject RETURNING id;

-- name: lead_bridge
-- One process at a time copies the feed; it says so again with every batch.
UPDATE event_group SET lease = :lease, lease_until = :until::timestamptz
 WHERE name = :name AND NOT paused AND (lease IS NULL OR lease = :lease OR lease_until <= :now::timestamptz)
RETURNING position;

-- name: move_bridge
UPDATE event_group SET position = :position, lease_until = :until::timestamptz WHERE name = :name AND lease = :lease RETURNING paused;

-- name: give_up
-- What a broker can never take: a dead delivery with its reason, so that the bridge goes on.
INSERT INTO outbox_event (id, seq, kind, key, payload, actor_id, tenant_id, about, status, attempts, claimed_with,
                          last_error, retry_at, created_at, updated_at)
SELECT :id::text, nextval('outbox_event_seq'), :kind::text, NULL,
       json_build_object('event', e.id), e.actor_id, e.tenant_id, 'event/' || e.id, 'dead', 1, 0, :reason::text,
       :now::timestamptz, :now::timestamptz, :now::timestamptz
  FROM event_log e WHERE e.id = :event
RETURNING id;

-- name: group_depth
-- What waits for each group, counted up to so many, and since when the oldest of these waits. The order is that of
-- the index of what waits, without which the planner would read all that was ever delivered.
SELECT g.name, waiting.number, waiting.oldest
  FROM event_group g, LATERAL (
       SELECT count(*) AS number, min(created_at) AS oldest
         FROM (SELECT created_at FROM outbox_event
                WHERE CASE status WHEN 'pending' THEN 1 END IS NOT NULL AND kind = 'maniflex.event.' || g.name
                ORDER BY retry_at, seq LIMIT :most) AS few) AS waiting
 ORDER BY g.name;
