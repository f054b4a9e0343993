"""What a process remembers of opened values: never for another row, bounded, forgotten when it must be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maniflex import Model, Server, field
from maniflex.encryption import MemoryKeyProvider
from maniflex.encryption.memory import LONGEST, MOST_BYTES, OpenedValues
from maniflex.errors import DecryptionError
from maniflex.testing import client
from tests.kit.http import data_of, error_of
from tests.kit.internals import opened_values_of

SECRETS = {"default": bytes(range(32)), "next": bytes(range(32, 64))}


class Patient(Model):
    ssn: str = field(encrypted=True)
    note: str | None = field(default=None, encrypted=True)


class Owner(Model, subject="id", on_erase="delete"):
    name: str


class CountingKeys(MemoryKeyProvider):
    """Keys that count how often a value is opened."""

    def __init__(self, **options: Any) -> None:
        super().__init__(SECRETS, **options)
        self.opened = 0

    def bound_opener(self, envelope: bytes) -> Any:
        head, decrypt, data = super().bound_opener(envelope)

        def count(*parts: bytes) -> bytes:
            self.opened += 1
            return decrypt(*parts)

        return head, count, data


def a_server(url: str, **settings: Any) -> tuple[Server, CountingKeys]:
    keys = CountingKeys()
    server = Server(url, key_provider=keys, **settings)
    server.register(Patient)
    return server, keys


async def test_a_page_that_is_read_again_is_not_opened_again(database_url: str) -> None:
    server, keys = a_server(database_url)
    async with server.lifespan():
        for number in range(30):
            await server.db(Patient).create(ssn=f"900-{number}", note="n")
        first = await server.db(Patient).list(limit=50)
        before = keys.opened
        assert [one.ssn for one in await server.db(Patient).list(limit=50)] == [one.ssn for one in first]
        assert keys.opened == before
        await server.db(Patient).update(first[0].id, ssn="new")
        assert (await server.db(Patient).read(first[0].id)).ssn == "new"


async def test_without_it_each_value_is_opened_each_time(database_url: str) -> None:
    server, keys = a_server(database_url, encryption_cache=0)
    async with server.lifespan():
        await server.db(Patient).create(ssn="900")
        for _ in range(3):
            await server.db(Patient).list()
        before = keys.opened
        await server.db(Patient).list()
        assert keys.opened == before + 1
        assert len(opened_values_of(server)) == 0


@pytest.mark.parametrize("change", ["row", "column", "letter"])
async def test_a_ciphertext_that_is_swapped_or_changed_does_not_open_through_it(
    database_url: str, change: str
) -> None:
    server, _ = a_server(database_url)
    async with server.lifespan():
        ada = await server.db(Patient).create(ssn="900-1", note="first")
        bob = await server.db(Patient).create(ssn="900-2", note="second")
        for _ in range(3):
            await server.db(Patient).list()
        assert len(opened_values_of(server)) >= 4
        other = {
            "row": f"(SELECT ssn FROM patients WHERE id = '{ada.id}')",
            "column": f"(SELECT note FROM patients WHERE id = '{bob.id}')",
            "letter": "substr(ssn, 1, length(ssn) - 6) || 'AAAAAA'",
        }[change]
        await server.raw_exec(f"UPDATE patients SET ssn = {other} WHERE id = '{bob.id}'")
        with pytest.raises(DecryptionError):
            await server.db(Patient).read(bob.id)
        assert (await server.db(Patient).read(ada.id)).ssn == "900-1"
        assert "900-1" not in repr(opened_values_of(server))


async def test_it_is_forgotten_by_an_erasure_a_rotation_and_the_end(database_url: str) -> None:
    server, _ = a_server(database_url)
    server.register(Owner)
    async with server.lifespan():
        await server.db(Patient).create(ssn="900-1")
        owner = await server.db(Owner).create(name="Ada")

        async def fill() -> None:
            for _ in range(3):
                await server.db(Patient).list()
            assert len(opened_values_of(server)) > 0

        await fill()
        await server.keys.rotate(Patient, new="next")
        assert len(opened_values_of(server)) == 0
        await fill()
        await server.erasure.erase(owner.id)
        assert len(opened_values_of(server)) == 0
        await fill()
    assert len(opened_values_of(server)) == 0


async def test_a_page_with_a_cleared_value_and_one_that_was_written_anew_is_read_as_it_is(
    database_url: str,
) -> None:
    server, keys = a_server(database_url)
    async with server.lifespan():
        people = [await server.db(Patient).create(ssn=f"900-{n}", note=f"note {n}") for n in range(5)]
        for _ in range(2):
            await server.db(Patient).list()
        await server.raw_exec(f"UPDATE patients SET note = NULL WHERE id = '{people[1].id}'")
        await server.db(Patient).update(people[2].id, note="another")
        for _ in range(3):
            page = {one.id: one.note for one in await server.db(Patient).list()}
            assert [page[one.id] for one in people] == ["note 0", None, "another", "note 3", "note 4"]
        before = keys.opened
        await server.db(Patient).list()
        assert keys.opened == before


def test_it_is_bounded_by_values_and_by_bytes() -> None:
    few, many = OpenedValues(100), OpenedValues(1 << 20)
    one, other = few.of(b"one"), few.of(b"other")
    for number in range(1000):
        (one if number % 2 else other).note(f"enc:{number}", f"id{number}", "value")
        assert len(few) <= 100
    assert one.find("enc:999", "id999") == "value"
    assert one.find("enc:999", "id997") is None
    assert other.find("enc:999", "id999") is None
    assert one.find("enc:1", "id1") is None  # long gone
    text, field = "x" * 900, many.of(b"l")
    for number in range(20_000):
        field.note(f"enc:{number}", f"id{number}", text)
    assert len(many) * (len(text) + len("enc:0")) <= MOST_BYTES
    field.note("enc:long", "id", "y" * LONGEST)
    assert field.find("enc:long", "id") is None


def test_a_value_is_known_again_behind_younger_ones_and_replaced_by_a_newer_one_of_its_record() -> None:
    values = OpenedValues(10)
    field = values.of(b"l")
    for number in range(6):  # the first five are the older generation
        field.note(f"enc:{number}", f"id{number}", f"value {number}")
    assert field.find("enc:0", "id0") == "value 0"
    field.note("enc:new", "id0", "new")
    assert (field.find("enc:0", "id0"), field.find("enc:new", "id0")) == (None, "new")
    assert (field.find("enc:5", "id5"), field.find("enc:5", "id0")) == ("value 5", None)
    values.forget()
    assert (len(values), field.find("enc:new", "id0")) == (0, None)


class SilentKeys:
    """A key service that takes questions and never answers, once it is told to."""

    def __init__(self) -> None:
        self.inner = MemoryKeyProvider(SECRETS)
        self.is_silent = False

    def key_id_of(self, envelope: bytes) -> str:
        return self.inner.key_id_of(envelope)

    async def _wait(self) -> None:
        if self.is_silent:
            await asyncio.Event().wait()

    async def encrypt(self, key_id: str, plain: bytes, *, context: bytes) -> bytes:
        await self._wait()
        return await self.inner.encrypt(key_id, plain, context=context)

    async def decrypt(self, envelope: bytes, *, context: bytes) -> bytes:
        await self._wait()
        return await self.inner.decrypt(envelope, context=context)

    async def hmac(self, key_id: str, data: bytes) -> bytes:
        await self._wait()
        return await self.inner.hmac(key_id, data)

    async def check(self, key_ids: Any) -> list[str]:
        await self._wait()
        return await self.inner.check(key_ids)


async def test_a_key_provider_that_never_answers_has_a_time_limit(database_url: str) -> None:
    keys = SilentKeys()
    server = Server(key_provider=keys, key_timeout=0.2)
    server.register(Patient)
    async with client(server, database=database_url) as http:
        made = data_of(await http.post("/api/patients", json={"ssn": "900-1"}), 201)
        keys.is_silent = True
        error_of(await http.get(f"/api/patients/{made['id']}"), 503, "UNAVAILABLE")
        error_of(await http.post("/api/patients", json={"ssn": "900-2"}), 503, "UNAVAILABLE")
        keys.is_silent = False
        assert data_of(await http.get(f"/api/patients/{made['id']}"))["ssn"] == "900-1"
        assert len(opened_values_of(server)) == 0
