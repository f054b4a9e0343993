"""T4: what the SQL forms promise beyond their ports."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

from maniflex import Server
from maniflex.background.expired_rows import ExpiredRows
from maniflex.db.current import transaction
from maniflex.middleware import auth, stores
from maniflex.sql.statement import Sql, by_dialect
from maniflex.testing import FakeClock
from tests.catalogue.stores.places import fill, in_sql
from tests.kit.statements import Counting
from tests.kit.waiting import PATIENCE

LEASE, DAY = timedelta(seconds=30), timedelta(days=1)
FORMS = (stores.SqlStore, stores.SqlRateLimit, stores.SqlIdempotency, stores.SqlRevoker)


def calls(clock: FakeClock, *forms: Any) -> list[Callable[[], Awaitable[Any]]]:
    """One call of every method."""
    cache, limits, keys, revoker = forms
    now = clock.now()
    return [
        lambda: cache.get("a"),
        lambda: cache.set("a", b"1", 60),
        lambda: cache.delete("a", "b", "c"),
        lambda: cache.increment("n", 1, 60),
        lambda: limits.take("a", 5, 60, 1, now),
        lambda: keys.claim("a", "body", lease=LEASE, now=now),
        lambda: keys.look("a", "body", now=now),
        lambda: keys.renew("a", "token", lease=LEASE, now=now),
        lambda: keys.settle("a", "token", b"", ttl=DAY, now=now),
        lambda: keys.release("a", "token"),
        lambda: revoker.revoke_token("a", now + DAY),
        lambda: revoker.is_revoked("a"),
        lambda: revoker.revoke_user("a", now, now + DAY),
        lambda: revoker.user_cutoff("a"),
        lambda: revoker.look_up("a", "a"),
    ]


async def test_every_call_is_one_statement(database_url: str) -> None:
    clock, adapter = FakeClock(), Counting(database_url)
    forms = [form() for form in FORMS]
    async with in_sql(adapter, clock, *forms):
        [keys] = [form for form in forms if isinstance(form, stores.SqlIdempotency)]
        every_call = calls(clock, *forms)
        every_call.append(partial(keys.read_first, "a"))
        for place, call in enumerate(every_call):
            adapter.statements.clear()
            await call()
            assert len(adapter.statements) == 1, place


async def test_a_database_that_is_away_is_an_outage_and_no_miss(database_url: str) -> None:
    clock = FakeClock()
    forms = [form() for form in FORMS]
    async with in_sql(database_url, clock, *forms):
        pass
    for call in calls(clock, *forms):
        with pytest.raises(stores.StoreUnavailable):
            await call()


async def test_before_the_server_is_sealed_there_is_no_database() -> None:
    clock = FakeClock()
    with pytest.raises(stores.StoreUnavailable, match="has no database"):
        await stores.SqlRateLimit().take("a", 1, 60, 1, clock.now())


async def rolled_back(server: Server, work: Callable[[Any], Awaitable[Any]]) -> None:
    async def fail() -> None:
        async with server.transaction() as tx:
            await work(tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_settling_shares_the_fate_of_the_transaction(database_url: str) -> None:
    """I8: the answer is stored with the write, or neither is."""
    clock, keys = FakeClock(), stores.SqlIdempotency()
    async with in_sql(database_url, clock, keys) as server:
        claim = await keys.claim("key", "body", lease=LEASE, now=clock.now())

        async def settle(tx: Any) -> None:
            assert await keys.settle("key", claim.token, b"answer", ttl=DAY, now=clock.now(), tx=tx)
            if database_url.startswith("postgres"):
                known = await keys.look("key", "body", now=clock.now())
                assert known.state is stores.ClaimState.RUNNING

        await rolled_back(server, settle)
        assert (await keys.look("key", "body", now=clock.now())).state is stores.ClaimState.RUNNING

        async with server.transaction() as tx:
            await settle(tx)
        assert (await keys.claim("key", "body", lease=LEASE, now=clock.now())).answer == b"answer"


async def test_an_owner_that_slept_settles_nothing_in_its_transaction(database_url: str) -> None:
    """I10: its token is gone, so it rolls back, whoever came in between."""
    clock, keys = FakeClock(), stores.SqlIdempotency()
    async with in_sql(database_url, clock, keys) as server:
        asleep = await keys.claim("key", "body", lease=LEASE, now=clock.now())
        clock.advance(2 * LEASE)
        successor = await keys.claim("key", "body", lease=LEASE, now=clock.now())
        async with server.transaction() as tx:
            assert not await keys.settle("key", asleep.token, b"old", ttl=DAY, now=clock.now(), tx=tx)
        async with server.transaction() as tx:
            assert await keys.settle("key", successor.token, b"new", ttl=DAY, now=clock.now(), tx=tx)


async def test_a_claim_that_meets_an_open_settlement_does_not_wait_for_it(postgres_url: str) -> None:
    """I9: twins wait without holding a connection, so a claim reads what somebody else has locked."""
    clock, keys = FakeClock(), stores.SqlIdempotency()
    longer = timedelta(seconds=2 * PATIENCE)
    async with in_sql(postgres_url, clock, keys, lock_timeout=longer) as server:
        mine = await keys.claim("key", "body", lease=LEASE, now=clock.now())
        async with server.transaction() as tx:
            await keys.settle("key", mine.token, b"answer", ttl=DAY, now=clock.now(), tx=tx)
            async with asyncio.timeout(PATIENCE):
                twin = await keys.claim("key", "body", lease=LEASE, now=clock.now())
            assert twin.state is stores.ClaimState.RUNNING
        assert (await keys.look("key", "body", now=clock.now())).state is stores.ClaimState.SETTLED


async def test_tokens_are_taken_beside_an_open_transaction(postgres_url: str) -> None:
    clock, limits = FakeClock(), stores.SqlRateLimit()
    async with in_sql(postgres_url, clock, limits) as server:

        async def take(tx: Any) -> None:
            assert (await limits.take("key", 2, 60, 1, clock.now())).remaining == 1

        await rolled_back(server, take)
        assert (await limits.take("key", 2, 60, 1, clock.now())).remaining == 0


async def test_a_commit_that_is_not_waited_for_concerns_its_statement_alone(postgres_url: str) -> None:
    clock, forms = FakeClock(), [form() for form in FORMS]
    async with in_sql(postgres_url, clock, *forms, pool_size=1) as server:
        for call in calls(clock, *forms):
            await call()
            [row] = await server.raw_query("SELECT current_setting('synchronous_commit') AS setting")
            assert row["setting"] == "on"


async def test_on_sqlite_a_write_beside_an_open_transaction_says_so_at_once(sqlite_url: str) -> None:
    clock, cache = FakeClock(), stores.SqlStore()
    async with in_sql(sqlite_url, clock, cache) as server:
        await cache.set("key", b"1", 60)
        async with transaction(server._seal().runtime.adapter):
            assert await cache.get("key") == b"1"
            with pytest.raises(stores.StoreUnavailable, match="one writer"):
                await cache.set("key", b"2", 60)


async def test_a_bucket_changes_its_index_seldom(database_url: str) -> None:
    """The end of a row is rounded up, so that PostgreSQL can change it in place."""
    clock, limits = FakeClock(), stores.SqlRateLimit()
    async with in_sql(database_url, clock, limits) as server:
        ends = set()
        for _ in range(10):
            await limits.take("key", 100, 60, 1, clock.now())
            clock.advance(timedelta(seconds=5))
            [row] = await server.raw_query("SELECT full_at, expires_at FROM rate_limit")
            assert row["expires_at"] >= row["full_at"]
            ends.add(row["expires_at"])
        assert len(ends) == 1


async def plan_of(adapter: Any, sql: Sql) -> str:
    """How the database goes about a statement."""
    explain = by_dialect(adapter.dialect, sqlite="EXPLAIN QUERY PLAN", postgres="EXPLAIN")
    return "; ".join(str(row[-1]) for row in await adapter.fetch(Sql(f"{explain} {sql.text}", sql.params)))


TABLES = {
    "idempotency_key": stores.SqlIdempotency,
    "rate_limit": stores.SqlRateLimit,
    "revoked_token": auth.SqlRevoker,
}


def use_of(form: Any, clock: FakeClock) -> Callable[[int], Awaitable[Any]]:
    """What a request does with the store, under a new name each time."""

    def use(turn: int) -> Awaitable[Any]:
        name, now = f"{clock.now()} {turn}", clock.now()
        if isinstance(form, stores.SqlIdempotency):
            return form.claim(name, "body", lease=LEASE, now=now)
        if isinstance(form, stores.SqlRateLimit):
            return form.take(name, 5, 60, 1, now)
        return cast(Awaitable[Any], form.look_up(name, name))

    return use


@pytest.mark.parametrize("table", TABLES)
async def test_a_call_costs_the_same_among_many_expired_rows(
    database_url: str, long_mode: bool, table: str
) -> None:
    """I11, A22: no statement goes over a million rows that are over; nor does a sweep of one batch."""
    clock, form, count = FakeClock(), TABLES[table](), 1_000_000 if long_mode else 20_000
    adapter = Counting(database_url)
    async with in_sql(adapter, clock, form) as server:
        await fill(server, clock, count, table)
        clock.advance(DAY)
        adapter.calls.clear()
        await use_of(form, clock)(0)
        for sql in list(adapter.calls):
            plan = await plan_of(adapter, sql)
            assert f"Seq Scan on {table}" not in plan, plan
            assert f"SCAN {table}" not in plan, plan
        await sweep_some(server, clock, table)


@pytest.mark.parametrize("table", TABLES)
async def test_a_call_takes_the_same_cpu_among_a_million_expired_rows(
    sqlite_url: str, tmp_path: Path, long_mode: bool, table: str
) -> None:
    """I11, A22: at most 1.2 times that of an empty table, in turns; SQLite works in this process."""
    if not long_mode:
        pytest.skip("a million rows take a while: --long")
    clock, form, empty = FakeClock(), TABLES[table](), TABLES[table]()
    async with in_sql(sqlite_url, clock, form) as server, in_sql(f"sqlite:///{tmp_path}/e.db", clock, empty):
        await fill(server, clock, 1_000_000, table)
        clock.advance(DAY)
        uses, numbers = (use_of(empty, clock), use_of(form, clock)), itertools.count()
        best = [inf, inf]
        for _ in range(25):
            for place, use in enumerate(uses):
                start = time.process_time()
                for _ in range(60):
                    await use(next(numbers))
                best[place] = min(best[place], time.process_time() - start)
        assert best[1] < 1.2 * best[0], best


async def sweep_some(server: Server, clock: FakeClock, table: str) -> None:
    """Five batches, which do not depend on how many rows there are."""
    [store] = [one for model, one in server._seal().runtime.stores.items() if one.meta.table == table]
    sweeper = ExpiredRows([(store.adapter, store.meta)], clock, server._logger)
    start = time.perf_counter()
    assert [await sweeper.tick() for _ in range(5)] == [True] * 5
    assert time.perf_counter() - start < 5


async def test_the_claim_of_a_key_that_another_has_is_a_statement_and_at_most_a_read(
    database_url: str,
) -> None:
    clock, adapter, keys = FakeClock(), Counting(database_url), stores.SqlIdempotency()
    async with in_sql(adapter, clock, keys):
        for fingerprint, state in (("body", "claimed"), ("body", "running"), ("other", "reused")):
            adapter.statements.clear()
            claim = await keys.claim("a", fingerprint, lease=LEASE, now=clock.now())
            assert claim.state == state
            is_read_after = by_dialect(adapter.dialect, sqlite=state != "claimed", postgres=False)
            assert len(adapter.statements) == 1 + is_read_after
