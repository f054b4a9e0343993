"""What is PostgreSQL's alone: sessions, pools, plans, SQLSTATEs, replicas and poolers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from maniflex.db.current import ReplicaReader, current_reader
from maniflex.db.port import Isolation
from maniflex.db.postgres.adapter import PostgresAdapter
from maniflex.db.postgres.errors import key_columns
from maniflex.db.postgres.replicated import ReplicatedAdapter
from maniflex.errors import (
    ConfigError,
    ConstraintViolation,
    DatabaseError,
    ForeignKeyViolation,
    SerializationFailure,
    Timeout,
    TransactionError,
    Unavailable,
    ValidationFailed,
)
from maniflex.sql.statement import Sql
from maniflex.testing.conformance import AdapterConformance
from tests.kit.postgres import as_role
from tests.kit.statements import eventually_answers

SLEEP = Sql("SELECT 1 FROM pg_sleep(3600)")


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[PostgresAdapter]:
    adapter = PostgresAdapter(url, **options)  # type: ignore[arg-type]  # the options of the test at hand
    await adapter.open()
    try:
        yield adapter
    finally:
        await adapter.close()


@pytest.fixture
async def db(postgres_url: str) -> AsyncIterator[PostgresAdapter]:
    async with opened(postgres_url, pool_size=3) as adapter:
        yield adapter


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresAdapter]:
    """Somebody else on the same database."""
    async with opened(postgres_url, application_name="other", pool_size=2) as adapter:
        yield adapter


async def value(adapter: PostgresAdapter, text: str, *params: object) -> object:
    row = await adapter.fetch_one(Sql(text, params))
    assert row is not None
    return row[0]


class TestPoolerConformance(AdapterConformance):
    hears = False

    @pytest.fixture(params=[None, "Orders"])
    async def adapter(
        self, postgres_url: str, request: pytest.FixtureRequest
    ) -> AsyncIterator[PostgresAdapter]:
        async with opened(postgres_url, pooler=True, schema=request.param) as adapter:
            yield adapter


class TestValues:
    async def test_values_keep_their_types(self, db: PostgresAdapter) -> None:
        moment = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
        key = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
        sent = (moment, key, Decimal("12.340"), '{"a": 1}', b"\x00\xff")
        row = await db.fetch_one(
            Sql("SELECT $1::timestamptz, $2::uuid, $3::numeric, $4::json, $5::bytea", sent)
        )
        assert row is not None
        assert (tuple(row), row[0].tzinfo) == (sent, UTC)

    @pytest.mark.parametrize(
        ("column", "bad"),
        [("int", 2**40), ("int", "seven"), ("varchar(3)", "four"), ("text", "nul\x00"), ("uuid", "no")],
    )
    async def test_a_value_that_does_not_fit_its_column_is_invalid_and_unspoken(
        self, db: PostgresAdapter, column: str, bad: object
    ) -> None:
        await db.execute(Sql(f"CREATE TABLE t (v {column})"))
        with pytest.raises(ValidationFailed) as refused:
            await db.execute(Sql("INSERT INTO t VALUES ($1)", (bad,)))
        assert refused.value.message == "a value cannot be stored in its column"

    async def test_a_value_too_large_for_its_index_is_invalid(self, db: PostgresAdapter) -> None:
        await db.execute(Sql("CREATE TABLE t (v text UNIQUE)"))
        noise = "".join(str(hash((n, "x"))) for n in range(2000))
        with pytest.raises(ValidationFailed, match="too large"):
            await db.execute(Sql("INSERT INTO t VALUES ($1)", (noise,)))

    async def test_a_refused_value_leaves_no_lock_behind(
        self, db: PostgresAdapter, other: PostgresAdapter
    ) -> None:
        await db.execute(Sql("CREATE TABLE t (v int)"))
        with pytest.raises(ValidationFailed):
            await db.execute(Sql("INSERT INTO t VALUES ($1)", (2**40,)))
        await other.execute(Sql("DROP TABLE t"))


class TestErrors:
    @pytest.mark.parametrize(
        ("detail", "columns"),
        [
            ("Key (email)=(a@b.c) already exists.", ("email",)),
            ("Key (a, b)=(1, 2)=(3) already exists.", ("a", "b")),
            ('Key ("Odd, ""name""", b)=(1, 2) already exists.', ('Odd, "name"', "b")),
            ("Key (lower((email)::character varying), tenant)=(x, y) already exists.", ("email", "tenant")),
            ("Key (COALESCE(gone_at, '1970-01-01'::timestamp without time zone))=(x)", ("gone_at",)),
            ("Schlüssel »(größe)=(1)« existiert bereits.", ("größe",)),
            (None, ()),
        ],
    )
    def test_columns_are_read_from_the_detail_and_values_are_not(
        self, detail: str | None, columns: tuple[str, ...]
    ) -> None:
        assert key_columns(detail) == columns

    async def test_a_foreign_key_names_the_column_that_points_nowhere(self, db: PostgresAdapter) -> None:
        await db.execute(Sql("CREATE TABLE users (id int PRIMARY KEY)"))
        await db.execute(Sql("CREATE TABLE posts (user_id int REFERENCES users)"))
        with pytest.raises(ForeignKeyViolation) as nowhere:
            await db.execute(Sql("INSERT INTO posts VALUES (7)"))
        await db.execute(Sql("INSERT INTO users VALUES (1)"))
        await db.execute(Sql("INSERT INTO posts VALUES (1)"))
        with pytest.raises(ForeignKeyViolation) as still_used:
            await db.execute(Sql("DELETE FROM users"))
        assert (nowhere.value.table, nowhere.value.columns) == ("posts", ("user_id",))
        assert (still_used.value.table, still_used.value.columns) == ("posts", ())

    async def test_a_missing_value_is_named(self, db: PostgresAdapter) -> None:
        await db.execute(Sql("CREATE TABLE t (a int NOT NULL)"))
        with pytest.raises(ConstraintViolation, match="required is missing") as missing:
            await db.execute(Sql("INSERT INTO t VALUES (NULL)"))
        assert (missing.value.table, missing.value.columns) == ("t", ("a",))

    async def test_a_statement_over_its_time_is_a_timeout(self, postgres_url: str) -> None:
        async with opened(postgres_url, statement_timeout=timedelta(milliseconds=400)) as adapter:
            with pytest.raises(Timeout):
                await adapter.fetch(SLEEP)
            assert await value(adapter, "SELECT 1") == 1

    async def test_a_lock_that_does_not_come_is_a_timeout(self, postgres_url: str) -> None:
        async with opened(postgres_url, lock_timeout=timedelta(milliseconds=50)) as adapter:
            await adapter.execute(Sql("CREATE TABLE t (v int)"))
            async with adapter.transaction() as tx:
                await tx.execute(Sql("LOCK TABLE t"))
                with pytest.raises(Timeout):
                    await adapter.fetch(Sql("SELECT * FROM t"))

    async def test_a_deadlock_is_a_serialization_failure(self, db: PostgresAdapter) -> None:
        await db.execute(Sql("CREATE TABLE t AS SELECT id FROM generate_series(1, 2) id"))
        first_locks: asyncio.Barrier = asyncio.Barrier(2)

        async def lock(*ids: int) -> None:
            async with db.transaction() as tx:
                await tx.execute(Sql("SET LOCAL deadlock_timeout = '20ms'"))
                await tx.fetch(Sql("SELECT 1 FROM t WHERE id = $1 FOR UPDATE", (ids[0],)))
                await first_locks.wait()
                await tx.fetch(Sql("SELECT 1 FROM t WHERE id = $1 FOR UPDATE", (ids[1],)))

        outcomes = await asyncio.gather(lock(1, 2), lock(2, 1), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "SerializationFailure"]

    async def test_a_raw_read_cannot_write(self, db: PostgresAdapter) -> None:
        await db.execute(Sql("CREATE TABLE t (v int)"))
        with pytest.raises(DatabaseError, match="only reads are allowed"):
            await db.fetch_named(Sql("INSERT INTO t VALUES (1) RETURNING v"))
        assert await db.fetch_named(Sql("SELECT count(*) AS n FROM t")) == [{"n": 0}]


