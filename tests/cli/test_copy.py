"""`maniflex copy`: the data of an application in another database, to the last byte of every answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from maniflex import Server
from maniflex.db.sqlite.connect import ConnectionSource
from maniflex.testing import client
from tests.kit.commands import Commands
from tests.kit.processes import IMPORTS, MANIFLEX, PROGRAMS, run_command
from tests.kit.waiting import eventually, until

PASSWORD = "hunter22!"
NOTES = 3000


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text((PROGRAMS / "copied_shop.py").read_text())
    monkeypatch.setenv("SHOP_DATA", str(tmp_path / "files"))
    return tmp_path


@contextmanager
def application(here: Path, url: str) -> Iterator[tuple[ModuleType, Server]]:
    """The shop as another process would have it."""
    import importlib

    before = os.environ.get("DB_WRITE_URL")
    os.environ["DB_WRITE_URL"] = url
    sys.path.insert(0, str(here))
    sys.modules.pop("app", None)
    try:
        module = importlib.import_module("app")
        yield module, module.server
    finally:
        sys.path.remove(str(here))
        sys.modules.pop("app", None)
        if before is None:
            del os.environ["DB_WRITE_URL"]
        else:
            os.environ["DB_WRITE_URL"] = before


async def fill(module: ModuleType, server: Server, count: int) -> None:
    """Things of all kinds with a past, and something in every other table."""
    from examples.orders.sample_data import load

    await load(server, PASSWORD)
    products = [None, *(product.id for product in await server.db("Product").list(sorts="name"))]
    things = [
        await server.db(module.Thing).create(
            **module.thing(number + 1), product_id=products[number % len(products)]
        )
        for number in range(count)
    ]
    for one in things[::10]:
        await server.db(module.Thing).update(one.id, price="7.50", title=f"{one.title} renamed")
    for one in things[::50]:
        await server.db(module.Thing).delete(one.id)
    for payload in ({"n": 1}, "text", None):
        await server.work.submit("default.note", payload, idempotency_key=f"note:{payload}")
    await server.work.worker().drain()
    async with server.transaction():
        for number in range(3):
            await server.outbox.enqueue("order.placed", {"id": "none", "n": number}, key="k", about=things[0])
    await server.schedules.declare()


def multiply(path: str, count: int) -> None:
    """Make many things of the few that are there, with ids of their own, and a past for some of them."""
    connection = ConnectionSource(path, "OFF", timedelta(seconds=5), 128).writer()
    [(have,)] = connection.execute("SELECT count(*) FROM things")
    turns = count // have
    for table, own, copies in (("things", ("id",), turns), ("thing_histories", ("id", "record_id"), 10)):
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        names = ", ".join(f'"{column}"' for column in columns)
        sources = {
            **{column: f'"{column}"' for column in columns},
            **{column: f'"{column}" || :turn' for column in own},
        }
        if "snapshot" in sources:  # which has the id of the record in it
            sources["snapshot"] = "replace(snapshot, record_id, record_id || :turn)"
        values = ", ".join(sources.values())
        connection.execute(f"CREATE TEMP TABLE originals AS SELECT {names} FROM {table}")
        for turn in range(copies):
            connection.execute(
                f"INSERT INTO {table} ({names}) SELECT {values} FROM originals", {"turn": f"-{turn}"}
            )
        connection.execute("DROP TABLE originals")
    connection.close()


REQUESTS = [
    "/things?limit=100&sort=number:asc",
    "/things?limit=50&sort=price:desc,id:asc",
    "/things?limit=50&sort=title:asc,id:asc&page=7",
    "/things?filter=price:gt:12.3456&sort=price:asc,id:asc&limit=40",
    "/things?filter=at:gte:2026-03-29T02:00:00Z&sort=at:asc,id:asc&limit=40",
    "/things?filter=day:lt:0004-01-01&sort=day:desc,id:asc&limit=40",
    "/things?filter=big:lt:0&sort=big:asc,id:asc&limit=40",
    "/things?filter=ratio:lt:1&sort=ratio:asc,id:asc&limit=40",
    "/things?filter=hour:eq:00:00:08.639900&limit=40&sort=id:asc",
    "/things?filter=token:eq:00000000-0000-0000-0000-000000000065",
    "/things?filter=on:eq:true&limit=40&sort=number:desc",
    "/things?filter=status:in:done,draft&limit=40&sort=number:desc,id:asc",
    "/things?filter=title:contains:東京&limit=40&sort=number:asc",
    "/things?q=renamed&limit=30&sort=number:asc",
    "/things?q=lantern&limit=30&sort=number:asc",
    "/things?cursor=&limit=25",
    "/things/aggregate?aggregate="
    '{"group_by":["status"],"select":[{"op":"count"},{"op":"sum","field":"price"},{"op":"max","field":"day"}]}',
    "/things/aggregate?aggregate="
    '{"group_by":["product_id","on"],"select":[{"op":"count"},{"op":"min","field":"at"}]}',
    "/things?include=product&limit=60&sort=price:asc,id:asc",
    "/things?filter=product.name:contains:a&include=product&limit=40&sort=number:desc,id:asc",
    "/things?filter=number:lt:40&filter[0]=status:eq:done&filter[0]=big:lt:0&limit=80&sort=number:asc,id:desc",
    "/things?select=number,title,price&limit=100&page=3&sort=ratio:desc,id:asc",
    "/things/export?filter=number:lt:300&sort=number:asc,id:asc",
    "/things/export?format=jsonl&filter=number:lt:100&sort=price:desc,id:asc",
    "/things/export?select=id,number,title,price,at,day&filter=status:eq:done&sort=title:asc,id:asc",
    "/thing_histories?limit=100&sort=timestamp:desc,id:asc",
    "/thing_histories?filter=operation:eq:delete&limit=50&page=2&sort=timestamp:asc,id:asc",
    "/products?sort=name:asc",
    "/orders?sort=id:asc",
    "/workflow_run?sort=id:asc",
    "/workflow_event?sort=id:asc",
    "/outbox_event?sort=id:asc",
    "/schedules?sort=name:asc",
    "/audit_log?sort=id:asc",
]


async def answers(server: Server, url: str) -> dict[str, Any]:
    """What an admin is told, byte for byte."""
    async with client(server, database=url, background=False) as http:
        signed_in = await http.post(
            "/api/auth/login", json={"email": "admin@example.com", "password": PASSWORD}
        )
        headers = {"authorization": f"Bearer {signed_in.json()['data']['access_token']}"}
        told = {path: await _answer(http, path, headers) for path in REQUESTS}
        told |= await _walk_by_cursor(http, headers)
        return told | await _past_answers(http, headers)


async def _past_answers(http: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, Any]:
    """Single records, their history and what they were; of those that are not deleted."""
    told: dict[str, Any] = {}
    versions = await http.get(
        "/api/thing_histories?filter=operation:eq:create&limit=100&sort=id:asc", headers=headers
    )
    moments = []
    for version in versions.json()["data"][::3]:
        path = f"/things/{version['record_id']}"
        answer = await _answer(http, path, headers)
        if answer[0] == 404:
            continue
        moments.append(json.loads(answer[2])["data"]["created_at"])
        told[path] = answer
        for more in ("?include=product", f"?as_of={moments[-1]}", "/history", "/history/1"):
            told[f"{path}{more}"] = await _answer(http, f"{path}{more}", headers)
    assert len(moments) > 10
    for moment in (moments[0], moments[-1]):
        then = f"/things?as_of={moment}&filter=status:eq:done&limit=40&sort=number:asc,id:asc"
        told[then] = await _answer(http, then, headers)
    return told


async def _walk_by_cursor(http: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, Any]:
    """Forty pages, each by the cursor that the one before gave."""
    told: dict[str, Any] = {}
    path: str | None = "/things?cursor=&limit=50&filter=number:gt:5"
    for _ in range(40):
        if path is None:
            break
        told[path] = await _answer(http, path, headers)
        cursor = json.loads(told[path][2])["meta"].get("next_cursor")
        path = f"/things?cursor={cursor}&limit=50&filter=number:gt:5" if cursor else None
    return told


async def _answer(http: httpx.AsyncClient, path: str, headers: dict[str, str]) -> Any:
    answer = await http.get(f"/api{path}", headers=headers)
    return answer.status_code, answer.headers.get("etag"), answer.content


def test_the_shop_answers_the_same_from_the_copy(
    here: Path, sqlite_url: str, new_postgres_url: Callable[[], str], long_mode: bool, monkeypatch: Any
) -> None:
    count = 1_000_000 if long_mode else 3000
    monkeypatch.setenv("QUERY_TIMEOUT", "20m")  # some of the answers look at all of them
    monkeypatch.setenv("DB_STATEMENT_TIMEOUT", "20m")
    with application(here, sqlite_url) as (module, server):

        async def prepare() -> None:
            async with server.lifespan(role="client"):
                await fill(module, server, 3000 if long_mode else 600)

        asyncio.run(prepare())
    if long_mode:
        multiply(sqlite_url.removeprefix("sqlite:///"), count)
    with application(here, sqlite_url) as (_, server):
        before = asyncio.run(answers(server, sqlite_url))
    assert all(status == 200 for status, _, _ in before.values()), {
        path: told[:3] for path, told in before.items() if told[0] != 200
    }

    postgres_url = new_postgres_url()
    commands = Commands(here, sqlite_url, monkeypatch)
    page = commands("copy", "app:server", "--from", sqlite_url, "--to", postgres_url)
    assert "counts and checksums are equal" in page
    back = f"sqlite:///{here}/back.db"
    ways = ["--from", postgres_url, "--to", back]
    if long_mode:  # a million rows go one way
        ways = ["--from", sqlite_url, "--to", postgres_url, "--check"]
    reports = json.loads(commands("copy", "app:server", *ways, "--json"))
    assert all(report["is_same"] for report in reports)
    rows = {report["table"]: report["target_rows"] for report in reports}
    assert rows["things"] >= (count if long_mode else 600)
    internal = ("workflow_run", "workflow_step", "outbox_event", "schedules", "stored_file")
    for table in (*internal, next(name for name in rows if name.startswith("thing") and name != "things")):
        assert rows[table] > 0, table

    for url in (postgres_url,) if long_mode else (postgres_url, back):
        with application(here, url) as (_, server):
            after = asyncio.run(answers(server, url))
        assert {path for path in before if before[path] != after[path]} == set()

    with application(here, postgres_url) as (module, server):  # and it goes on behind the numbers it copied

        async def go_on() -> list[int]:
            async with server.lifespan(role="client"):
                await server.outbox.enqueue("order.placed", {"id": "none"}, outside_transaction=True)
                return [m.seq for m in await server.db("OutboxMessage").list(sorts="seq")]

        assert asyncio.run(go_on()) == [1, 2, 3, 4]


APP = """
from datetime import datetime
from decimal import Decimal
from maniflex import Config, Model, Server, field

