"""Measure the feed of events: how many a second are routed and handed on, and how soon a handler has one.

    python benchmarks/feed.py [--postgres postgresql://…] [--redis redis://…] [--nats nats://…]
        [--events 20000] [--rounds 3] [--kept 1000000] [--only rate,flat,delay,bridge]

One process does the work, on the event loop that `maniflex worker` uses; another server of it writes the
events beforehand, in one transaction. On PostgreSQL a schema `maniflex_benchmark` is made and dropped again;
streams of brokers have names of their own and are removed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from uuid import uuid4

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from benchmarks.run import databases  # noqa: E402
from maniflex import Model, Server, field  # noqa: E402
from maniflex.events import Event, NatsBus, RedisBus  # noqa: E402
from maniflex.sql.statement import Sql  # noqa: E402

AT_ONCE = 1000  # events of one statement that fills the feed
KEYS = 1000
PAGES, PAGE = 50, 200
PRUNED = 20_000
DELAYS = 300  # events that come one by one
RETENTION = timedelta(days=7)
KEPT = {
    "sqlite": """
        INSERT INTO event_log (id, seq, position, event_id, type, source, subject, time, key, schema_version,
                               data, erased, created_at, updated_at)
        WITH RECURSIVE n (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM n WHERE n < ?2)
        SELECT printf('old-%09d', n), 0, n, printf('old-%09d', n), 'order.placed', '/maniflex',
               'order/' || n % 1000, ?3, 'order/' || n % 1000, 0, '{"total":1}', 0, ?3, ?3 FROM n""",
    "postgresql": """
        INSERT INTO event_log (id, seq, position, event_id, type, source, subject, time, key, schema_version,
                               data, erased, created_at, updated_at)
        SELECT 'old-' || lpad(n::text, 9, '0'), 0, n, 'old-' || lpad(n::text, 9, '0'), 'order.placed',
               '/maniflex', 'order/' || n % 1000, $3::timestamptz, 'order/' || n % 1000, 0,
               '{"total":1}', false, $3::timestamptz, $3::timestamptz
          FROM generate_series($1::bigint, $2::bigint) n""",
}


class Order(Model, events=True, table="benchmark_orders"):
    """What emits, where the time from a write to its handler is taken."""

    total: int = field(default=0)


class Counted:
    """Handles events, and knows when enough have come."""

    def __init__(self) -> None:
        self.expect(0)

    def expect(self, count: int) -> None:
        self._left, self.done = count, asyncio.Event()

    async def handle(self, event: Event) -> None:
        self._left -= 1
        if not self._left:
            self.done.set()


def subscribe(counted: Counted, server: Server, *, ordered: bool = True) -> None:
    server.events.subscribe("*", group="counted", ordered=ordered)(counted.handle)


class CountedBus:
    """Hands what it gets to another bus, and counts what that has taken."""

    def __init__(self, bus: Any, counted: Counted) -> None:
        self.ordered, self._bus, self._counted = bus.ordered, bus, counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish_many(self, events: list[Event]) -> None:
        await self._bus.publish_many(events)
        for event in events:
            await self._counted.handle(event)


@asynccontextmanager
async def serving(
    url: str, declare: Callable[[Server], object], *, background: bool = True
) -> AsyncIterator[tuple[Server, Server]]:
    """A server that writes, and one that routes and hands on."""
    worker = Server(url, statement_timeout=600, background=background)
    worker.register(Order)
    declare(worker)
    writer = Server(url, statement_timeout=600, background=False)
    writer.register(Order)
    async with writer.lifespan(), worker.lifespan():
        await publish(writer, AT_ONCE)  # plans and caches
        await worker.events.drain()
        gc.collect()
        gc.freeze()  # as `maniflex run` does once it is started
        yield writer, worker


async def publish(server: Server, count: int) -> None:
    """Events in one transaction."""
    async with server.transaction():
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            await server.events.publish_many(
                [Event("order.placed", {"total": n}, subject=f"order/{n % KEYS}") for n in numbers]
            )


def per_second(counts: list[tuple[int, float]]) -> float:
    return statistics.median(count / seconds for count, seconds in counts)


# -- how many a second


async def measure_rate(label: str, url: str, options: argparse.Namespace) -> None:
    for name, ordered in (("in order of keys", True), ("in any order", False)):
        counted, counts, costs = Counted(), [], []
        async with serving(url, partial(subscribe, counted, ordered=ordered)) as (writer, _):
            for _ in range(options.rounds):
                counted.expect(options.events)
                await publish(writer, options.events)
                began, cpu = perf_counter(), process_time()
                await counted.done.wait()
                counts.append((options.events, perf_counter() - began))
                costs.append((process_time() - cpu) / options.events * 1e6)
        print(
            f"| {label} | {name} | {per_second(counts):,.0f} | {statistics.median(costs):.0f} |", flush=True
        )


# -- the same with many kept


async def keep(server: Server, count: int, age: timedelta) -> None:
    """Events that were handed on long ago."""
    store = server.events.store
    last = (await store.position()).last
    values = (last + 1, last + count, store.as_time(datetime.now(UTC) - age))
    await store.adapter.execute(Sql(KEPT[str(store.adapter.dialect)], values))
    for statement in (
        f"UPDATE event_position SET last = {last + count}",
        f"UPDATE event_group SET position = {last + count}",
        "ANALYZE event_log",
    ):
        await store.adapter.execute(Sql(statement))


async def stages(url: str, kept: int, options: argparse.Namespace) -> dict[str, float]:
    """How much of each is done in a second, with so many events kept."""
    counts = dict[str, list[tuple[int, float]]]()

    async def time(name: str, work: Coroutine[Any, Any, int]) -> None:
        began = perf_counter()
        counts.setdefault(name, []).append((await work, perf_counter() - began))

    async def route() -> int:
        await worker.events.route_all()
        return options.events

    async def read() -> int:
        last = (await worker.events.store.position()).last
        for page in range(PAGES):
            await worker.events.store.read(last - PAGE * (page + 1), PAGE)
        return PAGES

    async def prune() -> int:
        now, count = datetime.now(UTC), 0
        while more := await worker.events.store.prune(now - RETENTION, 500, now):
            count += more
        return count

    async def look() -> int:  # as nearly all passes of the pruner, which find nothing
        now = datetime.now(UTC)
        for _ in range(PAGES):
            await worker.events.store.prune(now - RETENTION, 500, now)
        return PAGES

    async with serving(url, partial(subscribe, Counted()), background=False) as (writer, worker):
        await worker.events.store.adapter.execute(Sql("DELETE FROM event_log"))
        await keep(worker, PRUNED, 2 * RETENTION)
        if kept:
            await keep(worker, kept, RETENTION / 2)
        await time("pruned", prune())
        is_postgres = str(worker.events.store.adapter.dialect) == "postgresql"
        await worker.events.store.adapter.execute(Sql("VACUUM event_log" if is_postgres else "ANALYZE"))
        for _ in range(options.rounds):
            await publish(writer, options.events)
            await time("routed", route())
            await time("handed on", worker.events.drain())
            await time("pages read", read())
            await time("looks for what to prune", look())
    return {name: per_second(values) for name, values in counts.items()}


async def measure_flatness(label: str, url: str, options: argparse.Namespace) -> None:
    empty = await stages(url, 0, options)
    full = await stages(url, options.kept, options)
    for name, before in empty.items():
        print(
            f"| {label} | {name} | {before:,.0f} | {full[name]:,.0f} | {full[name] / before:.2f} |",
            flush=True,
        )


# -- how soon


async def measure_delay(label: str, url: str, options: argparse.Namespace) -> None:
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def handle(event: Event) -> None:
        arrived.put_nowait(perf_counter())

    worker = Server(url)
    worker.register(Order)
    worker.events.subscribe("order.created", group="counted")(handle)
    delays = []
    async with worker.lifespan():
        for number in range(DELAYS):
            await worker.db(Order).create(total=number)
            committed = perf_counter()
            delays.append((await arrived.get() - committed) * 1000)
            await asyncio.sleep(number % 7 / 1000)
    p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
    print(f"| {label} | {p50:.1f} | {p99:.1f} |", flush=True)


# -- to a broker


async def measure_bridges(label: str, url: str, options: argparse.Namespace) -> None:
    name = f"benchmark-{uuid4().hex[:8]}"
    for broker in ("redis", "nats"):
        address, counted, counts = getattr(options, broker), Counted(), []
        if address is None:
            continue
        bus: Any = (
            RedisBus(address, prefix=name)
            if broker == "redis"
            else NatsBus(address, stream=name, prefix=name)
        )
        async with serving(url, partial(copy_to, CountedBus(bus, counted))) as (writer, _):
            for _ in range(options.rounds):
                counted.expect(options.events)
                await publish(writer, options.events)
                began = perf_counter()
                await counted.done.wait()
                counts.append((options.events, perf_counter() - began))
        await remove(broker, bus)
        print(f"| {label} | {broker} | {per_second(counts):,.0f} |", flush=True)


def copy_to(bus: Any, server: Server) -> None:
    server.events.use(bus, group="counted")


async def remove(broker: str, bus: Any) -> None:
    """Remove what the broker keeps."""
    await bus.open()
    if broker == "redis":
        await bus.redis.delete(bus.stream)
    else:
        await (await bus.jetstream()).delete_stream(bus.stream)
    await bus.close()


PARTS = {
    "rate": (measure_rate, "| database | one group | events/s | CPU µs of the process |", 4),
    "flat": (measure_flatness, "| database | a second | feed empty | with many kept | ratio |", 5),
    "delay": (measure_delay, "| database | p50 ms | p99 ms |", 3),
    "bridge": (measure_bridges, "| database | broker | events/s |", 3),
}


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(description="How many events a second are routed and handed on.")
    parser.add_argument("--postgres", help="a database to measure too")
    parser.add_argument("--redis", help="a Redis to which the feed is copied")
    parser.add_argument("--nats", help="a NATS server with JetStream to which the feed is copied")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(PARTS), help="some of these, with commas between them")
    options = parser.parse_args()
    for part in options.only.split(","):
        measure, head, columns = PARTS[part]
        print(f"\n{head}\n|---|{'--:|' * (columns - 1)}", flush=True)
        with databases(options.postgres) as found:
            for label, (url, _) in found.items():
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(measure(label, url, options))


if __name__ == "__main__":
    main()
