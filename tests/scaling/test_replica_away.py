"""A replica that dies, hangs or lags costs nobody a request, and no process its start."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from maniflex.db.current import ReplicaReader, current_reader
from maniflex.db.postgres.replicated import Replica, ReplicatedAdapter
from maniflex.errors import ConfigError
from maniflex.sql.statement import Sql
from maniflex.testing import client
from tests.kit.postgres import as_role, execute
from tests.kit.private_postgres import PrivatePostgres, standby_of
from tests.kit.processes import MANIFLEX, Served, free_port, start_process
from tests.kit.replicas import ReplicatedDatabase, is_read_from, server_with_replica
from tests.kit.waiting import eventually

PER_SECOND = 60
HUNG_WITHIN = 8.0  # a read on a server that hangs is asked of the primary by then


class Load:
    """So many requests a second, each alone, and what became of them."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self.answers = 0
        self.failures: list[str] = []
        self.longest = 0.0

    async def run(self) -> None:
        number = 0
        while not self._over:
            number += 1
            self._tasks.add(asyncio.create_task(self._one(number)))
            await asyncio.sleep(1 / PER_SECOND)  # the pace of the load
        await asyncio.gather(*self._tasks)

    async def _one(self, number: int) -> None:
        began = time.monotonic()
        if number % 10 == 0:
            answer = await self._http.post("/api/notes", json={"text": str(number)})
        elif number % 10 == 5:
            answer = await self._http.get("/ready")
        else:
            answer = await self._http.get("/api/notes?limit=5" if number % 2 else "/api/where")
        self.longest = max(self.longest, time.monotonic() - began)
        self.answers += 1
        if answer.status_code >= 300:
            self.failures.append(f"{answer.status_code} {answer.text}")

    def end(self) -> None:
        self._over = True


def kill(standby: PrivatePostgres) -> None:
    standby.kill()


def freeze(standby: PrivatePostgres) -> None:
    standby.freeze()


@pytest.mark.parametrize("take_away", [kill, freeze])
async def test_a_replica_that_goes_away_under_load_fails_no_request(
    pair: ReplicatedDatabase, long_mode: bool, take_away: Callable[[PrivatePostgres], None]
) -> None:
    lasting = 20 if long_mode else 2
    async with standby_of(pair.servers.primary) as standby:
        replica = pair.replica.replace(str(pair.servers.standby.port), str(standby.port))
        server = server_with_replica(pair.primary, replica)
        async with client(server, database=None) as http:
            await eventually(lambda: is_read_from(http, "replica"), "reads from the replica")
            load = Load(http)
            loading = asyncio.create_task(load.run())
            await eventually(lambda: load.answers > PER_SECOND, "answers")
            take_away(standby)
            await eventually(lambda: is_read_from(http, "primary"), "reads from the primary")
            numbers = (await http.get("/metrics")).text
            assert "maniflex_replica_up 0.0" in numbers
            before = load.answers
            await eventually(lambda: load.answers > before + lasting * PER_SECOND, "answers without it", 60)
            if take_away is kill:
                await standby.start()
            else:
                standby.thaw()
            began = time.monotonic()
            await eventually(lambda: is_read_from(http, "replica"), "reads return", 10)
            returned = time.monotonic() - began
            load.end()
            await loading
    print(f"\n{load.answers} requests, longest {load.longest:.1f} s, reads returned after {returned:.1f} s")
    assert load.failures == []
    assert load.longest < HUNG_WITHIN


