-- What partitioned tables of durable work need beside themselves.
--
-- A unique index of a partitioned table must hold the column it is partitioned by, so it cannot say that a key has
-- one run, or that one run of a group is worked on. Two small tables say it instead, kept by triggers in the
-- same transaction, whoever writes the rows. A table that is not partitioned has its unique indexes and none of this.

-- name: keys (only here)
CREATE TABLE IF NOT EXISTS workflow_key (
    key text COLLATE "C" PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL
);

-- name: keys_of_runs (only here)
CREATE INDEX IF NOT EXISTS workflow_key_run_idx ON workflow_key (run_id);

-- name: groups (only here)
CREATE TABLE IF NOT EXISTS workflow_group (
    group_key text COLLATE "C" PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- name: take_key (only here)
-- A row whose key another run has is left out, as ON CONFLICT DO NOTHING would. A key whose run went with its
-- partition, or was deleted, is free. Each statement in here sees what was committed before it.
CREATE OR REPLACE FUNCTION maniflex_take_key() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    holder text;
BEGIN
    LOOP
        INSERT INTO workflow_key (key, run_id) VALUES (NEW.idempotency_key, NEW.id) ON CONFLICT (key) DO NOTHING;
        IF FOUND THEN RETURN NEW; END IF;
        SELECT run_id INTO holder FROM workflow_key WHERE key = NEW.idempotency_key;
        CONTINUE WHEN NOT FOUND;
        IF holder = NEW.id THEN RETURN NEW; END IF;
        PERFORM 1 FROM workflow_run
          WHERE id = holder AND idempotency_key = NEW.idempotency_key AND deleted_at IS NULL;
        IF FOUND THEN
            IF TG_OP = 'INSERT' THEN RETURN NULL; END IF;
            RAISE unique_violation USING MESSAGE = 'another run has this idempotency key', TABLE = 'workflow_run';
        END IF;
        UPDATE workflow_key SET run_id = NEW.id WHERE key = NEW.idempotency_key AND run_id = holder;
        IF FOUND THEN RETURN NEW; END IF;
    END LOOP;
END $$;

-- name: note_key (only here)
-- For the time before the table is partitioned, while its unique index still decides.
CREATE OR REPLACE FUNCTION maniflex_note_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO workflow_key (key, run_id) VALUES (NEW.idempotency_key, NEW.id)
        ON CONFLICT (key) DO UPDATE SET run_id = excluded.run_id;
    RETURN NULL;
END $$;

-- name: free_key (only here)
CREATE OR REPLACE FUNCTION maniflex_free_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM workflow_key WHERE key = OLD.idempotency_key AND run_id = OLD.id;
    RETURN NULL;
END $$;

-- name: hold_group (only here)
CREATE OR REPLACE FUNCTION maniflex_hold_group() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO workflow_group (group_key, run_id) VALUES (NEW.group_key, NEW.id);
    RETURN NULL;
END $$;

-- name: free_group (only here)
CREATE OR REPLACE FUNCTION maniflex_free_group() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM workflow_group WHERE group_key = OLD.group_key AND run_id = OLD.id;
    RETURN NULL;
END $$;

-- name: note_keys_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_note_key AFTER INSERT ON workflow_run FOR EACH ROW
    WHEN (NEW.idempotency_key IS NOT NULL AND NEW.deleted_at IS NULL) EXECUTE FUNCTION maniflex_note_key();

-- name: free_keys_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_free_key AFTER UPDATE OF deleted_at, idempotency_key ON workflow_run FOR EACH ROW
    WHEN (OLD.idempotency_key IS NOT NULL AND OLD.deleted_at IS NULL AND (
          NEW.deleted_at IS NOT NULL OR NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key))
    EXECUTE FUNCTION maniflex_free_key();

-- name: free_removed_keys_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_free_removed_key AFTER DELETE ON workflow_run FOR EACH ROW
    WHEN (OLD.idempotency_key IS NOT NULL AND OLD.deleted_at IS NULL) EXECUTE FUNCTION maniflex_free_key();

-- name: take_keys_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_take_key BEFORE INSERT ON workflow_run FOR EACH ROW
    WHEN (NEW.idempotency_key IS NOT NULL AND NEW.deleted_at IS NULL) EXECUTE FUNCTION maniflex_take_key();

-- name: take_changed_keys_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_take_changed_key BEFORE UPDATE OF deleted_at, idempotency_key ON workflow_run
    FOR EACH ROW WHEN (NEW.idempotency_key IS NOT NULL AND NEW.deleted_at IS NULL AND (
          OLD.deleted_at IS NOT NULL OR NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key))
    EXECUTE FUNCTION maniflex_take_key();

-- name: hold_inserted_groups_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_hold_inserted_group AFTER INSERT ON workflow_run FOR EACH ROW
    WHEN (NEW.group_key IS NOT NULL AND NEW.lease_until IS NOT NULL) EXECUTE FUNCTION maniflex_hold_group();

-- name: free_left_groups_trigger (only here)
-- Triggers of one event run in the order of their names: a group is left before another is held.
CREATE OR REPLACE TRIGGER maniflex_free_group AFTER UPDATE OF lease_until, group_key ON workflow_run FOR EACH ROW
    WHEN (OLD.group_key IS NOT NULL AND OLD.lease_until IS NOT NULL AND (
          NEW.lease_until IS NULL OR NEW.group_key IS DISTINCT FROM OLD.group_key))
    EXECUTE FUNCTION maniflex_free_group();

-- name: hold_groups_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_hold_group AFTER UPDATE OF lease_until, group_key ON workflow_run FOR EACH ROW
    WHEN (NEW.group_key IS NOT NULL AND NEW.lease_until IS NOT NULL AND (
          OLD.lease_until IS NULL OR NEW.group_key IS DISTINCT FROM OLD.group_key))
    EXECUTE FUNCTION maniflex_hold_group();

-- name: free_removed_groups_trigger (only here)
CREATE OR REPLACE TRIGGER maniflex_free_removed_group AFTER DELETE ON workflow_run FOR EACH ROW
    WHEN (OLD.group_key IS NOT NULL AND OLD.lease_until IS NOT NULL) EXECUTE FUNCTION maniflex_free_group();

-- name: copy_keys (only here)
-- The keys of :limit runs behind the id :after; triggers keep those of later ones.
WITH page AS MATERIALIZED (
    SELECT id, idempotency_key, deleted_at FROM workflow_run WHERE id > :after ORDER BY id LIMIT :limit
), copied AS (
    INSERT INTO workflow_key (key, run_id)
    SELECT idempotency_key, id FROM page WHERE idempotency_key IS NOT NULL AND deleted_at IS NULL
        ON CONFLICT (key) DO NOTHING
)
SELECT max(id) FROM page;

-- name: copy_groups (only here)
INSERT INTO workflow_group (group_key, run_id)
SELECT group_key, id FROM workflow_run WHERE group_key IS NOT NULL AND lease_until IS NOT NULL
    ON CONFLICT (group_key) DO UPDATE SET run_id = excluded.run_id;

-- name: prune_keys (only here)
-- The keys of runs that went with their partition, which nobody asked for since.
WITH page AS MATERIALIZED (
    SELECT k.key, k.run_id FROM workflow_key k
     WHERE k.run_id > :after AND k.run_id < :below ORDER BY k.run_id LIMIT :limit
), gone AS (
    DELETE FROM workflow_key k USING page p WHERE k.key = p.key AND k.run_id = p.run_id
       AND (SELECT 1 FROM workflow_run r WHERE r.id = p.run_id) IS NULL -- not EXISTS: that might read all runs
)
SELECT max(run_id), count(*) FROM page;

-- name: prune_orphans (only here)
-- Rows of runs that went with their partition, among :limit rows behind the run :after; up to which run it looked.
WITH page AS MATERIALIZED (
    SELECT DISTINCT d.workflow_id FROM (
        SELECT s.workflow_id FROM workflow_signal s
         WHERE s.workflow_id > :after AND s.workflow_id < :below ORDER BY s.workflow_id LIMIT :limit) d
), gone AS (
    DELETE FROM workflow_signal s USING page p WHERE s.workflow_id = p.workflow_id
       AND (SELECT 1 FROM workflow_run r WHERE r.id = p.workflow_id) IS NULL
)
SELECT max(workflow_id) FROM page;
