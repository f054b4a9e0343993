"""Models in payloads that clients write: bound as on their create routes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from maniflex import Model, Run, Server, field
from maniflex.errors import DeclarationError
from tests.kit.http import data_of, error_of
from tests.kit.run_routes import ADA, ROOT, RUNS, known, site_on


class Signup(Model):
    name: str
    mail: str = field(default="", alias="eMail")
    level: int = field(default=1, readonly=True)


class Batch(BaseModel):
    signups: list[Signup]


class Password(Model):
    name: str
    hash: str = field(default="", writeonly=True)


def a_server(seen: list[Any]) -> Server:
    server = Server(background=False)
    server.register(Signup)
    server.pipeline.auth.register(known)
    for type, payload in (("one.v1", Signup), ("many.v1", Batch)):

        @server.work.handler(type, public=True, payload=payload)
        async def take(run: Run) -> None:
            seen.append(run.payload)

    return server


SENT = {"id": "chosen", "name": "ada", "eMail": "a@b", "level": 9, "created_at": "2020-01-01T00:00:00Z"}


async def test_a_client_sets_in_a_payload_what_it_may_set_on_create(database_url: str) -> None:
    seen: list[Any] = []
    async with site_on(a_server(seen), database_url) as site:
        one = await site.submit(type="one.v1", payload=SENT)
        await site.submit(type="many.v1", payload={"signups": [SENT]})
        await site.drain()
        bad = await site.http.post(RUNS, json={"type": "many.v1", "payload": {"signups": [{}]}}, headers=ADA)
        assert error_of(bad, 422, "VALIDATION_FAILED")["details"][0]["field"] == "payload.signups.0.name"
    made = sorted(seen, key=lambda payload: isinstance(payload, Batch))
    for signup in (made[0], made[1].signups[0]):
        assert (signup.name, signup.mail, signup.level) == ("ada", "a@b", 1)
        assert signup.id != "chosen"
        assert signup.created_at.year > 2020
    assert one["payload"]["id"] == made[0].id


async def test_a_scheduled_payload_keeps_what_a_client_may_set(database_url: str) -> None:
    said = {"name": "s", "cron": "@daily", "kind": "run", "target": "one.v1", "payload": SENT}
    server = a_server([])
    server.schedules.add("used", cron="@daily", run="one.v1", payload={"name": "code"})
    async with site_on(server, database_url) as site:
        made = data_of(await site.http.post("/api/schedules", json=said, headers=ROOT), 201)
        assert made["payload"] == {"name": "ada", "mail": "a@b"}
        path = f"/api/schedules/{made['id']}"
        patch = {"payload": {**SENT, "name": "bob"}}
        changed = data_of(await site.http.patch(path, json=patch, headers=ROOT))
        assert changed["payload"] == {"name": "bob", "mail": "a@b"}
        moved = data_of(await site.http.patch(path, json={"target": "other.v1", **patch}, headers=ROOT))
        assert moved["payload"]["id"] == "chosen"
        back = data_of(await site.http.patch(path, json={"target": "one.v1"}, headers=ROOT))
        assert back["payload"] == {"name": "bob", "mail": "a@b"}


def test_a_public_type_whose_payload_has_a_secret_stops_the_start() -> None:
    server = Server("sqlite://:memory:")

    @server.work.handler("secret.v1", public=True, payload=list[Password])
    async def take(run: Run) -> None: ...

    with pytest.raises(DeclarationError, match=r"'secret.v1': Password.hash is a secret"):
        server.seal()
