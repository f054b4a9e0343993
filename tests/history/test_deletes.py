"""H18: a record that is deleted by itself never leaves the database; its last version is like every other."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import new_class
from typing import Any

import httpx
import pytest

from maniflex import Model, Server, field
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.sql.statement import Sql, by_dialect
from maniflex.testing import client
from tests.history.test_kinds import STATES, Diffed, Thing
from tests.kit.internals import adapter_of
from tests.kit.statements import calls_of
from tests.kit.waiting import eventually


class Kept(Thing, table="hist_kept", versioned=True, soft_delete=True):
    secret: str = field(default="hush", hidden=True)
    quoted: str = field(default="'\"", alias="quoted-text")


# More fields than one statement tells of.
Wide: Any = new_class(
    "Wide",
    (Model,),
    {"table": "hist_wide", "versioned": True},
    lambda body: body.update(
        {"__module__": __name__, "__annotations__": {f"field_{n}": int for n in range(120)}}
        | {f"field_{n}": n for n in range(120)}
    ),
)
EXTREMES: list[dict[str, Any]] = [
    *STATES,
    {"price": Decimal("0.00000012"), "ratio": 1e-7, "words": "\x01\x7f\u2028</script>"},
    {"price": Decimal("0.0000000"), "ratio": 123456789012345680.0, "number": -1},
    {"day": date.min, "moment": datetime(1890, 1, 1, 0, 0, 0, 100, tzinfo=UTC)},
    {"day": date.max, "hour": time(0, 0, 0, 100_000)},
    {"price": Decimal("1E+30"), "ratio": 5e-324, "shape": {"b": 1, "a": [1.0, "ü"]}},
    {},
]


@pytest.fixture
async def shelf(database_url: str) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = Server(path_prefix="")
    server.register(Thing, Diffed, Kept, Wide)
    async with client(server, database=database_url) as http:
        yield server, http


@pytest.mark.parametrize("model", [Thing, Diffed, Kept])
async def test_its_version_is_the_one_that_a_transaction_makes(
    shelf: tuple[Server, httpx.AsyncClient], model: type[Thing]
) -> None:
    server, http = shelf
    for state in EXTREMES:
        versions = []
        for in_transaction in (False, True):
            record = await server.db(model).create(state)
            if in_transaction:
                async with server.transaction():
                    await server.db(model).delete(record.id)
            else:
                assert (await http.delete(f"/{model.__options__.table}/{record.id}")).status_code == 204
            [row] = await server.raw_query(
                f"SELECT version, operation, diff, snapshot FROM {model.__name__.lower()}_histories"
                f" WHERE record_id = '{record.id}' AND version = 2"
            )
            versions.append(_comparable(row))
        quick, usual = versions
        assert quick == usual
        assert "hush" not in str(quick)


@pytest.mark.parametrize("model", [Thing, Kept])
async def test_a_delete_is_one_call_of_the_database(
    shelf: tuple[Server, httpx.AsyncClient], model: type[Thing]
) -> None:
    server, http = shelf
    record = await server.db(model).create(number=1)
    with calls_of(server) as calls:
        assert (await http.delete(f"/{model.__options__.table}/{record.id}")).status_code == 204
    assert calls == [by_dialect(adapter_of(server).dialect, sqlite="batch", postgres="write")]


async def test_a_database_that_shortens_floats_shortens_none_of_a_version(postgres_url: str) -> None:
    for _ in range(2):  # the setting is that of later connections
        server = Server(path_prefix="")
        server.register(Thing)
        async with client(server, database=postgres_url) as http:
            name = postgres_url.rpartition("/")[2]
            await server.raw_exec(f'ALTER DATABASE "{name}" SET extra_float_digits = 0')
            record = await server.db(Thing).create(ratio=0.1 + 0.2)
            assert (await http.delete(f"/hist_things/{record.id}")).status_code == 204
            [deleted] = await server.db("ThingHistory").list({"record_id": record.id, "operation": "delete"})
            assert deleted.diff == {"ratio": {"old": 0.1 + 0.2, "new": None}}


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A version without what differs between any two records; numbers as they are spelt, except floats."""
    snapshot = json.loads(row["snapshot"] or "{}", parse_int=str)
    for name in ("id", "created_at", "updated_at"):
        snapshot.pop(name, None)
    return {**row, "diff": json.loads(row["diff"], parse_int=str), "snapshot": list(snapshot.items())}


async def test_a_record_of_many_fields(shelf: tuple[Server, httpx.AsyncClient]) -> None:
    server, http = shelf
    record = (await http.post("/hist_wide", json={})).json()["data"]
    assert (await http.delete(f"/hist_wide/{record['id']}")).status_code == 204
    [deleted] = await server.db("WideHistory").list({"operation": "delete"})
    assert deleted.snapshot == record
    assert len(deleted.diff) == 120


@pytest.mark.parametrize("model", [Thing, Kept])
async def test_many_that_write_while_one_deletes_make_no_version_twice(
    shelf: tuple[Server, httpx.AsyncClient], model: type[Thing]
) -> None:
    server, http = shelf
    table = model.__options__.table
    for _ in range(5):
        record = await server.db(model).create(number=0)
        url = f"/{table}/{record.id}"
        writes = [http.patch(url, json={"number": n}) for n in range(1, 9)]
        writes[4:4] = [http.delete(url), http.delete(url)]
        answers = await asyncio.gather(*writes)
        assert {a.status_code for a in answers} <= {200, 204, 404}
        assert [a.status_code for a in answers].count(204) == 1
        history = await server.db(f"{model.__name__}History").list({"record_id": record.id}, "version")
        assert [row.version for row in history] == list(range(1, len(history) + 1))
        assert [row.operation for row in history if row.operation == "delete"] == ["delete"]
        values = [row.diff.get("number", {}) for row in history]
        for before, after in itertools.pairwise(values):
            assert after["old"] == before["new"]


@pytest.mark.parametrize("model", [Thing, Kept])
async def test_a_delete_that_waited_for_a_change_comes_behind_it(
    shelf: tuple[Server, httpx.AsyncClient], model: type[Thing]
) -> None:
    server, http = shelf
    record = await server.db(model).create(number=0)
    async with server.transaction():
        await server.db(model).update(record.id, {"number": 1})
        deletion = asyncio.create_task(
            http.delete(f"/{model.__options__.table}/{record.id}"), context=contextvars.Context()
        )
        await eventually(lambda: _waits(server), "the delete waits")
    assert (await deletion).status_code == 204
    history = await server.db(f"{model.__name__}History").list({"record_id": record.id}, "version")
    assert [row.operation for row in history] == ["create", "update", "delete"]
    assert history[-1].diff["number"] == {"old": 1, "new": None}


async def _waits(server: Server) -> bool:
    adapter = adapter_of(server)
    if isinstance(adapter, SqliteAdapter):
        return True  # it stands in line from its first moment on
    waiting = Sql("SELECT count(*) FROM pg_locks WHERE NOT granted", ())
    return bool((await adapter.fetch(waiting))[0][0])