class TestPlans:
    async def test_a_changed_table_is_read_with_its_new_columns(
        self, db: PostgresAdapter, other: PostgresAdapter
    ) -> None:
        await db.execute(Sql("CREATE TABLE t AS SELECT 1 AS a"))
        everything = Sql("SELECT * FROM t")
        assert [tuple(row) for row in await db.fetch(everything)] == [(1,)]
        await other.execute(Sql("ALTER TABLE t ADD COLUMN b int DEFAULT 2"))
        assert [tuple(row) for row in await db.fetch(everything)] == [(1, 2)]

    async def test_inside_a_transaction_a_changed_table_asks_to_try_again(
        self, db: PostgresAdapter, other: PostgresAdapter
    ) -> None:
        await db.execute(Sql("CREATE TABLE t AS SELECT 1 AS a"))
        everything = Sql("SELECT * FROM t")
        await db.fetch(everything)
        await other.execute(Sql("ALTER TABLE t ADD COLUMN b int DEFAULT 2"))
        with pytest.raises(SerializationFailure):
            async with db.transaction() as tx:
                await tx.fetch(everything)
        async with db.transaction() as tx:
            assert [tuple(row) for row in await tx.fetch(everything)] == [(1, 2)]

    async def test_a_connection_keeps_a_bounded_number_of_statements(self, postgres_url: str) -> None:
        async with opened(postgres_url, pool_size=1) as adapter:
            for number in range(600):
                await adapter.fetch(Sql(f"SELECT {number}"))
            assert await value(adapter, "SELECT count(*) <= 514 FROM pg_prepared_statements")

    async def test_a_statement_that_cannot_run_in_a_transaction_runs(self, db: PostgresAdapter) -> None:
        await db.execute(Sql("CREATE TABLE t (v int)"))
        await db.execute(Sql("CREATE INDEX CONCURRENTLY t_v ON t (v)"))
        await db.execute(Sql("VACUUM t"))


