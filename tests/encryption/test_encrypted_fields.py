"""Encrypted fields as a client sees them, and as they lie in the database (E1-E18, checks 33-38)."""

from __future__ import annotations

import base64
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from maniflex import AuthInfo, Config, Context, DeclarationError, Model, Server, field, has_many, many_to_many
from maniflex.encryption import EnvKeyProvider, MemoryKeyProvider, context_of
from maniflex.encryption.envelope import to_text
from maniflex.encryption.local import generate_key
from maniflex.middleware import auth, db, idempotency, response
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, total
from tests.kit.patients import EMAIL, KEYS, NOTE, SSN, Patient, a_clinic, keys
from tests.kit.schema import model
from tests.kit.stored_bytes import stored_bytes

SECRETS = (SSN, NOTE, EMAIL)
KEY_HEADER = "Idempotency-Key"


def forms_of(text: str) -> list[bytes]:
    """A text as it is and in base64, whatever stands before it."""
    plain = text.encode()
    coded = [base64.b64encode(bytes(shift) + plain)[shift * 2 : -4] for shift in range(3)]
    return [plain, *(one for one in coded if len(one) > 8)]


async def a_patient(http: Any, **values: Any) -> Any:
    return await created(http, "/api/patients", name="Ada", ssn=SSN, note=NOTE, email=EMAIL, **values)


async def raw(server: Server, text: str, *values: Any) -> Any:
    return await server.raw_query(text, *values)


# -- what is stored, and where


async def test_the_database_holds_no_plain_text_of_an_encrypted_field(database_url: str) -> None:
    server = a_clinic()
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    async with client(server, database=database_url) as http:
        patient = data_of(
            await http.post(
                "/api/patients",
                json={"name": "Ada", "ssn": SSN, "note": NOTE, "email": EMAIL},
                headers={KEY_HEADER: "one"},
            ),
            201,
        )
        await http.patch(f"/api/patients/{patient['id']}", json={"note": NOTE + "!"})
        [row] = await raw(server, "SELECT ssn, note, email, ssn_hmac, email_hmac FROM patients")
        content = await stored_bytes(database_url)

    assert all(row[name].startswith("enc:") for name in ("ssn", "note", "email"))
    assert row["ssn_hmac"]
    assert row["email_hmac"]
    for text in SECRETS:
        for form in forms_of(text):
            assert form not in content, (text, form)


async def test_every_way_to_a_record_shows_the_value(database_url: str) -> None:
    server = a_clinic()

    @server.action("GET", "/newest")
    async def newest(ctx: Context) -> Any:
        [record] = await ctx.db(Patient).list(sorts="created_at:desc", limit=1)
        return record

    async with client(server, database=database_url) as http:
        clinic = await created(http, "/api/clinics", name="north")
        patient = await a_patient(http, clinic_id=clinic["id"])
        path = f"/api/patients/{patient['id']}"
        assert (patient["ssn"], patient["note"], patient["email"]) == SECRETS
        assert data_of(await http.get(path)) == patient
        assert data_of(await http.get("/api/patients")) == [patient]
        assert data_of(await http.get("/api/patients?select=note")) == [{"note": NOTE}]
        [north] = data_of(await http.get("/api/clinics?include=patients"))
        assert north["patients"][0]["note"] == NOTE
        assert data_of(await http.get("/api/newest"))["ssn"] == SSN
        assert (await server.db(Patient).read(patient["id"])).note == NOTE
        changed = data_of(await http.patch(path, json={"note": "none"}))
        assert (changed["note"], changed["ssn"]) == ("none", SSN)
        await http.delete(path)
        assert data_of(await http.post(f"{path}/restore"))["ssn"] == SSN


