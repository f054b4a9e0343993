"""`server.readiness`: checks beside the databases, all at once, bounded, one run for simultaneous probes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from maniflex import DeclarationError, Server
from maniflex.testing import client
from tests.kit.waiting import PATIENCE, eventually

TOKEN = "a token of some length"


async def ready(server: Server, database: str) -> tuple[int, Any]:
    async with client(server, database=database) as http:
        answer = await http.get("/ready")
        return answer.status_code, answer.json()


@pytest.mark.parametrize("outcome", ["returns", "True", "False", "raises", "a panic", "a thread that raises"])
async def test_a_check_fails_when_it_raises_or_says_so(
    database_url: str, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Panic(BaseException):
        pass

    server = Server()

    @server.readiness("payments")
    async def payments() -> Any:
        if outcome == "raises":
            raise ConnectionError("secret-host:5432")
        if outcome == "a panic":
            raise Panic
        return {"True": True, "False": False}.get(outcome)

    @server.readiness("mail")
    def mail() -> None:
        if outcome == "a thread that raises":
            raise ConnectionError("secret-host:5432")

    status, body = await ready(server, database_url)

    fails = outcome not in ("returns", "True")
    assert status == (503 if fails else 200)
    assert body == {"status": "unavailable" if fails else "ok", "database": "ok"}  # no names, no texts
    assert ("readiness check" in caplog.text) is fails


async def test_names_are_shown_only_where_that_is_asked_for(sqlite_url: str) -> None:
    server = Server(publish_readiness_checks=True)

    @server.readiness("payments")
    async def payments() -> bool:
        return False

    @server.readiness("mail")
    async def mail() -> None: ...

    status, body = await ready(server, sqlite_url)

    assert status == 503
    assert body == {
        "status": "unavailable",
        "database": "ok",
        "checks": {"payments": "unavailable", "mail": "ok"},
    }


async def test_checks_run_side_by_side_and_probes_share_one_run(database_url: str) -> None:
    server = Server()
    both, calls = asyncio.Barrier(2), 0
    go_on = asyncio.Event()

    async def check() -> None:
        nonlocal calls
        calls += 1
        await both.wait()  # neither passes unless the other runs
        await go_on.wait()

    server.readiness("one")(check)
    server.readiness("two")(lambda: None)
    server.readiness("three")(check)
    async with client(server, database=database_url) as http:
        probes = [asyncio.create_task(http.get("/ready")) for _ in range(20)]
        await eventually(lambda: calls == 2)
        probes[0].cancel()  # who asked first has left
        go_on.set()
        answers = await asyncio.gather(*probes[1:])
        assert [answer.status_code for answer in answers] == [200] * 19
        assert calls == 2
        await http.get("/ready")
        assert calls == 4


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_check_that_hangs_fails_in_time_and_is_not_begun_again(
    sqlite_url: str, stubborn: bool
) -> None:
    server = Server(health_timeout=0.05, shutdown_timeout=1)
    begun, release = 0, asyncio.Event()

    @server.readiness("hangs")
    async def hangs() -> None:
        nonlocal begun
        begun += 1
        while True:
            try:
                await release.wait()
                return
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    async with client(server, database=sqlite_url) as http:
        for _ in range(3):
            assert (await asyncio.wait_for(http.get("/ready"), PATIENCE)).status_code == 503
            assert (await http.get("/live")).status_code == 200
        assert begun == (1 if stubborn else 3)
        release.set()
        await eventually_ready(http)


async def eventually_ready(http: Any) -> None:
    for _ in range(50):
        if (await http.get("/ready")).status_code == 200:
            return
    raise AssertionError("it did not become ready")


async def test_a_check_that_blocks_its_thread_blocks_nobody_else(sqlite_url: str) -> None:
    server, release = Server(health_timeout=0.05), threading.Event()
    begun = 0

    @server.readiness("blocks")
    def blocks() -> None:
        nonlocal begun
        begun += 1
        release.wait(30)

    async with client(server, database=sqlite_url) as http:
        for _ in range(3):
            assert (await http.get("/ready")).status_code == 503
        assert begun == 1  # more would use up the threads that everybody shares
        release.set()
        await eventually_ready(http)


async def test_a_plain_function_that_calls_an_async_one_is_awaited(sqlite_url: str) -> None:
    async def is_reachable() -> bool:
        return False

    server = Server()
    server.readiness("payments")(lambda: is_reachable())
    assert (await ready(server, sqlite_url))[0] == 503


async def test_a_probe_can_be_switched_off_or_guarded(sqlite_url: str) -> None:
    server = Server(probes=("live", "ready"), probes_token=TOKEN)
    async with client(server, database=sqlite_url) as http:
        assert (await http.get("/health")).status_code == 404
        assert (await http.get("/live")).status_code == 401
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert (await http.get("/live", headers=headers)).status_code == 200
        assert (await http.get("/ready", headers=headers)).status_code == 200


def test_two_checks_of_one_name_and_late_ones_are_refused() -> None:
    server = Server()
    server.readiness("payments")(lambda: None)
    with pytest.raises(DeclarationError, match="two readiness checks called 'payments'"):
        server.readiness("payments")(lambda: None)
    server.seal()
    with pytest.raises(DeclarationError, match="the server is sealed"):
        server.readiness("late")(lambda: None)
