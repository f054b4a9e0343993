"""Whose address a request has, behind proxies that are trusted and ones that are not (K1, C41)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from maniflex import Context, Server
from maniflex.config import Config
from maniflex.errors import ConfigError
from maniflex.http.serve import bind, uvicorn_settings
from maniflex.testing import client
from tests.kit.waiting import eventually


def a_server(**settings: Any) -> Server:
    server = Server(**settings)

    @server.action("GET", "/me")
    async def me(ctx: Context) -> list[str]:
        return [ctx.scheme, ctx.client_ip]

    return server


@asynccontextmanager
async def our_uvicorn(server: Server, database: str) -> AsyncIterator[str]:
    """The address of the server under uvicorn, with the settings of `maniflex run`."""
    with server.on_database(database), bind("127.0.0.1", 0) as listener:
        host = uvicorn.Server(uvicorn.Config(server, **uvicorn_settings(server.config)))
        serving = asyncio.create_task(host.serve(sockets=[listener]))
        try:
            await eventually(lambda: host.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/api/me"
        finally:
            host.should_exit = True
            await serving


@pytest.mark.parametrize(
    ("trust", "address"), [((), "127.0.0.1"), (1, "192.0.2.1"), (("127.0.0.0/8",), "192.0.2.1")]
)
async def test_no_client_chooses_its_address(trust: Any, address: str, database_url: str) -> None:
    """C41: one address over many connections with as many headers, from this machine, is one address."""
    async with our_uvicorn(a_server(trusted_proxies=trust), database_url) as url:
        seen = set()
        for number in range(20):
            async with httpx.AsyncClient() as http:
                answer = await http.get(url, headers={"x-forwarded-for": f"198.51.100.{number}, 192.0.2.1"})
            seen.add(answer.json()["data"][1])

    assert seen == {address}


async def test_the_scheme_is_believed_under_the_same_trust(database_url: str) -> None:
    headers = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}
    for trust, answer in ((0, ["http", "127.0.0.1"]), (1, ["https", "192.0.2.7"])):
        async with client(a_server(trusted_proxies=trust), database=database_url) as http:
            assert (await http.get("/api/me", headers=headers)).json()["data"] == answer


async def test_the_front_page_is_not_shown_through_a_proxy_on_this_machine(sqlite_url: str) -> None:
    async with client(a_server(), database=sqlite_url) as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/", headers={"x-forwarded-for": "192.0.2.7"})).status_code == 404


@pytest.mark.parametrize(
    ("text", "trust"), [("2", 2), ("10.0.0.0/8, 192.0.2.1", ("10.0.0.0/8", "192.0.2.1")), ("", ())]
)
def test_the_environment_names_them(text: str, trust: Any) -> None:
    assert Config.from_env({"TRUSTED_PROXIES": text}).trusted_proxies == trust


@pytest.mark.parametrize("text", ["99", "proxy.example", "10.0.0.0/33"])
def test_a_trust_that_means_nothing_stops_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match="TRUSTED_PROXIES"):
        Config.from_env({"TRUSTED_PROXIES": text})


def test_a_list_of_networks_is_taken_too() -> None:
    assert Config(trusted_proxies=["10.0.0.0/8"]).trusted_proxies == ("10.0.0.0/8",)
