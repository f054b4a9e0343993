"""Transactions around requests: what is kept, what is undone, and when others are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest

from maniflex import (
    Context,
    DatabaseError,
    Model,
    Next,
    NotFound,
    Response,
    Server,
    field,
    with_transaction,
)
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, total
from tests.kit.waiting import PATIENCE


class Sale(Model):
    pieces: int
    name: str = field(default="", unique=False)


class Ledger(Model):
    entry: str = field(unique=True, filterable=True)


def shop(*steps: Callable[[Context, Next], Any], isolation: str | None = None) -> Server:
    server = Server()
    server.register(Sale, Ledger)
    server.pipeline.service.register(with_transaction(isolation), models=[Sale], operations=["create"])
    for step in steps:
        server.pipeline.service.register(step, models=[Sale], operations=["create"])
    return server


async def write_ledger(ctx: Context, next: Next) -> None:
    await ctx.db(Ledger).create(entry="by record")
    await ctx.raw_exec(
        "INSERT INTO ledgers (id, entry, created_at, updated_at) "
        "SELECT ?, ?, created_at, updated_at FROM ledgers",
        "raw",
        "by hand",
    )
    await next()


async def test_everything_is_kept_when_the_request_succeeds(database_url: str) -> None:
    async with client(shop(write_ledger), database=database_url) as http:
        await created(http, "/api/sales", pieces=1)
        assert await total(http, "/api/sales") == 1
        assert await total(http, "/api/ledgers") == 2


async def raises(ctx: Context, next: Next) -> None:
    await next()
    raise RuntimeError("afterwards")


async def aborts(ctx: Context, next: Next) -> None:
    await next()
    ctx.abort(409, "CHANGED_MY_MIND", "no")


async def answers_400(ctx: Context, next: Next) -> None:
    await next()
    ctx.response = Response(400, error={"code": "BAD", "message": "no"})


async def answers_503(ctx: Context, next: Next) -> None:
    await next()
    ctx.response = Response(503, error={"code": "LATER", "message": "no"})


async def breaks_a_rule(ctx: Context, next: Next) -> None:
    await next()
    await ctx.db(Ledger).create(entry="by record")


@pytest.mark.parametrize(
    ("last", "status"),
    [(raises, 500), (aborts, 409), (answers_400, 400), (answers_503, 503), (breaks_a_rule, 409)],
)
async def test_nothing_is_kept_when_it_does_not(
    database_url: str, last: Callable[[Context, Next], Any], status: int
) -> None:
    told: list[str] = []

    async def announce(ctx: Context, next: Next) -> None:
        ctx.after_commit(lambda: told.append("told"))
        await next()

    async with client(shop(announce, write_ledger, last), database=database_url) as http:
        assert (await http.post("/api/sales", json={"pieces": 1})).status_code == status
        assert await total(http, "/api/sales") == 0
        assert await total(http, "/api/ledgers") == 0
    assert told == []


async def test_an_answer_below_400_commits(database_url: str) -> None:
    async def accepts(ctx: Context, next: Next) -> None:
        await next()
        ctx.response = Response(302, headers={"location": "/elsewhere"})

    async with client(shop(accepts), database=database_url) as http:
        assert (await http.post("/api/sales", json={"pieces": 1})).status_code == 302
        assert await total(http, "/api/sales") == 1


async def test_inside_it_reads_see_what_was_written_and_outside_nobody_does(database_url: str) -> None:
    seen: dict[str, int] = {}
    server = shop()

    @server.pipeline.db.middleware(models=[Sale], operations=["create"], at="after")
    async def look(ctx: Context, next: Next) -> None:
        seen["inside"] = await ctx.db(Sale).count()
        seen["raw inside"] = (await ctx.raw_query("SELECT count(*) AS n FROM sales"))[0]["n"]
        outside = asyncio.get_running_loop().create_task(outsider(), context=clean)
        seen["outside"] = await outside
        await next()

    async def outsider() -> int:
        return await server.db(Sale).count()

    clean = copy_context()
    async with client(server, database=database_url) as http:
        await created(http, "/api/sales", pieces=1)
    assert seen == {"inside": 1, "raw inside": 1, "outside": 0}


async def test_others_are_told_after_the_commit_in_order(database_url: str) -> None:
    log: list[Any] = []
    server = shop()

    @server.pipeline.service.middleware(models=[Sale], operations=["create"])
    async def announce(ctx: Context, next: Next) -> None:
        async def count() -> None:
            log.append(("committed", await server.db(Sale).count(), ctx.tx is None))

        ctx.after_commit(count)
        ctx.after_commit(lambda: log.append("second"))
        await next()
        log.append("stored")

    async with client(server, database=database_url) as http:
        await created(http, "/api/sales", pieces=1)
    assert log == ["stored", ("committed", 1, True), "second"]


async def test_one_inside_another_joins_it(database_url: str) -> None:
    handles: list[Any] = []

    async def nested(ctx: Context, next: Next) -> None:
        handles.append(ctx.tx)
        async with ctx.transaction() as inner:
            handles.append(inner)
            await ctx.db(Ledger).create(entry="inner")
            async with ctx.transaction():
                await next()
        handles.append(ctx.tx)
        ctx.abort(409, "LATE", "after the inner block ended")

    async with client(shop(nested), database=database_url) as http:
        error_of(await http.post("/api/sales", json={"pieces": 1}), 409, "LATE")
        assert await total(http, "/api/ledgers") == 0
        assert await total(http, "/api/sales") == 0
    assert handles[0] is not None
    assert all(handle is handles[0] for handle in handles)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_handle_is_gone_afterwards(database_url: str, fails: bool) -> None:
    seen: list[Any] = []
    server = Server()
    server.register(Sale, Ledger)

    @server.action("POST", "/go")
    async def go(ctx: Context) -> None:
        seen.append(ctx.tx)
        try:
            async with ctx.transaction() as tx:
                seen.append(ctx.tx is tx)
                await ctx.db(Sale).create(pieces=1)
                if fails:
                    raise KeyError("no")
        except KeyError:
            pass
        seen.append(ctx.tx)
        seen.append(await ctx.db(Sale).count())
        with pytest.raises(DatabaseError):
            await server.db(Sale, tx).count()

    async with client(server, database=database_url) as http:
        assert (await http.post("/api/go")).status_code == 204
    assert seen == [None, True, None, 0 if fails else 1]


async def test_a_script_can_use_one_too(database_url: str) -> None:
    server = shop()
    async with client(server, database=database_url):

        async def write_and_miss() -> None:
            async with server.transaction():
                await server.db(Sale).create(pieces=1)
                await server.db(Sale).read("none")

        with pytest.raises(NotFound):
            await write_and_miss()
        assert await server.db(Sale).count() == 0
        async with server.transaction() as tx:
            await server.db(Sale, tx).create(pieces=1)
            assert await server.raw_exec("UPDATE sales SET pieces = ?", 2) == 1
        assert [sale.pieces for sale in await server.db(Sale).list()] == [2]


async def test_background_work_is_not_part_of_it(database_url: str) -> None:
    seen: list[Any] = []
    done = asyncio.Event()

    async def start(ctx: Context, next: Next) -> None:
        await next()

        async def work() -> None:
            seen.append(ctx.tx)
            done.set()

        ctx.background(work)
        async with asyncio.timeout(PATIENCE):
            await done.wait()

    async with client(shop(start), database=database_url) as http:
        await created(http, "/api/sales", pieces=1)
    assert seen == [None]


async def test_lock_for_update_needs_one_and_makes_others_wait(database_url: str) -> None:
    server = Server()
    server.register(Sale, Ledger)
    order: list[str] = []
    first_has_it = asyncio.Event()

    @server.action("POST", "/bare/{id}")
    async def bare(ctx: Context) -> None:
        await ctx.lock_for_update(Sale, ctx.url_param("id"))

    @server.action("POST", "/take/{id}/{who}")
    async def take(ctx: Context) -> None:
        who = ctx.url_param("who")
        async with ctx.transaction():
            sale = await ctx.lock_for_update(Sale, ctx.url_param("id"))
            order.append(f"{who} {sale.pieces}")
            first_has_it.set()
            await ctx.db(Sale).update(sale.id, pieces=sale.pieces + 1)
            order.append(f"{who} done")

    async with client(server, database=database_url) as http:
        sale = await created(http, "/api/sales", pieces=1)
        error_of(await http.post(f"/api/bare/{sale['id']}"), 500, "TX_REQUIRED")
        error_of(await http.post("/api/take/none/a"), 404, "NOT_FOUND")
        takers = [http.post(f"/api/take/{sale['id']}/{who}") for who in "abcd"]
        assert [r.status_code for r in await asyncio.gather(*takers)] == [204] * 4
        assert data_of(await http.get(f"/api/sales/{sale['id']}"))["pieces"] == 5
    assert [line.split()[1] for line in order] == ["1", "done", "2", "done", "3", "done", "4", "done"]


async def test_a_serializable_collision_is_a_409_that_may_be_sent_again(postgres_url: str) -> None:
    both_have_read = asyncio.Barrier(2)

    async def read_then_write(ctx: Context, next: Next) -> None:
        await ctx.db(Sale).count()
        if ctx.header("x-race"):
            async with asyncio.timeout(PATIENCE):
                await both_have_read.wait()
        await next()

    server = shop(read_then_write, isolation="serializable")
    async with client(server, database=postgres_url) as http:
        race = [http.post("/api/sales", json={"pieces": n}, headers={"x-race": "1"}) for n in (1, 2)]
        answers = sorted(await asyncio.gather(*race), key=lambda r: r.status_code)
        assert answers[0].status_code == 201
        assert error_of(answers[1], 409, "CONFLICT")["retryable"] is True
        assert (await http.post("/api/sales", json={"pieces": 2})).status_code == 201
        assert await total(http, "/api/sales") == 2


async def test_an_isolation_level_that_does_not_exist_is_an_error_rather_than_a_weaker_one(
    database_url: str,
) -> None:
    server = Server()
    server.register(Sale)

    @server.pipeline.service.middleware(operations=["create"])
    async def chaotic(ctx: Context, next: Next) -> None:
        async with ctx.transaction(isolation="chaos"):
            await next()

    async with client(server, database=database_url) as http:
        assert (await http.post("/api/sales", json={"pieces": 1})).status_code == 500
        assert await total(http, "/api/sales") == 0
