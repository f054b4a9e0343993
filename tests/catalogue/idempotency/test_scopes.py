"""D7: a key that was used inside one scope is of no use in another."""

from __future__ import annotations

from maniflex import Model, Server, field
from maniflex.middleware import db, idempotency
from maniflex.testing import client
from tests.kit.http import data_of


class Bill(Model):
    tenant_id: str = field(filterable=True)
    number: int = 0


async def test_one_caller_in_two_tenants_has_two_keys(database_url: str) -> None:
    server = Server(database=database_url)
    server.register(Bill)
    server.pipeline.auth.register(db.tenancy("tenant_id", lambda ctx: ctx.header("x-org")))
    server.pipeline.deserialize.register(idempotency.keys(), models=[Bill], operations=["create"], at="after")
    async with client(server) as http:
        answers = [
            await http.post("/api/bills", json={"number": 7}, headers={"x-org": org, "Idempotency-Key": "k"})
            for org in ("a", "b", "a")
        ]

    tenants = [data_of(answer, 201)["tenant_id"] for answer in answers]
    replays = [answer.headers.get("idempotent-replayed") for answer in answers]
    assert (tenants, replays) == (["a", "b", "a"], [None, None, "true"])
