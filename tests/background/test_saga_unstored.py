"""A step whose result cannot be stored was done: it is taken back, or its run says that it is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maniflex import Model, Run, RunFailed, Server, field
from maniflex._ids import new_id
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.step_memory import DoneStep, StepMemory
from maniflex.errors import ValidationFailed
from maniflex.sql.statement import Sql
from maniflex.testing.clock import FakeClock
from tests.kit.runs import minutes, no_pause, working


class Card(Model):
    number: str = field(writeonly=True, default="")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Raising:
    """Its attributes raise what no `except Exception` sees."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise SystemExit("not from here")


UNSTORABLE = [
    object(),
    float("nan"),
    Card(number="4111"),
    "\ud800",
    "a\0b",
    b"\xff",
    nested(3000),
    {1: object()},
    Raising(),
]
EACH = pytest.mark.parametrize("number", range(len(UNSTORABLE)))


class Shop:
    """Charges and refunds; every call is written down with what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.refusals = 0

    async def charge(self, value: Any) -> Any:
        self.calls.append(("charge", value))
        return value

    def charge_on_thread(self, value: Any) -> Any:
        self.calls.append(("charge", value))
        return value

    def refund(self, value: Any) -> None:
        if not isinstance(value, str) and self.refusals:
            self.refusals -= 1
            self.calls.append(("refused", value))
            raise OSError("the bank does not answer")
        self.calls.append(("refund", value))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


async def worked(work: Work, type: str = "default.shop", **options: Any) -> WorkflowRun:
    run = await work.submit(type, **options)
    await work.worker().drain()
    return await work.get(run.id)


def code(run: WorkflowRun) -> Any:
    return (run.error or {}).get("code")


@EACH
@pytest.mark.parametrize("plain", [False, True])
async def test_a_step_whose_result_cannot_be_stored_is_taken_back(
    server: Server, number: int, plain: bool
) -> None:
    shop, value = Shop(), UNSTORABLE[number]
    charge: Any = shop.charge_on_thread if plain else shop.charge

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        await run.step("hotel", charge, "h", compensate=shop.refund)
        await run.step("charge", charge, value, compensate=shop.refund)

    async with working(server) as work:
        done = await worked(work)
        last = (await work.events(done.id))[-1]

    assert shop.names() == ["charge", "charge", "refund", "refund"]
    assert shop.calls[2][1] is value
    assert shop.calls[3] == ("refund", "h")
    assert (done.status, code(done), done.attempt) == ("failed", "result_not_json", 1)
    assert "result of step 'charge' cannot be stored as JSON" in (done.last_error or "")
    assert (last.data or {})["taken_back"] == ["charge", "hotel"]


async def test_without_a_compensation_it_is_done_once_and_the_others_are_taken_back(server: Server) -> None:
    shop = Shop()

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        await run.step("hotel", shop.charge, "h", compensate=shop.refund)
        await run.step("charge", shop.charge, object())

    async with working(server) as work:
        done = await worked(work)
    assert (shop.names(), code(done)) == (["charge", "charge", "refund"], "result_not_json")


async def test_a_retry_by_hand_does_it_anew(server: Server) -> None:
    shop, values = Shop(), [object(), "c"]

    @server.work.handler("default.shop")
    async def buy(run: Run) -> Any:
        return await run.step("charge", shop.charge, values[len(shop.calls)])

    async with working(server) as work:
        done = await worked(work)
        assert (len(shop.calls), code(done)) == (1, "result_not_json")
        await work.retry(done.id)
        await work.worker().drain()
        again = await work.get(done.id)
    assert (again.status, again.result, len(shop.calls)) == ("succeeded", "c", 2)


async def test_a_refund_that_fails_is_reported_and_the_others_go_on(server: Server) -> None:
    shop = Shop()
    shop.refusals = 1

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        await run.step("hotel", shop.charge, "h", compensate=shop.refund)
        await run.step("charge", shop.charge, object(), compensate=shop.refund)

    async with working(server) as work:
        done = await worked(work)
    assert shop.names() == ["charge", "charge", "refused", "refund"]
    assert (done.status, code(done), done.attempt) == ("failed", "compensation_failed", 2)
    assert "these steps are not taken back: charge" in (done.last_error or "")


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_process_that_dies_before_the_refund_does_not_leave_a_clean_run(
    server: Server, clock: FakeClock, max_attempts: int
) -> None:
    shop = Shop()

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        await run.step("hotel", shop.charge, "h", compensate=shop.refund)
        await run.step("charge", shop.charge, object(), compensate=shop.refund)

    async with working(server) as work:
        made = await work.submit("default.shop", max_attempts=max_attempts)
        dying = work.worker()
        [claimed] = await dying.claim(1)
        memory = StepMemory(work.engine.store, work.clock)
        await memory.keep(claimed.held, DoneStep(new_id(), "hotel", "hotel", shop.refund), "h")
        with pytest.raises(ValidationFailed):
            await memory.keep(claimed.held, DoneStep(new_id(), "charge", "charge", shop.refund), object())
        clock.advance(minutes(5))
        await work.worker().drain()
        done = await work.get(made.id)
    assert shop.calls == [("refund", "h")]
    assert (done.status, code(done), done.attempt) == ("failed", "compensation_failed", 2)
    assert "these steps are not taken back: charge" in (done.last_error or "")


@pytest.mark.parametrize(("plain", "grouped"), [(False, False), (True, False), (True, True)])
async def test_beside_a_step_that_fails_it_is_taken_back_while_its_result_is_there(
    server: Server, plain: bool, grouped: bool
) -> None:
    shop, value, begun, failed = Shop(), object(), asyncio.Event(), asyncio.Event()
    loop: list[asyncio.AbstractEventLoop] = []

    async def fail() -> None:
        await begun.wait()
        failed.set()
        raise OSError("try again")

    async def charge() -> Any:
        begun.set()
        await failed.wait()
        return await shop.charge(value)

    def charge_on_thread() -> Any:
        loop[0].call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(failed.wait(), loop[0]).result(30)
        return shop.charge_on_thread(value)

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        loop.append(asyncio.get_running_loop())
        wanted: Any = charge_on_thread if plain else charge
        steps = [run.step("charge", wanted, compensate=shop.refund), run.step("fail", fail)]
        if not grouped:
            await asyncio.gather(*steps)
            return
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)

    async with working(server) as work:
        done = await worked(work)
    assert shop.calls == [("charge", value), ("refund", value)]
    assert (done.status, code(done), done.attempt) == ("failed", "result_not_json", 1)
    assert "'charge'" in (done.last_error or "")
    assert "try again" in (done.last_error or "")


@pytest.mark.parametrize("transactional", [False, True])
async def test_in_a_transaction_it_is_rolled_back_instead(server: Server, transactional: bool) -> None:
    shop = Shop()
    server.register(Card)

    async def store() -> Any:
        await server.db(Card).create(number="1")
        return object()

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        if transactional:
            await run.step("card", store, compensate=shop.refund, transactional=True)
        async with server.transaction():
            await run.step("card", store, compensate=shop.refund)

    async with working(server) as work:
        done = await worked(work)
        assert await server.db(Card).count() == 0
    assert (done.status, code(done), shop.calls) == ("failed", "result_not_json", [])


async def test_a_handler_that_bears_it_is_told_the_same_in_every_attempt(server: Server) -> None:
    shop = Shop()
    told: list[str] = []

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> str:
        for _ in range(2):
            try:
                await run.step("charge", shop.charge, object())
            except ValidationFailed as error:
                told.append(error.message)
        if run.attempt == 1:
            raise OSError("try again")
        return "borne"

    async with working(server) as work:
        done = await worked(work)
    assert (done.status, done.result, shop.names()) == ("succeeded", "borne", ["charge"])
    assert [message.startswith("the result of step 'charge' c") for message in told] == [True] * 4


async def test_steps_that_another_attempt_has_to_come_to_do_not_cost_the_result(server: Server) -> None:
    shop, value = Shop(), object()

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        if run.attempt != 2:
            await run.step("hotel", shop.charge, "h", compensate=shop.refund)
        if run.attempt == 1:
            raise OSError("try again")
        await run.step("charge", shop.charge, value, compensate=shop.refund)

    async with working(server) as work:
        done = await worked(work)
    assert shop.calls == [("charge", "h"), ("charge", value), ("refund", value), ("refund", "h")]
    assert (done.status, code(done)) == ("failed", "result_not_json")


async def test_a_run_of_a_run_takes_it_back_and_its_parent_hears_of_it(server: Server) -> None:
    shop, value = Shop(), object()
    heard: list[str] = []

    @server.work.handler("default.child")
    async def child(run: Run) -> None:
        await run.step("charge", shop.charge, value, compensate=shop.refund)

    @server.work.handler("default.shop", max_attempts=1)
    async def buy(run: Run) -> None:
        await run.step("hotel", shop.charge, "h", compensate=shop.refund)
        try:
            await run.call("default.child")
        except RunFailed as failed:
            heard.append(failed.error or "")
            raise

    async with working(server) as work:
        done = await worked(work)
    assert shop.calls == [("charge", "h"), ("charge", value), ("refund", value), ("refund", "h")]
    assert (done.status, code(done)) == ("failed", "error")
    assert ["'charge'" in error for error in heard] == [True]


async def test_a_child_whose_own_result_cannot_be_stored_takes_its_steps_back(server: Server) -> None:
    shop = Shop()

    @server.work.handler("default.child")
    async def child(run: Run) -> object:
        await run.step("hotel", shop.charge, "h", compensate=shop.refund)
        return object()

    @server.work.handler("default.shop", max_attempts=1)
    async def buy(run: Run) -> str:
        try:
            await run.call("default.child")
        except RunFailed as failed:
            return failed.status
        return "?"

    async with working(server) as work:
        done = await worked(work)
    assert (done.result, shop.calls) == ("failed", [("charge", "h"), ("refund", "h")])


LIMITS = {
    "sqlite": "CREATE TRIGGER small BEFORE INSERT ON workflow_step WHEN length(new.result) > 1000 "
    "BEGIN SELECT RAISE(ABORT, 'too large'); END",
    "postgresql": "ALTER TABLE workflow_step ADD CHECK (length(CAST(result AS text)) <= 1000)",
}


async def test_a_result_that_the_database_refuses_is_taken_back_too(
    server: Server, database_url: str
) -> None:
    shop, large = Shop(), ["x"] * 1000

    @server.work.handler("default.shop", backoff=no_pause)
    async def buy(run: Run) -> None:
        await run.step("hotel", shop.charge, "h", compensate=shop.refund)
        await run.step("charge", shop.charge, large, compensate=shop.refund)

    async with working(server) as work:
        await work.engine.store.adapter.execute(Sql(LIMITS[database_url.partition(":")[0]]))
        done = await worked(work)
    assert shop.calls == [("charge", "h"), ("charge", large), ("refund", large), ("refund", "h")]
    assert (done.status, code(done)) == ("failed", "result_not_json")
    assert "result of step 'charge' is refused by the database" in (done.last_error or "")
