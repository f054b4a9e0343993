"""Records in payloads, messages, jobs and results: stored whole, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, model_serializer

from maniflex import Model, Run, Server, field
from maniflex._json import encode
from maniflex.encryption import MemoryKeyProvider
from maniflex.errors import ValidationFailed
from maniflex.testing import client
from tests.kit.runs import no_pause, working
from tests.kit.stored_bytes import stored_bytes


class Member(Model):
    name: str
    password: str = field(default="", writeonly=True)


class Vault(Model):
    name: str
    pin: str = field(default="", hidden=True)

    @model_serializer(mode="wrap")
    def _with_mark(self, write: Any) -> Any:
        return {**write(self), "mark": 1}


class Sealed(Model):
    name: str
    card: str | None = field(default=None, encrypted=True)


class Plain(Model):
    name: str


class Holder(BaseModel):
    members: list[Member]


class Either(BaseModel):
    one: Plain | Member | None = None
    thing: Any = None


@dataclass
class Pair:
    member: Member


MEMBER = Member(name="ada", password="hash")
HOLDING: list[Any] = [
    MEMBER,
    [MEMBER],
    {"a": {"b": (MEMBER,)}},
    Holder(members=[MEMBER]),
    Either(one=MEMBER),
    Either(thing=MEMBER),
    Pair(MEMBER),
    Member(name="no password yet"),
    Vault(name="v"),
]


@pytest.mark.parametrize("value", HOLDING, ids=lambda value: type(value).__name__)
def test_what_holds_a_record_with_a_secret_is_refused_by_the_name_of_the_field(value: Any) -> None:
    with pytest.raises(
        ValidationFailed, match=r"JSON: (Member.password|Vault.pin) is a secret.* send the id"
    ):
        encode(value, "payload")


@pytest.mark.parametrize(
    "value", [Sealed(name="s", card="planted"), [{"a": Sealed(name="s")}], Either(thing=Sealed(name="s"))]
)
def test_what_holds_a_record_with_an_encrypted_field_is_refused_and_answers_have_it(value: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"Sealed.card is encrypted.* send the id") as refused:
        encode(value, "payload")
    assert "planted" not in str(refused.value)
    assert Sealed(name="s", card="planted").model_dump()["card"] == "planted"


async def test_no_run_stores_the_plain_value_of_an_encrypted_field(database_url: str) -> None:
    server = Server(key_provider=MemoryKeyProvider())
    server.register(Sealed)
    server.outbox.enable()

    @server.work.handler("returns.v1", max_attempts=1)
    async def returns(run: Run) -> Any:
        return await server.db(Sealed).read(run.payload["id"])

    async with client(server, database=database_url):
        record = await server.db(Sealed).create(name="s", card="planted")
        for refused in (
            server.work.submit("returns.v1", record),
            server.outbox.enqueue("told", {"record": record}),
        ):
            with pytest.raises(ValidationFailed, match=r"Sealed.card is encrypted"):
                async with server.transaction():
                    await refused
        run = await server.work.submit("returns.v1", {"id": record.id})
        await server.work.worker().drain()
        assert (await server.work.get(run.id)).status == "failed"
        assert b"planted" not in await stored_bytes(database_url)


def test_answers_still_leave_secrets_out() -> None:
    assert "hash" not in Holder(members=[MEMBER]).model_dump_json()
    assert Vault(name="v", pin="1").model_dump().keys() >= {"name", "mark"}
    assert "pin" not in Vault(name="v", pin="1").model_dump()
    model: Any = Member
    assert model.model_json_schema(mode="serialization")["properties"].keys() >= {"id", "name"}


def test_records_without_secrets_are_stored_whole() -> None:
    assert '"name":"n"' in encode(Either(one=Plain(name="n")), "payload")


async def test_no_run_or_message_is_stored_without_a_secret_of_its_payload(server: Server) -> None:
    seen: list[Any] = []

    @server.work.handler("default.signup", payload=Member)
    async def signup(run: Run) -> None:
        seen.append(run.payload)

    @server.outbox.handler("signup")
    async def send(message: Any) -> None:
        seen.append(message.payload)

    async with working(server) as work:
        with pytest.raises(ValidationFailed, match=r"Member\.password"):
            await work.submit("default.signup", MEMBER)
        async with server.transaction():
            with pytest.raises(ValidationFailed, match=r"Member\.password"):
                await server.outbox.enqueue("signup", MEMBER)
        await work.submit("default.signup", {"name": "ada", "password": "hash"})
        await work.worker().drain()
    assert [member.password for member in seen] == ["hash"]


async def test_a_step_or_result_that_would_lose_a_secret_fails_the_run(server: Server) -> None:
    @server.work.handler("default.step", max_attempts=1, backoff=no_pause)
    async def step(run: Run) -> None:
        await run.step("member", lambda: MEMBER)

    @server.work.handler("default.result", max_attempts=1, backoff=no_pause)
    async def result(run: Run) -> Any:
        return MEMBER

    async with working(server) as work:
        runs = [await work.submit(type) for type in ("default.step", "default.result")]
        await work.worker().drain()
        for made in runs:
            run = await work.get(made.id)
            assert run.status == "failed"
            assert "Member.password is a secret" in (run.last_error or "")


async def test_a_run_may_be_the_result_of_a_step(server: Server) -> None:
    @server.work.handler("default.parent", max_attempts=1)
    async def parent(run: Run) -> Any:
        me: Any = await run.step("me", lambda: server.work.get(run.id))
        return me["id"]

    async with working(server) as work:
        made = await work.submit("default.parent")
        await work.worker().drain()
        assert (await work.get(made.id)).result == made.id