async def test_a_process_starts_while_the_replica_is_away(
    pair: ReplicatedDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    async with standby_of(pair.servers.primary) as standby:
        replica = pair.replica.replace(str(pair.servers.standby.port), str(standby.port))
        standby.kill()
        server = server_with_replica(pair.primary, replica)
        with caplog.at_level(logging.INFO, "maniflex.db"):
            async with client(server, database=None) as http:
                assert (await http.get("/ready")).status_code == 200
                assert await is_read_from(http, "primary")
                await standby.start()
                await eventually(lambda: is_read_from(http, "replica"), "reads from the replica", 10)
        assert any(
            "does not answer" in message and str(standby.port) in message for message in caplog.messages
        )


async def test_a_replica_that_refuses_the_login_stops_the_start(pair: ReplicatedDatabase) -> None:
    wrong = pair.replica.replace("postgres:", "postgres:not-")
    with pytest.raises(ConfigError, match="refused the login"):
        async with client(server_with_replica(pair.primary, wrong), database=None):
            pass


async def test_another_database_is_no_replica(pair: ReplicatedDatabase, postgres_url: str) -> None:
    other_database = pair.replica.rpartition("/")[0] + "/postgres"
    for wrong, what in ((other_database, "database"), (postgres_url, "server")):
        with pytest.raises(ConfigError, match=f"is no replica of this {what}"):
            async with client(server_with_replica(pair.primary, wrong), database=None):
                pass


async def test_a_replica_that_was_promoted_beside_the_primary_is_left(pair: ReplicatedDatabase) -> None:
    async with standby_of(pair.servers.primary) as standby:
        replica = pair.replica.replace(str(pair.servers.standby.port), str(standby.port))
        async with client(server_with_replica(pair.primary, replica), database=None) as http:
            await eventually(lambda: is_read_from(http, "replica"), "reads from the replica")
            await execute(standby.url, "SELECT pg_promote()")
            note = await http.post("/api/notes", json={"text": "new"})
            path = f"/api/notes/{note.json()['data']['id']}"

            async def is_shown() -> bool:
                return (await http.get(path)).status_code == 200

            await eventually(is_shown, "reads go to the primary", 10)


async def test_a_replica_without_a_connection_left_keeps_those_we_have(
    pair: ReplicatedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"narrow_{uuid4().hex[:8]}"
    await execute(pair.primary, f"CREATE ROLE {role} LOGIN PASSWORD 'narrow' CONNECTION LIMIT 3")
    await pair.servers.until_caught_up()
    narrow = as_role(pair.replica, f"{role}:narrow")
    losses: list[BaseException] = []
    monkeypatch.setattr(Replica, "note_away", lambda self, error: losses.append(error))
    adapter = ReplicatedAdapter(pair.primary, read_url=narrow, read_pool_size=8)
    await adapter.open()
    try:
        current_reader.set(ReplicaReader())
        where = Sql("SELECT pg_is_in_recovery() FROM pg_sleep(0.05)")
        places = [row[0] for [row] in await asyncio.gather(*(adapter.fetch(where) for _ in range(20)))]
    finally:
        await adapter.close()
    assert losses == []
    assert True in places


RELEASE = """
import os

from maniflex import Model, Run, Server, field

class Note(Model):
    text: str = field(filterable=True)
    NEW_FIELD

NEW_CLASS

server = Server(os.environ["PRIMARY"], read_database=os.environ["REPLICA"], read_max_lag=60, log_json=True)
server.register(Note, *NEW_MODELS)

@server.work.handler("default.beat")
async def beat(run: Run) -> None: ...

server.schedules.add("beat", cron="* * * * *", run="default.beat")
NEW_SCHEDULE
"""
OLD = {"NEW_FIELD": "", "NEW_CLASS": "", "NEW_MODELS": "()", "NEW_SCHEDULE": ""}
NEW = {
    "NEW_FIELD": "stars: int = field(default=0, filterable=True)",
    "NEW_CLASS": "class Tag(Model):\n    note_id: str = field(filterable=True)",
    "NEW_MODELS": "(Tag,)",
    "NEW_SCHEDULE": 'server.schedules.add("nightly", cron="0 2 * * *", run="default.beat")',
}


@contextmanager
def release(directory: Path, pair: ReplicatedDatabase, texts: dict[str, str]) -> Iterator[Served]:
    directory.mkdir()
    source = RELEASE
    for name, text in texts.items():
        source = source.replace(name, text)
    (directory / "app.py").write_text(source)
    port = free_port()
    command: list[str | Path] = [MANIFLEX, "run", "app:server", "--port", str(port)]
    with start_process(command, port, cwd=directory, PRIMARY=pair.primary, REPLICA=pair.replica) as served:
        yield served


async def test_two_processes_of_a_release_start_beside_a_replica_that_is_behind(
    pair: ReplicatedDatabase, tmp_path: Path
) -> None:
    await pair.servers.follow_after(5)
    with release(tmp_path / "first", pair, OLD) as first:  # not even the tables are there yet
        await asyncio.to_thread(first.until_up)
        with (
            release(tmp_path / "second", pair, NEW) as second,
            release(tmp_path / "third", pair, NEW) as third,
        ):
            for served in (second, third):
                await asyncio.to_thread(served.until_up)
            async with httpx.AsyncClient() as http:
                for served in (first, second, third):
                    for path in ("/api/notes", "/api/schedules"):
                        assert (await http.get(served.url + path)).status_code in (200, 401, 404), path
                note = await http.post(f"{second.url}/api/notes", json={"text": "new", "stars": 3})
                note_id = note.json()["data"]["id"]
                tag = await http.post(f"{third.url}/api/tags", json={"note_id": note_id})
                assert (note.status_code, tag.status_code) == (201, 201)
                # The replica does not know the column and the table yet, the primary does.
                assert (await http.get(f"{third.url}/api/notes?filter=stars:eq:3")).status_code == 200
                assert (await http.get(f"{second.url}/api/tags")).status_code == 200
            for served in (first, second, third):
                problems = [line for line in served.lines if line["level"] in ("ERROR", "CRITICAL")]
                assert problems == [], served.output
