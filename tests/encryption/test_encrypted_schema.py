"""Tables of encrypted fields: made by a start or by files, and copied, without a key (checks 69, 72)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maniflex import Model, field
from maniflex.encryption.local import generate_key
from maniflex.errors import ConstraintViolation
from maniflex.testing import client
from tests.kit.commands import Commands
from tests.kit.http import data_of, error_of
from tests.kit.migrations import on_adapter
from tests.kit.patients import a_clinic
from tests.kit.schema import columns, indexes, model, warnings

APP = """
from maniflex import Config, Model, Server, field

class Person(Model):
    name: str
    email: str = field({options})

server = Server(Config.from_env())
server.register(Person)
"""
PLAIN = "unique=True"
ENCRYPTED = "encrypted=True, unique=True, blind_index=True"


def person(*, encrypted: bool) -> type[Model]:
    options: Any = {"encrypted": True, "unique": True, "blind_index": True} if encrypted else {"unique": True}
    return model("Person", "people", {"name": str, "email": (str, field(**options))})


async def test_a_start_adds_the_digests_of_a_field_that_is_encrypted_from_now_on(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = person(encrypted=False), person(encrypted=True)
    async with client(a_clinic(before), database=database_url) as http:
        await http.post("/api/people", json={"name": "Ada", "email": "ada@example.org"})
    server = a_clinic(after)
    async with client(server, database=database_url) as http:
        assert "email_hmac" in await columns(database_url, "people")
        assert "uq_people_email_hmac" in await indexes(database_url, "people")
        [ada] = data_of(await http.get("/api/people"))
        assert ada["email"] == "ada@example.org"
        await http.patch(f"/api/people/{ada['id']}", json={"email": "ada@example.org"})
        refused = await http.post("/api/people", json={"name": "Bea", "email": "ada@example.org"})
        assert [d["field"] for d in error_of(refused, 409, "CONFLICT")["details"]] == ["email"]
    caplog.clear()
    async with client(a_clinic(after), database=database_url):
        assert "email_hmac" not in " ".join(warnings(caplog))


@pytest.fixture
def commands(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.delenv("MFX_KEY_DEFAULT", raising=False)
    (tmp_path / "app.py").write_text(APP.format(options=PLAIN))
    return Commands(tmp_path, database_url, monkeypatch)


def test_migration_files_make_digests_and_no_command_of_them_needs_a_key(commands: Commands) -> None:
    commands("migrate", "make", "app:server", "-m", "people")
    commands("migrate", "up", "app:server")
    (commands.here / "app.py").write_text(APP.format(options=ENCRYPTED))
    commands("migrate", "make", "app:server", "-m", "encrypt")
    files = sorted((commands.here / "migrations" / "versions").glob("*.py"))
    text = files[-1].read_text() if "encrypt" in files[-1].name else files[0].read_text()
    assert "email_hmac" in text
    commands("migrate", "up", "app:server")
    assert "email_hmac" not in commands("migrate", "check", "app:server")
    commands("check", "app:server")
    assert "email_hmac" not in commands("openapi", "app:server")
    commands("migrate", "down", "app:server", "--yes")


def test_a_copy_carries_envelopes_and_digests_without_a_key(
    tmp_path: Path, sqlite_url: str, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP.format(options=ENCRYPTED))
    postgres_url, back = new_postgres_url(), f"sqlite:///{tmp_path}/back.db"
    statement = "SELECT id, email, email_hmac FROM people ORDER BY id"
    Person = person(encrypted=True)

    async def fill() -> None:
        async with client(a_clinic(Person), database=sqlite_url) as http:
            for number in range(20):
                await http.post("/api/people", json={"name": "x", "email": f"{number}@example.org"})

    async def rows(url: str) -> list[tuple[Any, ...]]:
        from maniflex.sql.statement import Sql

        return [tuple(row) for row in await on_adapter(url, lambda a: a.fetch(Sql(statement)))]

    async def read(url: str) -> Any:
        server = a_clinic(Person)
        async with client(server, database=url) as http:
            with pytest.raises(ConstraintViolation):
                await server.db(Person).create(name="y", email="7@example.org")
            return data_of(await http.get("/api/people?limit=50"))

    asyncio.run(fill())
    monkeypatch.delenv("MFX_KEY_DEFAULT", raising=False)
    commands = Commands(tmp_path, sqlite_url, monkeypatch)
    commands("copy", "app:server", "--from", sqlite_url, "--to", postgres_url)
    commands("copy", "app:server", "--from", postgres_url, "--to", back)
    stored = [asyncio.run(rows(url)) for url in (sqlite_url, postgres_url, back)]
    assert len(stored[0]) == 20
    assert stored[0] == stored[1] == stored[2]
    assert asyncio.run(read(postgres_url)) == asyncio.run(read(back))


def test_an_import_is_stored_encrypted(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MFX_KEY_DEFAULT", generate_key())
    (commands.here / "app.py").write_text(APP.format(options=ENCRYPTED))
    (commands.here / "people.csv").write_text("name,email\nAda,ada@example.org\nBea,bea@example.org\n")
    commands("import", "app:server", "Person", "people.csv", "--unscoped")
    [count] = commands.json("keys", "status", "app:server")
    assert (count["key_id"], count["count"]) == ("default", 2)
    refused = commands("import", "app:server", "Person", "people.csv", "--unscoped", code=1)
    assert "email" in refused
    assert "hmac" not in refused
