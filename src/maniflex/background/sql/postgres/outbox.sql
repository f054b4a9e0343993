-- The states are drawn in common/outbox.sql.
--
-- Where messages are partitioned, `/* open m */` becomes a condition that leaves out the partitions without anything
-- to deliver (outbox/open_partitions.py), and is a comment otherwise.

-- name: schema_1
CREATE SEQUENCE IF NOT EXISTS outbox_event_seq;

-- name: schema_2
-- What is waiting of each kind, in the order it is due: a relay never meets the kinds it has no handler for.
-- Conditions that decide whether to walk this index are written as `CASE … END IS NOT NULL`, which the planner has
-- no statistics about and takes for common. Of the bare columns it may have learnt in a quiet hour that hardly any
-- row is pending, and would then sort the backlog for every claim.
CREATE INDEX IF NOT EXISTS outbox_event_kind_idx ON outbox_event (kind, retry_at, seq)
    WHERE CASE status WHEN 'pending' THEN 1 END IS NOT NULL;

-- name: schema_3
-- Who is first of its key.
CREATE INDEX IF NOT EXISTS outbox_event_key_idx ON outbox_event (key, seq)
    WHERE CASE status WHEN 'pending' THEN 1 END IS NOT NULL AND key IS NOT NULL;

-- name: schema_6
-- A claim rewrites rows without touching an index, given room on the page. Only once, because both
-- changes take locks that requests would wait for.
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conname = 'outbox_event_status_check'
                      AND conrelid = 'outbox_event'::regclass) THEN
        ALTER TABLE outbox_event SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02,
            autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
        ALTER TABLE outbox_event ADD CONSTRAINT outbox_event_status_check
            CHECK (status IN ('pending', 'delivered', 'dead'));
    END IF;
END $$;

