"""Several relays, some of which die, stall or are told to stop: nothing is lost, nothing is overwritten."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from datetime import timedelta
from functools import partial

import pytest

from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.delivery import ORPHANED
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import Claim
from maniflex.errors import Fatal
from maniflex.testing.clock import FakeClock
from tests.kit.internals import a_dispatcher, adapter_of, outbox_parts
from tests.kit.outbox import Bench, Seen, a_bench, abandon
from tests.kit.waiting import eventually

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


async def test_what_a_dead_relay_held_is_delivered_when_its_lease_is_over(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    async with a_bench(database_url, seen, clock=clock) as bench:
        [id] = await bench.enqueue(("note", 1))
        assert await abandon(bench.outbox) is not None
        assert await bench.drain() == 0
        clock.advance(LEASE)

        assert await bench.drain() == 1

        assert [(message.id, message.attempts) for message in seen.messages] == [(id, 2)]


async def test_a_message_that_kills_its_relays_ends_dead(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    async with a_bench(database_url, seen, clock=clock, outbox_max_attempts=3) as bench:
        await bench.enqueue(("note", "poison", "k"), ("note", "next", "k"))
        for _ in range(4):  # the first took both, so it is charged to neither
            await abandon(bench.outbox)
            clock.advance(LEASE)

        assert await bench.drain() == 1

        [poison, _] = await bench.rows()
        assert (poison.status, poison.last_error) == ("dead", ORPHANED)
        assert seen.payloads == ["next"]


async def test_those_that_travelled_with_it_are_not_charged(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    async with a_bench(database_url, seen, clock=clock, outbox_max_attempts=2) as bench:
        await bench.enqueue(*(("note", n) for n in range(5)))
        first = await abandon(bench.outbox)
        assert first is not None
        assert len(first.messages) == 5
        clock.advance(LEASE)
        for _ in range(2):
            alone = await abandon(bench.outbox)
            assert alone is not None
            assert [message.seq for message in alone.messages] == [first.messages[0].seq]
            clock.advance(LEASE)

        assert await bench.drain() == 4

        assert [(row.status, row.attempts) for row in await bench.rows()] == [
            ("dead", 3),
            *[("delivered", 1)] * 4,
        ]


async def test_orphans_do_not_keep_their_key_out_of_order(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    async with a_bench(database_url, seen, clock=clock) as bench:
        await bench.enqueue(*(("note", n, "k") for n in range(6)))
        await abandon(bench.outbox, 2)
        await bench.enqueue(*(("note", n, "k") for n in range(6, 9)), ("note", "other", "o"))
        assert await bench.drain() == 1
        clock.advance(LEASE)

        assert await bench.drain(batch=2) == 9

        assert seen.payloads == ["other", *range(9)]


async def test_a_relay_that_lost_its_lease_changes_nothing(database_url: str) -> None:
    clock, second = FakeClock(), Seen()
    slow: list[Message] = []

    async with a_bench(database_url, second, clock=clock) as other:

        def declare(outbox: Outbox) -> None:
            @outbox.handler("note")
            async def stall(message: Message) -> None:
                slow.append(message)
                clock.advance(LEASE)
                assert await other.drain() == 2
                raise RuntimeError("too late")

        async with a_bench(database_url, declare, clock=clock) as bench:
            ids = await bench.enqueue(("note", 1, "k"), ("note", 2, "k"))

            assert await bench.drain() == 0

            assert [message.id for message in slow] == ids[:1]  # the second was not begun any more
            assert [message.id for message in second.messages] == ids
            rows = await bench.rows()
            assert [(row.status, row.last_error) for row in rows] == [("delivered", None)] * 2
            assert bench.metrics.value("outbox_lease_losses_total") == 2


async def test_a_lease_that_is_renewed_keeps_others_away(database_url: str) -> None:
    clock = FakeClock()
    second = Seen()
    async with a_bench(database_url, second, clock=clock) as other:
        handled: list[int] = []

        def declare(outbox: Outbox) -> None:
            @outbox.handler("note")
            async def long(message: Message) -> None:
                for _ in range(6):
                    clock.advance(LEASE / 2)
                    await dispatcher.lease_keeper.beat(adapter)
                    assert await other.drain() == 0
                handled.append(message.payload)

        async with a_bench(database_url, declare, clock=clock) as bench:
            adapter = adapter_of(bench.server)
            dispatcher = a_dispatcher(bench.outbox, None, 1)
            await bench.enqueue(("note", 1), ("note", 2))

            await dispatcher.step()

        assert handled == [1, 2]
        assert dispatcher.delivered == 2


async def test_a_cancelled_relay_hands_back_without_spending_an_attempt(database_url: str) -> None:
    begun = asyncio.Event()
    seen: list[int] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def hang(message: Message) -> None:
            seen.append(message.payload)
            if message.payload == 2:
                begun.set()
                await asyncio.Event().wait()

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(*(("note", n) for n in (1, 2, 3)))
        draining = asyncio.create_task(bench.drain())
        await begun.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining

        rows = await bench.rows()
        assert [(row.status, row.attempts) for row in rows] == [
            ("delivered", 1),
            ("pending", 0),
            ("pending", 0),
        ]
        assert {row.lease_until for row in rows} == {None}
        assert seen == [1, 2]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_relays_side_by_side_deliver_each_message_once_and_keys_in_order(
    database_url: str, concurrency: int
) -> None:
    seen: dict[str | None, list[int]] = defaultdict(list)

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def note(message: Message) -> None:
            seen[message.key].append(message.payload)
            await asyncio.sleep(0)

    async with a_bench(database_url, declare) as bench:
        keys = [f"k{n % 13}" if n % 3 else None for n in range(600)]
        async with bench.server.transaction():
            await bench.outbox.enqueue_many("note", range(600), keys=keys)

        done = await asyncio.gather(*(bench.drain(batch=7, concurrency=concurrency) for _ in range(4)))
        done.append(await bench.drain())

    assert sum(done) == 600
    assert sorted(n for numbers in seen.values() for n in numbers) == list(range(600))
    assert all(numbers == sorted(numbers) for key, numbers in seen.items() if key is not None)


async def test_a_worker_delivers_what_is_enqueued_without_waiting_for_its_poll(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    async with a_bench(database_url, seen, clock=clock) as bench:
        worker = bench.outbox.worker()
        await worker.start()
        try:
            await eventually(lambda: clock.sleepers > 0)
            await bench.enqueue(("note", 1))
            await eventually(lambda: seen.payloads == [1])
            await eventually(lambda: worker.delivered == 1)
        finally:
            await worker.stop()


async def test_a_worker_hears_of_messages_of_other_processes(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    async with (
        a_bench(database_url, seen, clock=clock) as bench,
        a_bench(database_url, clock=clock) as producer,
    ):
        worker = bench.outbox.worker()
        await worker.start()
        try:
            await eventually(lambda: clock.sleepers > 0)
            await producer.enqueue(("note", 1))
            await eventually(lambda: worker.delivered == 1)
        finally:
            await worker.stop()


async def test_a_worker_polls_for_what_is_due_again(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {1}
    async with a_bench(database_url, seen, clock=clock) as bench:
        await bench.enqueue(("note", 1))
        worker = bench.outbox.worker()
        await worker.start()
        try:
            await eventually(lambda: len(seen.messages) == 1 and clock.sleepers > 0)
            seen.failing.clear()

            def is_delivered_later() -> bool:
                clock.advance(6 * SECOND)  # again, for the failure may be noted after the first time
                return worker.delivered == 1

            await eventually(is_delivered_later)
        finally:
            await worker.stop()


async def test_a_stopping_worker_finishes_its_message_and_hands_back_the_rest(database_url: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def slow(message: Message) -> None:
            begun.set()
            await go_on.wait()

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(*(("note", n) for n in range(3)))
        worker = bench.outbox.worker()
        running = asyncio.create_task(worker.run())
        await begun.wait()
        running.cancel()
        await eventually(lambda: worker.stopping)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running

        rows = await bench.rows()
        assert [(row.status, row.attempts, row.lease_until) for row in rows] == [
            ("delivered", 1, None),
            ("pending", 0, None),
            ("pending", 0, None),
        ]


async def test_a_worker_goes_on_after_its_database_was_away(postgres_url: str) -> None:
    seen = Seen()
    async with a_bench(postgres_url, seen) as bench:
        worker = bench.outbox.worker()
        await worker.start()
        try:
            await bench.enqueue(("note", 1))
            await eventually(lambda: worker.delivered == 1)
            await bench.server.raw_exec("ALTER TABLE outbox_event RENAME TO hidden")
            worker.wake()
            await eventually(lambda: worker.errors > 0)
            await bench.server.raw_exec("ALTER TABLE hidden RENAME TO outbox_event")
            await bench.enqueue(("note", 2))
            await eventually(lambda: worker.delivered == 2)
        finally:
            await worker.stop()
        assert bench.metrics.value("outbox_poll_errors_total") == worker.errors


async def test_an_outcome_outlives_an_outage_between_delivery_and_settling(postgres_url: str) -> None:
    seen: list[int] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def deliver(message: Message) -> None:
            seen.append(message.payload)
            if message.payload == 1:
                await bench.server.raw_exec("ALTER TABLE outbox_event RENAME TO hidden")

    async with a_bench(postgres_url, declare) as bench:
        await bench.enqueue(("note", 1), ("note", 2))
        worker = bench.outbox.worker()
        await worker.start()
        try:
            await eventually(lambda: worker.errors > 0)
            await bench.server.raw_exec("ALTER TABLE hidden RENAME TO outbox_event")
            await eventually(lambda: worker.delivered == 2)
        finally:
            await worker.stop()

        assert seen == [1, 2]
        assert [(row.status, row.attempts) for row in await bench.rows()] == [("delivered", 1)] * 2


async def test_late_commits_are_not_skipped(postgres_url: str) -> None:
    seen = Seen()
    async with a_bench(postgres_url, seen) as bench:
        committed = asyncio.Event()
        held = asyncio.create_task(_enqueue_and_hold(bench, committed))
        await eventually(lambda: held.done() or bench.metrics.value("outbox_enqueued_total") == 1)
        await bench.enqueue(("note", "later"))
        assert await bench.drain() == 1
        committed.set()
        await held

        assert await bench.drain() == 1

    assert seen.payloads == ["later", "earlier"]


async def _enqueue_and_hold(bench: Bench, committed: asyncio.Event, key: str | None = None) -> None:
    async with bench.server.transaction():
        await bench.outbox.enqueue("note", "earlier", key=key)
        await committed.wait()


class Slow:
    """A handler that takes until it is told; it knows how many of a key were ever under way at once."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.seen: list[str] = []
        self.failing: set[str] = set()
        self.most = 0
        self._running = 0

    def __call__(self, outbox: Outbox) -> None:
        outbox.handler("note")(self.handle)

    async def handle(self, message: Message) -> None:
        self.seen.append(message.payload)
        if message.payload in self.failing:
            raise Fatal("no")
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            await self.go_on.wait()
        finally:
            self._running -= 1


