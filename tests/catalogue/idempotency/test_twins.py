"""I8 to I10, I16, I18: twins, owners that are late, and what happens between claim and commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Response, Server, with_transaction
from maniflex.db.port import Row
from maniflex.middleware import idempotency, stores
from maniflex.middleware.stores.port import Duration, KeyClaim
from maniflex.testing import FakeClock
from tests.catalogue.idempotency.shop import Order, asking, is_replay, keyed, post, shop
from tests.kit.http import error_of, together, total
from tests.kit.waiting import eventually


class Gate:
    """Middleware that holds the first create until it is opened."""

    def __init__(self) -> None:
        self.is_reached, self.is_open = asyncio.Event(), asyncio.Event()
        self.runs = 0

    async def __call__(self, ctx: Context, next: Next) -> None:
        self.runs += 1
        if self.runs == 1:
            self.is_reached.set()
            await self.is_open.wait()
        await next()


def gated(step: str = "service", **options: Any) -> tuple[Server, Gate]:
    server, gate = shop(idempotency.keys(**options)), Gate()
    getattr(server.pipeline, step).register(gate, operations=["create"], name="gate")
    return server, gate


async def test_of_many_twins_one_runs_and_all_get_its_answer(database_url: str) -> None:
    """I9 in one process; C46 has two of them."""
    async with asking(shop(), database_url) as http:
        answers = await together(50, lambda _: post(http))
        assert {a.status_code for a in answers} == {201}
        assert [is_replay(a) for a in answers].count(False) == 1
        assert len({a.content for a in answers}) == 1
        assert await total(http, "/orders") == 1


async def test_a_twin_waits_for_the_first(database_url: str) -> None:
    server, gate = gated()
    async with asking(server, database_url) as http:
        first = asyncio.create_task(post(http))
        await gate.is_reached.wait()
        twin = asyncio.create_task(post(http))
        error_of(await post(http, title="other"), 422, "IDEMPOTENCY_KEY_REUSED")
        gate.is_open.set()
        assert not is_replay(await first)
        assert is_replay(await twin)
        assert (await first).content == (await twin).content


async def test_a_twin_that_waits_in_vain_is_told_to_come_again(database_url: str) -> None:
    """I9: 409 with Retry-After; `wait=0` answers at once (B7)."""
    server, gate = gated(wait=0)
    async with asking(server, database_url) as http:
        first = asyncio.create_task(post(http))
        await gate.is_reached.wait()
        refusal = await post(http)
        assert error_of(refusal, 409, "IDEMPOTENCY_IN_PROGRESS")["retryable"] is True
        assert int(refusal.headers["retry-after"]) >= 1
        gate.is_open.set()
        assert (await first).status_code == 201
        assert is_replay(await post(http))
        assert gate.runs == 1


async def test_when_the_first_is_refused_a_waiting_twin_runs(database_url: str) -> None:
    server, gate = gated()

    @server.pipeline.service.middleware(operations=["create"])
    async def refuse_first(ctx: Context, next: Next) -> None:
        if gate.runs == 1:
            ctx.abort(409, "NO", "not the first")
        await next()

    async with asking(server, database_url) as http:
        first = asyncio.create_task(post(http))
        await gate.is_reached.wait()
        twins = [asyncio.create_task(post(http)) for _ in range(5)]
        gate.is_open.set()
        error_of(await first, 409, "NO")
        answers = await asyncio.gather(*twins)
        assert {a.status_code for a in answers} == {201}
        assert [is_replay(a) for a in answers].count(False) == 1
        assert await total(http, "/orders") == 1


@asynccontextmanager
async def two_servers(
    database: str, clock: FakeClock, **options: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient, Gate]]:
    """The first of which holds its first create, as a process that fell asleep would."""
    sleeper, gate = gated(**options)
    async with (
        asking(sleeper, database, clock) as one,
        asking(shop(idempotency.keys()), database, clock) as other,
    ):
        yield one, other, gate


async def test_a_twin_in_another_process_waits_too(database_url: str) -> None:
    async with two_servers(database_url, FakeClock()) as (one, other, gate):
        first = asyncio.create_task(post(one))
        await gate.is_reached.wait()
        twin = asyncio.create_task(post(other))
        error_of(await post(other, title="other"), 422, "IDEMPOTENCY_KEY_REUSED")
        gate.is_open.set()
        assert not is_replay(await first)
        assert is_replay(await twin)


class CountedQuestions(stores.SqlIdempotency):
    """Counts what is asked of it."""

    claims = looks = 0

    async def claim(self, key: str, fingerprint: str, *, lease: Duration, now: datetime) -> KeyClaim:
        self.claims += 1
        return await super().claim(key, fingerprint, lease=lease, now=now)

    def read_first(self, key: str) -> Awaitable[Row | None]:
        self.looks += 1
        return super().read_first(key)


async def test_replays_by_another_process_are_reads_once_one_was_seen(database_url: str) -> None:
    """A key that is new costs one claim and no read; of a crowd of replays, the first alone is a claim."""
    clock, store = FakeClock(), CountedQuestions()
    keys, server = [f"key-{number}" for number in range(4)], shop(idempotency.keys(store=store))
    async with asking(shop(), database_url, clock) as one:
        first_answers = [await post(one, key=key) for key in keys]
    async with asking(server, database_url, clock) as other:
        rows = await server.raw_query("SELECT * FROM idempotency_key ORDER BY id")
        for key, first in zip(keys, first_answers, strict=True):
            again = await post(other, key=key)
            assert (again.status_code, again.content, is_replay(again)) == (201, first.content, True)
        assert (store.claims, store.looks) == (1, 3)
        assert (
            await server.raw_query("SELECT * FROM idempotency_key ORDER BY id") == rows
        )  # the claim that found an answer changed nothing
        for _ in range(2):
            assert is_replay(await post(other, key=keys[1]))
        looks = store.looks  # what is asked for twice in a row is remembered
        for _ in range(5):
            assert is_replay(await post(other, key=keys[1]))
            error_of(await post(other, key=keys[1], title="other"), 422, "IDEMPOTENCY_KEY_REUSED")
        assert (store.claims, store.looks) == (1, looks)
        for number in range(3):
            assert not is_replay(await post(other, key=f"fresh-{number}"))
        assert (store.claims, store.looks) == (4, looks + 1)
        clock.advance(timedelta(days=2))  # and what is over is as good as fresh
        assert not is_replay(await post(other, key=keys[1]))


@pytest.mark.parametrize("isolation", [None, "repeatable read", "serializable"])
async def test_an_owner_that_slept_past_its_lease_answers_with_the_result_of_its_successor(
    database_url: str, isolation: str | None
) -> None:
    """I10, C48 with the clock: one row, also where a strict transaction fails instead of finding no row."""
    clock = FakeClock()
    sleeper, gate = gated()
    if isolation is not None:
        sleeper.pipeline.service.register(with_transaction(isolation))
    calls: list[str] = []

    @sleeper.pipeline.validate.middleware(operations=["create"])
    async def announce(ctx: Context, next: Next) -> None:
        ctx.after_commit(lambda: calls.append("of an attempt without effect"))
        ctx.add_header("x-attempt", "the one without effect")
        await next()

    async with asking(sleeper, database_url, clock) as one, asking(shop(), database_url, clock) as other:
        owner = asyncio.create_task(post(one))
        await gate.is_reached.wait()
        clock.advance(timedelta(seconds=31))
        successor = await post(other)
        assert (successor.status_code, is_replay(successor)) == (201, False)
        gate.is_open.set()
        answer = await owner
        assert (answer.status_code, is_replay(answer)) == (201, True)
        assert answer.content == successor.content
        assert "x-attempt" not in answer.headers
        assert calls == []
        assert await total(other, "/orders") == 1


async def test_a_running_request_renews_its_claim(database_url: str) -> None:
    """I10: the claim of an owner that is alive does not end with its lease."""
    clock = FakeClock()
    sleeper, gate = gated(lease=1)

    async def end_of_claim() -> int:
        [row] = await sleeper.raw_query("SELECT expires_at FROM idempotency_key")
        return int(row["expires_at"])

    async def is_renewed() -> bool:
        return await end_of_claim() > before

    async with asking(sleeper, database_url, clock) as one, asking(shop(), database_url, clock) as other:
        owner = asyncio.create_task(post(one))
        await gate.is_reached.wait()
        for _ in range(3):
            before = await end_of_claim()
            clock.advance(timedelta(milliseconds=600))
            await eventually(is_renewed, "a renewal, after a third of the lease")
        twin = asyncio.create_task(post(other))
        error_of(await post(other, title="other"), 422, "IDEMPOTENCY_KEY_REUSED")
        gate.is_open.set()
        assert not is_replay(await owner)
        assert is_replay(await twin)


async def test_rows_answer_and_key_are_committed_together(database_url: str) -> None:
    """I8: while the response step runs nothing of the request is visible, and an error there undoes all."""
    server, seen = shop(), list[int]()
    failing = [True]

    @server.pipeline.response.middleware(operations=["create"], at="after")
    async def look(ctx: Context, next: Next) -> None:
        await next()
        if ctx.response is not None and ctx.response.status < 400:
            assert ctx.tx is not None
            seen.append(await ctx.db(Order).count())
            if failing:
                failing.pop()
                raise RuntimeError("no")

    async with asking(server, database_url) as http:
        error_of(await post(http), 500, "PANIC")
        assert await total(http, "/orders") == 0
        assert (await post(http)).status_code == 201
        assert seen == [1, 1]
        rows = await server.raw_query("SELECT settled FROM idempotency_key")
        assert [bool(row["settled"]) for row in rows] == [True]


@pytest.mark.parametrize("settled_late", [False, True])
async def test_a_transaction_of_the_route_is_joined(database_url: str, settled_late: bool) -> None:
    """I8: its level holds; what fails after the database step takes the settled key along."""
    server, failing, levels = shop(), [settled_late], list[str]()
    server.pipeline.service.register(with_transaction("serializable"))

    @server.pipeline.service.middleware(operations=["create"])
    async def after_the_write(ctx: Context, next: Next) -> None:
        await next()
        if ctx.adapter.dialect == "postgres":
            [row] = await ctx.unscoped().raw_query("SHOW transaction_isolation")
            levels.append(row["transaction_isolation"])
        if failing.pop() if failing else False:
            ctx.abort(409, "NO", "after all")

    async with asking(server, database_url) as http:
        if settled_late:
            error_of(await post(http), 409, "NO")
            assert await total(http, "/orders") == 0
        assert not is_replay(await post(http))
        assert is_replay(await post(http))
        assert set(levels) <= {"serializable"}
        assert await total(http, "/orders") == 1


async def test_code_that_swallows_a_lost_claim_commits_nothing(database_url: str) -> None:
    """I10: a middleware between the write and its transaction cannot save the second effect."""
    clock = FakeClock()
    sleeper, gate = gated()
    sleeper.pipeline.service.register(with_transaction())

    @sleeper.pipeline.service.middleware(operations=["create"])
    async def swallow(ctx: Context, next: Next) -> None:
        try:
            await next()
        except Exception:
            ctx.response = None

    async with asking(sleeper, database_url, clock) as one, asking(shop(), database_url, clock) as other:
        owner = asyncio.create_task(post(one))
        await gate.is_reached.wait()
        clock.advance(timedelta(seconds=31))
        successor = await post(other)
        gate.is_open.set()
        assert (await owner).content == successor.content
        assert await total(other, "/orders") == 1


async def test_the_transaction_begins_after_validation_and_only_with_a_key(database_url: str) -> None:
    """I18."""
    server, open_in = shop(), list[tuple[str, bool]]()

    def watch(step: str, at: str) -> Any:
        async def note(ctx: Context, next: Next) -> None:
            open_in.append((f"{step} {at}", ctx.tx is not None))
            await next()

        return note

    for step in ("validate", "service", "db"):
        for at in ("before", "after"):
            getattr(server.pipeline, step).register(watch(step, at), operations=["create"], at=at)
    async with asking(server, database_url) as http:
        await post(http)
        assert [step for step, is_open in open_in if is_open] == ["db before", "db after"]
        open_in.clear()
        await http.post("/orders", json={})
        assert not any(is_open for _, is_open in open_in)


async def test_a_request_that_takes_too_long_is_undone_and_its_key_free(database_url: str) -> None:
    """I16: cut off before the commit: nothing is stored; the repetition runs."""
    server, gate = shop(query_timeout=timedelta(seconds=1)), Gate()
    server.pipeline.db.register(gate, operations=["create"], at="after")
    async with asking(server, database_url) as http:
        error_of(await post(http), 504, "TIMEOUT")
        assert await total(http, "/orders") == 0
        answer = await post(http)
        assert (answer.status_code, is_replay(answer)) == (201, False)
        assert await total(http, "/orders") == 1


async def test_code_that_answers_without_the_database_is_replayed(database_url: str) -> None:
    """A middleware that answers by itself has had its effect too."""
    server, runs = shop(), list[str]()

    @server.pipeline.service.middleware(operations=["create"])
    async def answer(ctx: Context, next: Next) -> None:
        runs.append("run")
        ctx.response = Response(202, {"run": len(runs)})

    async with asking(server, database_url) as http:
        first, second = await post(http), await post(http)
        assert (first.status_code, second.status_code, runs) == (202, 202, ["run"])
        assert first.content == second.content
        assert is_replay(second)


async def test_keys_are_beside_the_rows_of_each_database(database_url: str, tmp_path: Path) -> None:
    """I8 with a model in a database of its own, whose transaction settles the key there."""

    class Far(Model, table="far", database=f"sqlite:///{tmp_path}/far.db"):
        text: str = ""

    server = shop()
    server.register(Far)
    async with asking(server, database_url) as http:
        answers = [await http.post("/far", json={"text": "x"}, headers=keyed()) for _ in range(2)]
        assert [is_replay(answer) for answer in answers] == [False, True]
        assert await server.raw_query("SELECT id FROM idempotency_key") == []
    with sqlite3.connect(tmp_path / "far.db") as far:
        assert far.execute("SELECT settled FROM idempotency_key").fetchall() == [(1,)]


async def test_a_twin_that_is_cut_off_leaves_the_first_alone(database_url: str) -> None:
    server, gate = gated()
    async with asking(server, database_url) as http:
        first = asyncio.create_task(post(http))
        await gate.is_reached.wait()
        twin = asyncio.create_task(post(http))
        error_of(await post(http, title="other"), 422, "IDEMPOTENCY_KEY_REUSED")  # by then the twin waits
        twin.cancel()
        await eventually(twin.done, "a cancelled twin")
        gate.is_open.set()
        assert (await first).status_code == 201
        assert is_replay(await post(http))
        assert await total(http, "/orders") == 1


@pytest.mark.parametrize("step", ["validate", "service", "db", "response"])
async def test_plain_middleware_in_threads_changes_nothing(database_url: str, step: str) -> None:
    """The transaction is the same on both sides of a middleware that runs in a thread."""
    server, failing = shop(), [True]

    def plain(ctx: Context, next: Callable[[], None]) -> None:
        next()
        if step != "response" and failing:
            failing.pop()
            ctx.abort(409, "NO", "the first one fails")

    server.pipeline.service.register(with_transaction())
    getattr(server.pipeline, step).register(plain, operations=["create"])
    async with asking(server, database_url) as http:
        if step in ("service", "db"):
            error_of(await post(http), 409, "NO")
            assert await total(http, "/orders") == 0
        else:
            failing.clear()
        assert not is_replay(await post(http))
        assert is_replay(await post(http))
        assert await total(http, "/orders") == 1


async def test_code_that_fails_after_the_commit_comes_too_late(database_url: str) -> None:
    """The write is done, so the repetition gets the answer of it and does not run."""
    server, failing = shop(), [True]

    @server.pipeline.service.middleware(operations=["create"])
    async def fail_late(ctx: Context, next: Next) -> None:
        await next()
        if failing:
            failing.pop()
            raise RuntimeError("too late")

    async with asking(server, database_url) as http:
        error_of(await post(http), 500, "PANIC")
        answer = await post(http)
        assert (answer.status_code, is_replay(answer)) == (201, True)
        assert await total(http, "/orders") == 1
