"""The pipeline, written down while it runs: each flag adds its lines and no others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Operation, Server
from maniflex.config import Trace
from maniflex.middleware import db
from maniflex.testing import client
from tests.kit.notes import Note


class Other(Model):
    text: str


@dataclass
class Order:
    amount: int


async def first(ctx: Context, next: Next) -> None:
    await next()


async def refuse(ctx: Context, next: Next) -> None:
    if ctx.field("text") == "bad":
        ctx.abort(403, "NO", "no")
    await next()


def traced(**flags: bool) -> Server:
    server = Server(trace=Trace(**flags))
    server.register(Note, Other)
    server.pipeline.auth.register(first, name="who")
    server.pipeline.service.register(refuse, models=[Note], operations=[Operation.CREATE])
    server.pipeline.db.register(first, models=[Other], name="elsewhere")

    @server.action("POST", "/order", request=Order)
    async def order(ctx: Context) -> int:
        return int(ctx.body.amount)

    return server


async def create(http: httpx.AsyncClient, text: str = "hello", status: int = 201) -> None:
    answer = await http.post("/api/notes", json={"text": text}, headers={"X-Request-Id": "r-1"})
    assert answer.status_code == status, answer.text


async def lines(caplog: pytest.LogCaptureFixture, **flags: bool) -> list[str]:
    """What one create and one refused create leave in the log."""
    caplog.set_level(logging.DEBUG, "maniflex")
    async with client(traced(**flags)) as http:
        caplog.clear()
        await create(http)
        await create(http, "bad", 403)
    mine = [r for r in caplog.records if getattr(r, "request_id", "") == "r-1"]
    assert all(r.levelno == logging.DEBUG for r in mine)
    return [r.getMessage() for r in mine]


ENTERED = ["auth:who", "deserialize", "validate", "service:refuse", "db", "response"]


async def test_nothing_is_traced_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    assert await lines(caplog) == []


async def test_steps_say_when_each_is_entered_and_left(caplog: pytest.LogCaptureFixture) -> None:
    seen = await lines(caplog, steps=True)

    half = seen[: 2 * len(ENTERED)]
    assert [line[2:] for line in half if line.startswith("→ ")] == ENTERED
    assert sorted(line[2:] for line in half if line.startswith("← ")) == sorted(ENTERED)
    assert half.index("→ auth:who") < half.index("→ db") < half.index("← db") < half.index("← auth:who")
    assert "→ db" not in seen[len(half) :]  # the second was refused before


async def test_the_middleware_of_an_action_is_named_as_it_was_declared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def audit(what: str, ctx: Context, next: Next) -> None:
        await next()

    server = Server(trace=Trace(steps=True))

    @server.action("GET", "/look", middleware=[db.rate_limit(10), partial(audit, "looks")])
    async def look(ctx: Context) -> int:
        return 1

    caplog.set_level(logging.DEBUG, "maniflex")
    async with client(server) as http:
        assert (await http.get("/api/look")).status_code == 200
    entered = [r.getMessage()[2:] for r in caplog.records if r.getMessage().startswith("→ ")]
    assert entered == ["db.rate_limit", "audit", "action", "response"]


async def test_timings_are_on_the_lines_of_leaving(caplog: pytest.LogCaptureFixture) -> None:
    seen = await lines(caplog, timings=True)

    assert all(line.startswith("← ") and line.endswith(" ms") for line in seen)
    assert [line for line in seen if line.startswith("← db ")]


async def test_aborts_say_where_they_came_from(caplog: pytest.LogCaptureFixture) -> None:
    [line] = await lines(caplog, aborts=True)

    assert line.startswith("abort 403 NO at ")
    assert "test_trace.py:" in line


async def test_bodies_name_fields_and_never_values(caplog: pytest.LogCaptureFixture) -> None:
    seen = await lines(caplog, bodies=True)

    assert any("text" in line for line in seen)
    assert not any("hello" in line for line in seen)


async def test_enabled_is_steps_timings_and_aborts(caplog: pytest.LogCaptureFixture) -> None:
    seen = await lines(caplog, enabled=True)

    assert "→ service:refuse" in seen
    assert [line for line in seen if line.startswith("← db ") and line.endswith(" ms")]
    assert [line for line in seen if line.startswith("abort 403 NO")]
    assert not [line for line in seen if "body of" in line]


async def test_skips_name_the_middleware_that_does_not_apply(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "maniflex")
    traced(skips=True).seal()

    assert "db:elsewhere does not apply to create Note" in caplog.messages
    assert "service:refuse does not apply to read Note" in caplog.messages
    assert not [line for line in caplog.messages if "auth:who" in line]


@pytest.mark.parametrize("flags", [{"enabled": True}, {"bodies": True}, {"skips": True}])
async def test_tracing_changes_no_answer(flags: dict[str, bool], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "maniflex")

    async def answers(server: Server) -> list[Any]:
        async with client(server) as http:
            return [
                (answer.status_code, answer.json())
                for answer in (
                    await http.post("/api/notes", json={"text": "bad"}),
                    await http.post("/api/notes", json={"txt": 1}),
                    await http.post("/api/order", json={"amount": 3}),
                    await http.post("/api/order", json={"amount": "x"}),
                    await http.get("/api/notes"),
                    await http.get("/api/notes/none"),
                )
            ]

    assert await answers(traced(**flags)) == await answers(traced())