-- name: schema_7
-- Which keys are being delivered. Its primary key settles who has one: two claims at the same moment do not
-- see each other's leases, and a message whose transaction commits late, or that is put back, comes in ahead of
-- one that is on its way. (Under SQLite there is one claim at a time, and the leases themselves tell.)
CREATE TABLE IF NOT EXISTS outbox_lane (
    key text COLLATE "C" PRIMARY KEY,
    lease text COLLATE "C" NOT NULL,
    lease_until timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- name: enqueue
-- A message of a key that waits is not due before those ahead of it.
WITH added AS (
    INSERT INTO outbox_event (id, seq, kind, key, payload, actor_id, tenant_id, about, trace_id, traceparent, status,
                              attempts, claimed_with, retry_at, created_at, updated_at)
    SELECT d.id, nextval('outbox_event_seq'), d.kind, d.key, d.payload::json, :actor_id::text, :tenant_id::text,
           d.about, :trace_id::text, :traceparent::text,
           'pending', 0, 0,
           greatest(:now, /* with keys */ (SELECT e.retry_at FROM outbox_event e
                            WHERE CASE e.status WHEN 'pending' THEN 1 END IS NOT NULL AND e.key = d.key /* open e */
                            ORDER BY e.seq DESC LIMIT 1) /* end */),
           :now, :now
      FROM unnest((SELECT :ids::text[]), (SELECT :kinds::text[]), (SELECT :keys::text[]), (SELECT :payloads::text[]),
                  (SELECT :abouts::text[]))
           WITH ORDINALITY AS d (id, kind, key, payload, about, place)
     ORDER BY d.place
    RETURNING 1
)
SELECT pg_notify(left(:channel || '.' || current_schema(), 63), '') FROM added LIMIT 1;

-- name: claim
-- Lease up to {limit} messages that are due and whose key lets them. What a dead relay left behind
-- goes alone, so that whatever killed it takes nobody along; a lease is over when it
-- ended before :over. The limit is part of the text: as a parameter it is taken for a tenth of the table,
-- and the statement is planned anew every time. The part for each kind is repeated with UNION ALL, as often as there
-- are :kinds; the parts are merged row by row along their index, up to the limit. Their own limit is for the planner, which
-- takes a subquery there for a tenth of the rows and then walks the index rather than sort a backlog; it is far beyond
-- what other claims may have locked. The rows of a union cannot be locked, so each is looked up once more.
WITH due AS MATERIALIZED ( -- a fence: as a plain subquery it may run twice and overshoot
    SELECT d.* FROM (
    /* each kind */
    (SELECT m.id, m.seq, m.key, m.retry_at, m.lease IS NOT NULL AS orphaned
      FROM outbox_event m
     WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND m.kind = (SELECT (:kinds::text[])[{place} + 1])
       AND m.retry_at <= :now /* open m */
       AND CASE WHEN m.lease_until > :over THEN NULL ELSE 1 END IS NOT NULL
       AND CASE
           WHEN m.key IS NULL THEN true
           WHEN m.key IN (SELECT l.key FROM outbox_lane l WHERE l.lease_until > :over) THEN false
           ELSE (
            SELECT (h.retry_at, h.seq) <= (m.retry_at, m.seq)
                   AND (h.lease_until IS NULL OR h.lease_until <= :over)
                   AND (:every OR h.kind = ANY(:handled::text[]))
              FROM outbox_event h
             WHERE CASE h.status WHEN 'pending' THEN 1 END IS NOT NULL AND h.key = m.key /* open h */
             ORDER BY h.seq LIMIT 1)
           END
     ORDER BY m.retry_at, m.seq LIMIT (SELECT {limit} + 1000))
    /* end */
    ) d CROSS JOIN LATERAL (
        SELECT 1 FROM outbox_event m
         WHERE m.id = d.id AND m.status = 'pending' AND m.retry_at <= :now /* open m */
           AND (m.lease_until IS NULL OR m.lease_until <= :over) FOR UPDATE SKIP LOCKED) l
     ORDER BY d.retry_at, d.seq LIMIT {limit}
), first AS (
    SELECT id, orphaned FROM due ORDER BY retry_at, seq LIMIT 1
), picked AS MATERIALIZED (
    SELECT d.id, d.seq, d.key, d.orphaned FROM due d CROSS JOIN first f
     WHERE CASE WHEN f.orphaned THEN d.id = f.id ELSE NOT d.orphaned END
), chosen AS MATERIALIZED (
    SELECT id, key FROM picked WHERE key IS NULL
     UNION ALL
    SELECT m.id, k.key
      FROM (SELECT key, max(seq) AS last, array_agg(id) AS ids, array_agg(seq) AS seqs
              FROM picked WHERE key IS NOT NULL GROUP BY key) k
     CROSS JOIN LATERAL (
        SELECT (SELECT e.seq FROM outbox_event e
                 WHERE CASE e.status WHEN 'pending' THEN 1 END IS NOT NULL AND e.key = k.key AND e.seq < k.last /* open e */
                   AND e.id NOT IN (SELECT id FROM picked) ORDER BY e.seq LIMIT 1) AS seq) gap
     CROSS JOIN LATERAL unnest(k.ids, k.seqs) AS m (id, seq)
     WHERE gap.seq IS NULL OR m.seq < gap.seq
), lane AS (
    INSERT INTO outbox_lane AS l (key, lease, lease_until)
    SELECT DISTINCT key, :lease, :until::timestamptz FROM chosen WHERE key IS NOT NULL ORDER BY key
        ON CONFLICT (key) DO UPDATE SET lease = excluded.lease, lease_until = excluded.lease_until
     WHERE l.lease_until <= :over
    RETURNING l.key
)
UPDATE outbox_event m
   SET lease = :lease, lease_until = :until, leased_by = :owner, updated_at = :now,
       attempts = m.attempts + CASE WHEN m.lease IS NOT NULL AND m.claimed_with > 1 THEN 0 ELSE 1 END,
       claimed_with = CASE WHEN m.lease IS NULL THEN (SELECT count(*) FROM chosen) ELSE 0 END
 WHERE m.id = ANY(ARRAY(SELECT id FROM chosen WHERE key IS NULL OR key IN (SELECT key FROM lane))) /* open m */
RETURNING m.id, m.seq, m.kind, m.key, m.payload, m.attempts, m.created_at, m.claimed_with, m.last_error,
          m.actor_id, m.tenant_id, m.about, m.trace_id, m.traceparent;

-- name: renew
WITH kept AS (
    UPDATE outbox_event m SET lease_until = greatest(m.lease_until, :until)
      FROM unnest(:ids::text[], :leases::text[]) AS d (id, lease)
     WHERE m.id = d.id AND m.lease = d.lease AND m.status = 'pending' /* open m */
    RETURNING m.id, m.key, m.lease
), lane AS (
    UPDATE outbox_lane l SET lease_until = greatest(l.lease_until, :until)
      FROM kept k WHERE l.key = k.key AND l.lease = k.lease
)
SELECT id FROM kept;

-- name: deliver
WITH lane AS (
    DELETE FROM outbox_lane WHERE key = ANY(:keys::text[]) AND lease = :lease
)
UPDATE outbox_event m
   SET status = 'delivered', published_at = :now, lease = NULL, lease_until = NULL, leased_by = NULL,
       updated_at = :now
 WHERE m.id = ANY(:ids::text[]) AND m.lease = :lease AND m.status = 'pending' /* open m */
RETURNING m.id;

-- name: forget
-- What was delivered and must not be kept.
UPDATE outbox_event SET payload = NULL WHERE id = ANY(:ids::text[]) AND status = 'delivered' /* open outbox_event */
RETURNING id;

-- name: rewrite
-- What is still to be done of a message that was delivered in part.
UPDATE outbox_event SET payload = :payload::text::json WHERE id = :id::text AND status = 'pending' /* open outbox_event */
RETURNING id;

-- name: settle
WITH lane AS (
    DELETE FROM outbox_lane WHERE key = ANY(:keys::text[]) AND lease = :lease
)
UPDATE outbox_event m
   SET status = d.status, published_at = CASE d.status WHEN 'delivered' THEN :now::timestamptz END,
       retry_at = coalesce(d.retry_at, m.retry_at), attempts = m.attempts - d.unspent,
       last_error = coalesce(d.last_error, m.last_error),
       raw = coalesce(d.raw, m.raw), payload = CASE WHEN d.raw IS NULL THEN m.payload END,
       lease = NULL, lease_until = NULL, leased_by = NULL, updated_at = :now
  FROM unnest(:ids::text[], :statuses::text[], :retry_ats::timestamptz[], :unspents::int[],
              :last_errors::text[], :raws::text[])
       AS d (id, status, retry_at, unspent, last_error, raw)
 WHERE m.id = d.id AND m.lease = :lease AND m.status = 'pending' /* open m */
RETURNING m.id;

-- name: park
-- Those behind a message that has to wait are not looked at before it may be tried again.
UPDATE outbox_event f SET retry_at = e.retry_at
  FROM outbox_event e
 WHERE e.id = ANY(:ids::text[]) AND e.status = 'pending' AND e.retry_at > :now /* open e */ /* open f */
   AND CASE f.status WHEN 'pending' THEN 1 END IS NOT NULL AND f.key = e.key AND f.seq > e.seq AND f.retry_at < e.retry_at;

-- name: kinds_behind
-- The first kinds behind :after of which something waits, from kind to kind along the index.
WITH RECURSIVE pending (kind) AS (
    SELECT min(m.kind) FROM outbox_event m WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND m.kind > :after
    UNION ALL
    SELECT (SELECT min(m.kind) FROM outbox_event m WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND m.kind > p.kind)
      FROM pending p WHERE p.kind IS NOT NULL
)
SELECT kind FROM (SELECT kind FROM pending LIMIT :limit) p WHERE kind IS NOT NULL;

-- name: bring_back_leases
-- Those that no clock of ours can have meant: they end far later than any of them lasts. What is leased is among the
-- first of its kind, because that is where claims begin.
WITH lane AS (
    UPDATE outbox_lane SET lease_until = :until WHERE lease_until > :latest
), found AS MATERIALIZED (
    SELECT f.id FROM unnest(:kinds::text[]) AS k (kind) CROSS JOIN LATERAL (
        SELECT m.id, m.lease, m.lease_until FROM outbox_event m
         WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND m.kind = k.kind
         ORDER BY m.retry_at, m.seq LIMIT :first) f
     WHERE f.lease IS NOT NULL AND f.lease_until > :latest
)
UPDATE outbox_event SET lease_until = :until
 WHERE id = ANY(ARRAY(SELECT id FROM found)) AND lease IS NOT NULL AND status = 'pending'
RETURNING id;

-- name: bring_back_pauses
WITH found AS MATERIALIZED (
    SELECT f.id FROM unnest(:kinds::text[]) AS k (kind) CROSS JOIN LATERAL (
        SELECT m.id FROM outbox_event m
         WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND m.kind = k.kind AND m.retry_at > :latest
         ORDER BY m.retry_at, m.seq LIMIT :limit) f
     LIMIT :limit
)
UPDATE outbox_event SET retry_at = :now
 WHERE id = ANY(ARRAY(SELECT id FROM found)) AND status = 'pending'
RETURNING id;

-- name: redrive
-- Relays that leave out its partition are told first that it has something to deliver.
WITH again AS (
    UPDATE outbox_event
       SET status = 'pending', attempts = 0, claimed_with = 0, retry_at = :now, updated_at = :now,
           payload = CASE WHEN raw IS NULL THEN payload ELSE raw::json END, raw = NULL
     WHERE id = :id AND status = 'dead'
    RETURNING id
)
SELECT id, pg_notify(left(:channel || '_back.' || current_schema(), 63), ''),
       pg_notify(left(:channel || '.' || current_schema(), 63), '') FROM again;

-- name: due_kinds
-- The kinds of which something can be claimed, but for what a key holds up; that which waits longest comes first. Where
-- the relay takes all of them, from kind to kind along the index.
WITH RECURSIVE pending (kind) AS (
    SELECT min(m.kind) FROM outbox_event m WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND :every /* open m */
    UNION ALL
    SELECT (SELECT min(m.kind) FROM outbox_event m
             WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND m.kind > p.kind /* open m */)
      FROM pending p WHERE p.kind IS NOT NULL
), heads AS MATERIALIZED (
    SELECT k.kind, (SELECT m.retry_at FROM outbox_event m
                     WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL AND m.kind = k.kind AND m.retry_at <= :now /* open m */
                       AND CASE WHEN m.lease_until > :over THEN NULL ELSE 1 END IS NOT NULL
                     ORDER BY m.retry_at, m.seq LIMIT 1) AS since
      FROM (SELECT unnest(:kinds::text[]) AS kind UNION ALL SELECT kind FROM pending WHERE kind IS NOT NULL) k
)
SELECT kind FROM heads WHERE since IS NOT NULL ORDER BY since, kind;

-- name: depth
SELECT m.kind, count(*), min(m.created_at) FROM outbox_event m
 WHERE CASE m.status WHEN 'pending' THEN 1 END IS NOT NULL /* open m */ GROUP BY m.kind;

-- name: prune
WITH lane AS (
    DELETE FROM outbox_lane WHERE lease_until < :before
)
DELETE FROM outbox_event WHERE id = ANY(ARRAY(
    SELECT id FROM outbox_event WHERE status = 'delivered' AND published_at < :before
     ORDER BY published_at LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: prunable (only here)
SELECT id FROM outbox_event WHERE status = 'delivered' AND published_at < :before ORDER BY published_at LIMIT :limit;

-- name: prune_some (only here)
DELETE FROM outbox_event WHERE id = ANY(ARRAY(
    SELECT id FROM outbox_event WHERE id = ANY(:ids::text[]) AND status = 'delivered' AND published_at < :before
       FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: prune_inbox
DELETE FROM inbox_message WHERE id = ANY(ARRAY(
    SELECT id FROM inbox_message WHERE created_at < :before
     ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING id;
