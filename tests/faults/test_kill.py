"""A server that is killed while it writes loses nothing it has acknowledged."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
import pytest

from maniflex import Model, Server
from maniflex.testing import client
from tests.kit.processes import accepts, free_port, nursery, run_program
from tests.kit.servers import started
from tests.kit.waiting import PATIENCE, until

ROUNDS = 20
WRITERS = 8
ACKNOWLEDGED_BEFORE_THE_KILL = 40

LIFE = """
import sys
from maniflex import Model, Server
import uvicorn, uvloop, httptools, asyncpg  # noqa

class Note(Model):
    text: str
    version: int = 0

def live(port):
    server = Server(sys.argv[1], port=int(port), log_level="ERROR", pool_size=4)
    server.register(Note)
    server.run()
"""


class Note(Model):
    text: str
    version: int = 0


class Load:
    """Writers that remember what they were told is stored."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.versions: dict[str, tuple[int, int]] = {}  # acknowledged, and the one that was under way
        self.answers = 0
        self.enough = asyncio.Event()

    async def write(self, http: httpx.AsyncClient, url: str, writer: int) -> None:
        with suppress(httpx.TransportError):
            await self._write(http, f"{url}/api/notes", writer)

    async def _write(self, http: httpx.AsyncClient, url: str, writer: int) -> None:
        while True:
            text = f"{writer}-{len(self.texts)}"
            created = await http.post(url, json={"text": text})
            assert created.status_code == 201, created.text
            mine = created.json()["data"]["id"]
            self.texts[mine] = text
            self._acknowledged()
            for version in (1, 2, 3):
                self.versions[mine] = (version - 1, version)
                changed = await http.patch(f"{url}/{mine}", json={"version": version})
                assert changed.status_code == 200, changed.text
                self.versions[mine] = (version, version)
                self._acknowledged()

    def _acknowledged(self) -> None:
        self.answers += 1
        if self.answers >= ACKNOWLEDGED_BEFORE_THE_KILL:
            self.enough.set()

    def missing(self, stored: dict[str, Any]) -> list[str]:
        """What was acknowledged and is not there."""
        lost = [
            f"note {id}" for id, text in self.texts.items() if id not in stored or stored[id].text != text
        ]
        for id, (acknowledged, under_way) in self.versions.items():
            if id in stored and stored[id].version not in (acknowledged, under_way):
                lost.append(f"version {acknowledged} of {id}: {stored[id].version}")
        return lost


async def test_every_acknowledged_write_survives_twenty_kills_under_load(
    database_url: str,
) -> None:
    loads = []
    with nursery(LIFE, database_url) as place:
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            for _ in range(ROUNDS):
                port, load = free_port(), Load()
                place.start(port)
                until(partial(accepts, port), "a server that came back")
                url = f"http://127.0.0.1:{port}"
                writers = [asyncio.create_task(load.write(http, url, n)) for n in range(WRITERS)]
                await asyncio.wait_for(load.enough.wait(), PATIENCE)
                place.kill()
                await asyncio.gather(*writers)
                loads.append(load)

    async with started(database_url, Note) as server:
        stored = {note.id: note for note in await server.db(Note).list()}
    assert [load.missing(stored) for load in loads] == [[]] * ROUNDS
    assert sum(load.answers for load in loads) >= ROUNDS * ACKNOWLEDGED_BEFORE_THE_KILL
    assert any(load.versions for load in loads)


HALF = """
import asyncio, sys
from maniflex import Model, Server

class Note(Model):
    text: str
    version: int = 0

async def main():
    server = Server(sys.argv[1])
    server.register(Note)
    async with server.lifespan(), server.transaction():
        for n in range(50):
            await server.db(Note).create(text="half")
        print("written", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def killed_half_way(database_url: str) -> None:
    """A process was killed inside a transaction that had written."""
    with run_program(HALF, database_url) as program:
        assert program.hear() == "written"


@pytest.mark.usefixtures("killed_half_way")
async def test_a_transaction_that_is_killed_leaves_nothing_behind(database_url: str) -> None:
    server = Server()
    server.register(Note)
    async with client(server, database=database_url) as http:
        assert (await http.get("/api/notes")).json()["meta"]["total"] == 0
        assert (await http.post("/api/notes", json={"text": "after"})).status_code == 201