class TestSessions:
    async def test_every_session_starts_with_the_given_settings(self, postgres_url: str) -> None:
        async with opened(postgres_url, application_name="shop", schema="Shop") as adapter:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
            shown = [
                await value(adapter, f"SHOW {name}") for name in (*names, "TimeZone", "application_name")
            ]
            await adapter.execute(Sql("CREATE TABLE t (v int)"))
            assert shown == ["30s", "5s", "1min", "UTC", "shop"]
            assert await value(adapter, 'SELECT count(*) FROM "Shop".t') == 0

    async def test_a_setting_made_by_a_statement_does_not_outlive_it(self, postgres_url: str) -> None:
        async with opened(postgres_url, pool_size=1) as adapter:
            await adapter.execute(Sql("/* now */ SET statement_timeout = '1s'"))
            assert await value(adapter, "SHOW statement_timeout") == "30s"

    @pytest.mark.parametrize(
        "text", ["BEGIN", " -- so\n commit", "/* a */ /* b */ Rollback", "start transaction"]
    )
    async def test_transaction_control_in_sql_is_refused(self, db: PostgresAdapter, text: str) -> None:
        with pytest.raises(DatabaseError, match=r"transaction\(\)"):
            await db.execute(Sql(text))

    @pytest.mark.parametrize("name", ["", "1st", "a-b", 'a"b', "a" * 64])
    def test_a_schema_name_must_be_a_plain_identifier(self, name: str) -> None:
        with pytest.raises(ConfigError, match="schema name"):
            PostgresAdapter("postgresql://localhost/x", schema=name)

    async def test_a_schema_that_exists_needs_no_right_to_create_it(
        self, db: PostgresAdapter, postgres_url: str
    ) -> None:
        role = f"poor_{urlsplit(postgres_url).path.strip('/')}"
        poor = as_role(postgres_url, role)
        await db.execute(Sql("CREATE SCHEMA there"))
        await db.execute(Sql(f"CREATE ROLE {role} LOGIN"))
        try:
            async with opened(poor, schema="there") as adapter:
                await adapter.ping()
            with pytest.raises(ConfigError, match="nowhere"):
                await PostgresAdapter(poor, schema="nowhere").open()
        finally:
            await db.execute(Sql(f"DROP ROLE {role}"))

    async def test_pools_larger_than_half_the_server_are_warned_about(
        self, postgres_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "maniflex.db"):
            async with opened(postgres_url):
                assert caplog.messages == []
            async with opened(postgres_url, pool_size=4000):
                assert "pools of 4000 exceed half of max_connections" in caplog.text


