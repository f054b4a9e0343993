"""A log handler that raises costs a line of the log, and nothing of the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from maniflex import Server
from maniflex._logging import GuardedLogger, guard_logger
from maniflex.background.outbox.model import OutboxMessage
from tests.kit.runs import failing, no_pause, working


class Raising(logging.Handler):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        raise self.error


ERRORS = [ValueError("no disk"), SystemExit(2), asyncio.CancelledError(), GeneratorExit(), BaseException("x")]


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def raising(request: pytest.FixtureRequest) -> Iterator[Raising]:
    logger, handler = logging.getLogger("maniflex"), Raising(request.param)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_a_run_and_a_message_have_their_outcomes_though_they_cannot_be_logged(
    server: Server, raising: Raising
) -> None:
    failing(server, ValueError("no"), max_attempts=2, backoff=no_pause)

    @server.outbox.handler("note")
    async def note(message: Any) -> None:
        raise ValueError("no")

    @server.jobs.handler("tidy", backoff=no_pause)
    async def tidy(job: Any) -> None:
        raise ValueError("no")

    async with working(server) as work:
        run = await work.submit("default.bad")
        job = await server.jobs.enqueue("tidy", max_retry=1)
        message = await server.outbox.enqueue("note", outside_transaction=True)
        await work.worker().drain()
        await server.outbox.drainer().drain()
        done = [await work.get(id) for id in (run.id, job)]
        assert [(one.status, one.attempt) for one in done] == [("failed", 2), ("failed", 1)]
        sent = await server.db(OutboxMessage).read(message.id)
        assert (sent.attempts, sent.lease_until) == (1, None)
    assert any("failed in attempt 2" in line for line in raising.lines)


def test_a_guarded_logger_logs_as_the_one_it_stands_for(caplog: pytest.LogCaptureFixture) -> None:
    real = logging.getLogger("maniflex.test")
    real.setLevel(logging.INFO)
    real.addFilter(lambda record: "secret" not in record.getMessage())
    logger = guard_logger(real)
    assert guard_logger(logger) is logger
    assert isinstance(logger, GuardedLogger)
    logger.debug("too low")
    logger.info("secret")
    logger.info("seen %d", 1)
    real.setLevel(logging.DEBUG)
    logger.debug("low enough")
    assert [(r.name, r.getMessage(), r.funcName) for r in caplog.records] == [
        ("maniflex.test", text, "test_a_guarded_logger_logs_as_the_one_it_stands_for")
        for text in ("seen 1", "low enough")
    ]
