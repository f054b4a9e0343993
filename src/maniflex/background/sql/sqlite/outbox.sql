-- The states are drawn in common/outbox.sql.

-- name: schema_1
-- Numbers are given out by whoever holds the write lock, one more than the largest there is.
CREATE UNIQUE INDEX IF NOT EXISTS outbox_event_seq_idx ON outbox_event (seq);

-- name: schema_2
-- What is waiting of each kind, in the order it is due: a relay never meets the kinds it has no handler for.
CREATE INDEX IF NOT EXISTS outbox_event_kind_idx ON outbox_event (kind, retry_at, seq) WHERE status = 'pending';

-- name: schema_3
-- Who is first of its key.
CREATE INDEX IF NOT EXISTS outbox_event_key_idx ON outbox_event (key, seq)
    WHERE status = 'pending' AND key IS NOT NULL;

-- name: schema_6
-- Which keys are being delivered.
CREATE INDEX IF NOT EXISTS outbox_event_leased_idx ON outbox_event (lease_until, key)
    WHERE lease_until IS NOT NULL AND key IS NOT NULL;

-- name: enqueue
-- A message of a key that waits is not due before those ahead of it.
INSERT INTO outbox_event (id, seq, kind, key, payload, actor_id, tenant_id, about, trace_id, traceparent, status,
                          attempts, claimed_with, retry_at, created_at, updated_at)
SELECT d.value ->> 0, (SELECT coalesce(max(seq), 0) FROM outbox_event) + d.key + 1, d.value ->> 1, d.value ->> 2,
       d.value ->> 3, :actor_id, :tenant_id, d.value ->> 4, :trace_id, :traceparent, 'pending', 0, 0,
       max(:now, coalesce((SELECT e.retry_at FROM outbox_event e
                            WHERE e.status = 'pending' AND e.key = d.value ->> 2 AND e.key IS NOT NULL
                            ORDER BY e.seq DESC LIMIT 1), :now)),
       :now, :now
  FROM json_each(:rows) d;

-- name: claim
-- Lease up to {limit} messages that are due and whose key lets them. What a dead relay left behind
-- goes alone, so that whatever killed it takes nobody along; a lease is over when it
-- ended before :over. A payload that is no text at all must not keep the others from being read, so it
-- comes as bytes. The part for each kind is repeated with UNION ALL, as often as there are :kinds: SQLite merges
-- such parts row by row along their index, and stops at the limit.
WITH due AS MATERIALIZED (
    /* each kind */
    SELECT m.id, m.seq, m.key, m.retry_at, m.lease IS NOT NULL AS orphaned
      FROM outbox_event m
     WHERE m.status = 'pending' AND m.kind = :kinds ->> {place} AND m.retry_at <= :now
       AND (m.lease_until IS NULL OR m.lease_until <= :over)
       AND CASE
           WHEN m.key IS NULL THEN 1
           WHEN m.key IN (SELECT key FROM outbox_event WHERE lease_until > :over AND key IS NOT NULL) THEN 0
           ELSE (
            SELECT (h.retry_at, h.seq) <= (m.retry_at, m.seq)
                   AND (h.lease_until IS NULL OR h.lease_until <= :over)
                   AND (:every OR h.kind IN (SELECT value FROM json_each(:handled)))
              FROM outbox_event h
             WHERE h.status = 'pending' AND h.key = m.key AND h.key IS NOT NULL ORDER BY h.seq LIMIT 1)
           END
    /* end */
     ORDER BY retry_at, seq LIMIT {limit}
), first AS MATERIALIZED (
    SELECT id, orphaned FROM due ORDER BY retry_at, seq LIMIT 1
), picked AS MATERIALIZED (
    SELECT d.id, d.seq, d.key, d.orphaned FROM due d CROSS JOIN first f
     WHERE CASE WHEN f.orphaned THEN d.id = f.id ELSE NOT d.orphaned END
), gap AS MATERIALIZED (
    SELECT l.messages, (SELECT e.seq FROM outbox_event e
                    WHERE e.status = 'pending' AND e.key = l.key AND e.key IS NOT NULL AND e.seq < l.seq
                      AND e.id NOT IN (SELECT id FROM picked) ORDER BY e.seq LIMIT 1) AS seq
      FROM (SELECT key, max(seq) AS seq, json_group_array(json_array(id, seq)) AS messages
              FROM picked WHERE key IS NOT NULL GROUP BY key) l
), chosen AS MATERIALIZED ( -- without a join: SQLite would compare every key with every message
    SELECT id FROM picked WHERE key IS NULL
     UNION ALL
    SELECT m.value ->> 0 FROM gap g CROSS JOIN json_each(g.messages) m WHERE g.seq IS NULL OR m.value ->> 1 < g.seq
)
UPDATE outbox_event
   SET lease = :lease, lease_until = :until, leased_by = :owner, updated_at = :now,
       attempts = attempts + CASE WHEN lease IS NOT NULL AND claimed_with > 1 THEN 0 ELSE 1 END,
       claimed_with = CASE WHEN lease IS NULL THEN (SELECT count(*) FROM chosen) ELSE 0 END
 WHERE id IN (SELECT id FROM chosen)
RETURNING id, seq, kind, key, CAST(payload AS BLOB), attempts, created_at, claimed_with, last_error,
          actor_id, tenant_id, about, trace_id, traceparent;

