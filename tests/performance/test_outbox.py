"""What delivering costs: messages per second, and the same with a million delivered ones in the table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from maniflex.background.outbox.message import Message
from maniflex.background.outbox.outbox import Outbox
from maniflex.background.outbox.store import Claim
from maniflex.sql.statement import Sql
from tests.background.outboxes import Bench, a_bench

MOST_MICROSECONDS = 40  # CPU of the relay for one message, in batches of 500
LEAST_PER_SECOND = 10_000
UNIT = 1.6  # microseconds the unit below takes on the machine the bound was set for

DELIVERED = {
    "sqlite": """
        INSERT INTO outbox_event (id, seq, kind, key, payload, status, attempts, claimed_with, retry_at,
                                  published_at, created_at, updated_at)
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
        SELECT printf('old-%08d', n), 1000000 + n, 'note', 'k' || n % 1000, '{}', 'delivered', 1, 50,
               '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z',
               '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z' FROM n""",
    "postgresql": """
        INSERT INTO outbox_event (id, seq, kind, key, payload, status, attempts, claimed_with, retry_at,
                                  published_at, created_at, updated_at)
        SELECT 'old-' || lpad(n::text, 8, '0'), nextval('outbox_event_seq'), 'note', 'k' || n % 1000, '{}',
               'delivered', 1, 50, '2026-01-01', '2026-01-01', '2026-01-01', '2026-01-01'
          FROM generate_series(1, $1::int) n""",
}
PLAN = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN "}


def noop(outbox: Outbox) -> None:
    @outbox.handler("note")
    async def nothing(message: Message) -> None: ...


async def fill(bench: Bench, count: int, keys: int = 0) -> None:
    for start in range(0, count, 5000):
        some = range(start, min(start + 5000, count))
        async with bench.server.transaction():
            chosen = [f"k{n % keys}" for n in some] if keys else None
            await bench.outbox.enqueue_many("note", [{"n": n} for n in some], keys=chosen)


def slowness() -> float:
    """How much slower this machine is now than the one the bound was set for."""
    found = []
    for _ in range(40):
        before = time.process_time()
        for _ in range(200):
            json.loads('{"a": [1, 2, 3], "b": {"c": "d"}}')
        found.append((time.process_time() - before) / 200 * 1e6)
    return max(min(found) / UNIT, 1)


async def timed(bench: Bench, batch: int) -> tuple[float, float]:
    """Messages per second, and CPU microseconds of this process for one."""
    began, cpu = time.perf_counter(), time.process_time()
    delivered = await bench.drain(batch=batch)
    return (
        delivered / (time.perf_counter() - began),
        (time.process_time() - cpu) / delivered * 1e6,
    )


@pytest.mark.parametrize("batch", [50, 500])
async def test_a_message_costs_the_relay_little(
    database_url: str, batch: int, long_mode: bool, record_property: Callable[[str, object], None]
) -> None:
    async with a_bench(database_url, noop) as bench:
        await fill(bench, 2_000)
        await timed(bench, batch)  # plans and caches
        await fill(bench, 50_000 if long_mode else 10_000)

        rate, cpu = await timed(bench, batch)

    machine = slowness()
    record_property(
        "speed", f"{rate:.0f}/s, {cpu:.1f} µs of the relay, batch {batch}, machine at {machine:.2f}"
    )
    if batch == 500:
        assert cpu <= MOST_MICROSECONDS * machine
    if long_mode and batch == 500:
        assert rate >= LEAST_PER_SECOND / machine


async def claim_plan(bench: Bench) -> str:
    parts, store = bench.outbox._ready()
    now = parts.clock.now()
    claim = store._claiming(Claim("me", ("note",), 50, now + timedelta(seconds=30)), "lease", now)
    found = await parts.adapter.write(Sql(PLAN[parts.adapter.dialect] + claim.text, claim.params))
    return "\n".join(str(row[-1]) for row in found)


async def test_delivered_messages_make_no_claim_dearer(
    database_url: str, long_mode: bool, record_property: Callable[[str, object], None]
) -> None:
    count = 1_000_000 if long_mode else 100_000
    async with a_bench(database_url, noop, statement_timeout=300) as bench:
        adapter = bench.server._sealed().runtime.adapter
        await fill(bench, 2_000, keys=100)
        await timed(bench, 50)
        await fill(bench, 4_000, keys=100)
        before = await timed(bench, 50)
        await adapter.execute(Sql(DELIVERED[adapter.dialect], (count,)))
        await adapter.execute(Sql("ANALYZE outbox_event"))  # at a moment when nothing is pending
        await fill(bench, 8_000, keys=100)

        plan = await claim_plan(bench)
        after = await timed(bench, 50)

    record_property("speed", f"{before[0]:.0f}/s empty, {after[0]:.0f}/s behind {count} delivered")
    assert "outbox_event_due_idx" in plan
    assert "outbox_event_key_idx" in plan
    assert "Seq Scan on outbox_event" not in plan
    assert "Bitmap Heap Scan on outbox_event m_1" not in plan
    assert "SCAN outbox_event" not in plan
    assert "SCAN m\n" not in plan
    # Others share the machine; a claim that looked at delivered rows would be slower a hundredfold.
    assert after[0] >= before[0] / 3


async def test_those_behind_a_key_under_way_are_passed_over_cheaply(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    async with a_bench(database_url, noop) as bench:
        await fill(bench, 10_000, keys=1)
        parts, store = bench.outbox._ready()
        moment = parts.clock.now()
        claim = Claim("me", ("note",), 50, moment + timedelta(seconds=30))
        _, held = await store.turn([], claim, moment)
        assert held is not None

        plan = await claim_plan(bench)
        began = time.perf_counter()
        assert await store.turn([], claim, moment) == (set(), None)
        took = time.perf_counter() - began

    record_property("speed", f"{took * 1000:.1f} ms for an empty claim before 10000 that wait for their key")
    # The keys under way are read once for all rows, and not the key of each row looked up.
    assert "hashed SubPlan 1" in plan or "LIST SUBQUERY" in plan
    assert "outbox_event_leased_idx (lease_until>?)" in plan or "Scan on outbox_lane" in plan