async def test_copies_leave_the_values_out(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    server = a_clinic()
    caplog.set_level(logging.DEBUG)
    async with client(server, database=database_url) as http:
        patient = await a_patient(http)
        await http.patch(f"/api/patients/{patient['id']}", json={"note": "changed-note"})
        history = await http.get(f"/api/patients/{patient['id']}/history")
        export = await http.get("/api/patients/export")
        specification = (await http.get("/api/openapi.json")).text

    assert len(history.json()["data"]) == 2
    for text in (*SECRETS, "changed-note", "hmac", "enc:"):
        assert text not in history.text
        assert text not in export.text
        assert text not in caplog.text
    assert "_hmac" not in specification
    assert '"x-encrypted":true' in specification


async def test_a_kept_answer_is_sealed_and_repeated_byte_for_byte(database_url: str) -> None:
    server = a_clinic()
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    body = {"name": "Ada", "ssn": SSN, "note": NOTE}
    async with client(server, database=database_url) as http:
        first = await http.post("/api/patients", json=body, headers={KEY_HEADER: "one"})
        [row] = await raw(server, "SELECT answer FROM idempotency_key")
    other = a_clinic()  # which has given no answer yet
    other.pipeline.deserialize.register(idempotency.keys(), at="after")
    async with client(other, database=database_url) as http:
        again = await http.post("/api/patients", json=body, headers={KEY_HEADER: "one"})
        assert await total(http, "/api/patients") == 1

    without_its_key = a_clinic(
        provider=MemoryKeyProvider({**KEYS, "default": os.urandom(32)}), keys_required=False
    )
    without_its_key.pipeline.deserialize.register(idempotency.keys(), at="after")
    async with client(without_its_key, database=database_url) as http:
        late = await http.post("/api/patients", json=body, headers={KEY_HEADER: "one"})
        error_of(late, 409, "IDEMPOTENCY_NOT_REPLAYABLE")

    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert row["answer"].startswith(b"enc:")
    assert SSN.encode() not in row["answer"]


# -- bound to their place


async def test_a_ciphertext_opens_nowhere_else(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    server = a_clinic()
    async with client(server, database=database_url) as http:
        one = await created(http, "/api/patients", name="one", note="first")
        two = await created(http, "/api/patients", name="two", note="second")
        other = await created(http, "/api/patients", name="three", note="third")
        rows = {row["id"]: row["note"] for row in await raw(server, "SELECT id, note FROM patients")}
        await server.raw_exec("UPDATE patients SET note = ? WHERE id = ?", rows[two["id"]], one["id"])
        damaged = rows[two["id"]][:8] + ("A" if rows[two["id"]][8] != "A" else "B") + rows[two["id"]][9:]
        await server.raw_exec("UPDATE patients SET note = ? WHERE id = ?", damaged, two["id"])

        for refused in (one, two):
            answer = await http.get(f"/api/patients/{refused['id']}")
            error = error_of(answer, 500, "DECRYPTION_ERROR")
            assert "details" not in error or not error["details"]
            assert refused["id"] not in answer.text
        error_of(await http.get("/api/patients"), 500, "DECRYPTION_ERROR")
        assert data_of(await http.get(f"/api/patients/{other['id']}"))["note"] == "third"

        # A column of the same record is another place, too.
        moved = "UPDATE patients SET email = note WHERE id = ?"
        await server.raw_exec(moved, other["id"])
        error_of(await http.get(f"/api/patients/{other['id']}"), 500, "DECRYPTION_ERROR")
    assert one["id"] in caplog.text
    assert "note: it was changed or moved (key 'notes')" in caplog.text


async def test_a_record_that_does_not_open_is_not_written_until_it_is_repaired(database_url: str) -> None:
    server = a_clinic()
    async with client(server, database=database_url) as http:
        patient = await a_patient(http)
        path = f"/api/patients/{patient['id']}"
        await server.raw_exec("UPDATE patients SET note = ? WHERE id = ?", "enc:AwAFbm90ZXM=", patient["id"])

        error_of(await http.patch(path, json={"name": "Bea"}), 500, "DECRYPTION_ERROR")
        [row] = await raw(server, "SELECT name FROM patients")
        assert row["name"] == "Ada"


class Card(Model):
    owner: str
    number: str = field(encrypted=True)
    hint: str | None = field(default=None, encrypted=True)


async def test_a_new_value_repairs_a_field_that_does_not_open(database_url: str) -> None:
    server = a_clinic(Card)
    async with client(server, database=database_url) as http:
        card = await created(http, "/api/cards", owner="Ada", number="4111")
        path = f"/api/cards/{card['id']}"
        await server.raw_exec("UPDATE cards SET number = 'enc:AwAFbm90ZXM='")
        error_of(await http.patch(path, json={"owner": "Bea"}), 500, "DECRYPTION_ERROR")
        assert data_of(await http.patch(path, json={"number": "4222"}))["number"] == "4222"
        assert data_of(await http.get(path))["owner"] == "Ada"


@pytest.mark.parametrize("name", ["ssn", "note"])
async def test_a_new_value_repairs_a_record_whose_changes_are_followed(database_url: str, name: str) -> None:
    server = a_clinic()
    async with client(server, database=database_url) as http:
        patient = await a_patient(http)
        path = f"/api/patients/{patient['id']}"
        await server.raw_exec(f"UPDATE patients SET {name} = 'enc:AwAFbm90ZXM='")
        error_of(await http.patch(path, json={"email": "b@clinic.example"}), 500, "DECRYPTION_ERROR")
        error_of(await http.get(path), 500, "DECRYPTION_ERROR")
        repaired = data_of(await http.patch(path, json={name: "4"}, headers={"If-Match": "*"}))
        assert (repaired[name], repaired["email"]) == ("4", EMAIL)
        await server.raw_exec(f"UPDATE patients SET {name} = 'enc:AwAFbm90ZXM='")
        assert data_of(await http.patch(path, json={name: "5"}))[name] == "5"
        versions = data_of(await http.get(f"{path}/history?sort=version"))
        assert [version["diff"] for version in versions[1:]] == [{}, {}]


async def test_null_stands_for_a_value_that_does_not_open_where_settings_say_so(database_url: str) -> None:
    server = a_clinic(Card, decrypt_errors="null")
    async with client(server, database=database_url) as http:
        card = await created(http, "/api/cards", owner="Ada", number="4111", hint="visa")
        await server.raw_exec("UPDATE cards SET hint = 'enc:AwAFbm90ZXM='")
        assert data_of(await http.get(f"/api/cards/{card['id']}"))["hint"] is None
        await server.raw_exec("UPDATE cards SET number = 'enc:AwAFbm90ZXM='")
        error_of(await http.get(f"/api/cards/{card['id']}"), 500, "DECRYPTION_ERROR")


async def test_plain_texts_from_before_are_read_or_refused(database_url: str) -> None:
    async with client(a_clinic(Card), database=database_url) as http:
        card = await created(http, "/api/cards", owner="Ada", number="4111")
    server = a_clinic(Card)
    async with client(server, database=database_url) as http:
        await server.raw_exec("UPDATE cards SET number = '4999'")
        assert data_of(await http.get(f"/api/cards/{card['id']}"))["number"] == "4999"
    async with client(a_clinic(Card, encryption_legacy="refuse"), database=database_url) as http:
        error_of(await http.get(f"/api/cards/{card['id']}"), 500, "DECRYPTION_ERROR")


# -- equal values


async def test_a_unique_value_is_unique_by_its_digest(database_url: str) -> None:
    server = a_clinic()
    async with client(server, database=database_url) as http:
        first = await a_patient(http)
        path = f"/api/patients/{first['id']}"
        refused = await http.post("/api/patients", json={"name": "Bea", "ssn": SSN})
        error = error_of(refused, 409, "CONFLICT")
        assert [detail["field"] for detail in error["details"]] == ["ssn"]
        assert "hmac" not in refused.text

        assert data_of(await http.patch(path, json={"ssn": SSN}))["ssn"] == SSN
        await http.patch(path, json={"ssn": None})
        second = await created(http, "/api/patients", name="Bea", ssn=SSN)
        error_of(await http.patch(path, json={"ssn": SSN}), 409, "CONFLICT")
        await http.delete(f"/api/patients/{second['id']}")
        assert data_of(await http.patch(path, json={"ssn": SSN}))["ssn"] == SSN
        await http.patch(path, json={"ssn": ""})
        await created(http, "/api/patients", name="Cleo", ssn="")  # an empty text takes no place


async def test_a_blind_index_finds_equal_values_alone(database_url: str) -> None:
    server = a_clinic()
    async with client(server, database=database_url) as http:
        ada = await a_patient(http)
        bea = await created(http, "/api/patients", name="Bea", email="bea@clinic.example")
        nobody = await created(http, "/api/patients", name="Cleo")

        async def ids(condition: str) -> set[str]:
            return {record["id"] for record in data_of(await http.get(f"/api/patients?filter={condition}"))}

        assert await ids(f"email:eq:{EMAIL}") == {ada["id"]}
        assert await ids(f"email:eq:{EMAIL.upper()}") == {ada["id"]}
        assert await ids(f"email:neq:{EMAIL}") == {bea["id"]}
        assert await ids(f"email:in:{EMAIL},BEA@clinic.example") == {ada["id"], bea["id"]}
        assert await ids(f"email:not_in:{EMAIL}") == {bea["id"]}
        assert await ids("email:is_null") == {nobody["id"]}
        assert await ids("email:eq:null") == {nobody["id"]}
        assert await ids("email:not_null") == {ada["id"], bea["id"]}
        assert await total(http, f"/api/patients?filter=email:eq:{EMAIL}&limit=1") == 1
        for condition in ("email:gt:a", "email:like:A%25", "email:contains:a", "email:eq_field:name"):
            error_of(await http.get(f"/api/patients?filter={condition}"), 400, "INVALID_QUERY")
        error_of(await http.get("/api/patients?sort=email"), 400, "INVALID_QUERY")


class Ticket(Model):
    name: str = field(default="", filterable=True)
    code: str | None = field(default=None, encrypted=True, blind_index=True)
    place: int = 0


async def test_an_empty_text_is_compared_like_any_other_value(database_url: str) -> None:
    async with client(a_clinic(Ticket), database=database_url) as http:
        for place, code in enumerate(("a", "b", "", None)):
            await created(http, "/api/tickets", code=code, place=place)

        async def places(query: str) -> list[int]:
            return [
                ticket["place"] for ticket in data_of(await http.get(f"/api/tickets?filter=code:{query}"))
            ]

        assert await places("eq:a") == [0]
        assert await places("eq:") == [2]
        assert await places("in:a,") == [0, 2]
        assert await places("in:a,b") == [0, 1]
        assert await places("neq:a") == [1, 2]
        assert await places("neq:") == [0, 1]
        assert await places("not_in:a,b") == [2]
        assert await places("is_null") == [3]


async def test_a_field_is_not_compared_with_an_encrypted_one(database_url: str) -> None:
    async with client(a_clinic(Ticket), database=database_url) as http:
        refusal = error_of(await http.get("/api/tickets?filter=name:eq_field:code"), 400, "INVALID_QUERY")
        assert "eq_field does not work on 'code'" in refusal["message"]


async def test_without_a_blind_index_a_filter_is_that_of_an_unknown_field(database_url: str) -> None:
    server = a_clinic()
    async with client(server, database=database_url) as http:
        for condition in ("eq:x", "is_null", "gt:x"):
            known = error_of(await http.get(f"/api/patients?filter=ssn:{condition}"), 400, "INVALID_QUERY")
            unknown = error_of(await http.get(f"/api/patients?filter=xyz:{condition}"), 400, "INVALID_QUERY")
            assert known["message"].replace("ssn", "xyz") == unknown["message"]
        of_sort = error_of(await http.get("/api/patients?sort=note"), 400, "INVALID_QUERY")
        unknown = error_of(await http.get("/api/patients?sort=xyzz"), 400, "INVALID_QUERY")
        assert of_sort["message"].replace("note", "xyzz") == unknown["message"]


async def test_the_past_is_not_asked_for_a_secret(database_url: str) -> None:
    async with client(a_clinic(), database=database_url) as http:
        patient = await a_patient(http)
        path = f"/api/patients?as_of={patient['updated_at']}&filter=email:eq:{EMAIL}"
        assert (await http.get(path)).status_code == 400


class Chart(Model, versioned=True, history_scope="owner"):
    owner: str = field(encrypted=True, blind_index=True)
    text: str


async def test_what_a_forced_condition_compares_is_a_digest(database_url: str) -> None:
    server = a_clinic(Chart)

    async def own_only(ctx: Context, next: Any) -> None:
        ctx.query.force("owner", ctx.request.headers["x-owner"])
        await next()

    server.pipeline.db.register(own_only, models=[Chart])
    async with client(server, database=database_url) as http:
        mine, theirs = {"x-owner": EMAIL}, {"x-owner": "bea@clinic.example"}
        chart = data_of(await http.post("/api/charts", json={"owner": "x", "text": "a"}, headers=mine), 201)
        path = f"/api/charts/{chart['id']}"
        assert chart["owner"] == EMAIL
        assert len(data_of(await http.get("/api/charts", headers=mine))) == 1
        assert data_of(await http.get("/api/charts", headers=theirs)) == []
        assert (await http.patch(path, json={"text": "b"}, headers=theirs)).status_code == 404
        assert data_of(await http.patch(path, json={"text": "b"}, headers=mine))["text"] == "b"
        assert len(data_of(await http.get(f"{path}/history", headers=mine))) == 2
        assert (await http.get(f"{path}/history", headers=theirs)).status_code == 404
        assert (await http.delete(path, headers=mine)).status_code == 204
        bindings = await raw(server, "SELECT binding FROM chart_histories")
    assert len(bindings) == 3
    assert all(row["binding"] for row in bindings)
    assert EMAIL not in str(bindings)


# -- writes


async def test_the_tag_of_a_record_is_that_of_its_plain_values(database_url: str) -> None:
    server = a_clinic()
    async with client(server, database=database_url) as http:
        patient = await a_patient(http)
        path = f"/api/patients/{patient['id']}"
        first = await http.get(path)
        envelope = keys().seal("notes", NOTE.encode(), context_of("patients.note", patient["id"]))
        await server.raw_exec("UPDATE patients SET note = ?", to_text(envelope))
        assert (await http.get(path)).headers["etag"] == first.headers["etag"]
        changed = await http.patch(path, json={"name": "Bea"}, headers={"if-match": first.headers["etag"]})
        assert changed.status_code == 200


async def test_code_counts_and_sorts_by_no_secret(database_url: str) -> None:
    server = a_clinic()
    async with client(server, database=database_url):
        records = server.db(Patient)
        await records.create(name="Ada", ssn=SSN, email=EMAIL)
        assert await records.count([("ssn", "eq", SSN)]) == 1
        assert await records.exists([("email", "eq", EMAIL.lower())])
        for filters in ([("note", "eq", "x")], [("ssn", "gt", "x")]):
            with pytest.raises(Exception, match="does not work"):
                await records.list(filters)
        with pytest.raises(Exception, match="encrypted"):
            await records.list(sorts="ssn")


# -- keys


async def test_a_start_without_its_keys_names_the_variable_and_no_value(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = base64.b64encode(os.urandom(31)).decode()
    for value, text in ((None, "is not set"), (short, "31 bytes"), ("no$base64", "is not base64")):
        monkeypatch.setenv("MFX_KEY_DEFAULT", value or "")
        server = Server(database_url)
        server.register(Card)
        server.seal()  # which opens no value
        with pytest.raises(DeclarationError, match=f"MFX_KEY_DEFAULT .*{text}") as refused:
            await server.start()
        assert not value or value not in str(refused.value)
    monkeypatch.setenv("MFX_KEY_DEFAULT", generate_key())
    server = Server(database_url)
    server.register(Card)
    async with client(server, database=database_url) as http:
        assert (await created(http, "/api/cards", owner="Ada", number="1"))["number"] == "1"


async def test_a_key_may_stand_in_the_file_of_the_settings(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MFX_KEY_DEFAULT", raising=False)
    file, own_key = tmp_path / ".env", generate_key()
    file.write_text(f"MFX_KEY_DEFAULT={generate_key()}\nMFX_KEY_DEFAULT={own_key}\n")

    def a_server() -> Server:
        server = Server(config=Config.from_env(file=file).with_(auto_migrate=True))
        server.register(Card)
        return server

    async with client(a_server(), database=database_url) as http:
        assert (await created(http, "/api/cards", owner="Ada", number="1"))["number"] == "1"
        assert own_key not in repr(Config.from_env(file=file))
    monkeypatch.setenv("MFX_KEY_DEFAULT", generate_key())  # the environment stands above the file
    with pytest.raises(DeclarationError, match=r"Card\.number: none of its stored values opens"):
        async with client(a_server(), database=database_url):
            pass
    monkeypatch.setenv("MFX_KEY_DEFAULT", own_key)
    file.unlink()
    async with client(a_server(), database=database_url) as http:
        [card] = data_of(await http.get("/api/cards"))
        assert card["number"] == "1"


async def test_without_required_keys_only_what_touches_secrets_fails(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(a_clinic(), database=database_url) as http:
        await created(http, "/api/clinics", name="north")
        await a_patient(http)
    monkeypatch.delenv("MFX_KEY_DEFAULT", raising=False)
    server = a_clinic(provider=EnvKeyProvider(environ={}), keys_required=False)
    async with client(server, database=database_url) as http:
        assert len(data_of(await http.get("/api/clinics"))) == 1
        error_of(await http.get("/api/patients"), 500, "ENCRYPTION_NOT_CONFIGURED")
        refused = await http.post("/api/patients", json={"name": "Bea", "ssn": "1"})
        error_of(refused, 500, "ENCRYPTION_NOT_CONFIGURED")
        assert "MFX_KEY" not in refused.text


async def test_a_start_with_another_key_stops(database_url: str) -> None:
    async with client(a_clinic(), database=database_url) as http:
        await a_patient(http)
    wrong = MemoryKeyProvider({**KEYS, "notes": os.urandom(32)})
    with pytest.raises(DeclarationError, match=r"Patient.note: none of its stored values opens"):
        async with client(a_clinic(provider=wrong), database=database_url):
            pass


async def test_a_current_key_takes_the_place_of_the_declared_one(database_url: str) -> None:
    async with client(a_clinic(), database=database_url) as http:
        old = await a_patient(http)
    provider = MemoryKeyProvider(
        {**KEYS, "notes-2": os.urandom(32)}, current={"notes": "notes-2"}, index_key="default"
    )
    server = a_clinic(provider=provider)
    async with client(server, database=database_url) as http:
        assert data_of(await http.get(f"/api/patients/{old['id']}"))["note"] == NOTE
        await created(http, "/api/patients", name="Bea", note="new")
        [row] = await raw(server, "SELECT note FROM patients WHERE name = 'Bea'")
    assert b"notes-2" in base64.b64decode(row["note"][4:])


def test_no_key_is_in_a_text() -> None:
    server = a_clinic(key_provider=keys())
    for text in (repr(server.config), str(server.config), repr(keys())):
        assert KEYS["default"].hex() not in text
        assert repr(KEYS["default"]) not in text


# -- declarations


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"encrypted": True, "filterable": True}, "blind_index=True lets clients filter by equality"),
        ({"encrypted": True, "sortable": True}, "encrypted and sortable contradict"),
        ({"encrypted": True, "searchable": True}, "encrypted and searchable contradict"),
        ({"encrypted": True, "index": True}, "encrypted and index contradict"),
        ({"encrypted": True, "blind_index": True, "hidden": True, "default": ""}, "matching would reveal it"),
        ({"encrypted": True, "blind_index": "lower"}, "blind_index must be True, False or 'casefold'"),
        ({"blind_index": True}, "blind_index needs encrypted"),
        ({"encrypted_as": "a.b"}, "encrypted_as needs encrypted"),
        ({"encrypted": True, "encrypted_as": "a"}, "is not written 'table.column'"),
        ({"encrypted": True, "lock_scope": "Card"}, "lock_scope cannot be set on an encrypted field"),
        ({"encrypted": True, "relation": "Card"}, "relation cannot be set on an encrypted field"),
        ({"encrypted": True, "lock_when": {"owner": "x"}}, "lock_when cannot be set on an encrypted field"),
        ({"encrypted": ""}, "encrypted must be True or the name of a key"),
    ],
)
def test_contradictions_stop_the_start(options: dict[str, Any], text: str) -> None:
    declare: Any = field
    broken = model("Broken", "broken", {"owner": str, "text": (str, declare(**options))})
    server = a_clinic(Card, broken)
    with pytest.raises(DeclarationError, match=text):
        server.seal()


def test_what_the_database_would_have_to_compare_is_not_encrypted() -> None:
    class Deal(Model, indices=[["owner", "secret"]]):
        owner: str = field(unique="secret")
        secret: str = field(encrypted=True)
        secret_hmac: str | None = None
        state: str = field(lock_when={"secret": "closed"})
        card_id: str = field(encrypted=True, unique=True)
        pin_hmac: str = ""
        pin: str = field(encrypted=True, unique=True)
        amount: int = field(encrypted=True)

    with pytest.raises(DeclarationError) as refused:
        a_clinic(Card, Deal).seal()
    problems = str(refused.value)
    for text in (
        "Deal: indices: secret is encrypted",
        "Deal.owner: unique: secret cannot be what it is unique within",
        "Deal.state: lock_when: secret is encrypted and cannot lock a record",
        "Deal.card_id: is encrypted, so it cannot be a reference; say relation=None",
        "Deal.pin_hmac: its column 'pin_hmac' is that of the digests of pin",
        "Deal.amount: encrypted can only be set on text",
    ):
        assert text in problems, problems


async def test_a_renamed_field_opens_under_its_old_label(database_url: str) -> None:
    class OldWallet(Model, table="wallets"):
        number: str = field(encrypted=True)

    class Purse(Model, renamed_from="wallets"):
        code: str = field(encrypted=True, renamed_from="number")

    class KeptPurse(Model, table="purses"):
        code: str = field(encrypted=True, encrypted_as="wallets.number")

    class Forgetful(Model, table="purses"):
        code: str = field(encrypted=True)

    async with client(a_clinic(OldWallet), database=database_url) as http:
        await created(http, "/api/wallets", number="4111")
    async with client(a_clinic(Purse), database=database_url) as http:
        assert data_of(await http.get("/api/purses"))[0]["code"] == "4111"
    async with client(a_clinic(KeptPurse), database=database_url) as http:
        assert data_of(await http.get("/api/purses"))[0]["code"] == "4111"
    with pytest.raises(DeclarationError, match="encrypted_as"):
        async with client(a_clinic(Forgetful), database=database_url):
            pass


# -- further ways to a record


class Tag(Model):
    label: str
    members: list[Member] = many_to_many(through="Membership")


class Member(Model):
    name: str = field(filterable=True)
    pin: str = field(encrypted=True)
    boss_id: str | None = field(default=None, relation="Member")
    tags: list[Tag] = many_to_many(through="Membership")


class Membership(Model):
    tag_id: str = field(on_delete="cascade")
    member_id: str = field(on_delete="cascade")
    remark: str = field(encrypted=True)


async def test_trees_and_junctions_have_the_value(database_url: str) -> None:
    server = a_clinic(Tag, Member, Membership)

    @server.action("GET", "/tree/{id}")
    async def tree(ctx: Context) -> Any:
        return await ctx.recursive_query(Member, root_id=ctx.url_param("id"), parent_field="boss_id")

    async with client(server, database=database_url) as http:
        boss = await created(http, "/api/members", name="Ada", pin="1111")
        await created(http, "/api/members", name="Bea", pin="2222", boss_id=boss["id"])
        tag = await created(http, "/api/tags", label="staff")
        link = {"tag_id": tag["id"], "member_id": boss["id"], "remark": "trusted"}
        assert (await created(http, "/api/memberships", **link))["remark"] == "trusted"
        assert [one["pin"] for one in data_of(await http.get(f"/api/tree/{boss['id']}"))] == ["1111", "2222"]
        [staff] = data_of(await http.get("/api/tags?include=members"))
        assert staff["members"][0]["pin"] == "1111"
        assert data_of(await http.get("/api/memberships?include=member"))[0]["member"]["pin"] == "1111"
        async with server.transaction():
            await server.db(Member).update(boss["id"], pin="3333")
            assert (await server.db(Member).read(boss["id"])).pin == "3333"
        rows = await raw(server, "SELECT pin FROM members")
        links = await raw(server, "SELECT remark FROM memberships")
    assert all(row["pin"].startswith("enc:") for row in rows)
    assert links[0]["remark"].startswith("enc:")


async def test_numbers_tell_of_plain_texts_and_of_values_that_do_not_open(database_url: str) -> None:
    server = a_clinic(Card, metrics_enabled=True)
    async with client(server, database=database_url) as http:
        card = await created(http, "/api/cards", owner="Ada", number="4111")
        await server.raw_exec("UPDATE cards SET number = 'plain'")
        await http.get(f"/api/cards/{card['id']}")
        await server.raw_exec("UPDATE cards SET number = 'enc:AwAFbm90ZXM='")
        await http.get(f"/api/cards/{card['id']}")
        page = (await http.get("/metrics")).text
    assert "maniflex_encrypted_plain_values_total 1.0" in page
    assert "maniflex_encrypted_failures_total 1.0" in page


# -- digests under scopes, policies and redactions


class Guest(Model):
    tenant_id: str = field(default="", relation=None)
    email: str = field(encrypted=True, blind_index=True, unique="tenant_id")
    stays: list[Stay] = has_many()


class Stay(Model):
    tenant_id: str = field(default="", relation=None)
    guest_id: str
    room: str = field(filterable=True)


def a_hotel() -> Server:
    server = a_clinic(Guest, Stay)
    identities = {name * 20: AuthInfo(user_id=name, tenant_id=name) for name in ("a", "b")}
    server.pipeline.auth.register(auth.api_keys(keys=identities))
    server.pipeline.db.register(db.tenancy(field="tenant_id"))
    return server


async def test_a_digest_crosses_no_tenant(database_url: str) -> None:
    server = a_hotel()
    ours, theirs = ({"x-api-key": name * 20} for name in ("a", "b"))
    async with client(server, database=database_url) as http:
        for headers in (ours, theirs):  # unique within a tenant, by the same digest
            guest = data_of(await http.post("/api/guests", json={"email": EMAIL}, headers=headers), 201)
            room = {"guest_id": guest["id"], "room": "7"}
            assert (await http.post("/api/stays", json=room, headers=headers)).status_code == 201
            error_of(await http.post("/api/guests", json={"email": EMAIL}, headers=headers), 409, "CONFLICT")
        await http.post("/api/guests", json={"email": "b@x.example"}, headers=theirs)

        for path in ("/api/guests?filter=email:eq:b@x.example", "/api/guests?filter=email:in:b@x.example"):
            assert data_of(await http.get(path, headers=ours)) == []
            assert len(data_of(await http.get(path, headers=theirs))) == 1
        by_guest = f"/api/stays?filter=guest.email:eq:{EMAIL}&include=guest"
        [stay] = data_of(await http.get(by_guest, headers=ours))
        assert (stay["tenant_id"], stay["guest"]["email"]) == ("a", EMAIL)
        error_of(await http.get("/api/stays?filter=guest.email:like:a", headers=ours), 400, "INVALID_QUERY")
        for text in ("email_hmac", "email$hmac"):
            path = f"/api/guests?filter={text}:eq:x"
            error_of(await http.get(path, headers=ours), 400, "INVALID_QUERY")
            error_of(await http.get(f"/api/guests?select={text}", headers=ours), 400, "INVALID_QUERY")
            made = data_of(await http.post("/api/guests", json={"email": text, text: "x"}, headers=ours), 201)
            assert text not in made
        digests = await raw(server, "SELECT email_hmac FROM guests")
    assert "x" not in [row["email_hmac"] for row in digests]


async def test_a_caller_from_whom_a_field_is_hidden_cannot_match_it(database_url: str) -> None:
    server = a_clinic()
    hidden = response.redact_field("email", lambda ctx: "x-doctor" not in ctx.request.headers)
    server.pipeline.response.register(hidden, models=[Patient])
    async with client(server, database=database_url) as http:
        patient = await a_patient(http)
        assert "email" not in patient
        path = f"/api/patients?filter=email:eq:{EMAIL}"
        error_of(await http.get(path), 400, "INVALID_QUERY")
        [seen] = data_of(await http.get(path, headers={"x-doctor": "yes"}))
        assert seen["email"] == EMAIL