async def test_a_dead_message_put_back_waits_for_those_of_its_key_under_way(database_url: str) -> None:
    slow = Slow()
    slow.failing = {"first"}
    async with a_bench(database_url, slow) as bench:
        [first] = await bench.enqueue(("note", "first", "k"))
        await bench.drain()
        await bench.enqueue(("note", "second", "k"), ("note", "third", "k"))
        relay = asyncio.create_task(bench.drain())
        await eventually(lambda: slow.seen == ["first", "second"])
        slow.failing.clear()
        assert await bench.outbox.redrive(first)

        assert await bench.drain() == 0

        slow.go_on.set()
        assert await relay == 3
    assert slow.seen == ["first", "second", "third", "first"]
    assert slow.most == 1


async def test_a_late_commit_waits_for_those_of_its_key_under_way(postgres_url: str) -> None:
    slow = Slow()
    async with a_bench(postgres_url, slow) as bench:
        committed = asyncio.Event()
        late = asyncio.create_task(_enqueue_and_hold(bench, committed, "k"))
        await eventually(lambda: late.done() or bench.metrics.value("outbox_enqueued_total") == 1)
        await bench.enqueue(("note", "later", "k"))
        relay = asyncio.create_task(bench.drain())
        await eventually(lambda: slow.seen == ["later"])
        committed.set()
        await late

        assert await bench.drain() == 0

        slow.go_on.set()
        assert await relay == 2
    assert slow.seen == ["later", "earlier"]
    assert slow.most == 1


