"""Names of steps, pauses and signals: any text, and never the engine's own."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Run, Server
from maniflex.background.runs.step_memory import FAILED
from maniflex.errors import DeclarationError, Fatal, ValidationFailed
from maniflex.testing.clock import FakeClock
from tests.kit.runs import minutes, no_pause, working

ENGINES = [
    FAILED,
    "saga.failed",
    "@sleep:1:",
    "sleep:1",
    "@signal:1:go",
    "@deadline:1:go",
    "@call:1:",
    "@",
    "@@x",
]


async def test_steps_may_have_the_names_of_what_the_engine_remembers(
    server: Server, clock: FakeClock
) -> None:
    @server.work.handler("default.names", backoff=no_pause)
    async def names(run: Run) -> Any:
        results = [await run.step(name, str.upper, name) for name in ENGINES]
        await run.sleep(minutes(1))
        await run.sleep(minutes(1), name="1")
        results.append(await run.wait_for("go"))
        results.append(await run.wait_for("go:2", timeout=minutes(5)))
        results.append(await run.wait_for("go", timeout=minutes(5)))
        if run.attempt == 1:
            raise ValueError("once more")
        return results

    async with working(server) as work:
        made = await work.submit("default.names")
        for name in ("go", "go", "go:2"):
            await work.signal(made.id, name, name)
        for _ in range(4):
            await work.worker().drain()
            clock.advance(minutes(1))
        done = await work.get(made.id)
    assert (done.status, done.attempt) == ("succeeded", 2)
    assert done.result == [*(name.upper() for name in ENGINES), "go", "go:2", "go"]


async def test_a_saga_takes_back_steps_of_any_name(server: Server) -> None:
    undone: list[str] = []

    @server.work.handler("default.saga")
    async def saga(run: Run) -> None:
        for name in ENGINES:
            await run.step(name, str, name, compensate=undone.append)
        raise Fatal("no")

    async with working(server) as work:
        made = await work.submit("default.saga")
        await work.worker().drain()
        last = (await work.events(made.id))[-1]
        assert (await work.get(made.id)).status == "failed"
    assert undone == ENGINES[::-1]
    assert (last.data or {})["taken_back"] == ENGINES[::-1]


@pytest.mark.parametrize("name", ["", "a\x00b", "\ud800", 7, None])
async def test_a_step_without_a_proper_name_is_refused(server: Server, name: Any) -> None:
    refusals: list[str] = []

    @server.work.handler("default.nameless")
    async def nameless(run: Run) -> None:
        with pytest.raises(DeclarationError) as refused:
            await run.step(name, int)
        refusals.append(str(refused.value))

    async with working(server) as work:
        await work.submit("default.nameless")
        await work.worker().drain()
    assert len(refusals) == 1


NO_NAMES = {
    "": "name must not be empty",
    "a\x00b": "name must be a text without NUL and lone surrogates",
    "\ud800": "name must be a text without NUL and lone surrogates",
    "run:7": "name must not begin with run:",
    7: "name must be a text without NUL and lone surrogates",
    None: "name must be a text without NUL and lone surrogates",
}


@pytest.mark.parametrize(("name", "why"), NO_NAMES.items(), ids=map(ascii, NO_NAMES))
async def test_a_signal_without_a_proper_name_is_refused_once_and_plainly(
    server: Server, name: Any, why: str
) -> None:
    refusals: list[str] = []

    @server.work.handler("default.wait")
    async def wait(run: Run) -> None:
        for call in (run.wait_for(name), run.signal(run.id, name), server.work.signal(run.id, name)):
            with pytest.raises(ValidationFailed) as refused:
                await call
            refusals.append(str(refused.value))

    async with working(server) as work:
        made = await work.submit("default.wait")
        await work.worker().drain()
        assert (await work.get(made.id)).status == "succeeded"
    assert refusals == [why] * 3
