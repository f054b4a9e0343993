"""A switch, a role or a duration that makes no sense stops the start; it opens nothing by accident."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Server
from maniflex.errors import DeclarationError
from maniflex.testing import client

Declare = Callable[[Any], object]


async def nothing(_: Any) -> None:
    """Nothing to do."""


async def nobody(server: Any, database_url: str, problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem):
        async with client(server, database=database_url):
            raise AssertionError("it started")


SWITCHES: dict[str, Declare] = {
    "public": lambda s: s.work.handler("q.v1", public="no")(nothing),
    "internal": lambda s: s.work.handler("q.v1", internal="x")(nothing),
    "public is none": lambda s: s.work.handler("q.v1", public=None)(nothing),
    "schedulable": lambda s: s.action("POST", "/tidy", schedulable="yes")(nothing),
    "status": lambda s: s.jobs.mount_status(public="yes"),
    "work routes": lambda s: s.work.enable(routes="no"),
    "outbox routes": lambda s: s.outbox.enable(routes=0),
    "schedule routes": lambda s: s.schedules.enable(routes="off"),
}


@pytest.mark.parametrize("declare", SWITCHES.values(), ids=SWITCHES)
async def test_a_switch_is_on_or_off(database_url: str, declare: Declare) -> None:
    server = Server(database_url)
    declare(server)

    await nobody(server, database_url, "is True or False")


@pytest.mark.parametrize("role", ["", "  ", 5, ("admin",), None])
@pytest.mark.parametrize("part", ["work", "outbox", "schedules", "jobs"])
async def test_a_role_has_a_name(database_url: str, part: str, role: Any) -> None:
    server: Any = Server(database_url)
    declare = server.jobs.mount_status if part == "jobs" else getattr(server, part).enable
    declare(admin_role=role)

    if part == "schedules" and role is None:  # that of durable runs
        async with client(server, database=database_url):
            assert server.schedules.admin_role == "admin"
    else:
        await nobody(server, database_url, "admin_role is the name of a role")


@pytest.mark.parametrize(
    ("opened", "problem"),
    [
        ("*", "is a type such as"),
        ("", "is a type such as"),
        (".", "is a type such as"),
        ("a b", "is a type such as"),
        ("email", r"begin with it are 'email\.'"),
        ("inner.v1", "is internal"),
        ("letter.v1", "dead letters"),
    ],
)
async def test_what_is_opened_can_be_submitted(database_url: str, opened: str, problem: str) -> None:
    server: Any = Server(database_url)
    server.work.handler("inner.v1", internal=True)(nothing)
    server.work.handler("mortal.v1", dead_letter="letter.v1")(nothing)
    server.work.enable(public_submit=["email.", "far.away.v1", opened])

    await nobody(server, database_url, problem)


async def test_a_type_of_one_word_is_opened_where_it_has_a_handler(database_url: str) -> None:
    server: Any = Server(database_url)
    server.work.handler("email")(nothing)
    server.work.enable(public_submit=["email"])

    async with client(server, database=database_url):
        assert server.work.access.is_public("email", server.work.handlers)


NO_DURATIONS = [True, False, 0, -1, math.inf, math.nan, 1e30, "5", timedelta(0), timedelta.max]
HANDLERS: dict[str, Callable[..., Any]] = {
    "runs": lambda s, **said: s.work.handler("a.v1", **said)(nothing),
    "jobs": lambda s, **said: s.jobs.handler("a.v1", **said)(nothing),
    "outbox": lambda s, **said: s.outbox.handler("a.happened", **said)(nothing),
}


@pytest.mark.parametrize("timeout", NO_DURATIONS, ids=repr)
@pytest.mark.parametrize("part", HANDLERS)
def test_a_timeout_is_a_duration(part: str, timeout: Any) -> None:
    server = Server("sqlite://:memory:")
    HANDLERS[part](server, timeout=timeout)

    with pytest.raises(DeclarationError, match="timeout must be a timedelta or seconds, above zero"):
        server.seal()


@pytest.mark.parametrize("timeout", [5, 0.5, timedelta(seconds=5)], ids=repr)
@pytest.mark.parametrize("part", HANDLERS)
async def test_every_handler_takes_seconds(database_url: str, part: str, timeout: Any) -> None:
    server = Server(database_url)
    HANDLERS[part](server, timeout=timeout)

    async with client(server, database=database_url):
        if part == "outbox":
            await server.outbox.enqueue("a.happened", {}, outside_transaction=True)
            assert await server.outbox.drainer().drain() == 1
        else:
            await server.work.submit("a.v1", {})
            assert await server.work.worker().drain() == 1


def test_a_lease_in_seconds_is_a_lease() -> None:
    server = Server("sqlite://:memory:")
    server.work.handler("a.v1", lease=90)(nothing)

    assert server.work.handlers.leases() == {"a.v1": timedelta(seconds=90)}
