"""Dead letters: the run that is submitted for each that fails for good."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Run, Server
from maniflex.errors import DeclarationError
from maniflex.testing.clock import FakeClock
from tests.kit.runs import failing, minutes, no_pause, working


async def test_what_fails_for_good_goes_to_its_dead_letters_once(server: Server) -> None:
    letters: list[Any] = []
    failing(server, ValueError("no"), max_attempts=2, backoff=no_pause, dead_letter="default.dead")

    @server.work.handler("default.dead")
    async def bury(run: Run) -> None:
        letters.append(run.payload)

    async with working(server) as work:
        made = await work.submit("default.bad", {"n": 1}, actor_id="a", tenant_id="t")
        await work.worker().drain()
        [letter] = await work.list(type="default.dead")
        assert (letter.actor_id, letter.tenant_id) == ("a", "t")

    assert letters == [
        {
            "run_id": made.id,
            "type": "default.bad",
            "payload": {"n": 1},
            "error": "ValueError: no",
            "attempt": 2,
        }
    ]


async def test_a_run_whose_worker_died_for_the_last_time_has_a_dead_letter_too(
    server: Server, clock: FakeClock
) -> None:
    failing(server, ValueError(), max_attempts=1, dead_letter="dead.letters")
    async with working(server) as work:
        await work.submit("default.bad")
        await work.worker().claim(1)
        clock.advance(minutes(5))
        await work.worker().run_once()
        [letter] = await work.list(type="dead.letters")
        assert isinstance(letter.payload, dict)
        assert letter.payload["error"] == "lease_expired"


async def test_dead_letters_in_a_circle_are_a_mistake_of_the_declaration(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    for type, letter in (("a.one", "a.two"), ("a.two", "a.three"), ("a.three", "a.two"), ("b", "a.one")):
        failing(server, ValueError(), type, dead_letter=letter)
    with pytest.raises(DeclarationError) as refused:
        async with working(server):
            pass
    assert str(refused.value).count("circle") == 1
    assert "a.two → a.three → a.two" in str(refused.value)


async def test_dead_letters_in_a_circle_through_two_processes_end(
    database_url: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (Server(database_url, clock=clock) for _ in range(2))
    failing(one, ValueError("one"), "a.one", backoff=no_pause, dead_letter="a.two")
    failing(two, ValueError("two"), "a.two", backoff=no_pause, dead_letter="a.one")
    async with working(one) as first, working(two) as second:
        await first.submit("a.one", {"n": 1})
        for _ in range(4):
            await first.worker().drain()
            await second.worker().drain()
        assert [run.type for run in await first.list()] == ["a.two", "a.one"]
    assert "dead letters in a circle" in caplog.text
