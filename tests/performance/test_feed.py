"""What the feed costs: CPU against the same statements by hand, and the same with many events kept."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from maniflex import Server
from maniflex.background.outbox.model import Batch, Claim, Settlement
from maniflex.db.port import Adapter
from maniflex.events import Event
from maniflex.sql.statement import Sql
from tests.kit.internals import outbox_parts

TIMES_BARE = 6  # what an event may cost the process, against statements that check nothing
TIMES_KEYLESS = 8  # what a claim may take where messages have keys
TIMES_EMPTY = 4  # what anything may take with many events kept; one that looked at all of them takes hundreds
COUNT = 2_000
BATCH = 500
CLAIMED = 1_000
TURNS = 3
TRIES = 4
KEPT = 100_000
OLD = timedelta(days=3)

KEEP = {
    "sqlite": """
        INSERT INTO event_log (id, seq, position, event_id, type, source, time, schema_version, erased,
                               created_at, updated_at)
        WITH RECURSIVE n (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM n WHERE n < ?2)
        SELECT 'old-' || n, 0, n, 'old-' || n, 'a.kept', '/maniflex', ?3, 0, 0, ?3, ?3 FROM n""",
    "postgresql": """
        INSERT INTO event_log (id, seq, position, event_id, type, source, time, schema_version, erased,
                               created_at, updated_at)
        SELECT 'old-' || n, n, n, 'old-' || n, 'a.kept', '/maniflex', $3::timestamptz, 0, false,
               $3::timestamptz, $3::timestamptz
          FROM generate_series($1::bigint, $2::bigint) n""",
}


@asynccontextmanager
async def a_feed(url: str, *, ordered: bool = True) -> AsyncIterator[Server]:
    """A server with one group that does nothing, and which routes and delivers only when told."""
    server = Server(url, background=False, statement_timeout=300)

    @server.events.subscribe("*", group="g", ordered=ordered)
    async def nothing(event: Event) -> None: ...

    async with server.lifespan():
        await publish(server, 10)
        await server.events.drain()
        yield server


async def publish(server: Server, count: int = COUNT) -> None:
    events = [Event("a.b", {"n": n}, subject=f"note/{n % 1000}") for n in range(count)]
    await server.events.publish_many(events, outside_transaction=True)


# -- against statements by hand

UNROUTED = "SELECT id FROM event_log WHERE position IS NULL ORDER BY id LIMIT ?"
TELL = {
    "sqlite": """
        INSERT INTO outbox_event (id, seq, kind, about, payload, status, attempts, claimed_with, retry_at,
                                  created_at, updated_at)
        SELECT 'm' || d.value, -1000000 - e.rowid, 'bare', d.value, '{}', 'pending', 0, 0, '2026',
               '2026', '2026'
          FROM json_each(?) d JOIN event_log e ON e.id = d.value""",
    "postgresql": """
        INSERT INTO outbox_event (id, seq, kind, about, payload, status, attempts, claimed_with, retry_at,
                                  created_at, updated_at)
        SELECT 'm' || value, 0, 'bare', value, '{}', 'pending', 0, 0, now(), now(), now()
          FROM unnest(?::text[]) AS d (value)""",
}
PLACE_ALL = {
    "sqlite": "UPDATE event_log SET position = -rowid WHERE id IN (SELECT value FROM json_each(?))",
    "postgresql": "UPDATE event_log SET position = -seq WHERE id = ANY(?::text[])",
}
TAKE = """UPDATE outbox_event SET lease = 'bare', attempts = 1 WHERE id IN (
    SELECT id FROM outbox_event WHERE status = 'pending' AND kind = 'bare' AND lease IS NULL LIMIT ?)
    RETURNING about"""
READ = {
    "sqlite": "SELECT * FROM event_log WHERE id IN (SELECT value FROM json_each(?))",
    "postgresql": "SELECT * FROM event_log WHERE id = ANY(?::text[])",
}
FINISH = {
    "sqlite": "UPDATE outbox_event SET status = 'delivered' WHERE about IN (SELECT value FROM json_each(?))",
    "postgresql": "UPDATE outbox_event SET status = 'delivered' WHERE about = ANY(?::text[])",
}


async def deliver_by_hand(adapter: Adapter) -> float:
    """CPU microseconds of this process for an event."""
    dialect, began, count = str(adapter.dialect), time.process_time(), 0
    is_sqlite = dialect == "sqlite"

    def sql(text: str, value: object) -> Sql:
        value = json.dumps(value) if is_sqlite and isinstance(value, list) else value
        return Sql(text if is_sqlite else text.replace("?", "$1"), (value,))

    while rows := await adapter.fetch(sql(UNROUTED, BATCH)):
        ids = [row[0] for row in rows]
        await adapter.execute(sql(PLACE_ALL[dialect], ids))
        await adapter.execute(sql(TELL[dialect], ids))
        count += len(ids)
    while rows := await adapter.write(sql(TAKE, BATCH)):
        ids = [row[0] for row in rows]
        for row in await adapter.fetch(sql(READ[dialect], ids)):
            [json.loads(value) for value in row if isinstance(value, str) and value.startswith("{")]
        await adapter.execute(sql(FINISH[dialect], ids))
    return (time.process_time() - began) / count * 1e6


async def test_an_event_costs_the_process_few_times_what_bare_statements_do(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    ours, theirs = [], []
    async with a_feed(database_url) as server:
        for _ in range(TURNS):
            await publish(server)
            began = time.process_time()
            assert await server.events.drain() == COUNT
            ours.append((time.process_time() - began) / COUNT * 1e6)
            await publish(server)
            theirs.append(await deliver_by_hand(server.events.store.adapter))

    record_property("speed", f"{min(ours):.1f} µs of the feed, {min(theirs):.1f} µs by hand")
    assert min(ours) <= min(theirs) * TIMES_BARE


# -- keys


async def quickest_claim(url: str, *, ordered: bool) -> float:
    """Seconds of the quickest of several claims of a batch."""
    async with a_feed(url, ordered=ordered) as server:
        _, store = outbox_parts(server.outbox)
        await publish(server, CLAIMED * 5)
        await server.events.route_all()
        times = []
        for _ in range(5):
            now = server.events.now()
            claim = Claim("me", ("maniflex.event.g",), CLAIMED, now + timedelta(seconds=30))
            began = time.perf_counter()
            _, batch = await store.turn([], claim, now)
            times.append(time.perf_counter() - began)
            assert batch is not None
            assert len(batch.messages) == CLAIMED
            done = Settlement(batch, [one.id for one in batch.messages], [], batch.messages, _keys(batch))
            await store.turn([done], None, now)
    return min(times)


def _keys(batch: Batch) -> list[str]:
    return sorted({message.key for message in batch.messages if message.key is not None})


async def test_a_claim_of_many_keys_takes_little_longer_than_one_without(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    keyless, keyed = (
        await quickest_claim(database_url, ordered=False),
        await quickest_claim(database_url, ordered=True),
    )

    record_property("speed", f"{keyless * 1e3:.1f} ms for {CLAIMED} without keys, {keyed * 1e3:.1f} ms with")
    # A claim that compared all of them with each other took thirty times as long.
    assert keyed <= keyless * TIMES_KEYLESS


# -- many kept


async def keep(server: Server) -> None:
    store = server.events.store
    last = (await store.position()).last
    moment = store.as_time(datetime.now(UTC) - OLD)
    await store.adapter.execute(Sql(KEEP[str(store.adapter.dialect)], (last + 1, last + KEPT, moment)))
    await store.adapter.execute(Sql(f"UPDATE event_position SET last = {last + KEPT}"))
    await store.adapter.execute(Sql(f"UPDATE event_group SET position = {last + KEPT}"))


async def quickest(work: Callable[[], Awaitable[object]], before: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(5):
        await before()
        began = time.perf_counter()
        await work()
        times.append(time.perf_counter() - began)
    return min(times)


async def measure(server: Server) -> dict[str, float]:
    """Seconds of the quickest of some passes of each kind."""
    store = server.events.store

    async def fill() -> None:
        await publish(server, 500)

    async def fill_and_route() -> None:
        await publish(server, 500)
        await server.events.route_all()

    async def read() -> Sequence[object]:
        return await store.read((await store.position()).last - 500, 500)

    async def prune() -> int:
        now = datetime.now(UTC)
        return await store.prune(now - OLD * 2, 500, now)

    async def nothing() -> None: ...

    return {
        "routed": await quickest(server.events.route_all, fill),
        "handed on": await quickest(server.events.drain, fill_and_route),
        "read": await quickest(read, nothing),
        "looked for what to prune": await quickest(prune, nothing),
    }


async def test_kept_events_make_nothing_dearer(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    async with a_feed(database_url) as server:
        before = await measure(server)
        await keep(server)
        after = await measure(server)
        for _ in range(TRIES):
            if all(is_flat(before[name], after[name]) for name in after):
                break
            again = await measure(server)  # others may have had the machine
            after = {name: min(seconds, again[name]) for name, seconds in after.items()}

    record_property(
        "speed", {name: f"{before[name] * 1e3:.1f} → {after[name] * 1e3:.1f} ms" for name in after}
    )
    for name, seconds in after.items():
        assert is_flat(before[name], seconds), name


def is_flat(before: float, after: float) -> bool:
    return after <= before * TIMES_EMPTY + 0.002
