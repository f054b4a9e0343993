"""What a bus promises to those who publish and those who subscribe."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Protocol

import pytest

from maniflex.errors import Fatal, Timeout, Unavailable, ValidationFailed
from maniflex.events import Event, patterns

PATIENCE = 40.0  # seconds; a test that waits longer has failed
TYPES = (
    "a.b",
    "a.c.b",
    "a",
    "b",
    "ab",
    "a.b.c",
    "order.created",
    "order.line.created",
    "orders.created",
    "x-y_1.b",
)
GRAMMAR = (
    "*",
    "a.*",
    "*.b",
    "*b",
    "a*",
    "order.*",
    "order.*.created",
    "*.created",
    "order*",
    "a.b",
    "*.*.*",
    "a.*.c",
)
END = "zz.end"
_CONSUMER = """
import asyncio, json, os, sys
from importlib import import_module

async def hang(event):
    print(event.id, flush=True)
    await asyncio.Event().wait()

async def crash(event):
    print(event.id, flush=True)
    os._exit(9)

async def main(path, settings, how, subscription):
    module, _, name = path.partition(":")
    bus = getattr(import_module(module), name)(**settings)
    await bus.open()
    await bus.subscribe("a.*", handler={"hang": hang, "crash": crash}[how], **subscription)
    print("subscribed", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])))
