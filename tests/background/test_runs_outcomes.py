"""What becomes of a run: every transition, what is kept of a failure, and what is written about it."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from maniflex import Run, Server
from maniflex._clock import Backoff
from maniflex.errors import Conflict, DatabaseError, Fatal, NotFound, ValidationFailed
from maniflex.testing.clock import FakeClock
from tests.kit.runs import (
    failing,
    is_free,
    kinds,
    minutes,
    no_pause,
    seconds,
    status,
    succeeding,
    working,
)

# -- success


async def test_a_run_that_succeeds_keeps_its_result_and_loses_its_lease(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", 7)
        clock.advance(seconds(5))
        assert await work.worker().run_once() == 1

        done = await work.get(made.id)
        assert (done.status, done.result, done.attempt) == ("succeeded", {"payload": 7}, 1)
        assert is_free(done)
        assert (done.created_at, done.updated_at) == (made.created_at, clock.now())
        assert await kinds(work, made.id) == ["created", "leased", "succeeded"]
        assert await work.worker().run_once() == 0


@pytest.mark.parametrize("result", [None, 0, "", [], {"a": None}, False, "NaN"], ids=repr)
async def test_results_come_back_as_they_were(server: Server, result: Any) -> None:
    @server.work.handler("default.give")
    def give(run: Run) -> Any:
        return result

    async with working(server) as work:
        made = await work.submit("default.give")
        await work.worker().drain()
        done = await work.get(made.id)
        assert (done.status, done.result) == ("succeeded", result)


@pytest.mark.parametrize(
    "result", [object(), float("nan"), {"a": ["\x00"]}, "\ud800", {1, object}], ids=range(5)
)
async def test_a_result_that_cannot_be_stored_fails_at_once_and_visibly(server: Server, result: Any) -> None:
    calls: list[int] = []

    @server.work.handler("default.give")
    async def give(run: Run) -> Any:
        calls.append(run.attempt)
        return result

    async with working(server) as work:
        made = await work.submit("default.give")
        await work.worker().drain()
        done = await work.get(made.id)

    assert (done.status, done.result, calls) == ("failed", None, [1])
    assert done.error is not None
    assert done.error["code"] == "result_not_json"
    assert "cannot be stored as JSON" in (done.last_error or "")


async def test_a_validation_error_about_a_field_called_result_is_an_ordinary_failure(server: Server) -> None:
    error = ValidationFailed("no", [{"field": "result", "message": "no"}])
    attempts = failing(server, error, backoff=no_pause)
    async with working(server) as work:
        await work.submit("default.bad")
        await work.worker().drain()
    assert attempts == [1, 2, 3]


# -- failure


async def test_a_failure_is_retried_later_and_later_then_final(server: Server, clock: FakeClock) -> None:
    attempts = failing(
        server, ValueError("no luck"), max_attempts=4, backoff=Backoff(jitter=0.5, chance=lambda: 1.0)
    )
    async with working(server) as work:
        made = await work.submit("default.bad")
        worker = work.worker()
        for pause in (1.5, 3.0, 6.0):
            assert await worker.run_once() == 1
            waiting = await work.get(made.id)
            assert (waiting.status, waiting.run_at) == ("pending", clock.now() + seconds(pause))
            assert is_free(waiting)
            assert waiting.last_error == "ValueError: no luck"
            assert await worker.run_once() == 0
            clock.advance(seconds(pause))
        await worker.run_once()

        done = await work.get(made.id)
        assert (done.status, done.attempt, attempts) == ("failed", 4, [1, 2, 3, 4])
        assert is_free(done)
        assert done.error is not None
        assert (done.error["code"], done.error["attempt"]) == ("error", 4)
        assert "raise error" in str(done.error["trace"])
        assert await kinds(work, made.id) == ["created", *["leased", "retried"] * 3, "leased", "failed"]
        clock.advance(timedelta(days=365))
        assert await worker.run_once() == 0
        assert (await work.retry(done.id)).error is None


async def test_a_run_that_succeeds_after_all_has_no_error_but_remembers_the_last(server: Server) -> None:
    @server.work.handler("default.flaky", backoff=no_pause)
    async def flaky(run: Run) -> int:
        if run.attempt < 3:
            raise ConnectionError("away")
        return run.attempt

    async with working(server) as work:
        made = await work.submit("default.flaky")
        await work.worker().drain()

        done = await work.get(made.id)
        assert (done.status, done.result, done.error) == ("succeeded", 3, None)
        assert done.last_error == "ConnectionError: away"


async def test_a_run_that_succeeds_at_last_keeps_what_went_wrong_before(server: Server) -> None:
    @server.work.handler("default.second", backoff=no_pause)
    async def second(run: Run) -> str:
        if run.attempt == 1:
            raise OSError("not yet")
        return "ok"

    async with working(server) as work:
        made = await work.submit("default.second")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, done.attempt, done.result) == ("succeeded", 2, "ok")
    assert done.last_error == "OSError: not yet"


async def test_a_fatal_error_is_not_retried(server: Server) -> None:
    attempts = failing(server, Fatal("card is stolen"))
    async with working(server) as work:
        made = await work.submit("default.bad")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, attempts) == ("failed", [1])
    assert "card is stolen" in (done.last_error or "")


async def test_the_handler_may_say_when_to_try_again(server: Server, clock: FakeClock) -> None:
    @server.work.handler("default.later", max_attempts=2)
    async def later(run: Run) -> None:
        run.retry_in(minutes(7), "the bank is closed")

    async with working(server) as work:
        made = await work.submit("default.later")
        worker = work.worker()
        await worker.drain()
        waiting = await work.get(made.id)
        assert (waiting.status, waiting.run_at) == ("pending", clock.now() + minutes(7))
        assert waiting.last_error == "the bank is closed"
        clock.advance(minutes(7))
        await worker.drain()
        assert await status(work, made.id) == "failed"  # it counts as an attempt


async def test_submitted_attempts_win_over_the_handlers(server: Server) -> None:
    attempts = failing(server, ValueError(), max_attempts=5, backoff=no_pause)
    async with working(server) as work:
        await work.submit("default.bad", max_attempts=1)
        await work.worker().drain()
    assert attempts == [1]


@pytest.mark.parametrize(
    "backoff", [lambda n: 3.5, lambda n: None, lambda n: 1 / 0, lambda n: timedelta.max], ids=range(4)
)
async def test_a_backoff_that_fails_itself_costs_no_outcome(server: Server, backoff: Any) -> None:
    failing(server, ValueError(), backoff=backoff)
    async with working(server) as work:
        made = await work.submit("default.bad")
        await work.worker().run_once()
        waiting = await work.get(made.id)
    assert waiting.status == "pending"
    assert is_free(waiting)


AWFUL = ["nul \x00 inside", "lone \ud800 surrogate", "x" * 5_000_000, "", "\n\n", "🏴‍☠️"]


@pytest.mark.parametrize("text", AWFUL, ids=range(len(AWFUL)))
async def test_an_error_of_any_text_is_stored_in_bounds(server: Server, text: str) -> None:
    failing(server, RuntimeError(text), max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.bad")
        await work.worker().drain()
        done = await work.get(made.id)
    assert done.status == "failed"
    assert done.last_error is not None
    assert done.last_error.startswith("RuntimeError")
    assert len(done.last_error) <= 2000
    assert len(str(done.error)) < 20_000


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    "error",
    [Unprintable(), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), BaseException("odd")],
    ids=repr,
)
async def test_a_worker_survives_whatever_a_handler_raises(server: Server, error: BaseException) -> None:
    attempts = failing(server, error, backoff=no_pause)
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.bad")
        other = await work.submit("default.ok")
        worker = work.worker()
        clock = server._clock
        for _ in range(4):
            await asyncio.wait_for(worker.run_once(), 10)
            assert isinstance(clock, FakeClock)
            clock.advance(minutes(10))
        assert (await status(work, made.id), attempts) == ("failed", [1, 2, 3])
        assert await status(work, other.id) == "succeeded"


async def test_a_plain_function_that_exits_the_interpreter_is_a_failed_attempt(server: Server) -> None:
    @server.work.handler("default.exit", max_attempts=1)
    def leave(run: Run) -> None:
        sys.exit(1)

    async with working(server) as work:
        made = await work.submit("default.exit")
        await work.worker().drain()
        assert await status(work, made.id) == "failed"


# -- payload types


class Letter(BaseModel):
    to: str

    @field_validator("to")
    @classmethod
    def check(cls, value: str) -> str:
        if value == "boom":
            raise KeyError(value)
        return value


async def test_a_payload_type_gives_the_handler_its_model(server: Server) -> None:
    seen: list[Letter] = []

    @server.work.handler("default.letter", payload=Letter)
    async def send(run: Run) -> None:
        seen.append(run.payload)

    async with working(server) as work:
        made = await work.submit("default.letter", Letter(to="ann"))
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
    assert seen == [Letter(to="ann")]


@pytest.mark.parametrize("payload", [{"to": 7}, {}, "text", {"to": "boom"}], ids=repr)
async def test_a_payload_that_does_not_fit_fails_at_once(server: Server, payload: Any) -> None:
    @server.work.handler("default.letter", payload=Letter)
    async def send(run: Run) -> None:
        raise AssertionError

    async with working(server) as work:
        made = await work.submit("default.letter", payload)
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, done.attempt) == ("failed", 1)
    assert done.error is not None
    assert done.error["code"] == "payload_does_not_fit"


# -- timeouts


async def test_an_attempt_that_takes_too_long_is_stopped_and_retried(server: Server) -> None:
    ended: list[str] = []

    @server.work.handler("default.slow", timeout=seconds(0.05), max_attempts=1)
    async def slow(run: Run) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stopped")

    async with working(server) as work:
        made = await work.submit("default.slow")
        await asyncio.wait_for(work.worker().drain(), 10)
        done = await work.get(made.id)
    assert (done.status, ended) == ("failed", ["stopped"])
    assert "longer than 0.05 s" in (done.last_error or "")


async def test_a_timeout_of_its_own_wins_and_another_timeout_error_is_not_ours(server: Server) -> None:
    @server.work.handler("default.slow", timeout=seconds(0.01), max_attempts=1)
    async def slow(run: Run) -> None:
        raise TimeoutError("of the bank")

    async with working(server) as work:
        made = await work.submit("default.slow", timeout=minutes(1))
        await work.worker().drain()
        assert (await work.get(made.id)).last_error == "TimeoutError: of the bank"


async def test_a_plain_function_is_told_that_its_time_is_up(server: Server) -> None:
    import threading

    told = threading.Event()

    @server.work.handler("default.slow", timeout=seconds(0.05), max_attempts=1)
    def slow(run: Run) -> None:
        for _ in range(10_000):
            if run.cancelled:
                told.set()
                return
            threading.Event().wait(0.001)

    async with working(server) as work:
        made = await work.submit("default.slow")
        await asyncio.wait_for(work.worker().drain(), 20)
        done = await work.get(made.id)
    assert told.is_set()
    assert (done.status, "longer than" in (done.last_error or "")) == ("failed", True)


async def test_a_plain_handler_may_come_to_the_end_of_an_iterator(server: Server) -> None:
    """No future carries a StopIteration; the run would be worked on for ever."""

    @server.work.handler("default.next", max_attempts=1)
    def first(run: Run) -> Any:
        return next(iter(run.payload))

    async with working(server) as work:
        made = await work.submit("default.next", [])
        assert await asyncio.wait_for(work.worker().drain(), 20) == 1
        done = await work.get(made.id)
    assert (done.status, done.last_error) == ("failed", "RuntimeError: StopIteration was raised")
    assert "in first" in str(done.error)


# -- cancelling, retrying, deleting


async def test_a_pending_run_that_is_cancelled_is_never_started(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        assert (await work.cancel(made.id)).status == "cancelled"
        assert await work.worker().drain() == 0
        assert await kinds(work, made.id) == ["created", "cancelled"]
    assert seen == []


async def test_the_worker_of_a_cancelled_run_does_not_overwrite_it(server: Server) -> None:
    @server.work.handler("default.self")
    async def stubborn(run: Run) -> str:
        await server.work.cancel(run.id)
        return "done all the same"

    async with working(server) as work:
        made = await work.submit("default.self")
        await work.worker().drain()
        done = await work.get(made.id)
        assert (done.status, done.result) == ("cancelled", None)
        assert is_free(done)
        assert await kinds(work, made.id) == ["created", "leased", "cancelled"]


async def test_a_heartbeat_tells_a_handler_that_it_was_cancelled(server: Server) -> None:
    reached: list[str] = []

    @server.work.handler("default.polite")
    async def polite(run: Run) -> None:
        await run.heartbeat()
        reached.append("first half")
        await server.work.cancel(run.id)
        await run.heartbeat()
        reached.append("second half")

    async with working(server) as work:
        made = await work.submit("default.polite")
        await work.worker().drain()
        done = await work.get(made.id)
    assert (done.status, reached) == ("cancelled", ["first half"])
    assert is_free(done)


async def test_a_failing_run_that_was_cancelled_stays_cancelled(server: Server) -> None:
    @server.work.handler("default.fails")
    async def fails(run: Run) -> None:
        await server.work.cancel(run.id)
        raise ValueError("too")

    async with working(server) as work:
        made = await work.submit("default.fails")
        await work.worker().drain()
        assert ((await work.get(made.id)).last_error, await status(work, made.id)) == (None, "cancelled")


async def test_what_is_finished_cannot_be_cancelled_and_what_is_not_there_not_found(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        await work.worker().drain()
        with pytest.raises(Conflict, match="succeeded"):
            await work.cancel(made.id)
        with pytest.raises(Conflict, match="succeeded"):
            await work.retry(made.id)
        for call in (work.cancel, work.retry, work.delete, work.get):
            with pytest.raises(NotFound):
                await call("no-such-run")
        with pytest.raises(NotFound):
            await work.signal("no-such-run", "x")


async def test_a_running_run_may_be_kept_from_being_cancelled(server: Server) -> None:
    refused: list[str] = []

    @server.work.handler("default.self")
    async def busy(run: Run) -> None:
        with pytest.raises(Conflict, match="leased"):
            await server.work.cancel(run.id, running=False)
        refused.append(run.id)

    async with working(server) as work:
        made = await work.submit("default.self")
        await work.worker().drain()
        assert refused == [made.id]
        assert await status(work, made.id) == "succeeded"


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_retried_run_has_all_its_attempts_again(server: Server, how: str) -> None:
    broken = True

    @server.work.handler("default.mended", max_attempts=2, backoff=no_pause)
    async def mended(run: Run) -> int:
        if broken:
            raise ValueError
        return run.attempt

    async with working(server) as work:
        made = await work.submit("default.mended")
        if how == "failed":
            await work.worker().drain()
        else:
            await work.cancel(made.id)
        assert await status(work, made.id) == how

        again = await work.retry(made.id)
        assert (again.status, again.attempt) == ("pending", 0)
        broken = False
        await work.worker().drain()
        done = await work.get(made.id)
        assert (done.status, done.result) == ("succeeded", 1)
        assert (await kinds(work, made.id))[-3:] == ["retried", "leased", "succeeded"]


async def test_a_run_that_is_still_being_stopped_is_not_started_a_second_time(server: Server) -> None:
    conflicts: list[str] = []

    @server.work.handler("default.self")
    async def stubborn(run: Run) -> None:
        await server.work.cancel(run.id)
        with pytest.raises(Conflict, match="has yet to stop"):
            await server.work.retry(run.id)
        conflicts.append(run.id)

    async with working(server) as work:
        made = await work.submit("default.self")
        await work.worker().drain()
        assert conflicts == [made.id]
        assert (await work.retry(made.id)).status == "pending"


async def test_a_deleted_run_is_gone_with_its_reason_kept(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        await work.delete(made.id, "mistake")
        assert await work.worker().drain() == 0
        assert await work.list() == []
        with pytest.raises(NotFound):
            await work.delete(made.id)
        with pytest.raises(NotFound):
            await work.cancel(made.id)
        [row] = await server.raw_query("SELECT status, delete_reason FROM workflow_run")
        assert row == {"status": "pending", "delete_reason": "mistake"}
        assert await kinds(work, made.id) == ["created", "deleted"]
    assert seen == []


async def test_a_run_deleted_while_it_runs_may_finish_but_is_not_tried_again(
    server: Server, clock: FakeClock
) -> None:
    @server.work.handler("default.self", backoff=no_pause)
    async def deleting(run: Run) -> None:
        await server.work.delete(run.id)
        raise ValueError

    async with working(server) as work:
        await work.submit("default.self")
        assert await work.worker().drain() == 1
        clock.advance(minutes(10))
        assert await work.worker().drain() == 0


async def test_hundreds_are_cancelled_in_one_moment(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit_many("default.ok", range(300))
        await asyncio.gather(*(work.cancel(run.id) for run in made))
        assert await work.worker().drain() == 0
        assert {tuple(await kinds(work, run.id)) for run in made[:20]} == {("created", "cancelled")}


# -- no handler


async def test_a_run_without_a_handler_fails_at_once(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.nobody", max_attempts=5)
        await work.worker().run_once()
        done = await work.get(made.id)
    assert (done.status, done.attempt) == ("failed", 1)
    assert done.last_error == "no_handler_registered"
    assert is_free(done)


# -- events


async def test_events_say_who_and_why(server: Server) -> None:
    failing(server, ValueError("no"), max_attempts=1)
    async with working(server) as work:
        made = await work.submit("default.bad")
        worker = work.worker()
        await worker.drain()
        _, leased, failed = await work.events(made.id)
    assert leased.data == {"attempt": 1, "worker": worker.name}
    assert failed.data is not None
    assert (failed.data["attempt"], failed.data["error"]) == (1, "ValueError: no")


async def test_events_can_be_switched_off(database_url: str) -> None:
    server = Server(database_url, work_events=False)
    succeeding(server)
    failing(server, ValueError(), backoff=no_pause)
    async with working(server) as work:
        runs = [await work.submit("default.ok"), await work.submit("default.bad")]
        worker = work.worker()
        await worker.drain()
        cancelled = await work.submit("default.ok")
        await work.cancel(cancelled.id)
        await work.retry(cancelled.id)
        await work.delete(cancelled.id, "why")
        assert [await status(work, run.id) for run in runs] == ["succeeded", "failed"]
        assert await server.raw_query("SELECT * FROM workflow_event") == []


async def test_a_change_whose_event_cannot_be_written_is_not_made(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok")
        await server.raw_exec("ALTER TABLE workflow_event RENAME TO elsewhere")
        with pytest.raises(DatabaseError):
            await work.cancel(made.id)
        with pytest.raises(DatabaseError):
            await work.worker().run_once()
        with pytest.raises(DatabaseError):
            await work.submit("default.ok")
        await server.raw_exec("ALTER TABLE elsewhere RENAME TO workflow_event")
        assert [run.status for run in await work.list()] == ["pending"]
        assert await kinds(work, made.id) == ["created"]
