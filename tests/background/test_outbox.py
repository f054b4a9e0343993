"""Messages leave with the transaction that made them and reach their handlers in order."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import DeclarationError, Fatal
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Draft, Message
from maniflex.errors import DatabaseError, TransactionError, ValidationFailed
from maniflex.testing.clock import FakeClock
from tests.kit.internals import adapter_of
from tests.kit.outbox import Bench, Order, Seen, a_bench

SECOND = timedelta(seconds=1)


async def test_a_message_leaves_with_its_transaction(database_url: str) -> None:
    seen = Seen()
    async with a_bench(database_url, seen) as bench:
        async with bench.server.transaction():
            order = await bench.server.db(Order).create(number=1)
            made = await bench.outbox.enqueue("note", {"order": order.id}, key=order.id)

        assert await bench.drain() == 1

        [message] = seen.messages
        assert (message.id, message.kind, message.key) == (made.id, "note", order.id)
        assert (message.payload, message.attempts) == ({"order": order.id}, 1)
        [row] = await bench.rows()
        assert (row.status, row.attempts, row.lease_until, row.leased_by) == ("delivered", 1, None, None)
        assert row.published_at is not None


async def half_an_order(bench: Bench) -> None:
    async with bench.server.transaction():
        await bench.server.db(Order).create(number=1)
        await bench.outbox.enqueue("note", 1)
        raise ZeroDivisionError


async def test_a_rolled_back_transaction_leaves_no_message(database_url: str) -> None:
    seen = Seen()
    async with a_bench(database_url, seen) as bench:
        with pytest.raises(ZeroDivisionError):
            await half_an_order(bench)

        assert await bench.drain() == 0
        assert await bench.rows() == []
        assert await bench.server.db(Order).list() == []


async def test_enqueueing_outside_a_transaction_is_refused_unless_meant(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        with pytest.raises(TransactionError, match="inside the transaction") as refused:
            await bench.outbox.enqueue("note", 1)
        assert refused.value.code == "TX_REQUIRED"

        await bench.outbox.enqueue("note", 1, outside_transaction=True)

        assert [row.payload for row in await bench.rows()] == [1]


async def test_a_transaction_may_be_handed_over(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        async with adapter_of(bench.server).transaction() as tx:
            await bench.outbox.enqueue_many("note", [1, 2], keys=["a", None], tx=tx)

        assert [(row.payload, row.key) for row in await bench.rows()] == [(1, "a"), (2, None)]


async def test_messages_are_delivered_in_the_order_of_enqueueing(database_url: str) -> None:
    seen = Seen("note", "other")
    async with a_bench(database_url, seen) as bench:
        await bench.enqueue(*((("note", "other")[n % 2], n, (None, "a", "b")[n % 3]) for n in range(30)))

        assert await bench.drain(batch=7) == 30

    assert seen.payloads == list(range(30))


@pytest.mark.parametrize(
    "payload", [float("nan"), object(), "\x00", "\ud800"], ids=["nan", "object", "nul", "half"]
)
async def test_a_payload_that_cannot_be_stored_is_refused_at_once(database_url: str, payload: Any) -> None:
    async with a_bench(database_url) as bench:
        with pytest.raises(ValidationFailed):
            await bench.enqueue(("note", payload))
        assert await bench.rows() == []


@pytest.mark.parametrize("text", ["\x00", "\ud800", 7], ids=["nul", "half", "number"])
async def test_a_key_or_kind_that_cannot_be_stored_is_refused_at_once(database_url: str, text: Any) -> None:
    async with a_bench(database_url) as bench:
        with pytest.raises(ValidationFailed, match="is not a key"):
            await bench.enqueue(("note", 1, text))
        with pytest.raises(ValidationFailed, match="is not a kind"):
            await bench.enqueue((text, 1))
        assert await bench.rows() == []


async def test_a_failed_attempt_is_repeated_later_and_later(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {1}
    async with a_bench(database_url, seen, clock=clock, outbox_max_attempts=4) as bench:
        [id] = await bench.enqueue(("note", 1))
        for wait in (5, 10, 20):
            assert await bench.drain() == 0
            [row] = await bench.rows()
            assert (row.status, row.last_error) == ("pending", "RuntimeError: no 1")
            assert row.retry_at == clock.now() + wait * SECOND
            clock.advance(wait * SECOND - timedelta(milliseconds=1))
            assert await bench.drain() == 0
            assert (await bench.rows())[0].attempts == row.attempts
            clock.advance(timedelta(milliseconds=1))
        await bench.drain()

        [row] = await bench.rows()
        assert (row.status, row.attempts, row.last_error) == ("dead", 4, "RuntimeError: no 1")
        assert {message.id for message in seen.messages} == {id}
        assert [message.attempts for message in seen.messages] == [1, 2, 3, 4]


async def test_a_backoff_is_never_longer_than_an_hour(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {1}
    async with a_bench(database_url, seen, clock=clock, outbox_max_attempts=100) as bench:
        await bench.enqueue(("note", 1))
        for _ in range(15):
            await bench.drain()
            clock.advance(timedelta(hours=1))

        assert len(seen.messages) == 15


async def test_a_failing_message_holds_up_its_own_key_only(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {"a1"}
    async with a_bench(database_url, seen, clock=clock) as bench:
        await bench.enqueue(
            *(
                ("note", text, text[0] if text[0] != "-" else None)
                for text in ("a1", "a2", "b1", "-1", "a3", "b2")
            )
        )

        assert await bench.drain() == 3
        assert seen.payloads == ["a1", "b1", "-1", "b2"]

        await bench.enqueue(("note", "a4", "a"), ("note", "b3", "b"))
        assert await bench.drain() == 1
        seen.failing.clear()
        clock.advance(5 * SECOND)
        assert await bench.drain() == 4
        assert seen.payloads[4:] == ["b3", "a1", "a2", "a3", "a4"]
        attempts = {row.payload: row.attempts for row in await bench.rows()}
        assert attempts == {"a1": 2, "a2": 1, "a3": 1, "a4": 1, "b1": 1, "b2": 1, "b3": 1, "-1": 1}


async def test_a_key_goes_on_after_its_first_message_is_dead(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {"bad"}
    async with a_bench(database_url, seen, clock=clock, outbox_max_attempts=2) as bench:
        await bench.enqueue(("note", "bad", "k"), ("note", "good", "k"))
        assert await bench.drain() == 0
        clock.advance(5 * SECOND)

        assert await bench.drain() == 1
        assert seen.payloads == ["bad", "bad", "good"]


async def test_a_long_row_behind_a_failing_message_starves_nobody(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {"bad"}
    async with a_bench(database_url, seen, clock=clock) as bench:
        async with bench.server.transaction():
            await bench.outbox.enqueue("note", "bad", key="k")
            await bench.outbox.enqueue_many("note", range(300), keys=["k"] * 300)
            await bench.outbox.enqueue("note", "other", key="o")

        assert await bench.drain(batch=1) == 1
        assert seen.payloads == ["bad", "other"]


async def test_fatal_ends_a_message_at_once(database_url: str) -> None:
    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def refuse(message: Message) -> None:
            raise Fatal("never")

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", 1))
        await bench.drain()

        [row] = await bench.rows()
        assert (row.status, row.attempts, row.last_error) == ("dead", 1, "Fatal: never")


async def test_a_plain_handler_runs_on_a_thread(database_url: str) -> None:
    threads = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        def note(message: Message) -> None:
            threads.append(threading.current_thread())

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", 1))
        assert await bench.drain() == 1

    assert threads[0] is not threading.main_thread()


async def test_a_plain_handler_may_come_to_the_end_of_an_iterator(database_url: str) -> None:
    """No future carries a StopIteration; the message would be delivered for ever."""

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        def first(message: Message) -> Any:
            return next(iter(message.payload))

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", []))
        await asyncio.wait_for(bench.drain(), 20)
        [row] = await bench.rows()
        assert (row.status, row.attempts) == ("pending", 1)
        assert "StopIteration was raised" in (row.last_error or "")


async def test_an_exit_in_a_handler_is_a_failed_attempt(database_url: str) -> None:
    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def leave(message: Message) -> None:
            raise SystemExit(3) if message.payload else asyncio.CancelledError

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", 1), ("note", 0))
        assert await bench.drain() == 0

        assert [row.last_error for row in await bench.rows()] == ["SystemExit: 3", "CancelledError"]


async def test_a_kind_without_a_handler_waits_for_a_relay_that_has_one(database_url: str) -> None:
    seen, other, clock = Seen(), Seen("elsewhere"), FakeClock()
    async with a_bench(database_url, seen, clock=clock) as bench:
        await bench.enqueue(("elsewhere", 1), ("note", 2))
        assert await bench.drain() == 1

        [waiting, _] = await bench.rows()
        assert (waiting.status, waiting.attempts) == ("pending", 0)
        unhandled = [sample for sample in await bench.metrics.gauges() if sample.name == "outbox_unhandled"]
        assert [(sample.labels, sample.value) for sample in unhandled] == [((("kind", "elsewhere"),), 1.0)]

        async with a_bench(database_url, other, clock=clock) as second:
            assert await second.drain() == 1
    assert other.payloads == [1]


async def test_a_star_takes_what_nobody_else_does(database_url: str) -> None:
    seen, rest = Seen(), Seen("*")

    def declare(outbox: Outbox) -> None:
        seen(outbox)
        rest(outbox)

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", 1), ("what.ever", 2))
        assert await bench.drain() == 2

    assert (seen.payloads, rest.payloads) == ([1], [2])


class Receipt(BaseModel):
    order: int


def typed(taken: list[Any]) -> Any:
    def declare(outbox: Outbox) -> None:
        @outbox.handler("receipt", payload=Receipt)
        async def take(message: Message) -> None:
            taken.append(message.payload)

    return declare


async def test_a_payload_is_read_into_the_type_of_its_handler(database_url: str) -> None:
    taken: list[Any] = []
    async with a_bench(database_url, typed(taken)) as bench:
        await bench.enqueue(
            ("receipt", Receipt(order=7)), ("receipt", {"order": "many"}), ("receipt", {"order": 8})
        )
        assert await bench.drain() == 2

        assert taken == [Receipt(order=7), Receipt(order=8)]
        [misfit] = await bench.rows(status="dead")
        assert (misfit.payload, misfit.attempts) == ({"order": "many"}, 1)
        assert misfit.last_error is not None
        assert "does not fit: order" in misfit.last_error


async def test_what_is_not_json_is_dead_at_once_and_keeps_its_bytes(database_url: str) -> None:
    seen = Seen()
    async with a_bench(database_url, seen) as bench:
        broken = '{"a": 1' if database_url.startswith("sqlite") else "1e999"
        [id, _] = await bench.enqueue(("note", 1, "k"), ("note", 2, "k"))
        await bench.server.raw_exec(f"UPDATE outbox_event SET payload = '{broken}' WHERE id = ?", id)

        assert await bench.drain() == 1

        assert seen.payloads == [2]
        [dead] = await bench.rows(status="dead")
        assert (dead.raw, dead.payload, dead.attempts) == (broken, None, 1)


async def test_bytes_that_are_no_text_do_not_stop_the_others(sqlite_url: str) -> None:
    seen = Seen()
    async with a_bench(sqlite_url, seen) as bench:
        [id, _] = await bench.enqueue(("note", 1), ("note", 2))
        await bench.server.raw_exec(
            "UPDATE outbox_event SET payload = CAST(x'ff7b' AS TEXT) WHERE id = ?", id
        )

        assert await bench.drain() == 1

        [dead] = await bench.rows(status="dead")
        assert dead.raw == "\\xff{"


async def test_a_dead_message_can_be_put_back(database_url: str) -> None:
    seen = Seen()
    seen.failing = {1}
    async with a_bench(database_url, seen, outbox_max_attempts=1) as bench:
        [id] = await bench.enqueue(("note", 1))
        await bench.drain()
        assert not await bench.outbox.redrive("nobody")
        seen.failing.clear()

        assert await bench.outbox.redrive(id)
        assert not await bench.outbox.redrive(id)
        assert await bench.drain() == 1

        [row] = await bench.rows()
        assert (row.status, row.attempts) == ("delivered", 1)


async def test_a_message_survives_when_dead_lettering_fails_too(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {1}
    told: list[tuple[str, str]] = []
    works = [False]

    def declare(outbox: Outbox) -> None:
        seen(outbox)

        @outbox.dead_letter
        async def bury(message: Message, reason: str) -> None:
            if not works[0]:
                raise OSError("the archive is away")
            told.append((message.id, reason))

    async with a_bench(database_url, declare, clock=clock, outbox_max_attempts=1) as bench:
        [first, second] = await bench.enqueue(("note", 1), ("note", 1, "k"))
        for _ in range(3):
            assert await bench.drain() == 0
            clock.advance(timedelta(hours=1))
        assert {row.status for row in await bench.rows()} == {"pending"}
        works[0] = True
        await bench.drain()
        assert told == [(first, "RuntimeError: no 1"), (second, "RuntimeError: no 1")]

        works[0] = False
        await bench.enqueue(("note", 1))
        await bench.drain()
        clock.advance(timedelta(hours=1))
        seen.failing.clear()
        assert await bench.drain() == 1
        assert sorted(row.status for row in await bench.rows()) == ["dead", "dead", "delivered"]


async def test_only_a_number_of_keys_is_worked_on_at_once(database_url: str) -> None:
    running: list[str] = []
    most: list[int] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def slow(message: Message) -> None:
            assert message.key not in running
            running.append(str(message.key))
            most.append(len(running))
            for _ in range(3):
                await asyncio.sleep(0)
            running.remove(str(message.key))

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(*(("note", n, "abcdef"[n % 6]) for n in range(24)))
        assert await bench.drain(concurrency=4) == 24

    assert max(most) == 4


async def test_draining_inside_a_transaction_is_refused(database_url: str) -> None:
    async with a_bench(database_url, Seen()) as bench, bench.server.transaction():
        with pytest.raises(DatabaseError, match="rolled back"):
            await bench.drain()


def test_every_mistake_of_a_declaration_is_found() -> None:
    outbox = Outbox()
    outbox.handler("a")(lambda message: None)
    outbox.handler("a")(lambda message: None)
    outbox.handler("")(lambda message: None)
    outbox.handler("b")(lambda: None)
    outbox.dead_letter(lambda message: None)

    assert outbox.problems() == [
        "outbox handler 'a': there is a handler for it already",
        "outbox handler '': a kind is a text such as 'order.placed', or '*' for all",
        "outbox handler 'b': it is called with (message), which it does not take",
        "outbox dead_letter: it is called with (message, reason), which it does not take",
    ]


async def test_handlers_are_declared_before_the_start(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        with pytest.raises(DeclarationError, match="sealed"):
            bench.outbox.handler("late")(print)


def test_an_outbox_nobody_uses_has_no_tables() -> None:
    assert list(Outbox().models()) == []


@pytest.mark.unpartitioned(reason="ids are made now, and the clock goes on for weeks: no partition is old")
async def test_delivered_messages_are_removed_when_they_are_old(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {"bad"}
    async with a_bench(database_url, seen, clock=clock, outbox_max_attempts=1) as bench:
        await bench.enqueue(("note", "bad"), *(("note", n) for n in range(5)))
        await bench.drain()
        clock.advance(timedelta(days=6))
        await bench.enqueue(("note", "young"))
        await bench.drain()
        clock.advance(timedelta(days=1, seconds=1))
        [*_, pruner] = bench.outbox.services()

        assert not await pruner.tick()  # type: ignore[attr-defined]  # the pruner is a loop

        assert [row.payload for row in await bench.rows()] == ["bad", "young"]


async def numbers(bench: Bench) -> dict[str, float]:
    return {
        sample.name: sample.value for sample in [*bench.metrics.counters(), *await bench.metrics.gauges()]
    }


async def test_what_happens_is_counted(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {2, 3}
    async with a_bench(database_url, seen, clock=clock, outbox_max_attempts=2) as bench:
        await bench.enqueue(*(("note", n) for n in range(5)))
        await bench.drain()
        clock.advance(5 * SECOND)
        seen.failing = {2}
        await bench.drain()
        await bench.enqueue(("note", 9))
        clock.advance(7 * SECOND)

        found = await numbers(bench)

    assert found == {
        "outbox_enqueued_total": 6,
        "outbox_claimed_total": 7,
        "outbox_delivered_total": 4,
        "outbox_failed_total": 2,
        "outbox_dead_total": 1,
        "outbox_pending": 1,
        "outbox_oldest_seconds": 7,
        "outbox_dead": 1,
    }


async def test_messages_of_different_kinds_are_enqueued_together_and_in_order(database_url: str) -> None:
    seen = Seen("a", "b")
    async with a_bench(database_url, seen) as bench:
        async with bench.server.transaction():
            made = await bench.outbox.enqueue_drafts(
                Draft("b", 1, "k"), Draft("a", {"n": 2}), Draft("b"), Draft("a", 4, "k")
            )
        assert await bench.outbox.enqueue_drafts(outside_transaction=True) == []
        rows = await bench.rows()

        assert [(m.kind, m.payload, m.key) for m in made] == [
            ("b", 1, "k"),
            ("a", {"n": 2}, None),
            ("b", None, None),
            ("a", 4, "k"),
        ]
        assert [(row.id, row.kind, row.payload, row.key) for row in rows] == [
            (m.id, m.kind, m.payload, m.key) for m in made
        ]
        assert bench.metrics.value("outbox_enqueued_total") == 4
        assert await bench.drain() == 4
    assert seen.payloads == [1, {"n": 2}, None, 4]


async def test_of_drafts_one_that_is_wrong_refuses_all(database_url: str) -> None:
    async with a_bench(database_url) as bench:
        for draft in (Draft("*"), Draft(""), Draft("a", object()), Draft("a", 1, key=3)):  # type: ignore[arg-type]
            with pytest.raises(ValidationFailed):
                await bench.outbox.enqueue_drafts(Draft("a", 1), draft, outside_transaction=True)
        with pytest.raises(TransactionError):
            await bench.outbox.enqueue_drafts(Draft("a", 1))
        assert await bench.rows() == []


async def test_a_handler_is_told_why_the_attempt_before_failed(database_url: str) -> None:
    seen, clock = Seen(), FakeClock()
    seen.failing = {1}
    async with a_bench(database_url, seen, clock=clock) as bench:
        await bench.enqueue(("note", 1))
        for _ in range(2):
            await bench.drain()
            clock.advance(timedelta(minutes=1))

    assert [message.last_error for message in seen.messages] == [None, "RuntimeError: no 1"]