"""


def quick(failures: int) -> float:
    """A short pause behind each failed attempt."""
    return 0.01


class Outage(Protocol):
    """What stands between a bus and its broker."""

    async def begin(self) -> None:
        """Take the broker away."""

    async def end(self) -> None:
        """Give it back."""


class EventRecorder:
    """A handler that keeps what it was called with."""

    def __init__(self, act: Callable[[Event, int], Any] = lambda event, call: None) -> None:
        self.events: list[Event] = []
        self._act = act
        self._changed = asyncio.Condition()

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        async with self._changed:
            self._changed.notify_all()
        outcome = self._act(event, self.calls[event.id])
        if outcome is not None:
            await outcome

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def calls(self) -> Counter[str]:
        return Counter(self.ids)

    async def until(self, condition: Callable[[], bool], what: str = "the events") -> None:
        try:
            async with asyncio.timeout(PATIENCE), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(
                f"waited {PATIENCE} s in vain for {what}; it has {self.types[-20:]}"
            ) from None

    async def until_seen(self, *ids: str) -> None:
        await self.until(lambda: set(ids) <= set(self.ids), f"{len(ids)} events")


def failing(error: BaseException, times: int = 1_000_000) -> Callable[[Event, int], None]:
    """Raise at the first calls for an event."""

    def act(event: Event, call: int) -> None:
        if call <= times:
            raise error

    return act


class BusCase:
    """The fixtures. An author overrides `bus`: open, on a broker where nobody else is, closed after."""

    keeps: ClassVar[bool] = True  # False: events are gone where no consumer is at work
    has_log: ClassVar[bool] = True  # False: start="beginning" begins now
    counts_crashes: ClassVar[bool] = True  # False: the broker does not tell how often it delivered a message
    resumes_within: ClassVar[float] = 30.0  # seconds after an outage

    @pytest.fixture
    async def bus(self) -> Any:
        raise NotImplementedError("override the `bus` fixture with an open bus")

    async def twin(self, bus: Any) -> Any:
        """The same bus as another process would have it; the test closes it."""
        raise NotImplementedError("override `twin`")

    def recipe(self, bus: Any) -> tuple[str, Mapping[str, Any]]:
        """How another process makes the bus: "module:Class", and its arguments as JSON."""
        pytest.skip("the bus lives in one process; otherwise override `recipe`")

    async def put_raw(self, bus: Any, body: bytes) -> None:
        """Put a message onto the broker that is no event, where subscribers to `a.*` find it."""
        pytest.skip("nothing but events gets in; otherwise override `put_raw`")

    @pytest.fixture
    async def away(self) -> tuple[Any, Outage]:
        """A bus that was not opened yet, with a `timeout` of a second, and what takes its broker away."""
        pytest.skip("the bus has no broker; otherwise override the `away` fixture")

    @asynccontextmanager
    async def other(self, bus: Any) -> AsyncIterator[Any]:
        twin = await self.twin(bus)
        try:
            yield twin
        finally:
            await twin.close()


def a_full_event() -> Event:
    return Event(
        "a.full",
        {"text": 'grün "%" 😀\n', "number": 1.5, "none": None, "list": [1, [2]], "large": "ж" * 100_000},
        source="/shop",
        subject="order/7 ü%",
        time=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        key="customer/9",
        model="Order",
        operation="updated",
        record_id="7",
        actor_id="ada",
        tenant_id="röt",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        schema_version=3,
        changed=("text", "number"),
        headers={"region": "eu west", "note": "ä%20ü"},
        dataref="/orders/7",
        position=42,
    )


class Delivering(BusCase):
    """Who gets what."""

    async def test_an_event_arrives_as_it_was_published(self, bus: Any) -> None:
        recorder, event = EventRecorder(), a_full_event()
        await bus.subscribe("a.*", handler=recorder)

        await bus.publish(event)

        await recorder.until_seen(event.id)
        assert recorder.events[0] == event

    @pytest.mark.parametrize("data", [None, [], "", 0, False, b"\x00\xff", "\u2028"], ids=repr)
    async def test_data_of_every_kind_arrive(self, bus: Any, data: Any) -> None:
        recorder, event = EventRecorder(), Event("a.b", data)
        await bus.subscribe("a.*", handler=recorder)

        await bus.publish(event)

        await recorder.until_seen(event.id)
        assert recorder.events[0].data == data
        assert type(recorder.events[0].data) is type(data)

    async def test_patterns_mean_the_same_on_every_bus(self, bus: Any) -> None:
        recorders = {pattern: EventRecorder() for pattern in GRAMMAR}
        for number, (pattern, recorder) in enumerate(recorders.items()):
            await bus.subscribe(pattern, END, handler=recorder, group=f"g{number}")

        await bus.publish_many([Event(type, key="one") for type in (*TYPES, END)])

        for pattern, recorder in recorders.items():
            expected_types = [type for type in TYPES if patterns.matches(pattern, type)]
            await recorder.until(partial(_has_all, recorder, expected_types), pattern)
            assert sorted(type for type in recorder.types if type != END) == sorted(expected_types), pattern

    async def test_several_patterns_of_one_subscription_give_an_event_once(self, bus: Any) -> None:
        recorder = EventRecorder()
        await bus.subscribe("a.*", "*.b", END, handler=recorder)

        # Of one key, because the last of them tells that the others have come.
        await bus.publish_many([Event(type, key="one") for type in ("a.b", "a.c.b", "a", END)])

        await recorder.until(lambda: {"a.b", "a.c.b", END} <= set(recorder.types))
        assert sorted(recorder.types) == ["a.b", "a.c.b", END]

    async def test_two_pattern_sets_of_one_group_never_share_messages(self, bus: Any) -> None:
        first, second = EventRecorder(), EventRecorder()
        await bus.subscribe("a.*", handler=first, group="billing")
        await bus.subscribe("*.b", handler=second, group="billing")

        await bus.publish_many([Event("a.b"), Event("a.c.b"), Event("a"), Event("a.z"), Event("z.b")])

        await first.until(lambda: len(first.types) >= 3)
        await second.until(lambda: len(second.types) >= 3)
        assert sorted(first.types) == ["a.b", "a.c.b", "a.z"]
        assert sorted(second.types) == ["a.b", "a.c.b", "z.b"]

    async def test_every_group_gets_all_and_replicas_of_a_group_share(self, bus: Any) -> None:
        alone, sharing = EventRecorder(), EventRecorder()
        events = [Event("a.b", n, key=str(n)) for n in range(60)]
        async with self.other(bus) as replica:
            await bus.subscribe("a.*", handler=alone, group="alone")
            await bus.subscribe("a.*", handler=sharing, group="shared", concurrency=2)
            await replica.subscribe("a.*", handler=sharing, group="shared", concurrency=2)

            await bus.publish_many(events)
            await alone.until(lambda: len(alone.events) == 60)
            await sharing.until(lambda: len(sharing.events) == 60)

        assert set(alone.calls.values()) == {1}
        assert set(sharing.calls.values()) == {1}
        assert set(sharing.ids) == {event.id for event in events}

    async def test_events_of_a_key_keep_their_order(self, bus: Any) -> None:
        if not bus.ordered:
            pytest.skip("the bus does not promise order")
        recorder = EventRecorder(
            lambda event, call: failing(OSError("not yet"), 1)(event, call) if event.data == 3 else None
        )
        await bus.subscribe("a.*", handler=recorder, concurrency=4, backoff=quick)

        await bus.publish_many([Event("a.b", n, key=key) for n in range(15) for key in ("x", "y", "z")])

        await recorder.until(lambda: len(set(recorder.ids)) == 45)
        for key in ("x", "y", "z"):
            values = [event.data for event in recorder.events if event.key == key]
            assert values == [0, 1, 2, 3, *range(3, 15)]

    async def test_of_two_strangers_with_one_id_both_are_heard(self, bus: Any) -> None:
        recorder = EventRecorder()
        await bus.subscribe("a.*", handler=recorder)

        await bus.publish(Event("a.b", id="7", source="/one"))
        await bus.publish(Event("a.b", id="7", source="/two"))

        await recorder.until(lambda: len(recorder.events) == 2)
        assert {event.source for event in recorder.events} == {"/one", "/two"}

    async def test_what_no_json_can_hold_is_refused_where_it_is_published(self, bus: Any) -> None:
        recorder = EventRecorder()
        await bus.subscribe("a.*", handler=recorder)

        with pytest.raises(ValidationFailed, match=r"data\.deep\[1\]"):
            await bus.publish_many([Event("a.first"), Event("a.b", {"deep": [1, object()]})])
        await bus.publish(Event("a.last"))

        await recorder.until(lambda: "a.last" in recorder.types)
        assert recorder.types == ["a.last"]

    async def test_a_subscription_begins_now_or_with_all_that_is_kept(self, bus: Any) -> None:
        before, after = Event("a.before", key="one"), Event("a.after", key="one")
        now, beginning = EventRecorder(), EventRecorder()
        await bus.publish(before)
        await bus.subscribe("a.*", handler=now, group="now")
        await bus.subscribe("a.*", handler=beginning, group="beginning", start="beginning")

        await bus.publish(after)

        await now.until_seen(after.id)
        await beginning.until_seen(after.id)
        assert now.ids == [after.id]
        assert sorted(beginning.ids) == sorted([before.id, after.id] if self.has_log else [after.id])

    async def test_what_is_published_while_a_group_is_away_waits_for_it(self, bus: Any) -> None:
        if not self.keeps:
            pytest.skip("nothing is kept")
        recorder, event = EventRecorder(), Event("a.b")
        handle = await bus.subscribe("a.*", handler=EventRecorder())
        await handle.cancel()
        await bus.publish(event)

        await bus.subscribe("a.*", handler=recorder)

        await recorder.until_seen(event.id)

    async def test_a_forgotten_subscription_begins_anew(self, bus: Any) -> None:
        recorder = EventRecorder()
        handle = await bus.subscribe("a.*", handler=EventRecorder())
        await handle.cancel()
        await bus.publish(Event("a.old"))

        await bus.forget("default", "a.*")
        await bus.forget("default", "a.*")  # that it is gone already is no error

        await bus.subscribe("a.*", handler=recorder)
        await bus.publish(Event("a.new"))
        await recorder.until(lambda: bool(recorder.events))
        assert recorder.types == ["a.new"]


class FailingHandlers(BusCase):
    """Handlers that raise."""

    async def test_a_handler_that_fails_is_called_again_with_the_same_event(
        self, bus: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        recorder, event = EventRecorder(failing(OSError("not yet"), 2)), Event("a.b", 1)
        await bus.subscribe("a.*", handler=recorder, backoff=quick)

        with caplog.at_level(logging.WARNING, "maniflex.events"):
            await bus.publish(event)
            await recorder.until(lambda: len(recorder.events) == 3)

        assert recorder.ids == [event.id] * 3
        warnings = [record for record in caplog.records if event.id in record.getMessage()]
        assert [record.levelname for record in warnings] == ["WARNING", "WARNING"]

    async def test_an_event_that_is_given_up_becomes_a_dead_letter(
        self, bus: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        recorder, letters = EventRecorder(failing(RuntimeError("no such\nöre"))), EventRecorder()
        event = Event("a.b", {"n": 1}, subject="order/7", tenant_id="red")
        await bus.subscribe("dead.*", handler=letters)
        await bus.subscribe("a.*", handler=recorder, max_retry=2, backoff=quick, dead_letter="dead.a")

        with caplog.at_level(logging.WARNING, "maniflex.events"):
            await bus.publish(event)
            await letters.until(lambda: bool(letters.events))

        assert recorder.ids == [event.id] * 3
        [letter] = letters.events
        assert letter.id != event.id
        assert (letter.type, letter.data, letter.subject, letter.tenant_id) == (
            "dead.a",
            {"n": 1},
            "order/7",
            "red",
        )
        assert letter.headers["originalid"] == event.id
        assert letter.headers["originaltype"] == "a.b"
        assert letter.headers["deadletterreason"] == "RuntimeError: no such öre"
        [error] = [record for record in caplog.records if record.levelname == "ERROR"]
        assert event.id in error.getMessage()
        assert error.exc_info is not None

    async def test_without_a_dead_letter_the_next_event_follows(
        self, bus: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        recorder = EventRecorder(
            lambda event, call: failing(OSError("no"))(event, call) if event.data == 1 else None
        )
        await bus.subscribe("a.*", handler=recorder, max_retry=1, backoff=quick)
        bad, good = Event("a.b", 1), Event("a.b", 2)

        await bus.publish_many([bad, good])

        await recorder.until(lambda: recorder.calls[bad.id] == 2 and recorder.calls[good.id] == 1)
        await _eventually(
            lambda: any(bad.id in r.getMessage() for r in caplog.records if r.levelname == "ERROR")
        )

    async def test_a_fatal_failure_ends_the_attempts_at_once(self, bus: Any) -> None:
        recorder, letters = EventRecorder(failing(Fatal("never"))), EventRecorder()
        await bus.subscribe("dead.*", handler=letters)
        await bus.subscribe("a.*", handler=recorder, max_retry=5, backoff=quick, dead_letter="dead.a")

        await bus.publish(Event("a.b"))

        await letters.until(lambda: bool(letters.events))
        assert len(recorder.events) == 1

    @pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()], ids=repr)
    async def test_an_exception_of_any_kind_is_a_failed_attempt(self, bus: Any, error: BaseException) -> None:
        recorder, other = EventRecorder(failing(error, 1)), EventRecorder()
        await bus.subscribe("a.*", handler=recorder, group="exits", backoff=quick)
        await bus.subscribe("a.*", handler=other, group="other")
        event = Event("a.b")

        await bus.publish(event)

        await recorder.until(lambda: recorder.calls[event.id] == 2)
        await other.until_seen(event.id)

    async def test_a_handler_of_dead_letters_that_fails_makes_no_others(self, bus: Any) -> None:
        recorder = EventRecorder(
            lambda event, call: failing(OSError("no"))(event, call) if event.type != END else None
        )
        await bus.subscribe("*", handler=recorder, max_retry=1, backoff=quick, dead_letter="a.dead")

        await bus.publish(Event("a.b"))
        await recorder.until(lambda: recorder.types.count("a.dead") == 2)
        await bus.publish(Event(END))

        await recorder.until(lambda: END in recorder.types)
        assert Counter(recorder.types) == {"a.b": 2, "a.dead": 2, END: 1}

    async def test_a_plain_handler_has_a_thread(self, bus: Any) -> None:
        threads: list[str] = []
        recorder = EventRecorder()

        def handle(event: Event) -> None:
            threads.append(threading.current_thread().name)
            if len(threads) == 1:
                raise SystemExit(1)

        await bus.subscribe("a.*", handler=handle, backoff=quick, group="plain")
        await bus.subscribe("a.*", handler=recorder, group="other")
        await bus.publish(Event("a.b"))

        await _eventually(lambda: len(threads) == 2)
        assert threading.current_thread().name not in threads

    async def test_undecodable_bytes_are_dead_lettered_and_block_nothing(
        self, bus: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        recorder, letters, event = EventRecorder(), EventRecorder(), Event("a.b")
        await bus.subscribe("dead.*", handler=letters)
        await bus.subscribe("a.*", handler=recorder, dead_letter="dead.a")

        await self.put_raw(bus, b"\xff\x00 no event")
        await bus.publish(event)

        await recorder.until_seen(event.id)
        await letters.until(lambda: bool(letters.events))
        [letter] = letters.events
        assert letter.data == b"\xff\x00 no event"
        assert letter.headers["deadletterreason"]
        assert [record for record in caplog.records if record.levelname == "ERROR"]

    async def test_what_is_dead_does_not_come_back(self, bus: Any) -> None:
        recorder, letters, again = EventRecorder(failing(OSError("no"))), EventRecorder(), EventRecorder()
        await bus.subscribe("dead.*", handler=letters)
        handle = await bus.subscribe("a.*", handler=recorder, max_retry=0, dead_letter="dead.a")
        await bus.publish(Event("a.b"))
        await letters.until(lambda: bool(letters.events))
        await handle.cancel()

        async with self.other(bus) as replica:
            await replica.subscribe("a.*", handler=again)
            last = Event("a.last")
            await bus.publish(last)
            await again.until_seen(last.id)

        assert again.ids == [last.id]


class Ending(BusCase):
    """Consumers that stop, and consumers that are killed."""

    async def test_cancelling_awaits_the_handlers_that_run(self, bus: Any) -> None:
        has_begun, may_end, recorder = asyncio.Event(), asyncio.Event(), EventRecorder()

        async def work(event: Event) -> None:
            has_begun.set()
            await may_end.wait()

        handle = await bus.subscribe("a.*", handler=work)
        await bus.publish(Event("a.b"))
        await asyncio.wait_for(has_begun.wait(), PATIENCE)

        cancelling = asyncio.create_task(handle.cancel())
        await asyncio.wait((cancelling,), timeout=0.2)
        assert not cancelling.done()
        may_end.set()
        await asyncio.wait_for(cancelling, 3)

        last = Event("a.last")
        await bus.subscribe("a.*", handler=recorder)
        await bus.publish(last)
        await recorder.until_seen(last.id)
        assert recorder.ids == [last.id]

    async def test_closing_awaits_the_handlers_that_run(self, bus: Any) -> None:
        has_begun, may_end, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def work(event: Event) -> None:
            has_begun.set()
            await may_end.wait()
            has_ended.set()

        twin = await self.twin(bus)
        await twin.subscribe("a.*", handler=work)
        await twin.publish(Event("a.b"))
        await asyncio.wait_for(has_begun.wait(), PATIENCE)

        closing = asyncio.create_task(twin.close())
        await asyncio.wait((closing,), timeout=0.2)
        may_end.set()
        await asyncio.wait_for(closing, 5)

        assert has_ended.is_set()
        with pytest.raises(Unavailable):
            await twin.publish(Event("a.b"))

    async def test_a_pause_between_attempts_does_not_hold_up_the_end(self, bus: Any) -> None:
        recorder = EventRecorder(failing(OSError("no")))
        handle = await bus.subscribe("a.*", handler=recorder, backoff=lambda failures: timedelta(minutes=5))
        await bus.publish(Event("a.b"))
        await recorder.until(lambda: bool(recorder.events))

        start = time.monotonic()
        await handle.cancel()

        assert time.monotonic() - start < 1.5

    async def test_an_event_is_acknowledged_only_behind_its_handler(self, bus: Any) -> None:
        if not self.keeps:
            pytest.skip("nothing is kept")
        has_begun, recorder, event = asyncio.Event(), EventRecorder(), Event("a.b")

        async def hang(event: Event) -> None:
            has_begun.set()
            await asyncio.Event().wait()

        async with self.other(bus) as replica:
            handle = await replica.subscribe("a.*", handler=hang)
            await bus.publish(event)
            await asyncio.wait_for(has_begun.wait(), PATIENCE)
            handle.patience = timedelta(seconds=0.1)
            await handle.cancel()  # which ends the handler

            await bus.subscribe("a.*", handler=recorder)
            await recorder.until_seen(event.id)

    async def test_a_handler_may_end_its_own_subscription(self, bus: Any) -> None:
        has_ended, handles = asyncio.Event(), list[Any]()

        async def once(event: Event) -> None:
            await handles[0].cancel()
            has_ended.set()

        handles.append(await bus.subscribe("a.*", handler=once))
        await bus.publish(Event("a.b"))

        await asyncio.wait_for(has_ended.wait(), 10)

    async def test_what_a_killed_consumer_had_in_hand_reaches_another(self, bus: Any) -> None:
        recorder = EventRecorder()
        events = [Event("a.b", n, key=str(n)) for n in range(10)]
        handle = await bus.subscribe("a.*", handler=recorder)  # so that what is published now is kept
        await bus.publish(Event("a.acknowledged"))
        await recorder.until(lambda: "a.acknowledged" in recorder.types)
        await handle.cancel()
        await bus.publish_many(events)
        async with self.consumer(bus, "hang", concurrency=10) as process:
            in_hand = {await _line(process) for _ in range(10)}
            process.kill()
            await process.wait()

            again = EventRecorder()
            await bus.subscribe("a.*", handler=again, concurrency=10)
            await again.until_seen(*in_hand)

        assert in_hand == {event.id for event in events}
        assert sorted(again.ids) == sorted(in_hand)

    async def test_an_event_that_kills_its_consumers_is_given_up(self, bus: Any) -> None:
        if not self.counts_crashes:
            pytest.skip("the broker does not count")
        letters, recorder, event = EventRecorder(), EventRecorder(), Event("a.b")
        await bus.subscribe("dead.*", handler=letters)
        handle = await bus.subscribe("a.*", handler=EventRecorder())
        await handle.cancel()
        await bus.publish(event)
        for _ in range(3):  # the one attempt, and two deliveries that may have been lost on the way
            async with self.consumer(bus, "crash", max_retry=0) as process:
                assert await _line(process) == event.id
                await asyncio.wait_for(process.wait(), PATIENCE)

        await bus.subscribe("a.*", handler=recorder, max_retry=0, dead_letter="dead.a")

        await letters.until(lambda: bool(letters.events))
        assert letters.events[0].headers["originalid"] == event.id
        assert recorder.events == []

    @asynccontextmanager
    async def consumer(self, bus: Any, how: str, **subscription: Any) -> AsyncIterator[Process]:
        """A consumer in a process of its own, which prints the ids it was given."""
        path, settings = self.recipe(bus)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CONSUMER, path, json.dumps(settings), how, json.dumps(subscription)),
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            assert await _line(process) == "subscribed"
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


class Losing(BusCase):
    """A broker that is away."""

    outages: ClassVar[int] = 2

    async def test_publishing_fails_while_the_broker_is_away_and_works_again_after(
        self, away: tuple[Any, Outage]
    ) -> None:
        bus, outage = away
        await bus.open()
        await bus.publish(Event("a.b"))
        await outage.begin()

        for _ in range(2):
            start = time.monotonic()
            with pytest.raises((Unavailable, Timeout)):
                await bus.publish(Event("a.lost"))
            assert time.monotonic() - start < 4

        await outage.end()
        await _eventually(lambda: _publishes(bus))

    async def test_consumption_goes_on_after_every_outage(
        self, bus: Any, away: tuple[Any, Outage], caplog: pytest.LogCaptureFixture
    ) -> None:
        losing, outage = away
        losses: list[tuple[str, BaseException]] = []
        losing.on_disconnected = lambda group, error: losses.append((group, error))
        recorder = EventRecorder()
        await losing.open()
        await losing.subscribe("a.*", handler=recorder, group="billing")

        for cycle in range(1, self.outages + 1):
            await outage.begin()
            event = Event("a.b", cycle)
            await bus.publish(event)  # by somebody who reaches the broker
            await _eventually(lambda cycle=cycle: len(losses) >= cycle)  # type: ignore[misc]
            await outage.end()
            start = time.monotonic()
            await recorder.until_seen(event.id)
            assert time.monotonic() - start < self.resumes_within

        assert {group for group, _ in losses} == {"billing"}
        errors = [r for r in caplog.records if r.levelname == "ERROR" and "billing" in r.getMessage()]
        assert len(errors) >= self.outages

    async def test_a_handler_that_outlasts_an_outage_is_not_called_again(
        self, bus: Any, away: tuple[Any, Outage]
    ) -> None:
        losing, outage = away
        has_begun, may_end = asyncio.Event(), asyncio.Event()
        is_lost = asyncio.Event()
        losing.on_disconnected = lambda group, error: is_lost.set()

        async def wait(event: Event) -> None:
            has_begun.set()
            await may_end.wait()

        recorder = EventRecorder(lambda event, call: wait(event) if event.data == 1 else None)
        await losing.open()
        await losing.subscribe("a.*", handler=recorder, concurrency=2, max_retry=0)
        first, last = Event("a.b", 1), Event("a.b", 2)
        await bus.publish(first)
        await asyncio.wait_for(has_begun.wait(), PATIENCE)
        await outage.begin()
        await asyncio.wait_for(is_lost.wait(), PATIENCE)
        await outage.end()
        may_end.set()
        await bus.publish(last)

        await recorder.until_seen(last.id)
        assert recorder.calls[first.id] == 1

    async def test_a_subscription_ends_at_once_while_the_broker_is_away(
        self, away: tuple[Any, Outage]
    ) -> None:
        bus, outage = away
        is_lost = asyncio.Event()
        bus.on_disconnected = lambda group, error: is_lost.set()
        await bus.open()
        handle = await bus.subscribe("a.*", handler=EventRecorder())
        await outage.begin()
        await asyncio.wait_for(is_lost.wait(), PATIENCE)

        start = time.monotonic()
        await handle.cancel()

        assert time.monotonic() - start < 1.5


def _has_all(recorder: EventRecorder, expected_types: Sequence[str]) -> bool:
    return END in recorder.types and len(recorder.types) > len(expected_types)


async def _line(process: Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    return line.decode().strip()


async def _publishes(bus: Any) -> bool:
    try:
        await bus.publish(Event("a.b"))
    except (Unavailable, Timeout):
        return False
    return True


async def _eventually(condition: Callable[[], Any]) -> None:
    start = time.monotonic()
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() - start < PATIENCE, "waited in vain"
        await asyncio.sleep(0.01)


__all__: Sequence[str] = ("Delivering", "Ending", "EventRecorder", "FailingHandlers", "Losing", "Outage")