class TestReplica:
    async def test_reads_of_a_reader_go_to_the_replica_until_it_writes(self, postgres_url: str) -> None:
        names = ["public", "pg_catalog"]
        where = Sql("SELECT current_schema()")
        adapter = ReplicatedAdapter(postgres_url, read_url=f"{postgres_url}?search_path=pg_catalog")
        await adapter.open()
        try:
            without_reader = (await adapter.fetch(where))[0][0]
            current_reader.set(ReplicaReader())
            outside = (await adapter.fetch(where))[0][0]
            named = await adapter.fetch_named(where)
            async with adapter.transaction() as tx:
                inside = (await tx.fetch(where))[0][0]
            written = (await adapter.write(where))[0][0]
            afterwards = (await adapter.fetch(where))[0][0]
        finally:
            await adapter.close()
        assert [outside, named[0]["current_schema"]] == [names[1]] * 2
        assert [without_reader, inside, written, afterwards] == [names[0]] * 4


class TestPoolerMode:
    async def test_nothing_is_left_on_the_connection(self, postgres_url: str) -> None:
        async with opened(postgres_url, pooler=True, pool_size=1, application_name="shop") as adapter:
            async with adapter.transaction(isolation=Isolation.SERIALIZABLE) as tx:
                inside = [
                    (await tx.fetch(Sql(f"SHOW {name}")))[0][0]
                    for name in ("lock_timeout", "application_name", "transaction_isolation")
                ]
            prepared = await value(adapter, "SELECT count(*) FROM pg_prepared_statements")
            outside = await value(adapter, "SHOW lock_timeout")
        assert (inside, prepared, outside) == (["5s", "shop", "serializable"], 0, "0")

    async def test_a_steady_sibling_is_steady_in_every_statement_and_leaves_nothing(
        self, postgres_url: str
    ) -> None:
        async with opened(postgres_url, pooler=True, pool_size=1) as adapter:
            sibling = adapter.sibling(steady=True)
            await sibling.open()
            try:
                names = ("jit", "enable_seqscan", "plan_cache_mode")
                found = [await value(sibling, f"SHOW {name}") for name in names]
            finally:
                await sibling.close()
            outside = await value(adapter, "SHOW enable_seqscan")
        assert (found, outside) == (["off", "off", "force_generic_plan"], "on")

    async def test_a_statement_over_its_time_is_given_up_on_the_server_too(
        self, postgres_url: str, other: PostgresAdapter
    ) -> None:
        options = {"pooler": True, "pool_size": 1, "statement_timeout": timedelta(milliseconds=400)}
        async with opened(postgres_url, **options) as adapter:
            with pytest.raises(Timeout):
                await adapter.fetch(SLEEP)
            gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE state = 'active' AND query = $1"
            await eventually_answers(other, Sql(gone, (SLEEP.text,)))
            assert await value(adapter, "SELECT 1") == 1


