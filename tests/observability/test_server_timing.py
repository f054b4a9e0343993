"""`Server-Timing` tells an administrator where the time of a request went, and nobody else."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Next, Server, Trace
from maniflex.testing import client
from tests.kit.notes import Note

HEADER = "server-timing"
ENTRY = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+;dur=\d+\.\d{3}(;desc=\"[^\"]*\")?")


def a_server(**settings: Any) -> Server:
    server = Server(**settings)
    server.register(Note)

    @server.pipeline.auth.middleware(name="who é")
    async def who(ctx: Context, next: Next) -> None:
        role = ctx.header("x-role")
        ctx.auth = AuthInfo(user_id="ada", roles=[role] if role else [])
        await next()

    return server


async def ask(http: httpx.AsyncClient, role: str) -> str | None:
    answer = await http.get("/api/notes?limit=1", headers={"x-role": role})
    header: str | None = answer.headers.get(HEADER)
    return header


async def test_an_administrator_sees_steps_and_statements(database_url: str) -> None:
    async with client(a_server(trace=Trace(timings=True)), database=database_url) as http:
        header = await ask(http, "admin")

    assert header is not None
    entries = header.split(", ")
    assert all(ENTRY.fullmatch(entry) for entry in entries), header
    names = [entry.partition(";")[0] for entry in entries]
    assert names[-1] == "database"
    assert {"db", "response", "deserialize"} <= set(names)
    assert any(entry.startswith("auth-who") and 'desc="auth:who ?"' in entry for entry in entries)
    assert re.search(r'desc="[1-9]\d* statements?"', entries[-1])


@pytest.mark.parametrize("role", ["", "editor"])
async def test_nobody_else_does(sqlite_url: str, role: str) -> None:
    async with client(a_server(trace=Trace(timings=True)), database=sqlite_url) as http:
        assert await ask(http, role) is None


async def test_the_role_is_a_setting_and_the_switch_is_the_trace(sqlite_url: str) -> None:
    async with client(
        a_server(trace=Trace(enabled=True), admin_role="operator"), database=sqlite_url
    ) as http:
        assert await ask(http, "admin") is None
        assert await ask(http, "operator") is not None
    async with client(a_server(), database=sqlite_url) as http:
        assert await ask(http, "admin") is None