-- name: renew
UPDATE outbox_event AS m SET lease_until = max(m.lease_until, :until)
  FROM json_each(:rows) d
 WHERE m.id = d.value ->> 0 AND m.lease = d.value ->> 1 AND status = 'pending'
RETURNING id;

-- name: deliver
UPDATE outbox_event
   SET status = 'delivered', published_at = :now, lease = NULL, lease_until = NULL, leased_by = NULL,
       updated_at = :now
 WHERE id IN (SELECT value FROM json_each(:ids)) AND lease = :lease AND status = 'pending'
RETURNING id;

-- name: forget
-- What was delivered and must not be kept.
UPDATE outbox_event SET payload = NULL WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'delivered'
RETURNING id;

-- name: rewrite
-- What is still to be done of a message that was delivered in part.
UPDATE outbox_event SET payload = :payload WHERE id = :id AND status = 'pending'
RETURNING id;

-- name: settle
UPDATE outbox_event AS m
   SET status = d.value ->> 1, retry_at = coalesce(d.value ->> 2, retry_at),
       published_at = CASE d.value ->> 1 WHEN 'delivered' THEN :now END,
       attempts = attempts - (d.value ->> 3), last_error = coalesce(d.value ->> 4, last_error),
       raw = coalesce(d.value ->> 5, raw), payload = CASE WHEN d.value ->> 5 IS NULL THEN payload END,
       lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
  FROM json_each(:rows) d
 WHERE m.id = d.value ->> 0 AND m.lease = :lease AND m.status = 'pending'
RETURNING id;

-- name: park
-- Those behind a message that has to wait are not looked at before it may be tried again.
UPDATE outbox_event SET retry_at = e.retry_at
  FROM (SELECT key, seq, retry_at FROM outbox_event
         WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'pending' AND retry_at > :now) e
 WHERE outbox_event.status = 'pending' AND outbox_event.key = e.key AND outbox_event.key IS NOT NULL
   AND outbox_event.seq > e.seq AND outbox_event.retry_at < e.retry_at;

-- name: kinds_behind
-- The first kinds behind :after of which something waits, from kind to kind along the index.
WITH RECURSIVE pending (kind) AS (
    SELECT min(kind) FROM outbox_event WHERE status = 'pending' AND kind > :after
    UNION ALL
    SELECT (SELECT min(m.kind) FROM outbox_event m WHERE m.status = 'pending' AND m.kind > p.kind)
      FROM pending p WHERE p.kind IS NOT NULL
     LIMIT :limit
)
SELECT kind FROM pending WHERE kind IS NOT NULL;

-- name: bring_back_leases
-- Those that no clock of ours can have meant: they end far later than any of them lasts. What is leased is among the
-- first of its kind, because that is where claims begin.
UPDATE outbox_event SET lease_until = :until
 WHERE id IN (
    SELECT m.id FROM json_each(:kinds) k CROSS JOIN outbox_event m
     WHERE m.rowid IN (SELECT h.rowid FROM outbox_event h WHERE h.status = 'pending' AND h.kind = k.value
                        ORDER BY h.retry_at, h.seq LIMIT :first)
       AND m.lease IS NOT NULL AND m.lease_until > :latest)
RETURNING id;

-- name: bring_back_pauses
UPDATE outbox_event SET retry_at = :now
 WHERE id IN (
    SELECT m.id FROM json_each(:kinds) k CROSS JOIN outbox_event m
     WHERE m.status = 'pending' AND m.kind = k.value AND m.retry_at > :latest LIMIT :limit)
RETURNING id;

-- name: redrive
UPDATE outbox_event
   SET status = 'pending', attempts = 0, claimed_with = 0, retry_at = :now, updated_at = :now,
       payload = CASE WHEN raw IS NULL THEN payload ELSE raw END, raw = NULL
 WHERE id = :id AND status = 'dead'
RETURNING id;

-- name: due_kinds
-- The kinds of which something can be claimed, but for what a key holds up; that which waits longest comes first. Where
-- the relay takes all of them, from kind to kind along the index.
WITH RECURSIVE pending (kind) AS (
    SELECT min(kind) FROM outbox_event WHERE status = 'pending' AND :every
    UNION ALL
    SELECT (SELECT min(m.kind) FROM outbox_event m WHERE m.status = 'pending' AND m.kind > p.kind)
      FROM pending p WHERE p.kind IS NOT NULL
), heads AS MATERIALIZED (
    SELECT k.kind, (SELECT m.retry_at FROM outbox_event m
                     WHERE m.status = 'pending' AND m.kind = k.kind AND m.retry_at <= :now
                       AND (m.lease_until IS NULL OR m.lease_until <= :over)
                     ORDER BY m.retry_at, m.seq LIMIT 1) AS since
      FROM (SELECT value AS kind FROM json_each(:kinds) UNION ALL SELECT kind FROM pending WHERE kind IS NOT NULL) k
)
SELECT kind FROM heads WHERE since IS NOT NULL ORDER BY since, kind;

-- name: depth
SELECT kind, count(*), min(created_at) FROM outbox_event WHERE status = 'pending' GROUP BY kind;

-- name: prune
DELETE FROM outbox_event WHERE id IN (
    SELECT id FROM outbox_event WHERE status = 'delivered' AND published_at < :before
     ORDER BY published_at LIMIT :limit)
RETURNING id;

-- name: prune_inbox
DELETE FROM inbox_message WHERE id IN (
    SELECT id FROM inbox_message WHERE created_at < :before ORDER BY created_at LIMIT :limit)
RETURNING id;
