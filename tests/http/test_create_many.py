"""`create_many` stores many records by few statements, all or none; `ctx.batch` is one transaction."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import (
    Conflict,
    Context,
    DeclarationError,
    Model,
    ModelOptions,
    Next,
    Server,
    WithDeletedAt,
    field,
    has_many,
)
from maniflex.errors import RequestError, ValidationFailed
from maniflex.testing import client
from tests.kit.http import data_of, error_of
from tests.kit.servers import started


class Owner(Model, WithDeletedAt):
    name: str = field(sortable=True)
    tenant_id: str = field(default="", relation=None)
    items: list[Item] = has_many()


class Item(Model, versioned=True):
    email: str = field(unique=True, max_length=40)
    pieces: int = field(default=1, min=1)
    owner_id: str | None = None
    secret: str | None = field(default=None, writeonly=True)


def fields_of(error: RequestError) -> list[str]:
    details: Any = error.details
    return [detail["field"] for detail in details]


async def test_records_come_back_in_order_and_500_are_one_statement(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(database_url, Owner, Item) as server:
        tx_type: Any = None
        texts: list[str] = []
        async with server.transaction() as tx:
            tx_type = type(tx)
        write = tx_type.write

        async def noting(self: Any, sql: Any, *rest: Any) -> Any:
            texts.append(sql.text)
            return await write(self, sql, *rest)

        monkeypatch.setattr(tx_type, "write", noting)
        owners = await server.db(Owner).create_many({"name": f"n{i}"} for i in range(1200))

        assert [owner.name for owner in owners] == [f"n{i}" for i in range(1200)]
        assert len([text for text in texts if "INSERT INTO owner" in text.replace(chr(34), "")]) == 3
        assert await server.db(Owner).count() == 1200
        assert [one.id for one in owners] == [one.id for one in await server.db(Owner).list(sorts="id")]
        assert await server.db(Owner).create_many([]) == []


async def test_all_mistakes_of_all_records_are_named_by_their_place(database_url: str) -> None:
    async with started(database_url, Owner, Item) as server:
        with pytest.raises(ValidationFailed) as refused:
            await server.db(Item).create_many(
                [{"email": "a"}, {"email": "x" * 41, "pieces": 0}, Item(email="b"), {"pieces": 2}]
            )
        places = fields_of(refused.value)
        assert places == ["[1].email", "[1].pieces", "[3].email"]
        assert await server.db(Item).count() == 0


@pytest.mark.parametrize("taken", ["before", "in the call"])
async def test_a_value_that_is_taken_names_its_record_and_nothing_is_stored(
    database_url: str, taken: str
) -> None:
    async with started(database_url, Owner, Item) as server:
        if taken == "before":
            await server.db(Item).create(email="e2")
        emails = ["e0", "e1", "e2", "e3"] if taken == "before" else ["e0", "e1", "e1", "e3"]
        with pytest.raises(Conflict) as refused:
            await server.db(Item).create_many([{"email": email} for email in emails])
        assert fields_of(refused.value) == ["[2].email"]
        assert await server.db(Item).count() == (1 if taken == "before" else 0)


async def test_a_key_that_leads_nowhere_names_its_record(database_url: str) -> None:
    async with started(database_url, Owner, Item) as server:
        owner = await server.db(Owner).create(name="o")
        gone = await server.db(Owner).create(name="gone")
        await server.db(Owner).delete(gone.id)
        with pytest.raises(RequestError) as refused:
            await server.db(Item).create_many(
                [{"email": "a", "owner_id": owner.id}, {"email": "b", "owner_id": gone.id}]
            )
        assert refused.value.status == 409
        assert fields_of(refused.value) == ["[1].owner_id"]
        items = await server.db(Item).create_many([{"email": f"{i}", "owner_id": owner.id} for i in range(3)])
        assert {item.owner_id for item in items} == {owner.id}


async def test_each_record_begins_its_history(database_url: str) -> None:
    async with started(database_url, Owner, Item) as server:
        items = await server.db(Item).create_many([{"email": f"{i}", "secret": "s"} for i in range(3)])
        for item in items:
            versions = await server.history(Item).of(item.id)
            assert [version.version for version in versions] == [1]
            assert "secret" not in (versions[0].snapshot or {})


async def test_forced_conditions_stamp_all_records(database_url: str) -> None:
    server = Server()
    server.register(Owner, Item)

    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ctx.header("x-tenant") or "none")
        await next()

    @server.action("POST", "/import", middleware=[bind])
    async def import_owners(ctx: Context) -> Any:
        async with ctx.batch() as batch:
            owners = await batch.create_many(Owner, [{"name": "a"}, {"name": "b"}])
            await batch.update(Owner, owners[0].id, name="c")
            await batch.delete(Owner, owners[1].id)
            await batch.create(Owner, name="d")
            if ctx.query_param("fail"):
                ctx.abort(409, "NO", "no")
        return [owner.tenant_id for owner in await ctx.db(Owner).list()]

    @server.action("POST", "/elsewhere", middleware=[bind])
    async def import_elsewhere(ctx: Context) -> Any:
        return await ctx.db(Owner).create_many([{"name": "a", "tenant_id": "other"}])

    async with client(server, database=database_url) as http:
        error_of(await http.post("/api/import?fail=1", headers={"x-tenant": "t1"}), 409, "NO")
        assert data_of(await http.get("/api/owners")) == []
        assert data_of(await http.post("/api/import", headers={"x-tenant": "t1"})) == ["t1", "t1"]
        names = [one["name"] for one in data_of(await http.get("/api/owners?sort=name"))]
        assert names == ["c", "d"]
        refused = await http.post("/api/elsewhere", headers={"x-tenant": "t1"})
        details = error_of(refused, 422, "VALIDATION_FAILED")["details"]
        assert [detail["field"] for detail in details] == ["[0].tenant_id"]


async def test_a_batch_refuses_a_model_of_another_database(database_url: str, tmp_path: Any) -> None:
    class Apart(Model):
        name: str

    server = Server(database=database_url)
    server.register(Owner, Item)
    server.register(Apart, ModelOptions(database=f"sqlite:///{tmp_path}/apart.db"))

    @server.action("POST", "/both")
    async def both(ctx: Context) -> None:
        async with ctx.batch() as batch:
            await batch.create(Owner, name="a")
            with pytest.raises(DeclarationError, match="a saga undoes what was done"):
                await batch.create(Apart, name="b")
            ctx.abort(409, "APART", "it is elsewhere")

    async with client(server) as http:
        error_of(await http.post("/api/both"), 409, "APART")
        assert data_of(await http.get("/api/owners")) == []


async def test_many_records_with_all_kinds_of_values_are_stored_as_single_ones_are(database_url: str) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    class Kinds(Model):
        text: str | None = None
        number: int = 0
        price: Decimal | None = None
        raw: bytes | None = None
        data: dict[str, Any] = field(default_factory=dict)
        at: datetime | None = None
        on: bool = False

    values: dict[str, Any] = {
        "text": "ä'\"?$1",
        "number": -5,
        "price": Decimal("1.20"),
        "raw": b"\x00\xff",
        "data": {"a": [1, None]},
        "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "on": True,
    }
    async with started(database_url, Kinds) as server:
        one = await server.db(Kinds).create(**values)
        many = await server.db(Kinds).create_many([values, {}, values])
        for record in (many[0], many[2]):
            assert {name: getattr(record, name) for name in values} == {n: getattr(one, n) for n in values}
        assert many[1].data == {}
        assert (await server.db(Kinds).read(many[2].id)).raw == b"\x00\xff"