async def test_two_claims_at_the_same_moment_do_not_share_a_key(postgres_url: str) -> None:
    async with a_bench(postgres_url, Seen()) as bench:
        parts, store = outbox_parts(bench.outbox)
        committed = asyncio.Event()
        late = asyncio.create_task(_enqueue_and_hold(bench, committed, "k"))
        await eventually(lambda: late.done() or bench.metrics.value("outbox_enqueued_total") == 1)
        await bench.enqueue(("note", "later", "k"), ("note", "other", "o"))
        now = parts.clock.now()
        wanted = Claim("one", None, 50, now + LEASE)
        async with parts.adapter.transaction() as tx:
            [first] = await tx.batch([store._bind_claim(wanted._replace(limit=1), ["note"], "one", now)])
            committed.set()
            await late
            second = asyncio.create_task(store.turn([], wanted, now))  # sees no lease of the first yet
            await eventually(partial(_someone_waits, bench))

        _, batch = await second

        assert [row[3] for row in first] == ["k"]
        assert batch is not None
        assert [message.key for message in batch.messages] == ["o"]


async def _someone_waits(bench: Bench) -> bool:
    return bool(
        await bench.server.raw_query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND query LIKE '%outbox_lane%'"
        )
    )


async def test_a_relay_cancelled_while_it_writes_down_what_it_did_writes_it(database_url: str) -> None:
    released = asyncio.Event()
    holding: list[asyncio.Task[None]] = []
    seen: list[int] = []

    async def hold(id: str, held: asyncio.Event) -> None:
        async with bench.server.transaction():
            await bench.server.raw_exec("UPDATE outbox_event SET updated_at = updated_at WHERE id = ?", id)
            held.set()
            await released.wait()

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def deliver(message: Message) -> None:
            if message.payload == 2:
                held = asyncio.Event()
                holding.append(asyncio.create_task(hold(message.id, held)))
                await held.wait()
            seen.append(message.payload)

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(*(("note", n, "k") for n in (1, 2, 3)))
        draining = asyncio.create_task(bench.drain(batch=2))
        await eventually(lambda: len(seen) == 2)
        draining.cancel()
        await asyncio.sleep(0)
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await draining

        rows = await bench.rows()
        assert [(row.status, row.attempts, row.lease_until) for row in rows] == [
            ("delivered", 1, None),
            ("delivered", 1, None),
            ("pending", 0, None),
        ]
        assert await bench.drain() == 1
    assert seen == [1, 2, 3]
    await asyncio.gather(*holding)


