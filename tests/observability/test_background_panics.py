"""`on_background_panic` hears of exceptions that background work did not expect; so does `panic_logger`."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Context, Server
from maniflex._clock import SystemClock
from maniflex.background.loop import Loop
from maniflex.errors import Unavailable
from maniflex.testing import client
from tests.kit.waiting import eventually


class Broken(BaseException):
    """What an extension module may raise."""


async def test_background_work_and_go_tasks_are_told_of(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, str]] = []
    later: list[str] = []

    def by_setting(what: str, error: BaseException) -> None:
        told.append((what, repr(error)))

    server = Server(on_background_panic=by_setting, panic_logger=logging.getLogger("panics"))

    @server.on_background_panic
    def broken_hook(what: str, error: BaseException) -> None:
        raise KeyError("a hook")

    @server.on_background_panic
    async def later_hook(what: str, error: BaseException) -> None:
        later.append(what)

    @server.go
    async def reconcile() -> None:
        raise Broken("go")

    @server.action("POST", "/orders")
    async def order(ctx: Context) -> None:
        async def mail() -> None:
            raise ValueError("background")

        ctx.background(mail)

    async with client(server, database=database_url) as http:
        answer = await http.post("/api/orders", headers={"x-request-id": "r-1"})
        await eventually(lambda: len(told) == 2 and len(later) == 2)

    assert answer.status_code == 204
    assert sorted(told) == [
        ("background of r-1 work failed", "ValueError('background')"),
        ("reconcile failed", "Broken('go')"),
    ]
    panics = [record.getMessage() for record in caplog.records if record.name == "panics"]
    assert sorted(panics) == sorted(what for what, _ in told)
    assert caplog.text.count("on_background_panic failed") == 2


async def test_a_tick_that_fails_is_told_of_once_and_an_outage_is_not(sqlite_url: str) -> None:
    told: list[str] = []
    errors: list[Exception] = [Unavailable(), ValueError("a tick"), ValueError("a tick")]
    server = Server(on_background_panic=lambda what, error: told.append(f"{what}: {error}"))

    class Ticking(Loop):
        name = "ticking"

        async def tick(self) -> bool:
            if errors:
                raise errors.pop(0)
            return False

        def pause(self) -> timedelta:
            return timedelta(0)

    async with client(server, database=sqlite_url):
        logger = server._seal().runtime.background_logger
        loop = Ticking(SystemClock(), timedelta(milliseconds=1), logger)
        await loop.start()
        await eventually(lambda: loop.ticks > 0)
        await loop.stop()

    assert told == []  # the streak began with the outage

    errors += [ValueError("a tick"), ValueError("a tick")]
    told.clear()
    async with client(server, database=sqlite_url):
        again: Any = Ticking(SystemClock(), timedelta(milliseconds=1), logger)
        await again.start()
        await eventually(lambda: again.ticks > 0)
        await again.stop()

    assert told == ["ticking: a tick failed; it goes on trying: a tick"]


def test_a_hook_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(Exception, match="on_background_panic: 7 cannot be called"):
        Server(on_background_panic=7)  # type: ignore[arg-type]  # that is the point
