"""`server.realtime.enable`: its mistakes, what it brings, and that nothing is there without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from maniflex import Model, Operation, Server, field
from maniflex.errors import DeclarationError
from maniflex.events import InProcessBus
from maniflex.realtime import AnonymousOnly, Hub
from maniflex.testing import client
from tests.kit.processes import IMPORTS


class Item(Model, events=True):
    """What streams tell of."""

    title: str = field(default="")


async def watch(auth: object, event: object) -> bool:
    """A visibility that waits."""
    return True


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"ws": "ws"}, "ws='ws' is no path"),
        ({"sse": "/a/{b}"}, "is no path"),
        ({"ws": None, "sse": None}, "nobody could connect"),
        ({"ws": "/x", "sse": "/x"}, "ws and sse are both '/x'"),
        ({"max_connections": 0}, "max_connections=0 is no number of 1 or more"),
        ({"send_buffer": None}, "send_buffer=None is no number of 1 or more"),
        ({"resume_buffer": 0}, "resume_buffer=0"),
        ({"ping_interval": 60, "read_timeout": 60}, "read_timeout must be longer than ping_interval"),
        ({"send_timeout": 0}, "send_timeout must be"),
        ({"visibility": watch}, "visibility is asked for every event"),
        ({"visibility": lambda: True}, "which it does not take"),
        ({"origins": ["app.example"]}, "'app.example' is no origin"),
        ({"origins": ["https://a.example/path"]}, "is no origin"),
        ({"origins": ["*", "https://a.example"]}, "the others mean nothing"),
        ({"origins": "https://a.example"}, "is no list of origins"),
        ({"allow_patterns": ["a..b"]}, "empty segment"),
        ({"compression": "yes"}, "compression is True or False"),
        ({"authenticator": 7}, "authenticator=7 is no function"),
    ],
)
def test_a_mistake_stops_the_start(options: dict[str, Any], about: str) -> None:
    server = Server()
    server.register(Item)
    server.realtime.enable(**options)
    with pytest.raises(DeclarationError, match=re.escape(about)):
        server.seal()


def test_all_mistakes_are_told_at_once() -> None:
    server = Server()
    server.register(Item)
    server.realtime.enable(max_connections=0, origins=["x"], allow_patterns=["a..b"])
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    assert len(refused.value.problems) == 3


def test_a_word_that_is_none_is_named() -> None:
    with pytest.raises(DeclarationError, match="ping_intervall"):
        Server().realtime.enable(ping_intervall=3)  # type: ignore[call-arg]  # misspelt


def test_a_path_that_another_route_has_stops_the_start() -> None:
    server = Server(path_prefix="")
    server.register(Item)
    server.realtime.enable(sse="/items", ws="/health")
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    assert any("/items" in problem for problem in refused.value.problems)
    assert any("/health" in problem for problem in refused.value.problems)


def test_a_hub_says_who_connects() -> None:
    with pytest.raises(TypeError, match="authenticator"):
        Hub(InProcessBus())  # type: ignore[call-arg]  # nobody is asked
    with pytest.raises(DeclarationError, match="max_connections"):
        Hub(InProcessBus(), authenticator=AnonymousOnly(), max_connections=0)


WITHOUT = """
import sys
from maniflex import Model, Server, field
class Item(Model, events=True):
    title: str = field(default="")
server = Server("sqlite:///:memory:")
server.register(Item)
server.seal()
import maniflex.http.serve as serve
serve.uvicorn_settings(server.config, server.websocket_options)
found = [name for name in sys.modules if name.startswith(("websockets", "maniflex.realtime"))]
assert not found, found
assert not [path for _, path, _ in server.routes if path in ("/ws", "/sse")]
assert server.websocket_options is None
"""


def test_an_application_without_it_has_nothing_of_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT], env={"PYTHONPATH": IMPORTS}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "websockets.py").write_text("raise ImportError('no module named websockets')")
    code = """
from maniflex import Server
server = Server()
server.realtime.enable()
try:
    server.seal()
except Exception as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{IMPORTS}"},
        capture_output=True,
        text=True,
    )
    assert "pip install 'maniflex[realtime]'" in ended.stdout, ended.stderr


async def test_the_stream_is_described_and_a_rule_for_it_can_be_registered() -> None:
    server = Server()
    server.register(Item)
    server.realtime.enable()
    calls: list[str] = []

    @server.pipeline.auth.middleware(models=[Item], operations=[Operation.SUBSCRIBE])
    async def note(ctx: Any, next: Any) -> None:
        calls.append(ctx.operation)
        await next()

    async with client(server) as http:
        described = (await server.openapi())["paths"]
        assert described["/sse"]["get"]["responses"]["200"]["content"].keys() == {"text/event-stream"}
        assert "426" in described["/ws"]["get"]["responses"]
        from maniflex.testing import websocket

        async with websocket(server) as ws:
            await ws.subscribe("item.*")
        await http.get("/api/items")
    assert calls == ["subscribe"]
    assert server.realtime.stats().connections == 0