class Note(Model):
    text: str = field(searchable=True)
    price: Decimal = Decimal(0)

server = Server(Config.from_env())
server.register(Note)
"""


@pytest.fixture
def notes(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """An application with many notes on SQLite."""
    (tmp_path / "app.py").write_text(APP)
    with application(tmp_path, sqlite_url) as (module, server):

        async def prepare() -> None:
            async with server.lifespan(role="client"), server.transaction():
                for number in range(NOTES):
                    await server.db(module.Note).create(id=f"note-{number:04}", text=f"note {number}")

        asyncio.run(prepare())
    return Commands(tmp_path, sqlite_url, monkeypatch)


def count_notes(here: Path, url: str) -> int:
    with application(here, url) as (module, server):

        async def count() -> int:
            async with server.lifespan(role="client"):
                return await server.db(module.Note).count()

        return asyncio.run(count())


def test_a_copy_that_was_killed_goes_on_where_it_was(notes: Commands, postgres_url: str) -> None:
    command: list[str | Path] = [MANIFLEX, "copy", "app:server", "--to", postgres_url, "--batch", "1"]
    environment = {**os.environ, "PYTHONPATH": IMPORTS, "DB_WRITE_URL": notes.url}

    def copied() -> int:
        row = _ask(postgres_url, "SELECT coalesce(sum(copied), 0) FROM maniflex_copy")
        return 0 if row is None else int(row)

    def has_more(before: int) -> bool:
        return copied() > before

    reached = 0
    for _ in range(2):
        with subprocess.Popen(command, cwd=notes.here, env=environment, stdout=subprocess.DEVNULL) as process:
            until(partial(has_more, reached), "some rows")
            process.send_signal(signal.SIGKILL)
            process.wait()
        reached = copied()
    assert 0 < reached < NOTES
    page = notes("copy", "app:server", "--from", notes.url, "--to", postgres_url)
    assert (
        f"{NOTES - reached:,} rows copied: {NOTES:,} rows in 1 tables, counts and checksums are equal" in page
    )
    assert count_notes(notes.here, postgres_url) == NOTES
    assert _ask(postgres_url, "SELECT to_regclass('maniflex_copy')") is None
    # One that was killed after its last row looks like this: there is nothing left to copy.
    again = notes("copy", "app:server", "--from", notes.url, "--to", postgres_url)
    assert f"0 rows copied: {NOTES:,} rows in 1 tables, counts and checksums are equal" in again
    assert "counts and checksums are equal" in notes("copy", "app:server", "--to", postgres_url, "--check")
    _ask(postgres_url, "UPDATE notes SET text = 'written since' WHERE id = 'note-0007'")
    refusal = notes("copy", "app:server", "--from", notes.url, "--to", postgres_url, code=1)
    assert "has rows already, in notes; copy into an empty database" in refusal


def test_a_database_that_migrations_keep_is_at_the_same_revision_in_the_copy(
    notes: Commands, postgres_url: str
) -> None:
    notes("migrate", "make", "app:server", "-m", "first", "--baseline")
    before = notes("migrate", "status", "app:server")
    notes("copy", "app:server", "--to", postgres_url)
    os.environ["DB_WRITE_URL"] = postgres_url
    assert "first" in notes("migrate", "status", "app:server")
    assert "first" in before
    notes("migrate", "check", "app:server")
    assert _ask(postgres_url, "SELECT count(*) FROM alembic_version") == 1


def _ask(url: str, question: str) -> Any:
    import asyncpg

    async def ask() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(question)
        except asyncpg.UndefinedTableError:
            return None
        finally:
            await connection.close()

    return asyncio.run(ask())


WORKING = """
from maniflex import Config, Run, Server

