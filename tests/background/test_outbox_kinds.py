"""Claims across kinds: in one order, whatever their number, and past those that nobody here handles."""

from __future__ import annotations

from datetime import timedelta

import pytest

from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Draft, Message
from maniflex.background.outbox.model import Claim
from maniflex.background.outbox.store import MOST_KINDS
from tests.kit.internals import outbox_parts
from tests.kit.outbox import Bench, Seen, a_bench
from tests.kit.waiting import eventually

LEASE = timedelta(seconds=30)
MANY = 2 * MOST_KINDS + 20


async def interleave(bench: Bench, kinds: int, rounds: int) -> list[int]:
    """Enqueue `rounds` messages of each kind, the kinds in turns; their payloads in this order."""
    numbers = list(range(kinds * rounds))
    async with bench.server.transaction():
        await bench.outbox.enqueue_drafts(*(Draft(f"kind-{n % kinds}", n) for n in numbers))
    return numbers


@pytest.mark.parametrize("every", [False, True], ids=["named", "every kind"])
@pytest.mark.parametrize("kinds", [3, MANY])
async def test_messages_of_many_kinds_are_delivered_in_the_order_of_enqueueing(
    database_url: str, kinds: int, every: bool
) -> None:
    seen = Seen("*") if every else Seen(*(f"kind-{n}" for n in range(kinds)))
    async with a_bench(database_url, seen) as bench:
        numbers = await interleave(bench, kinds, rounds=3)

        assert await bench.drain(batch=7 if kinds == 3 else 500) == len(numbers)

    if kinds <= MOST_KINDS:
        assert seen.payloads == numbers
    else:  # so many do not fit into a claim: those of each kind keep their order
        assert [n for n in seen.payloads if n % kinds == 0] == [0, kinds, 2 * kinds]
        assert sorted(seen.payloads) == numbers


async def test_a_relay_of_many_kinds_goes_past_those_that_are_held_up(database_url: str) -> None:
    seen = Seen(*(f"kind-{n}" for n in range(MANY)))
    async with a_bench(database_url, seen) as bench:
        async with bench.server.transaction():
            await bench.outbox.enqueue("nobody's", "head", key="stuck")
            await bench.outbox.enqueue_drafts(*(Draft(f"kind-{n}", n, "stuck") for n in range(MANY - 1)))
            await bench.outbox.enqueue(f"kind-{MANY - 1}", "free")

        assert await bench.drain() == 1

    assert seen.payloads == ["free"]


async def test_a_relay_of_every_kind_claims_again_what_it_has_just_put_back(database_url: str) -> None:
    tries: list[int] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("*")
        async def fail_once(message: Message) -> None:
            tries.append(message.attempts)
            if message.attempts == 1:
                raise RuntimeError("not yet")

    async with a_bench(database_url, declare, outbox_base_backoff=timedelta(0)) as bench:
        await bench.enqueue(("lonely", 1))

        assert await bench.drain() == 1

    assert tries == [1, 2]


async def test_a_worker_is_woken_by_a_kind_it_has_not_seen_before(database_url: str) -> None:
    seen = Seen("*")
    async with a_bench(database_url, seen, outbox_poll_interval=timedelta(hours=1)) as bench:
        worker = bench.outbox.worker()
        await worker.start()
        try:
            for kind in ("first", "second"):
                await bench.enqueue((kind, kind))
                await eventually(lambda kind=kind: kind in seen.payloads)  # type: ignore[misc]
        finally:
            await worker.stop()

    assert seen.payloads == ["first", "second"]


async def test_two_claims_of_several_kinds_at_the_same_moment_take_different_messages(
    postgres_url: str,
) -> None:
    async with a_bench(postgres_url, Seen("kind-0", "kind-1")) as bench:
        numbers = await interleave(bench, kinds=2, rounds=4)
        parts, store = outbox_parts(bench.outbox)
        now, kinds = parts.clock.now(), ("kind-0", "kind-1")
        claim = Claim("one", kinds, 4, now + LEASE)
        async with parts.adapter.transaction() as tx:
            first = await tx.write(store._bind_claim(claim, kinds, "one", now))

            _, second = await store.turn([], claim, now)

        assert second is not None
        assert sorted(int(row[4]) for row in first) == numbers[:4]
        assert [int(message.stored) for message in second.messages] == numbers[4:]


INDEXES: dict[str, str] = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index'",
    "postgresql": "SELECT indexname AS name FROM pg_indexes WHERE schemaname = current_schema()",
}


async def test_a_database_of_the_time_before_gets_the_index_of_kinds(database_url: str) -> None:
    async with a_bench(database_url, Seen()) as bench:
        await bench.server.raw_exec("DROP INDEX outbox_event_kind_idx")
        await bench.server.raw_exec("CREATE INDEX outbox_event_due_idx ON outbox_event (retry_at, seq)")

    for _ in range(2):
        async with a_bench(database_url, Seen()) as bench:
            dialect = outbox_parts(bench.outbox)[0].adapter.dialect
            names = {row["name"] for row in await bench.server.raw_query(INDEXES[dialect])}

            assert "outbox_event_kind_idx" in names
            assert "outbox_event_due_idx" not in names


async def test_a_kind_that_comes_in_behind_a_full_batch_of_another_is_delivered_in_the_same_pass(
    database_url: str,
) -> None:
    payloads: list[object] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("*")
        async def enqueue_another_kind(message: Message) -> None:
            payloads.append(message.payload)
            if message.payload == 1:
                await bench.outbox.enqueue("late", "late", outside_transaction=True)

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(*(("early", n) for n in range(4)))

        assert await bench.drain(batch=2) == 5

    assert payloads == [0, 1, 2, 3, "late"]
