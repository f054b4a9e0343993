"""R14 and R15 in histories: what a caller may not see of a record, they do not see of its past either."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Server, field
from maniflex.middleware import response
from maniflex.pipeline.registration import Next
from maniflex.testing import FakeClock, client

STAFF = {"x-role": "staff"}
PHONE, NEW_PHONE = "555-0199", "555-0200"


class Patient(Model, table="patients", versioned=True):
    name: str = field(default="", filterable=True, sortable=True)
    phone: str = field(default="", filterable=True, sortable=True)


@dataclass
class World:
    http: httpx.AsyncClient
    clock: FakeClock
    id: str
    moment: str


def is_stranger(ctx: Context) -> bool:
    return ctx.auth is None


async def identify(ctx: Context, next: Next) -> None:
    if ctx.header("x-role"):
        ctx.auth = AuthInfo("ada", roles=["staff"])
    await next()


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    server, clock = Server(path_prefix=""), FakeClock()
    server.register(Patient)
    server.pipeline.auth.register(identify)
    server.pipeline.response.register(response.redact_field("phone", is_stranger), models=[Patient])
    async with client(server, database=database_url, clock=clock) as http:
        made = await http.post("/patients", json={"name": "Bo", "phone": PHONE})
        moment = clock.now().isoformat().replace("+00:00", "Z")
        clock.advance(timedelta(minutes=1))
        record_id = made.json()["data"]["id"]
        await http.patch(f"/patients/{record_id}", json={"phone": NEW_PHONE})
        yield World(http, clock, record_id, moment)


@pytest.mark.parametrize(
    "path",
    [
        "/patients/{id}/history",
        "/patients/{id}/history?filter=version:eq:1&sort=version",
        "/patients/{id}/history/1",
        "/patients/{id}/history/2?select=diff,version",
        "/patient_histories",
        "/patient_histories?filter=operation:eq:create",
        "/patients/{id}?as_of={moment}",
        "/patients?as_of={moment}",
        "/patients?as_of={moment}&filter=name:eq:Bo&sort=name",
    ],
)
async def test_the_past_hides_what_the_present_hides(world: World, path: str) -> None:
    address = path.format(id=world.id, moment=world.moment)
    stranger, staff = await world.http.get(address), await world.http.get(address, headers=STAFF)
    assert (stranger.status_code, staff.status_code) == (200, 200), stranger.text
    assert "phone" not in stranger.text
    assert PHONE not in stranger.text
    assert NEW_PHONE not in stranger.text
    assert "phone" in staff.text


@pytest.mark.parametrize("question", ["filter={}:starts_with:555", "sort={}", "select=name,{}"])
async def test_a_hidden_field_cannot_be_asked_about_in_the_past(world: World, question: str) -> None:
    refused = await world.http.get(f"/patients?as_of={world.moment}&{question.format('phone')}")
    unknown = await world.http.get(f"/patients?as_of={world.moment}&{question.format('fax')}")
    assert refused.status_code == unknown.status_code == 400
    said, usual = refused.json()["error"], unknown.json()["error"]
    assert said["message"].replace("phone", "fax") == usual["message"]
    allowed = await world.http.get(
        f"/patients?as_of={world.moment}&{question.format('phone')}", headers=STAFF
    )
    assert allowed.status_code == 200, allowed.text


async def test_versions_cannot_be_asked_for_their_contents(world: World) -> None:
    for name in ("diff", "snapshot"):
        refused = await world.http.get(f"/patient_histories?filter={name}:contains:555")
        assert refused.status_code == 400
