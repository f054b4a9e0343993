"""Which database serves: the default one only where it is needed and meant, and the log says which."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from maniflex import Config, Model, Server
from maniflex.errors import ConfigError, DeclarationError, Unavailable
from maniflex.testing import client

UNNAMED = "no database is named, so sqlite:///maniflex.db would be used"


class Here(Model, table="here"):
    name: str


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def model_elsewhere(path: Path) -> type[Model]:
    class Elsewhere(Model, table="elsewhere", database=f"sqlite:///{path}/other.db"):
        name: str

    return Elsewhere


async def test_a_default_that_no_model_needs_is_not_opened(tmp_path: Path) -> None:
    server, elsewhere = Server(), model_elsewhere(tmp_path)
    server.register(elsewhere)
    async with server.lifespan():
        created: Any = await server.db(elsewhere).create(name="x")
        assert (await server.db(elsewhere).read(created.id)).id == created.id
        assert (await server.call("GET", "/ready")).status == 200
        with pytest.raises(
            Unavailable, match=r"it has no name and no model; write Server\('sqlite:///app\.db'\)"
        ):
            await server.raw_query("SELECT 1")
        assert await server.raw_query("SELECT 1 AS one", on=elsewhere) == [{"one": 1}]
    assert "maniflex.db" not in os.listdir()


async def test_a_default_that_a_model_needs_is_opened_and_comes_first(tmp_path: Path) -> None:
    server = Server()
    server.register(model_elsewhere(tmp_path), Here)
    async with server.lifespan():
        assert [adapter.label for adapter in server.adapters] == ["sqlite:maniflex.db", "sqlite:other.db"]
    assert "maniflex.db" in os.listdir()


async def test_one_that_was_named_is_opened_whoever_needs_it() -> None:
    async with Server("sqlite:///mine.db").lifespan() as server:
        assert await server.raw_query("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.parametrize("settings", [{"strict": True}, {"production": True}])
def test_strict_and_production_want_it_named(settings: Any, tmp_path: Path) -> None:
    def problems(server: Server, *models: type[Model]) -> str:
        server.register(*models)
        server.http_access_controlled(reason="a proxy")
        try:
            _ = server.routes
        except DeclarationError as error:
            return str(error)
        return ""

    assert UNNAMED in problems(Server(**settings), Here)
    assert UNNAMED not in problems(Server("sqlite:///mine.db", **settings), Here)
    assert UNNAMED not in problems(Server(**settings), model_elsewhere(tmp_path))
    environment = {"DATABASE_URL": "sqlite:///host.db"}
    assert UNNAMED not in problems(Server(config=Config.from_env(environment, **settings)), Here)


@pytest.mark.parametrize("prefix", ["", "SHOP_"])
def test_the_address_of_the_host_is_read_where_ours_is_not_set(prefix: str) -> None:
    theirs, ours = f"{prefix}DATABASE_URL", f"{prefix}DB_WRITE_URL"
    config = Config.from_env({theirs: "sqlite:///host.db"}, prefix=prefix)
    assert (config.database, config.origin("database")) == ("sqlite:///host.db", theirs)
    both = Config.from_env({theirs: "sqlite:///host.db", ours: "sqlite:///ours.db"}, prefix=prefix)
    assert (both.database, both.origin("database")) == ("sqlite:///ours.db", ours)
    with pytest.raises(ConfigError, match=f"{theirs}: .* is neither sqlite:///file nor postgresql://"):
        Config.from_env({theirs: "mysql://root:secret@db/shop"}, prefix=prefix)


async def test_the_start_says_which_databases_serve(
    postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = postgres_url.replace("//postgres@", "//postgres:hunter2@")
    server = Server(config=Config.from_env({"DATABASE_URL": address}))
    server.register(Here, model_elsewhere(tmp_path))
    with caplog.at_level(logging.INFO):
        async with server.lifespan():
            label = server.adapters[0].label
    lines = [record.getMessage() for record in caplog.records]
    assert f"the default database is {label} (from DATABASE_URL)" in lines
    assert f"the database of Elsewhere is sqlite:{tmp_path}/other.db" in lines
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("address", ["./mine.db", "file:./mine.db", "mine.db"])
async def test_a_bare_file_is_an_address_of_sqlite(address: str) -> None:
    class Near(Model, table="near", database=address):
        name: str

    server = Server(address)
    server.register(Here, Near)
    async with server.lifespan():
        assert [adapter.label for adapter in server.adapters] == ["sqlite:mine.db"]
    assert "mine.db" in os.listdir()


@pytest.mark.parametrize("address", ["app", "mysql://root@db/app.db", "C:app.db", "postgre:///app.db"])
def test_other_texts_are_no_files(address: str) -> None:
    with pytest.raises(ConfigError, match="neither sqlite:///file nor postgresql://"):
        Server(address)


async def test_the_test_kit_and_migrations_open_no_default_that_no_model_needs(tmp_path: Path) -> None:
    server = Server()
    server.register(model_elsewhere(tmp_path))
    async with client(server, database=None) as http:
        assert (await http.get("/ready")).status_code == 200
        assert [adapter.label for adapter in server.adapters] == ["sqlite:other.db"]
    async with server.migration_targets("app:server") as targets:
        assert [target.adapter.label for target in targets] == ["sqlite:other.db"]
    assert "maniflex.db" not in os.listdir()


async def test_no_migration_in_production_makes_a_database_that_nobody_named() -> None:
    server = Server(production=True)
    server.http_access_controlled(reason="a proxy")
    server.register(Here)
    with pytest.raises(DeclarationError, match=UNNAMED):
        async with server.migration_targets("app:server"):
            pass
    assert os.listdir() == []


@pytest.mark.parametrize(
    "other", ["sqlite:///./app.db", "sqlite:///sub/../app.db", "./app.db", "{here}/app.db"]
)
async def test_two_spellings_of_a_file_are_one_database(other: str, tmp_path: Path) -> None:
    class There(Model, table="there", database=other.format(here=tmp_path)):
        name: str

    (tmp_path / "sub").mkdir()
    server = Server("sqlite:///app.db", lock_timeout=1)
    server.register(Here, There)
    async with server.lifespan():
        assert len(server.adapters) == 1
        async with server.transaction(on=There):
            there = await server.db(There).create(name="x")
            here = await server.db(Here).create(name="x")
            await server.raw_exec("DELETE FROM there WHERE id = ?", there.id)
        assert [one.id for one in await server.db(Here).list()] == [here.id]
        assert await server.db(There).list() == []


def test_two_spellings_of_a_scheme_are_one_database() -> None:
    class There(Model, table="there", database="postgres://someone@db.example/app"):
        name: str

    server = Server("postgresql://someone@db.example/app")
    server.register(Here, There)
    assert len(server.adapters) == 1
