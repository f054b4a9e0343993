"""What delivering costs: messages per second, and the same with a million delivered ones in the table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Draft, Message
from maniflex.background.outbox.model import Claim
from maniflex.db.port import Adapter
from maniflex.sql.statement import Sql
from tests.kit.internals import adapter_of, outbox_parts
from tests.kit.outbox import Bench, a_bench

TIMES_BARE = 6  # what delivering may cost, against two statements a batch that check nothing
LEAST_PER_SECOND = 10_000
TURNS = 3

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
UNHANDLED = {
    "sqlite": """
        INSERT INTO outbox_event (id, seq, kind, payload, status, attempts, claimed_with, retry_at,
                                  created_at, updated_at)
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
        SELECT printf('old-%08d', n), 1000000 + n, 'strange-' || n % 10, '{}', 'pending', 0, 0,
               '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z'
          FROM n""",
    "postgresql": """
        INSERT INTO outbox_event (id, seq, kind, payload, status, attempts, claimed_with, retry_at,
                                  created_at, updated_at)
        SELECT 'old-' || lpad(n::text, 8, '0'), nextval('outbox_event_seq'), 'strange-' || n % 10, '{}',
               'pending', 0, 0, '2026-01-01', '2026-01-01', '2026-01-01'
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


async def timed(bench: Bench, batch: int) -> tuple[float, float]:
    """Messages per second, and CPU microseconds of this process for one."""
    began, cpu = time.perf_counter(), time.process_time()
    delivered = await bench.drain(batch=batch)
    return (
        delivered / (time.perf_counter() - began),
        (time.process_time() - cpu) / delivered * 1e6,
    )


TAKE = """UPDATE outbox_event SET attempts = attempts + 1, lease = 'bare' WHERE id IN (
    SELECT id FROM outbox_event WHERE status = 'pending' AND lease IS NULL LIMIT ?) RETURNING id, payload"""
FINISH = {
    "sqlite": """UPDATE outbox_event SET status = 'delivered', lease = NULL
                  WHERE id IN (SELECT value FROM json_each(?))""",
    "postgresql": "UPDATE outbox_event SET status = 'delivered', lease = NULL WHERE id = ANY(?)",
}


async def bare(bench: Bench, batch: int) -> float:
    """CPU microseconds of this process for a message that is only marked and read."""
    adapter = adapter_of(bench.server)
    cpu, delivered = time.process_time(), 0
    take, finish = (text(adapter, one) for one in (TAKE, FINISH[adapter.dialect]))
    while rows := await adapter.write(Sql(take, (batch,))):
        ids = [row[0] for row in rows]
        for row in rows:
            json.loads(row[1])
        await adapter.execute(Sql(finish, (json.dumps(ids) if adapter.dialect == "sqlite" else ids,)))
        delivered += len(rows)
    return (time.process_time() - cpu) / delivered * 1e6


def text(adapter: Adapter, written: str) -> str:
    return written if adapter.dialect == "sqlite" else written.replace("?", "$1")


async def test_a_message_costs_the_relay_few_times_what_two_bare_statements_do(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    ours, theirs = [], []
    async with a_bench(database_url, noop) as bench:
        for _ in range(TURNS):
            await fill(bench, 3_000)
            ours.append((await timed(bench, 500))[1])
            await fill(bench, 3_000)
            theirs.append(await bare(bench, 500))

    record_property("speed", f"{min(ours):.1f} µs of the relay, {min(theirs):.1f} µs bare")
    assert min(ours) <= min(theirs) * TIMES_BARE


@pytest.mark.long
async def test_ten_thousand_messages_a_second(
    database_url: str, record_property: Callable[[str, object], None]
) -> None:
    async with a_bench(database_url, noop) as bench:
        await fill(bench, 2_000)
        await timed(bench, 500)  # plans and caches
        rates = []
        for _ in range(TURNS):
            await fill(bench, 50_000)
            rates.append((await timed(bench, 500))[0])

    record_property("speed", f"{max(rates):.0f}/s")
    assert max(rates) >= LEAST_PER_SECOND


async def claim_plan(bench: Bench) -> str:
    parts, store = outbox_parts(bench.outbox)
    now = parts.clock.now()
    kinds = ("note", "other")
    claim = store._bind_claim(Claim("me", kinds, 50, now + timedelta(seconds=30)), kinds, "lease", now)
    found = await parts.adapter.write(Sql(PLAN[parts.adapter.dialect] + claim.text, claim.params))
    return "\n".join(str(row[-1]) for row in found)


async def test_delivered_messages_make_no_claim_dearer(
    database_url: str, long_mode: bool, record_property: Callable[[str, object], None]
) -> None:
    count = 1_000_000 if long_mode else 100_000
    async with a_bench(database_url, noop, statement_timeout=300) as bench:
        adapter = adapter_of(bench.server)
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
    assert "outbox_event_kind_idx" in plan
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
        parts, store = outbox_parts(bench.outbox)
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


@pytest.mark.parametrize("kinds", [("note",), ("note", "other", "third")], ids=["one kind", "three kinds"])
async def test_messages_nobody_here_handles_make_no_claim_dearer(
    database_url: str, kinds: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    count = 50_000
    async with a_bench(database_url, noop, statement_timeout=300) as bench:
        adapter = adapter_of(bench.server)
        async with bench.server.transaction():
            drafts = [Draft(kinds[n % len(kinds)], {"n": n}) for n in range(2_000)]
            await bench.outbox.enqueue_drafts(*drafts)
        before = await quickest_claim(bench, kinds)
        await adapter.execute(Sql(UNHANDLED[adapter.dialect], (count,)))
        after = await quickest_claim(bench, kinds)

    record_property("speed", f"{before * 1e3:.1f} ms alone, {after * 1e3:.1f} ms behind {count} unhandled")
    # A claim that met the unhandled ones would take some thirty times as long.
    assert after <= before * 6


async def quickest_claim(bench: Bench, kinds: tuple[str, ...]) -> float:
    """Seconds of the quickest of several claims."""
    parts, store = outbox_parts(bench.outbox)
    times = []
    for _ in range(12):
        now = parts.clock.now()
        began = time.perf_counter()
        _, batch = await store.turn([], Claim("me", kinds, 50, now + timedelta(seconds=30)), now)
        times.append(time.perf_counter() - began)
        assert batch is not None
        assert len(batch.messages) == 50
    return min(times)
