
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE public.book_histories (
    id text NOT NULL COLLATE pg_catalog."C",
    record_id text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    operation text NOT NULL COLLATE pg_catalog."C",
    actor_id text COLLATE pg_catalog."C",
    tenant_id text COLLATE pg_catalog."C",
    "timestamp" timestamp with time zone NOT NULL,
    request_id text COLLATE pg_catalog."C",
    source text NOT NULL COLLATE pg_catalog."C",
    reason text COLLATE pg_catalog."C",
    diff json NOT NULL,
    snapshot json,
    subject_id text COLLATE pg_catalog."C",
    erased_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.books (
    id text NOT NULL COLLATE pg_catalog."C",
    title text NOT NULL COLLATE pg_catalog."C",
    price numeric NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    active boolean NOT NULL,
    tags json NOT NULL,
    shelf_id text NOT NULL COLLATE pg_catalog."C",
    publish_at timestamp with time zone,
    hide_at timestamp with time zone,
    deleted_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    search_vector tsvector GENERATED ALWAYS AS (to_tsvector('english'::regconfig, translate(COALESCE("left"(title, 250000), ''::text), 'µſςϐϑϕϖϰϱϵẛι!"#$%&''()*+,-./:;<=>?@[\]^_`{|}~'::text, 'μsσβθφπκρεṡι                                '::text))) STORED
);

COMMENT ON COLUMN public.books.search_vector IS 'maniflex search: 2 english (title)';

CREATE TABLE public.flags (
    id text NOT NULL COLLATE pg_catalog."C",
    code text NOT NULL COLLATE pg_catalog."C",
    is_deleted boolean NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.inbox_message (
    id text NOT NULL COLLATE pg_catalog."C",
    consumer text NOT NULL COLLATE pg_catalog."C",
    message_id text NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.outbox_event (
    id text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    key text COLLATE pg_catalog."C",
    payload json,
    actor_id text COLLATE pg_catalog."C",
    tenant_id text COLLATE pg_catalog."C",
    raw text COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    attempts bigint NOT NULL,
    last_error text COLLATE pg_catalog."C",
    retry_at timestamp with time zone NOT NULL,
    lease text COLLATE pg_catalog."C",
    lease_until timestamp with time zone,
    leased_by text COLLATE pg_catalog."C",
    claimed_with bigint NOT NULL,
    published_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT outbox_event_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'dead'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE SEQUENCE public.outbox_event_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE public.outbox_lane (
    key text NOT NULL COLLATE pg_catalog."C",
    lease text NOT NULL COLLATE pg_catalog."C",
    lease_until timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE public.schedule_firing (
    id text NOT NULL COLLATE pg_catalog."C",
    schedule_id text NOT NULL COLLATE pg_catalog."C",
    schedule_name text NOT NULL COLLATE pg_catalog."C",
    due_at timestamp with time zone NOT NULL,
    fired_at timestamp with time zone NOT NULL,
    outcome text NOT NULL COLLATE pg_catalog."C",
    manual boolean NOT NULL,
    skipped_until timestamp with time zone,
    run_id text COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.schedules (
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    cron text NOT NULL COLLATE pg_catalog."C",
    timezone text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    target text NOT NULL COLLATE pg_catalog."C",
    payload json,
    policy text NOT NULL COLLATE pg_catalog."C",
    attempts bigint,
    allow_private boolean NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    last_run_at timestamp with time zone,
    next_run_at timestamp with time zone,
    last_error text COLLATE pg_catalog."C",
    created_by text COLLATE pg_catalog."C",
    updated_by text COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.shelves (
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.workflow_event (
    id text DEFAULT ((((substr(lpad(to_hex(((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint), 12, '0'::text), 1, 8) || '-'::text) || substr(lpad(to_hex(((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint), 12, '0'::text), 9)) || '-7'::text) || substr((gen_random_uuid())::text, 16)) NOT NULL COLLATE pg_catalog."C",
    workflow_id text NOT NULL COLLATE pg_catalog."C",
    event_type text NOT NULL COLLATE pg_catalog."C",
    data json,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE public.workflow_run (
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    status text DEFAULT 'pending'::text NOT NULL COLLATE pg_catalog."C",
    priority bigint DEFAULT 0 NOT NULL,
    idempotency_key text COLLATE pg_catalog."C",
    payload json NOT NULL,
    result json,
    error json,
    last_error text COLLATE pg_catalog."C",
    attempt bigint DEFAULT 0 NOT NULL,
    max_attempts bigint DEFAULT 3 NOT NULL,
    run_at timestamp with time zone NOT NULL,
    timeout double precision,
    group_key text COLLATE pg_catalog."C",
    lease text COLLATE pg_catalog."C",
    lease_until timestamp with time zone,
    leased_by text COLLATE pg_catalog."C",
    waiting_for text COLLATE pg_catalog."C",
    actor_id text COLLATE pg_catalog."C",
    tenant_id text COLLATE pg_catalog."C",
    trace_id text COLLATE pg_catalog."C",
    parent_id text COLLATE pg_catalog."C",
    delete_reason text COLLATE pg_catalog."C",
    deleted_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT workflow_run_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'leased'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text])))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE public.workflow_signal (
    id text NOT NULL COLLATE pg_catalog."C",
    workflow_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    payload json,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE public.workflow_step (
    id text NOT NULL COLLATE pg_catalog."C",
    workflow_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    result json,
    undoable boolean NOT NULL,
    compensated boolean NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

INSERT INTO public.book_histories VALUES ('01a1e925-bb97-7dd5-b7d7-6fd410a26c85', '01a1e925-bb95-788b-abc9-4091e678b863', 1, 'create', NULL, NULL, '2026-11-17 10:55:26.613782+00', NULL, 'code', NULL, '{"title":{"old":null,"new":"Book 0"},"price":{"old":null,"new":"10.50"},"status":{"old":null,"new":"draft"},"active":{"old":null,"new":true},"tags":{"old":null,"new":["a"]},"shelf_id":{"old":null,"new":"01a1e925-bb8c-7afe-aa40-7fa37420c91e"}}', '{"id":"01a1e925-bb95-788b-abc9-4091e678b863","title":"Book 0","price":"10.50","status":"draft","active":true,"tags":["a"],"shelf_id":"01a1e925-bb8c-7afe-aa40-7fa37420c91e","publish_at":null,"hide_at":null,"deleted_at":null,"created_at":"2026-11-17T10:55:26.613782Z","updated_at":"2026-11-17T10:55:26.613782Z"}', NULL, NULL, '2026-11-17 10:55:26.620823+00', '2026-11-17 10:55:26.620823+00');
INSERT INTO public.book_histories VALUES ('01a1e925-bbaf-7692-bdb0-48e9cb736b4f', '01a1e925-bbaf-7692-bdb0-48e9cb1122e9', 1, 'create', NULL, NULL, '2026-11-17 10:55:26.639418+00', NULL, 'code', NULL, '{"title":{"old":null,"new":"Book 1"},"price":{"old":null,"new":"9"},"status":{"old":null,"new":"draft"},"active":{"old":null,"new":true},"tags":{"old":null,"new":["a"]},"shelf_id":{"old":null,"new":"01a1e925-bb8c-7afe-aa40-7fa37420c91e"}}', '{"id":"01a1e925-bbaf-7692-bdb0-48e9cb1122e9","title":"Book 1","price":"9","status":"draft","active":true,"tags":["a"],"shelf_id":"01a1e925-bb8c-7afe-aa40-7fa37420c91e","publish_at":null,"hide_at":null,"deleted_at":null,"created_at":"2026-11-17T10:55:26.639418Z","updated_at":"2026-11-17T10:55:26.639418Z"}', NULL, NULL, '2026-11-17 10:55:26.640997+00', '2026-11-17 10:55:26.640997+00');
INSERT INTO public.book_histories VALUES ('01a1e925-bbb5-742c-9769-79d278cfacd2', '01a1e925-bbb5-742c-9769-79d278a6e931', 1, 'create', NULL, NULL, '2026-11-17 10:55:26.645675+00', NULL, 'code', NULL, '{"title":{"old":null,"new":"Book 2"},"price":{"old":null,"new":"100"},"status":{"old":null,"new":"draft"},"active":{"old":null,"new":true},"tags":{"old":null,"new":["a"]},"shelf_id":{"old":null,"new":"01a1e925-bb8c-7afe-aa40-7fa37420c91e"}}', '{"id":"01a1e925-bbb5-742c-9769-79d278a6e931","title":"Book 2","price":"100","status":"draft","active":true,"tags":["a"],"shelf_id":"01a1e925-bb8c-7afe-aa40-7fa37420c91e","publish_at":null,"hide_at":null,"deleted_at":null,"created_at":"2026-11-17T10:55:26.645675Z","updated_at":"2026-11-17T10:55:26.645675Z"}', NULL, NULL, '2026-11-17 10:55:26.646557+00', '2026-11-17 10:55:26.646557+00');

INSERT INTO public.books VALUES ('01a1e925-bb95-788b-abc9-4091e678b863', 'Book 0', 10.50, 'draft', true, '["a"]', '01a1e925-bb8c-7afe-aa40-7fa37420c91e', NULL, NULL, NULL, '2026-11-17 10:55:26.613782+00', '2026-11-17 10:55:26.613782+00', DEFAULT);
INSERT INTO public.books VALUES ('01a1e925-bbaf-7692-bdb0-48e9cb1122e9', 'Book 1', 9, 'draft', true, '["a"]', '01a1e925-bb8c-7afe-aa40-7fa37420c91e', NULL, NULL, NULL, '2026-11-17 10:55:26.639418+00', '2026-11-17 10:55:26.639418+00', DEFAULT);
INSERT INTO public.books VALUES ('01a1e925-bbb5-742c-9769-79d278a6e931', 'Book 2', 100, 'draft', true, '["a"]', '01a1e925-bb8c-7afe-aa40-7fa37420c91e', NULL, NULL, NULL, '2026-11-17 10:55:26.645675+00', '2026-11-17 10:55:26.645675+00', DEFAULT);

INSERT INTO public.flags VALUES ('01a1e925-bbb7-797b-9c41-370f003e2aa6', 'x', false, '2026-11-17 10:55:26.647227+00', '2026-11-17 10:55:26.647227+00');

INSERT INTO public.outbox_event VALUES ('01a1e925-bbd9-7129-bf0d-57225c81c4ed', 1, 'book.made', NULL, '{"n":1}', NULL, NULL, NULL, 'pending', 0, NULL, '2026-11-17 10:55:26.681241+00', NULL, NULL, NULL, 0, NULL, '2026-11-17 10:55:26.681241+00', '2026-11-17 10:55:26.681241+00');

INSERT INTO public.shelves VALUES ('01a1e925-bb8c-7afe-aa40-7fa37420c91e', 'Classics', '2026-11-17 10:55:26.604265+00', '2026-11-17 10:55:26.604265+00');

INSERT INTO public.workflow_event VALUES ('01a1e925-bbc9-796e-9111-1251570f80f0', '01a1e925-bbc9-796e-9111-29a46a1ab76e', 'created', NULL, '2026-11-17 10:55:26.665306+00', '2026-11-17 10:55:26.665306+00');

INSERT INTO public.workflow_run VALUES ('01a1e925-bbc9-796e-9111-29a46a1ab76e', 'report.v1', 'pending', 0, NULL, '{"n":1}', NULL, NULL, NULL, 0, 3, '2026-11-17 10:55:26.665306+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-17 10:55:26.665306+00', '2026-11-17 10:55:26.665306+00');

SELECT pg_catalog.setval('public.outbox_event_seq', 1, true);

ALTER TABLE ONLY public.book_histories
    ADD CONSTRAINT book_histories_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.books
    ADD CONSTRAINT books_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.flags
    ADD CONSTRAINT flags_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.inbox_message
    ADD CONSTRAINT inbox_message_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.outbox_event
    ADD CONSTRAINT outbox_event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.outbox_lane
    ADD CONSTRAINT outbox_lane_pkey PRIMARY KEY (key);

ALTER TABLE ONLY public.schedule_firing
    ADD CONSTRAINT schedule_firing_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.shelves
    ADD CONSTRAINT shelves_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.workflow_event
    ADD CONSTRAINT workflow_event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.workflow_run
    ADD CONSTRAINT workflow_run_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.workflow_signal
    ADD CONSTRAINT workflow_signal_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.workflow_step
    ADD CONSTRAINT workflow_step_pkey PRIMARY KEY (id);

CREATE INDEX due_books_hide_at_92672ac1 ON public.books USING btree (hide_at, id) WHERE ((hide_at IS NOT NULL) AND (deleted_at IS NULL) AND (active <> false));

CREATE INDEX due_books_publish_at_4fc1bda9 ON public.books USING btree (publish_at, id) WHERE ((publish_at IS NOT NULL) AND (deleted_at IS NULL) AND (status = 'draft'::text));

CREATE INDEX idx_book_histories_actor_id_timestamp ON public.book_histories USING btree (actor_id, "timestamp");

CREATE INDEX idx_books_price ON public.books USING btree (price);

CREATE INDEX idx_books_search_vector ON public.books USING gin (search_vector);

CREATE INDEX idx_books_shelf_id ON public.books USING btree (shelf_id);

CREATE INDEX idx_schedule_firing_run_id ON public.schedule_firing USING btree (run_id);

CREATE INDEX idx_workflow_event_workflow_id ON public.workflow_event USING btree (workflow_id);

CREATE INDEX inbox_message_created_idx ON public.inbox_message USING btree (created_at);

CREATE UNIQUE INDEX inbox_message_once_idx ON public.inbox_message USING btree (consumer, message_id);

CREATE INDEX outbox_event_dead_idx ON public.outbox_event USING btree (seq) WHERE (status = 'dead'::text);

CREATE INDEX outbox_event_key_idx ON public.outbox_event USING btree (key, seq) WHERE ((
CASE status
    WHEN 'pending'::text THEN 1
    ELSE NULL::integer
END IS NOT NULL) AND (key IS NOT NULL));

CREATE INDEX outbox_event_kind_idx ON public.outbox_event USING btree (kind, retry_at, seq) WHERE (
CASE status
    WHEN 'pending'::text THEN 1
    ELSE NULL::integer
END IS NOT NULL);

CREATE INDEX outbox_event_published_idx ON public.outbox_event USING btree (published_at) WHERE (status = 'delivered'::text);

CREATE INDEX schedule_firing_fired ON public.schedule_firing USING btree (fired_at);

CREATE UNIQUE INDEX schedule_firing_once ON public.schedule_firing USING btree (schedule_id, due_at) WHERE (NOT manual);

CREATE INDEX schedules_due ON public.schedules USING btree (next_run_at, id) WHERE (status = 'active'::text);

CREATE UNIQUE INDEX uq_book_histories_record_id_version ON public.book_histories USING btree (record_id, version);

CREATE UNIQUE INDEX uq_books_shelf_id_title ON public.books USING btree (shelf_id, title) WHERE (deleted_at IS NULL);

CREATE UNIQUE INDEX uq_flags_code ON public.flags USING btree (code) WHERE (is_deleted IS FALSE);

CREATE UNIQUE INDEX uq_schedules_name ON public.schedules USING btree (name);

CREATE UNIQUE INDEX uq_shelves_name ON public.shelves USING btree (name);

CREATE INDEX workflow_run_actor_idx ON public.workflow_run USING btree (actor_id, id) WHERE (actor_id IS NOT NULL);

CREATE UNIQUE INDEX workflow_run_group_idx ON public.workflow_run USING btree (group_key) WHERE ((group_key IS NOT NULL) AND (lease_until IS NOT NULL));

CREATE INDEX workflow_run_grouped_idx ON public.workflow_run USING btree (type, priority DESC, group_key, run_at, id) WHERE ((status = 'pending'::text) AND (deleted_at IS NULL) AND (group_key IS NOT NULL));

CREATE UNIQUE INDEX workflow_run_idempotency_idx ON public.workflow_run USING btree (idempotency_key) WHERE ((idempotency_key IS NOT NULL) AND (deleted_at IS NULL));

CREATE INDEX workflow_run_lease_idx ON public.workflow_run USING btree (lease_until) WHERE (lease_until IS NOT NULL);

CREATE INDEX workflow_run_parent_idx ON public.workflow_run USING btree (parent_id) WHERE (parent_id IS NOT NULL);

CREATE INDEX workflow_run_waiting_for_idx ON public.workflow_run USING btree (waiting_for) WHERE (waiting_for IS NOT NULL);

CREATE INDEX workflow_run_waiting_idx ON public.workflow_run USING btree (type, priority DESC, (((group_key IS NOT NULL))::integer), run_at, id) WHERE ((status = 'pending'::text) AND (deleted_at IS NULL));

CREATE INDEX workflow_signal_run_idx ON public.workflow_signal USING btree (workflow_id, name, id);

CREATE UNIQUE INDEX workflow_step_name_idx ON public.workflow_step USING btree (workflow_id, name);

