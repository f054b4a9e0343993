"""The values that stamps hold: whatever a tenant is called, its versions are its own and nobody else's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from maniflex import AuthInfo, Context, Model, Server
from maniflex import field as column
from maniflex.middleware import db
from maniflex.testing import client

TEXTS = (
    "a",
    "A",
    "a ",
    "ä",
    "😀",
    'q"uo\\te',
    "it's",
    "$.a",
    "null",
    "1",
    "true",
    "x" * 200,
    "a\nb",
    "%",
    "\u2028",
)
NUMBERS = (0, 1, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
UUIDS = tuple(UUID(int=n) for n in (0, 1, 2**127 + 5))


class TextOwner(Model, table="stamp_text_owners"):
    tenant: str = column(default="", relation=None)


class NumberOwner(Model, table="stamp_number_owners"):
    tenant: int = 0


class UuidOwner(Model, table="stamp_uuid_owners"):
    tenant: UUID = column(default=UUID(int=0))


class TextItem(Model, table="stamp_text_items", versioned=True):
    text: str = ""
    owner_id: str = column(relation="TextOwner")


class NumberItem(Model, table="stamp_number_items", versioned=True):
    text: str = ""
    owner_id: str = column(relation="NumberOwner")


class UuidItem(Model, table="stamp_uuid_items", versioned=True):
    text: str = ""
    owner_id: str = column(relation="UuidOwner")


KINDS: tuple[tuple[type[Model], type[Model], tuple[Any, ...]], ...] = (
    (TextOwner, TextItem, TEXTS),
    (NumberOwner, NumberItem, NUMBERS),
    (UuidOwner, UuidItem, UUIDS),
)


@pytest.mark.parametrize(("owner", "item", "tenants"), KINDS, ids=["text", "number", "uuid"])
async def test_each_tenant_sees_its_own_versions(
    database_url: str, owner: type[Model], item: type[Model], tenants: tuple[Any, ...]
) -> None:
    asking: list[Any] = [None]

    async def identify(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
        ctx.auth = AuthInfo(user_id="u")
        await next()

    server = Server(path_prefix="")
    server.register(owner, item)
    server.pipeline.auth.register(identify)
    server.pipeline.auth.register(
        db.force_filter_via("owner", "tenant", lambda ctx: asking[0]), models=[item]
    )
    async with client(server, database=database_url) as http:
        records = {}
        for tenant in tenants:
            parent = await server.db(owner).create(tenant=tenant)
            record = await server.db(item).create(text=f"of {tenant!r}", owner_id=parent.id)
            await server.db(item).update(record.id, text=f"still of {tenant!r}")
            records[tenant] = record.id
        table = f"stamp_{item.__name__.removesuffix('Item').lower()}_items"
        for tenant in tenants:
            asking[0] = tenant
            for other, record_id in records.items():
                answer = await http.get(f"/{table}/{record_id}/history")
                assert answer.status_code == (200 if other == tenant else 404), (tenant, other, answer.text)
                if other == tenant:
                    assert [row["version"] for row in answer.json()["data"]] == [2, 1], tenant
            flat = await http.get(f"/{item.__name__.removesuffix('Item').lower()}_item_histories?limit=100")
            assert {row["record_id"] for row in flat.json()["data"]} == {records[tenant]}, tenant
            assert flat.json()["meta"]["total"] == 2
