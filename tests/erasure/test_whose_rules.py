"""Erasing and exporting are code's alone: no route leads to them, and no rule for callers narrows them."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Server, field
from maniflex.encryption.local import generate_key
from maniflex.middleware import auth, db, response
from maniflex.testing import FakeClock, client
from tests.erasure.world import OTHER, PERSON

HERS, OTHERS = "p" * 40, "o" * 40
_SECRETS = ("of-the-keys", "of-nobody", "of-the-vault", "of-the-form")


class Patient(Model, table="wr_patients", subject="id", versioned=True):
    org_id: str = field(relation=None, filterable=True)
    email: str | None = field(default=None, personal=True)
    number: str | None = field(default=None, personal=True, encrypted=True)
    token: str | None = field(default=None, personal=True, hidden=True)
    password: str | None = field(default=None, personal=True, writeonly=True)


class Visit(Model, table="wr_visits", subject="patient.id", versioned=True):
    org_id: str = field(relation=None, filterable=True)
    patient_id: str = field(relation=Patient)
    note: str | None = field(default=None, personal=True)
    secret: str | None = field(default=None, personal=True, hidden=True)


def a_clinic(url: str, clock: FakeClock) -> Server:
    server = Server(url, clock=clock, background=False)
    server.register(Patient, Visit)
    keys = {
        HERS: AuthInfo(user_id=PERSON, tenant_id="a"),
        OTHERS: AuthInfo(user_id=OTHER, tenant_id="b"),
    }
    server.pipeline.auth.register(auth.api_keys(keys=keys))
    server.pipeline.db.register(db.tenancy("org_id"))
    server.pipeline.response.register(response.redact_field("email", lambda ctx: True), models=[Patient])

    @server.action("POST", "/export/{person}")
    async def export(ctx: Context) -> dict[str, Any]:
        parts = [part async for part in ctx.server.erasure.export(ctx.params["person"], history=True)]
        return {"text": "".join(content.decode() for _, content in parts)}

    return server


async def fill(server: Server, people: tuple[tuple[str, str], ...]) -> None:
    for person, org in people:
        await server.db(Patient).create(
            id=person,
            org_id=org,
            email=f"mail of {person}",
            number=f"of-the-vault {person}",
            token=f"of-nobody {person}",
            password=f"of-the-form {person}",
        )
        await server.db(Patient).update(person, email=f"later mail of {person}")
        visit = {"note": f"note of {person}", "secret": "of-the-keys"}
        await server.db(Visit).create(id=f"v-{person}", org_id=org, patient_id=person, **visit)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MFX_KEY_DEFAULT", generate_key())


async def test_an_export_is_the_same_with_and_without_the_rows_of_others(database_url: str) -> None:
    server = a_clinic(database_url, FakeClock())
    async with server.lifespan():
        await fill(server, ((PERSON, "a"),))
        alone = [part async for part in server.erasure.export(PERSON, history=True)]
        await fill(server, ((OTHER, "b"),))

        among_others = [part async for part in server.erasure.export(PERSON, history=True)]

        assert among_others == alone
        assert len(alone) == 5


async def test_an_export_has_no_secret_and_opens_what_is_encrypted_in_records_alone(
    database_url: str,
) -> None:
    server = a_clinic(database_url, FakeClock())
    async with server.lifespan():
        await fill(server, ((PERSON, "a"), (OTHER, "b")))
        parts: dict[str, str] = {}
        async for name, content in server.erasure.export(PERSON, history=True):
            parts[name] = parts.get(name, "") + content.decode()

    found = {name: [word for word in _SECRETS if word in text] for name, text in parts.items()}
    assert found == {**{name: [] for name in parts}, "wr_patients.jsonl": ["of-the-vault"]}
    assert OTHER not in "".join(parts.values())
    assert f"note of {PERSON}" in parts["visit_histories.jsonl"]


async def test_no_route_leads_to_it_and_no_rule_for_callers_narrows_it(database_url: str) -> None:
    server = a_clinic(database_url, FakeClock())
    async with client(server, database=None) as http:
        await fill(server, ((PERSON, "a"), (OTHER, "b")))
        paths = (await http.get("/api/openapi.json", headers={"X-API-Key": OTHERS})).json()["paths"]
        assert [path for path in paths if "eras" in path or "subject" in path] == []
        # The action is open to whom it lets in: here a caller of another organisation, who cannot read her.
        assert (
            await http.get(f"/api/wr_patients/{PERSON}", headers={"X-API-Key": OTHERS})
        ).status_code == 404

        answer = await http.post(f"/api/export/{PERSON}", headers={"X-API-Key": OTHERS})

        assert answer.status_code == 200, answer.text
        text = answer.json()["data"]["text"]
        assert f"later mail of {PERSON}" in text
        assert f"note of {PERSON}" in text
        assert OTHER not in text