async def test_a_stopping_worker_waits_for_its_database(postgres_url: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def deliver(message: Message) -> None:
            begun.set()
            await go_on.wait()

    async with a_bench(postgres_url, declare) as bench:
        await bench.enqueue(("note", 1, "k"), ("note", 2, "k"))
        worker = bench.outbox.worker()
        await worker.start()
        await begun.wait()
        await bench.server.raw_exec("ALTER TABLE outbox_event RENAME TO hidden")
        stopping = asyncio.create_task(worker.stop())
        await eventually(lambda: worker.stopping)
        go_on.set()
        await eventually(lambda: bench.metrics.value("outbox_settle_errors_total") > 0)
        await bench.server.raw_exec("ALTER TABLE hidden RENAME TO outbox_event")
        await stopping

        rows = await bench.rows()
        assert [(row.status, row.attempts, row.lease_until) for row in rows] == [
            ("delivered", 1, None),
            ("pending", 0, None),
        ]


async def test_a_worker_whose_stop_is_cut_short_renews_nothing_more(postgres_url: str) -> None:
    begun = asyncio.Event()

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def deliver(message: Message) -> None:
            await bench.server.raw_exec("ALTER TABLE outbox_event RENAME TO hidden")
            begun.set()

    def hearts() -> int:
        return sum(thread.name == "maniflex-heart" for thread in threading.enumerate())

    async with a_bench(postgres_url, declare) as bench:
        before = hearts()
        await bench.enqueue(("note", 1))
        worker = bench.outbox.worker()
        await worker.start()
        await begun.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await worker.stop()

        assert hearts() == before
        assert worker._dispatcher.lease_keeper.holding == 0
        await bench.server.raw_exec("ALTER TABLE hidden RENAME TO outbox_event")
