"""What people read when a run was submitted or declared wrongly, or fails."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import DeclarationError, Fatal, Run, Server, ValidationFailed
from maniflex.testing.clock import FakeClock
from tests.kit.runs import minutes, succeeding, working


class Card(BaseModel):
    number: int
    holder: str


async def test_a_payload_that_does_not_fit_is_told_in_one_line_without_its_values(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    @server.work.handler("pay.v1", payload=Card)
    async def pay(run: Run) -> None: ...

    async with working(server) as work:
        made = await work.submit("pay.v1", {"number": "secret 4711"})
        await work.worker().drain()
        failed = await work.get(made.id)

    assert failed.last_error is not None
    assert failed.last_error.startswith("the payload does not fit: number: Input should be a valid integer")
    assert failed.last_error.endswith("; holder: Field required")
    assert "4711" not in failed.last_error + caplog.text
    assert "https://" not in failed.last_error


async def test_a_failure_says_whether_it_is_tried_again(
    server: Server, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @server.work.handler("a.v1", max_attempts=2)
    async def a(run: Run) -> None:
        raise RuntimeError("no")

    @server.work.handler("b.v1")
    async def b(run: Run) -> None:
        raise Fatal("never")

    with caplog.at_level(logging.WARNING, "maniflex"):
        async with working(server) as work:
            await work.submit("a.v1")
            await work.worker().drain()
            clock.advance(minutes(1))
            await work.worker().drain()
            await work.submit("b.v1")
            await work.worker().drain()

    told = [line.getMessage().partition(") ")[2] for line in caplog.records if "attempt" in line.getMessage()]
    assert "Traceback" in told[1]
    assert [text.split("\n")[0] for text in told] == [
        "failed in attempt 1 of 2 and is tried again: RuntimeError: no",
        "failed in attempt 2 and is given up: RuntimeError: no",
        "failed in attempt 1 and is given up: Fatal: never",
    ]


async def test_an_option_there_is_not_is_named_with_the_one_that_was_meant(server: Server) -> None:
    succeeding(server)
    misspelt: dict[str, Any] = {"dealy": 3}
    async with working(server) as work:
        with pytest.raises(TypeError, match=r"a run has no option 'dealy'; did you mean 'delay'\?"):
            await work.submit("default.ok", **misspelt)


@pytest.mark.parametrize("moment", [3, "tomorrow"])
async def test_a_time_that_is_none_is_refused(server: Server, moment: Any) -> None:
    succeeding(server)
    async with working(server) as work:
        with pytest.raises(ValidationFailed, match="run_at must be a datetime with a time zone"):
            await work.submit("default.ok", run_at=moment)


async def test_the_trace_of_a_failure_begins_in_the_handler(server: Server) -> None:
    @server.work.handler("plain.v1", max_attempts=1)
    def plain(run: Run) -> None:
        raise RuntimeError("no")

    @server.work.handler("stepped.v1", max_attempts=1)
    async def stepped(run: Run) -> None:
        await run.step("fail", plain, run)

    async with working(server) as work:
        runs = [await work.submit(type) for type in ("plain.v1", "stepped.v1")]
        await work.worker().drain()
        errors = [(await work.get(run.id)).error or {} for run in runs]

    begins = [str(error["trace"]).splitlines()[1].rpartition("in ")[2] for error in errors]
    assert begins == ["plain", "stepped"]


async def test_a_worker_says_what_it_works_on_and_which_prefix_has_no_handler(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    succeeding(server, "mail.send.v1")
    with caplog.at_level(logging.INFO, "maniflex"):
        async with working(server) as work:
            for prefixes in ((), ("mail.", "biling.")):
                worker = work.worker(prefixes, concurrency=2)
                await worker.start()
                await worker.stop()

    said = [line.getMessage() for line in caplog.records]
    told = [line for line in said if "runs" in line or "worker started" in line]
    assert told == [
        "worker started: types mail.send.v1, default.*, 2 at a time",
        "no handler has a type that starts with 'biling.': such runs fail here with no_handler_registered",
        "worker started: types mail.*, biling.*, 2 at a time",
    ]


def test_a_handler_that_does_not_take_the_run_stops_the_start() -> None:
    server = Server(":memory:")

    @server.work.handler("mail.send.v1")
    async def send() -> None: ...

    with pytest.raises(DeclarationError, match=r"'mail\.send\.v1': the function is called with the run"):
        server.seal()


async def test_submitting_before_the_start_says_where_to_do_it(server: Server) -> None:
    succeeding(server)

    with pytest.raises(DeclarationError, match=r"has not started; .*server\.lifespan"):
        await server.work.submit("default.ok")
