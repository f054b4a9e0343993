"""Keys that Vault keeps: a Vault of the loopback over HTTPS, under a server (E4, E6, check 42)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Server
from maniflex.encryption import EncryptionError, KeyProvider, VaultKeyProvider, context_of, head_of
from maniflex.errors import Unavailable
from maniflex.middleware import idempotency
from maniflex.testing import client
from maniflex.testing.conformance import KeyProviderConformance
from tests.kit.http import created, data_of, error_of
from tests.kit.patients import EMAIL, NOTE, SSN, Patient, a_clinic, keys
from tests.kit.runs import no_pause
from tests.kit.stored_bytes import stored_bytes
from tests.kit.vault import TOKEN, Vault, a_vault

CONTEXT = context_of("patients.ssn", "1")


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with a_vault(tmp_path, "default", "notes", "notes-2", "other-key", "search") as one:
        yield one


def keys_of(vault: Vault, **options: Any) -> VaultKeyProvider:
    options = {"token": TOKEN, "ca_file": vault.ca_file, **options}
    return VaultKeyProvider(vault.address, **options)


class TestVaultKeys(KeyProviderConformance):
    @pytest.fixture
    def provider(self, vault: Vault) -> KeyProvider:
        return keys_of(vault)


# -- the provider


async def test_an_envelope_is_the_text_of_vault_behind_the_usual_head(vault: Vault) -> None:
    envelope = await keys_of(vault).encrypt("notes", b"value", context=CONTEXT)

    assert envelope.startswith(head_of("notes") + b"vault:v1:")


async def test_a_key_that_vault_rotates_opens_what_was_before_and_digests_as_before(vault: Vault) -> None:
    keys = keys_of(vault)
    envelope, digest = await keys.encrypt("notes", b"value", context=CONTEXT), await keys.hmac("notes", b"v")
    vault.rotate("notes")

    assert await keys.decrypt(envelope, context=CONTEXT) == b"value"
    assert b"vault:v2:" in await keys.encrypt("notes", b"value", context=CONTEXT)
    assert await keys.hmac("notes", b"v") == digest


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"address": "http://127.0.0.1:8200"}, "allow_insecure=True"),
        ({"address": "vault.example.com"}, "is not like https://"),
        ({"address": "https://me:pass@vault.example.com"}, "is not like https://"),
        ({"token": None}, "give token= or token_source="),
        ({"token_source": lambda: "x"}, "give token= or token_source="),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_a_declaration_that_is_unsafe_or_contradicts_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError, match=text) as refused:
        VaultKeyProvider(**{"address": "https://vault.example.com", "token": TOKEN, **options})
    assert "pass" not in str(refused.value)


async def test_a_certificate_that_nobody_vouches_for_is_refused(vault: Vault) -> None:
    with pytest.raises(Unavailable):
        await VaultKeyProvider(vault.address, TOKEN).encrypt("notes", b"value", context=CONTEXT)
    assert vault.asked == []


async def test_a_token_is_asked_for_each_time_and_shown_in_no_error(vault: Vault) -> None:
    tokens = [TOKEN, "s.expired", "two\r\nlines"]

    async def source() -> str:
        return tokens.pop(0)

    keys = keys_of(vault, token=None, token_source=source)
    await keys.encrypt("notes", b"value", context=CONTEXT)
    for _ in range(2):
        with pytest.raises(EncryptionError) as refused:
            await keys.encrypt("notes", b"plain", context=CONTEXT)
        assert all(text not in str(refused.value) for text in ("s.expired", "lines", "plain"))
    assert TOKEN not in repr(keys_of(vault))


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_vault_that_is_sealed_or_busy_is_away(vault: Vault, status: int) -> None:
    vault.status = status
    with pytest.raises(Unavailable):
        await keys_of(vault).decrypt(head_of("notes") + b"vault:v1:AAAA", context=CONTEXT)


# -- a server


async def test_a_server_stores_and_shows_values_by_keys_of_vault(
    vault: Vault, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = a_clinic(provider=keys_of(vault, index_key="search"))
    server.pipeline.deserialize.register(idempotency.keys(), at="after")

    @server.action("GET", "/newest")
    async def newest(ctx: Context) -> Any:
        [record] = await ctx.db(Patient).list(sorts="created_at:desc", limit=1)
        return record

    async with client(server, database=database_url) as http:
        clinic = await created(http, "/api/clinics", name="north")
        body = {"name": "Ada", "ssn": SSN, "note": NOTE, "email": EMAIL, "clinic_id": clinic["id"]}
        first = await http.post("/api/patients", json=body, headers={"Idempotency-Key": "one"})
        again = await http.post("/api/patients", json=body, headers={"Idempotency-Key": "one"})
        patient = data_of(first, 201)
        assert again.content == first.content
        path = f"/api/patients/{patient['id']}"
        assert (patient["ssn"], patient["note"], patient["email"]) == (SSN, NOTE, EMAIL)
        assert data_of(await http.get(path)) == patient
        assert data_of(await http.get(f"/api/patients?filter=email:eq:{EMAIL.upper()}")) == [patient]
        [north] = data_of(await http.get("/api/clinics?include=patients"))
        assert north["patients"][0]["note"] == NOTE
        assert data_of(await http.get("/api/newest"))["ssn"] == SSN
        error_of(await http.post("/api/patients", json={"name": "Bea", "ssn": SSN}), 409, "CONFLICT")
        assert data_of(await http.patch(path, json={"note": "none"}))["note"] == "none"
        assert (await server.db(Patient).read(patient["id"])).note == "none"
        assert (await server.db(Patient).create(name="Bea", note="b")).note == "b"
        async with server.transaction():
            await server.db(Patient).update(patient["id"], note="in a transaction")
        await http.delete(path)
        assert data_of(await http.post(f"{path}/restore"))["note"] == "in a transaction"
        [row] = await server.raw_query("SELECT note, ssn_hmac FROM patients WHERE name = 'Ada'")
    assert row["note"].startswith("enc:AwAFbm90ZXN2YXVsdDp2MT")  # head of notes, vault:v1
    assert row["ssn_hmac"]
    assert TOKEN not in caplog.text
    assert NOTE not in caplog.text


async def test_vault_is_asked_once_for_a_page(vault: Vault, database_url: str) -> None:
    server = a_clinic(provider=keys_of(vault))
    async with client(server, database=database_url) as http:
        clinic = await created(http, "/api/clinics", name="north")
        for number in range(20):
            await created(http, "/api/patients", name="x", note=f"note {number}", clinic_id=clinic["id"])
        for path in ("/api/patients?sort=name", f"/api/clinics/{clinic['id']}?include=patients"):
            vault.asked.clear()
            page = data_of(await http.get(path))
            assert len(page if isinstance(page, list) else page["patients"]) == 20
            assert vault.asked == ["decrypt/notes"]


async def test_a_value_that_does_not_open_fails_its_request_alone(vault: Vault, database_url: str) -> None:
    server = a_clinic(provider=keys_of(vault))
    async with client(server, database=database_url) as http:
        one, two = [await created(http, "/api/patients", name=n, note=n) for n in ("one", "two")]
        rows = {row["id"]: row["note"] for row in await server.raw_query("SELECT id, note FROM patients")}
        await server.raw_exec("UPDATE patients SET note = ? WHERE id = ?", rows[two["id"]], one["id"])

        error_of(await http.get(f"/api/patients/{one['id']}"), 500, "DECRYPTION_ERROR")
        error_of(await http.get("/api/patients"), 500, "DECRYPTION_ERROR")
        assert data_of(await http.get(f"/api/patients/{two['id']}"))["note"] == "two"


async def test_rotation_writes_under_another_key_of_vault(vault: Vault, database_url: str) -> None:
    async with client(a_clinic(provider=keys_of(vault, index_key="search")), database=database_url) as http:
        for number in range(7):
            await created(http, "/api/patients", name="x", note=f"note {number}", ssn=str(number))
    vault_keys = keys_of(vault, index_key="search", current={"notes": "notes-2"})
    server = a_clinic(provider=vault_keys)
    async with client(server, database=database_url) as http:
        report = await server.keys.rotate(Patient, page_size=3)
        assert (report.rotated, report.complete, report.failures) == (7, True, ())
        states = {(one.field, one.key_id) for one in await server.keys.status(Patient)}
        assert states == {("ssn", "default"), ("note", "notes-2")}
        del vault.keys["notes"]
        with pytest.raises(DeclarationError, match="the key to write under: Vault has no key 'notes'"):
            await server.keys.rotate(Patient, new="notes")
        notes = {one["note"] for one in data_of(await http.get("/api/patients"))}
        assert notes == {f"note {number}" for number in range(7)}


async def test_a_vault_that_hangs_is_a_503_in_time_and_keeps_nobody_else_waiting(
    vault: Vault, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = a_clinic(provider=keys_of(vault, timeout=0.5))
    async with client(server, database=database_url) as http:
        patient = await created(http, "/api/patients", name="Ada", note=NOTE)
        vault.hangs.clear()
        refused = await http.get(f"/api/patients/{patient['id']}")
        error_of(refused, 503, "UNAVAILABLE")
        error_of(await http.post("/api/patients", json={"name": "B", "note": "b"}), 503, "UNAVAILABLE")
        assert (await http.get("/api/clinics")).status_code == 200
        vault.hangs.set()
        assert data_of(await http.get(f"/api/patients/{patient['id']}"))["note"] == NOTE
        assert len(data_of(await http.get("/api/patients"))) == 1
    assert "Vault at 127.0.0.1" in caplog.text
    assert TOKEN not in caplog.text


async def test_a_vault_that_is_away_at_the_start_keeps_the_server_unready(
    vault: Vault, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    vault.status = 503
    async with client(a_clinic(provider=keys_of(vault)), database=database_url) as http:
        assert "the server is not ready before it has answered" in caplog.text
        assert (await http.get("/ready")).status_code == 503
        error_of(await http.post("/api/patients", json={"name": "B", "note": "b"}), 503, "UNAVAILABLE")
        vault.status = 0
        assert (await http.get("/ready")).status_code == 200
        await created(http, "/api/patients", name="Bea", note="b")


async def test_a_key_that_vault_does_not_know_stops_the_start(vault: Vault, database_url: str) -> None:
    del vault.keys["notes"]
    with pytest.raises(DeclarationError, match=r"Patient.note: Vault has no key 'notes'"):
        async with client(a_clinic(provider=keys_of(vault)), database=database_url):
            pass


async def test_a_run_and_a_worker_read_values_by_keys_of_vault(vault: Vault, database_url: str) -> None:
    server: Server = a_clinic(provider=keys_of(vault))

    @server.work.handler("read.v1")
    async def read(run: Any) -> Any:
        return len([one.note for one in await server.db(Patient).list() if one.note])

    async with client(server, database=database_url, background=True) as http:
        await created(http, "/api/patients", name="x", note="n")
        finished = await server.work.wait((await server.work.submit("read.v1", {})).id)
        assert finished.result == 1


async def test_encrypted_work_waits_for_a_vault_that_is_away(
    vault: Vault, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    handled: list[Any] = []
    server = Server(database_url, background=False, key_provider=keys_of(vault))

    @server.work.handler("kyc.v1", encrypted="notes", backoff=no_pause)
    async def check(run: Any) -> Any:
        handled.append(run.payload)
        return await run.step("one", lambda: {"score": NOTE})

    @server.outbox.handler("told", encrypted="notes", max_attempts=1)
    async def tell(message: Any) -> None:
        handled.append(message.payload)

    async with server.lifespan():
        run = await server.work.submit("kyc.v1", {"passport": NOTE})
        await server.outbox.enqueue("told", {"to": NOTE}, outside_transaction=True)
        [row] = await server.raw_query("SELECT payload FROM workflow_run")
        assert "enc:AwAFbm90ZXN2YXVsdDp2MT" in row["payload"]
        vault.status = 503
        await server.work.worker().drain()
        await server.outbox.drainer().drain()
        assert handled == []
        [message] = await server.raw_query("SELECT status, attempts, last_error FROM outbox_event")
        assert (message["status"], message["attempts"]) == ("pending", 0)
        assert "cannot be opened yet" in message["last_error"]
        with pytest.raises(Unavailable):
            await server.work.submit("kyc.v1", {"passport": "another"})
        vault.status = 0
        # They are asked for again in a few seconds, however long the service was away: no attempt counts.
        for table, due in (("workflow_run", "run_at"), ("outbox_event", "retry_at")):
            await server.raw_exec(f"UPDATE {table} SET {due} = created_at")
        await server.work.worker().drain()
        await server.outbox.drainer().drain()
        done = await server.work.get(run.id)
        assert (done.status, done.result) == ("succeeded", {"score": NOTE})
        assert handled == [{"passport": NOTE}, {"to": NOTE}]
        content = await stored_bytes(database_url)
    assert NOTE.encode() not in content
    assert NOTE not in caplog.text
    assert TOKEN not in caplog.text


# -- a provider of one's own


class Elsewhere:
    """Keys that are asked one value at a time, and take a moment."""

    def __init__(self) -> None:
        self._keys = keys()
        self.asked = 0

    async def _ask(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)

    async def encrypt(self, key_id: str, plain: bytes, *, context: bytes) -> bytes:
        await self._ask()
        return self._keys.seal(key_id, plain, context)

    async def decrypt(self, envelope: bytes, *, context: bytes) -> bytes:
        await self._ask()
        return self._keys.open(envelope, context)

    def key_id_of(self, envelope: bytes) -> str:
        return self._keys.key_id_of(envelope)

    async def hmac(self, key_id: str, data: bytes) -> bytes:
        await self._ask()
        return self._keys.digest(key_id, data)

    async def check(self, key_ids: Collection[str]) -> list[str]:
        return []


class TestKeysElsewhere(KeyProviderConformance):
    @pytest.fixture
    def provider(self) -> KeyProvider:
        return Elsewhere()

    @pytest.fixture
    def other_key_id(self) -> str:
        return "notes"


async def test_a_provider_of_ones_own_serves_many_clients_at_once(database_url: str) -> None:
    provider = Elsewhere()
    server = a_clinic(provider=provider)
    async with client(server, database=database_url) as http:

        async def use(number: int) -> None:
            patient = await created(http, "/api/patients", name="x", note=f"n{number}", ssn=f"s{number}")
            path = f"/api/patients/{patient['id']}"
            assert data_of(await http.patch(path, json={"note": f"m{number}"}))["note"] == f"m{number}"
            assert data_of(await http.get(path))["ssn"] == f"s{number}"
            assert (await server.db(Patient).read(patient["id"])).note == f"m{number}"
            error_of(
                await http.post("/api/patients", json={"name": "y", "ssn": f"s{number}"}), 409, "CONFLICT"
            )

        await asyncio.gather(*(use(number) for number in range(20)))
        notes = {patient["note"] for patient in data_of(await http.get("/api/patients?limit=50"))}
        assert notes == {f"m{number}" for number in range(20)}
        with pytest.raises(asyncio.TimeoutError):  # a caller that leaves leaves nothing behind
            async with asyncio.timeout(0):
                await server.db(Patient).list()
        assert len(await server.db(Patient).list()) == 20
    assert provider.asked


async def test_who_is_cancelled_while_a_provider_is_asked_hears_of_it(database_url: str) -> None:
    provider, is_asked = Elsewhere(), asyncio.Event()

    async def ask_for_ever(envelope: bytes, *, context: bytes) -> bytes:
        is_asked.set()
        await asyncio.Event().wait()
        return b""

    server = a_clinic(provider=provider)
    async with client(server, database=database_url):
        patient = await server.db(Patient).create(name="x", note="n")
        decrypt, provider.decrypt = provider.decrypt, ask_for_ever  # type: ignore[method-assign]
        reading = asyncio.create_task(server.db(Patient).read(patient.id))
        await is_asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        provider.decrypt = decrypt  # type: ignore[method-assign]
        assert (await server.db(Patient).read(patient.id)).note == "n"