server = Server(Config.from_env())

@server.work.handler("report.v1")
async def report(run: Run) -> None: ...
"""


def test_an_application_that_runs_meanwhile_is_named(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "app.py").write_text(WORKING)
    copy = partial(run_command, "copy", "app:server", "--to", f"sqlite:///{tmp_path}/there.db", cwd=tmp_path)
    with application(tmp_path, sqlite_url) as (_, server):

        async def copy_while_it_runs() -> str:
            async with server.lifespan():
                await eventually(lambda: server.db("WorkProcess").count(), "the process is seen")
                return (await asyncio.to_thread(copy)).stderr

        words = asyncio.run(copy_while_it_runs())
        assert f"(process {os.getpid()}); what it writes from now on may be missing" in words
        (tmp_path / "there.db").unlink()
        assert "warning" not in copy().stderr


def test_a_row_that_changed_meanwhile_is_named(notes: Commands, tmp_path: Path) -> None:
    there = f"sqlite:///{tmp_path}/there.db"
    notes("copy", "app:server", "--to", there)
    with sqlite3.connect(tmp_path / "there.db") as connection:
        connection.create_collation("decimal", lambda one, other: 0)
        connection.execute(
            "UPDATE notes SET created_at = '2026-01-01T00:00:00.000000Z' WHERE id = 'note-0007'"
        )
        connection.execute("DELETE FROM notes WHERE id = 'note-0399'")
    refusal = notes("copy", "app:server", "--to", there, "--check", code=1)
    assert "notes: the two differ, first in note-0007, note-0399" in refusal


def test_a_value_that_the_target_cannot_take_is_named(notes: Commands, postgres_url: str) -> None:
    with sqlite3.connect(notes.url.removeprefix("sqlite:///")) as connection:
        connection.create_collation("decimal", lambda one, other: 0)
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f'DROP TRIGGER "{name}"')
        connection.execute("UPDATE notes SET price = 'dear' WHERE id = 'note-0100'")
    refusal = notes("copy", "app:server", "--to", postgres_url, code=1)
    assert "notes note-0100: price: 'dear' is stored, which is no value of this field" in refusal
    with sqlite3.connect(notes.url.removeprefix("sqlite:///")) as connection:
        connection.create_collation("decimal", lambda one, other: 0)
        connection.execute(
            "UPDATE notes SET price = '1', text = 'a' || char(0) || 'b' WHERE id = 'note-0100'"
        )
    refusal = notes("copy", "app:server", "--to", postgres_url, code=1)
    assert "notes note-0100: " in refusal
    assert "refuses it" in refusal


def test_mistakes_are_one_sentence(notes: Commands, tmp_path: Path) -> None:
    assert "same database" in notes("copy", "app:server", "--to", notes.url, code=2)
    missing = f"sqlite:///{tmp_path}/missing.db"
    refusal = notes("copy", "app:server", "--from", missing, "--to", f"sqlite:///{tmp_path}/x.db", code=1)
    assert "there is no database" in refusal
    assert not (tmp_path / "missing.db").exists()
    assert not (tmp_path / "x.db").exists()
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE other (id text)").connection.close()
    refusal = notes("copy", "app:server", "--from", f"sqlite:///{tmp_path}/empty.db", "--to", missing, code=1)
    assert "has no table notes" in refusal
    assert "is neither sqlite" in notes("copy", "app:server", "--to", "mysql://x", code=2)


KEPT_ELSEWHERE = """
class Quotes:
    async def list(self, query): ...
    async def read(self, record_id): ...
    async def count(self, query): ...