class TestTransactions:
    @pytest.mark.parametrize(
        "text",
        [
            "/* one /* in */ SELECT */ COMMIT",
            "; COMMIT",
            "-- one\rROLLBACK",
            "PREPARE /* it */ TRANSACTION 'left'",
        ],
    )
    async def test_control_hidden_behind_comments_is_refused_and_all_is_rolled_back(
        self, db: PostgresAdapter, text: str
    ) -> None:
        await db.execute(Sql("CREATE TABLE notes (a integer)"))

        async def write_and(*, stream: bool) -> None:
            async with db.transaction() as tx:
                await tx.execute(Sql("INSERT INTO notes VALUES (1)"))
                await (anext(tx.stream(Sql(text), 1)) if stream else tx.execute(Sql(text)))

        for stream in (False, True):
            with pytest.raises(DatabaseError, match=r"with transaction\(\), not with SQL"):
                await write_and(stream=stream)
        assert await value(db, "SELECT count(*) FROM notes") == 0

    async def test_a_swallowed_failure_is_not_a_commit(self, db: PostgresAdapter) -> None:
        await db.execute(Sql("CREATE TABLE t (v int PRIMARY KEY)"))

        async def swallow() -> None:
            async with db.transaction() as tx:
                await tx.execute(Sql("INSERT INTO t VALUES (1)"))
                with pytest.raises(ConstraintViolation):
                    await tx.execute(Sql("INSERT INTO t VALUES (1)"))
                with pytest.raises(DatabaseError, match="roll it back"):
                    await tx.fetch(Sql("SELECT 1"))

        with pytest.raises(TransactionError) as refused:
            await swallow()
        assert refused.value.code == "TX_COMMIT_ERROR"
        assert await value(db, "SELECT count(*) FROM t") == 0

    async def test_a_caller_cancelled_while_committing_still_has_its_calls_made(
        self, db: PostgresAdapter, other: PostgresAdapter
    ) -> None:
        await db.execute(Sql("CREATE TABLE t (v int)"))
        await db.execute(
            Sql(
                "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$"
            )
        )
        await db.execute(
            Sql(
                "CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION wait()"
            )
        )
        told = asyncio.Event()

        async def insert() -> None:
            async with db.transaction() as tx:
                tx.after_commit(told.set)
                await tx.execute(Sql("INSERT INTO t VALUES (1)"))

        async with other.transaction() as blocker:
            await blocker.fetch(Sql("SELECT pg_advisory_xact_lock(7)"))
            inserting = asyncio.create_task(insert())
            waiting = "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            await eventually_answers(other, Sql(waiting))
            inserting.cancel()
            await asyncio.wait([inserting])
            assert inserting.cancelled()
            assert not told.is_set()
        async with asyncio.timeout(10):
            await told.wait()
        assert await value(db, "SELECT count(*) FROM t") == 1

    async def test_a_commit_that_is_cut_off_is_not_called_retryable(
        self, db: PostgresAdapter, other: PostgresAdapter
    ) -> None:
        async def lose_it() -> None:
            async with db.transaction() as tx:
                [[pid]] = await tx.fetch(Sql("SELECT pg_backend_pid()"))
                await other.fetch(Sql("SELECT pg_terminate_backend($1, 5000)", (pid,)))

        with pytest.raises(TransactionError) as cut:
            await lose_it()
        assert (cut.value.code, cut.value.retryable) == ("TX_COMMIT_ERROR", False)
        assert await value(db, "SELECT 1") == 1


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "label"),
        [
            (
                "postgresql://ann:secret@db.example:6000/shop?sslmode=require",
                "postgresql:shop@db.example:6000",
            ),
            ("postgres://ann:s%40cret@[::1]:6000/shop", "postgresql:shop@[::1]:6000"),
            ("postgresql://ann:se@cret@one,two:6000/shop", "postgresql:shop@one:5432,two:6000"),
            ("postgresql:///shop?host=/run/postgresql", "postgresql:shop@/run/postgresql"),
        ],
    )
    def test_the_label_has_database_host_and_port_but_no_login(self, url: str, label: str) -> None:
        assert PostgresAdapter(url).label == label

    @pytest.mark.parametrize(
        "url",
        [
            "mysql://ann:hush@localhost/shop",
            "postgresql://ann:hu@sh:x@hush:hush/shop",
            "postgresql://ann:[hush@localhost/shop",
            "postgresql://ann:hush@localhost:99999/shop",
            "postgresql://localhost/shop?hush",
        ],
    )
    def test_a_url_that_cannot_be_read_is_not_shown(self, url: str) -> None:
        with pytest.raises(ConfigError) as refused:
            PostgresAdapter(url)
        assert "hush" not in str(refused.value)
        assert refused.value.__cause__ is None

    async def test_a_database_that_is_not_there_stops_the_start(self, postgres_url: str) -> None:
        absent = urlsplit(postgres_url)._replace(path="/no_such_database").geturl()
        with pytest.raises(ConfigError, match="no_such_database"):
            await PostgresAdapter(absent).open()

    async def test_options_only_libpq_knows_are_left_out(self, postgres_url: str) -> None:
        options = "sslmode=prefer&channel_binding=prefer&connect_timeout=5&work_mem=8MB"
        async with opened(f"{postgres_url}?{options}") as adapter:
            assert await value(adapter, "SHOW work_mem") == "8MB"

    async def test_nobody_listening_is_unavailable(self, unused_tcp_port: int) -> None:
        with pytest.raises(Unavailable):
            await PostgresAdapter(f"postgresql://ann@127.0.0.1:{unused_tcp_port}/shop").open()

    def test_a_missing_driver_says_what_to_install(self) -> None:
        program = "import sys; sys.modules['asyncpg'] = None; import maniflex.db.postgres.adapter"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert 'pip install "maniflex[postgres]"' in done.stderr
