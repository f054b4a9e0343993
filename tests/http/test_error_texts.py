"""What errors say of themselves: everything in logs and tracebacks, no more than before to a client."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
from pydantic import field_validator

from maniflex import Context, Model, Next, Server, field
from maniflex.errors import (
    Conflict,
    ConstraintViolation,
    ForeignKeyViolation,
    NotFound,
    RecordLocked,
    RequestError,
    ValidationFailed,
)
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of

NOBODY = "01900000-0000-7000-8000-000000000000"


class Member(Model):
    email: str = field(unique=True)
    age: int = field(default=0, min=0, max=150)
    state: str = field(default="new", lock_when={"state": "final"})
    password: str = field(default="", writeonly=True)
    boss_id: str | None = field(default=None, relation="Member")

    @field_validator("password")
    @classmethod
    def not_too_plain(cls, value: str) -> str:
        if value == "hunter2":
            raise ValueError(f"{value} is too plain")
        return value


def club() -> Server:
    server = Server()
    server.register(Member)
    return server


async def text_of(work: Any, kind: type[RequestError]) -> str:
    with pytest.raises(kind) as refused:
        await work
    return str(refused.value)


async def test_an_error_names_model_id_and_fields(database_url: str) -> None:
    server = club()
    async with client(server, database=database_url):
        members = server.db(Member)
        ada = await members.create(email="ada@example.com")
        last = await members.create(email="last@example.com", state="final")

        assert await text_of(members.read(NOBODY), NotFound) == f"record not found (Member {NOBODY})"
        for missing in (members.update(NOBODY, age=1), members.delete(NOBODY)):
            assert NOBODY in await text_of(missing, NotFound)
        assert await text_of(members.create(age=151), ValidationFailed) == (
            'one or more fields failed validation (Member): field "email" is required;'
            ' field "age" must be at most 150'
        )
        assert await text_of(members.update(ada.id, name="x"), ValidationFailed) == (
            'one or more fields failed validation (Member): field "name" does not exist'
        )
        assert await text_of(members.increment(ada.id, age=200), ValidationFailed) == (
            f"one or more fields failed validation (Member {ada.id}): age: is null or would leave its bounds"
        )
        assert await text_of(members.create(email="ada@example.com"), ConstraintViolation) == (
            "a record with these values already exists (members: email):"
            " email: a record with these values already exists"
        )
        assert await text_of(members.create(email="b", boss_id=NOBODY), ForeignKeyViolation) == (
            "a record this one refers to does not exist (members: boss_id):"
            " boss_id: the record it refers to does not exist"
        )
        assert await text_of(members.update(last.id, age=1), RecordLocked) == (
            f"the record is locked while state is 'final' (Member {last.id})"
        )


async def test_of_a_secret_field_an_error_tells_the_name_alone(database_url: str) -> None:
    server = club()
    async with client(server, database=database_url) as http:
        body = {"email": "a", "password": "hunter2"}
        for work in (server.db(Member).create(**body), _made(**body)):
            assert await text_of(work, ValidationFailed) == (
                "one or more fields failed validation (Member): password: invalid"
            )
        details = error_of(await http.post("/api/members", json=body), 422, "VALIDATION_FAILED")["details"]
        assert details == [{"field": "password", "message": "hunter2 is too plain", "code": "invalid"}]


async def _made(**fields: Any) -> Member:
    return Member(**fields)


def test_the_text_of_very_many_offences_stays_short() -> None:
    offences = [{"field": f"f{n}", "message": "is wrong"} for n in range(1_000)]

    text = str(ValidationFailed(details=offences))

    assert text.endswith("f9: is wrong; and 990 more")
    assert str(Conflict("taken", {"free": "form"})) == "taken"


async def test_a_client_is_told_no_more_than_before(database_url: str) -> None:
    async with client(club(), database=database_url) as http:
        await created(http, "/api/members", email="a")
        answers = [
            await http.get(f"/api/members/{NOBODY}"),
            await http.post("/api/members", json={"email": "a"}),
        ]
        problems = [answer.json()["error"] for answer in answers]

    assert [problem["message"] for problem in problems] == [
        "record not found",
        "a record with these values already exists",
    ]
    assert not any("Member" in answer.text or "members" in answer.text for answer in answers)


def lookups() -> Server:
    server = club()

    @server.action("GET", "/bosses/{id}")
    async def boss(ctx: Context) -> Member:
        member = await ctx.db(Member).read(ctx.url_param("id"))
        return await ctx.db(Member).read(member.state)

    return server


async def test_a_record_that_code_looks_for_in_vain_is_logged_with_the_line_that_asked(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = inspect.getsourcelines(lookups)[1] + 6
    async with client(lookups(), database=database_url) as http:
        member = await created(http, "/api/members", email="a", state="lost")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            error = error_of(await http.get(f"/api/bosses/{member['id']}"), 404, "NOT_FOUND")

        assert error == {"code": "NOT_FOUND", "message": "record not found"}
        [text] = [r.getMessage() for r in caplog.records if "404" in r.getMessage()]
        assert text == f"404: record not found (Member lost), read at {__file__}:{line} in boss"


async def test_a_record_the_client_asked_for_is_not_logged(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(lookups(), database=database_url) as http:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for answer in (
                await http.get(f"/api/bosses/{NOBODY}"),
                await http.get(f"/api/members/{NOBODY}"),
                await http.patch(f"/api/members/{NOBODY}", json={"age": 1}),
                await http.delete(f"/api/members/{NOBODY}"),
                await http.get("/api/nowhere"),
            ):
                error_of(answer, 404, "NOT_FOUND")
        assert [r.getMessage() for r in caplog.records if "404" in r.getMessage()] == []


async def test_a_create_has_no_resource_id_and_its_id_is_the_frameworks(database_url: str) -> None:
    server = club()
    seen: list[tuple[str, str]] = []

    @server.pipeline.service.middleware(operations=["create"])
    async def note(ctx: Context, next: Next) -> None:
        seen.append((ctx.resource_id, ctx.url_param("id")))
        ctx.record.id = "mine"
        await next()
        seen.append((ctx.resource_id, ctx.url_param("id")))

    async with client(server, database=database_url) as http:
        made = await created(http, "/api/members", email="a", id="chosen")
        assert data_of(await http.get(f"/api/members/{made['id']}"))["email"] == "a"

    assert seen == [("", ""), ("", "")]
    assert made["id"] not in ("mine", "chosen")