class Quote(Model, backend=Quotes()):
    price: int

class Event(Model, database="sqlite:///events.db"):
    text: str

server.register(Quote, Event)
"""


def test_what_the_database_does_not_keep_stays_where_it_is(notes: Commands, tmp_path: Path) -> None:
    with (tmp_path / "app.py").open("a") as app:
        app.write(KEPT_ELSEWHERE)
    output = notes("copy", "app:server", "--to", f"sqlite:///{tmp_path}/there.db")
    for name in ("Event", "Quote"):
        assert f"{name} is kept outside this database and stays where it is" in output
    assert f"{NOTES:,} rows in 1 tables, counts and checksums are equal" in output


def test_a_copy_of_another_source_is_not_gone_on_with(notes: Commands, tmp_path: Path) -> None:
    there = f"sqlite:///{tmp_path}/there.db"
    notes("copy", "app:server", "--to", there)
    with sqlite3.connect(tmp_path / "there.db") as connection:
        connection.execute("CREATE TABLE maniflex_copy (name text, source text, last_id text, copied bigint)")
        connection.execute("INSERT INTO maniflex_copy VALUES ('notes', 'sqlite:///old.db', 'note-0001', 2)")
    refusal = notes("copy", "app:server", "--to", there, code=1)
    assert "a copy from sqlite:///old.db was begun here" in refusal
