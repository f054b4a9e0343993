"""K12, T4: tables stand where an entry needs them and nowhere else, and are swept in the background."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from maniflex import Context, DeclarationError, Model, Server, field
from maniflex.background.expired_rows import BATCH, ExpiredRows
from maniflex.middleware import db, stores
from maniflex.middleware.stores.form import IdempotencyKeyRow, RateLimitRow
from maniflex.pipeline.entry import ANYWHERE, Entry, Kept
from maniflex.pipeline.registration import ACTION
from maniflex.testing import FakeClock, client
from tests.catalogue.stores.places import fill
from tests.kit.http import error_of

OURS = ("rate_limit", "idempotency_key", "revoked_token", "revoked_user", "cache_entry")


class Note(Model, table="notes"):
    text: str = ""


class Keyed(Entry):
    """An entry whose table stands beside the rows that are written."""

    name = "test.keyed"
    homes: ClassVar = {"deserialize": ANYWHERE, ACTION: ANYWHERE}

    def __init__(self) -> None:
        super().__init__()
        self.store = stores.SqlIdempotency()
        self.keeps = Kept((self.store,), beside_rows=True)


async def tables_of(server: Server) -> set[str]:
    names = set()
    for name in OURS:
        try:
            await server.raw_query(f"SELECT 1 FROM {name}")
        except Exception:
            continue
        names.add(name)
    return names


def plain() -> Server:
    server = Server(path_prefix="")
    server.register(Note)
    return server


async def test_without_entries_there_are_no_tables_and_no_sweeper(database_url: str) -> None:
    server = plain()
    async with client(server, database=database_url, background=True):
        assert await tables_of(server) == set()
        assert not any(isinstance(one, ExpiredRows) for one in server._lifecycle.running)


async def test_an_entry_brings_its_table_wherever_it_is_registered(database_url: str) -> None:
    on_pipeline, in_action = plain(), plain()
    on_pipeline.pipeline.auth.register(db.rate_limit(5))

    @in_action.action("POST", "/x", middleware=[db.rate_limit(5)])
    async def handler(ctx: Context) -> None: ...

    class Own(Model, table="own", middleware={"db": db.rate_limit(5)}):
        text: str = ""

    on_model = plain()
    on_model.register(Own)
    for server in (on_pipeline, in_action, on_model):
        async with client(server, database=database_url, background=True):
            assert await tables_of(server) == {"rate_limit"}
            [sweeper] = [one for one in server._lifecycle.running if isinstance(one, ExpiredRows)]
            assert not sweeper.dead
            await server.raw_exec("DROP TABLE rate_limit")


class Idle:
    """A service of a worker."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


async def test_a_process_that_works_sweeps_too_and_a_client_does_not(database_url: str) -> None:
    server = plain()
    server.pipeline.auth.register(db.rate_limit(5))
    for role, sweepers in (("worker", 1), ("client", 0)):
        with server.on_database(database_url):
            async with server.lifespan(role=role, work=lambda: [Idle()]):
                running = [one for one in server._lifecycle.running if isinstance(one, ExpiredRows)]
                assert len(running) == sweepers


async def test_the_tables_have_no_routes(database_url: str) -> None:
    server = plain()
    server.pipeline.auth.register(db.rate_limit(5))
    async with client(server, database=database_url) as http:
        error_of(await http.get("/rate_limit"), 404, "NOT_FOUND")
        assert "rate_limit" not in str((await http.get("/openapi.json")).json().get("paths", {}).keys())


def test_no_model_may_refer_to_them() -> None:
    class Spy(Model, table="spies"):
        bucket_id: str = field(relation="RateLimitRow")

    server = plain()
    server.register(Spy)
    server.pipeline.auth.register(db.rate_limit(5))
    with pytest.raises(DeclarationError, match=r"Spy\.bucket_id: keep the id as a plain field"):
        server.seal()


async def test_a_table_beside_the_rows_is_in_every_database_that_needs_it(
    database_url: str, tmp_path: Path
) -> None:
    class Far(Model, table="far", database=f"sqlite:///{tmp_path}/far.db"):
        text: str = ""

    class Elsewhere(Model, table="elsewhere", database=f"sqlite:///{tmp_path}/elsewhere.db"):
        text: str = ""

    entry = Keyed()
    server = plain()
    server.register(Far, Elsewhere)
    server.pipeline.deserialize.register(entry, models=[Note, Far])
    clock = FakeClock()
    async with client(server, database=database_url, clock=clock):
        runtime = server._seal().runtime
        for model in (Note, Far):
            store = entry.store.on(runtime.stores[model].adapter)
            claim = await store.claim("key", "body", lease=30, now=clock.now())
            assert claim.state is stores.ClaimState.CLAIMED
        with pytest.raises(stores.StoreUnavailable):
            await entry.store.on(runtime.stores[Elsewhere].adapter).look("key", "body", now=clock.now())


async def test_expired_rows_are_removed_in_batches_and_others_stay(database_url: str) -> None:
    clock = FakeClock()
    server = Server(database_url, clock=clock, background=False)
    server.register(IdempotencyKeyRow, RateLimitRow)
    async with server.lifespan(role="client"):
        runtime = server._seal().runtime
        adapter = runtime.adapter
        store = stores.SqlIdempotency()
        store.attach(adapter, clock)
        await fill(server, clock, 2 * BATCH + 10)
        alive = await store.claim("alive", "body", lease=3600, now=clock.now())
        places = [(adapter, runtime.stores[table].meta) for table in (IdempotencyKeyRow, RateLimitRow)]
        sweeper = ExpiredRows(places, clock, server._logger)

        clock.advance(timedelta(seconds=90))
        assert [await sweeper.tick() for _ in range(3)] == [True, True, False]

        [row] = await server.raw_query("SELECT token FROM idempotency_key")
        assert row["token"] == alive.token
