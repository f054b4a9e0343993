"""Clients that dribble: cut off by `maniflex run`, and no trouble for the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maniflex import Server
from tests.kit.notes import Note
from tests.kit.sockets import listening


def a_server(tmp_path: Path, **settings: Any) -> Server:
    server = Server(database=f"sqlite:///{tmp_path}/notes.db", **settings)
    server.register(Note)
    return server


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /api/notes HTTP/1.1\r\nHost: x\r\n",
        b"POST /api/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_request_that_does_not_arrive_is_cut_off(sent: bytes, tmp_path: Path) -> None:
    async with listening(a_server(tmp_path, head_timeout=0.2, body_timeout=0.2)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)

        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_huge_head_is_refused_and_a_large_body_is_not(tmp_path: Path) -> None:
    body = b'{"text": "%s"}' % (b"x" * 300_000)
    async with listening(a_server(tmp_path)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/notes HTTP/1.1\r\nX-Long: " + b"x" * 300_000)
        refused = await asyncio.wait_for(reader.readline(), 10)
        writer.close()

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /api/notes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        created = await asyncio.wait_for(reader.readline(), 10)
        writer.close()

    assert b" 431 " in refused
    assert b" 201 " in created
