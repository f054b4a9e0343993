-- The statements on messages that are the same in both databases.
--
-- The status of a message, and the statements that change it:
--
--   enqueue ─▶ pending ──deliver──▶ delivered ──prune──▶ (removed)
--                │ ▲
--                │ └──redrive──┐
--                └──settle──▶ dead
--
-- `claim` gives a pending message a lease, which `renew` prolongs; `deliver` and `settle` end it. A message that is to
-- be tried again stays pending: `settle` moves its `retry_at`, and `park` moves those behind it.

-- name: schema_4
CREATE INDEX IF NOT EXISTS outbox_event_published_idx ON outbox_event (published_at) WHERE status = 'delivered';

-- name: schema_5
CREATE INDEX IF NOT EXISTS outbox_event_dead_idx ON outbox_event (seq) WHERE status = 'dead';

-- name: schema_8
DROP INDEX IF EXISTS outbox_event_due_idx;

-- name: schema_9
CREATE INDEX IF NOT EXISTS inbox_message_created_idx ON inbox_message (created_at);

-- name: schema_10
-- What was sent about a record.
CREATE INDEX IF NOT EXISTS outbox_event_about_idx ON outbox_event (about, id) WHERE about IS NOT NULL;

-- name: dead
SELECT count(*) FROM outbox_event WHERE status = 'dead';

-- name: once
INSERT INTO inbox_message (id, consumer, message_id, created_at, updated_at)
VALUES (:id, :consumer, :message_id, :now, :now)
    ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING id;
