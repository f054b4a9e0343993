"""`ctx.query.force` itself: what can be forced, what a write then ends as, what a mistake tells."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.testing import client
from tests.kit.http import data_of, error_of


class Note(Model):
    text: str = field(default="x", filterable=True)
    level: int = field(default=1, filterable=True)
    owner: str | None = None


def forcing(*arguments: Any) -> Server:
    server = Server()
    server.register(Note)

    @server.pipeline.auth.middleware()
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force(*arguments)
        await next()

    return server


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing", 1),
        ("level", 1, "about"),
        ("level", "level", "eq_field"),
        ("owner", None),
        ("level", 1, "in"),
        ("level", (1,), "between"),
    ],
)
async def test_a_condition_that_cannot_be_forced_refuses_the_request_and_tells_only_the_log(
    database_url: str, arguments: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with client(forcing(*arguments), database=database_url) as http:
        for method, path in (
            ("GET", "/api/notes"),
            ("POST", "/api/notes"),
            ("GET", "/api/notes/x"),
            ("DELETE", "/api/notes/x"),
        ):
            caplog.clear()
            body = {"text": "x"} if method == "POST" else None
            refused = error_of(await http.request(method, path, json=body), 500, "INTERNAL")
            assert refused == {"code": "INTERNAL", "message": "the server failed to handle the request"}
            assert f"Note cannot be bound by '{arguments[0]}'" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "inside", "outside"),
    [
        (("level", (1, 2), "in"), [1, 2], [3]),
        (("level", (2, 3), "not_in"), [1], [2, 3]),
        (("level", 2, "lte"), [1, 2], [3]),
        (("level", 1, "gt"), [2, 3], [1]),
        (("level", (2, 3), "between"), [2, 3], [1]),
        (("level", 2, "neq"), [1, 3], [2]),
        (("level", None, "not_null"), [1, 2, 3], []),
    ],
)
async def test_a_write_that_would_leave_another_kind_of_condition_is_422(
    database_url: str, arguments: tuple[Any, ...], inside: list[int], outside: list[int]
) -> None:
    server = forcing(*arguments)
    async with client(server, database=database_url) as http:
        stored = {level: (await server.db(Note).create(level=level)).id for level in (1, 2, 3)}
        assert [row["level"] for row in data_of(await http.get("/api/notes?filter=level:not_null"))] == inside
        mine = stored[inside[0]]
        for level in inside:
            data_of(await http.post("/api/notes", json={"level": level}), 201)
            data_of(await http.patch(f"/api/notes/{mine}", json={"level": level}))
        for level in outside:
            error_of(await http.post("/api/notes", json={"level": level}), 422, "VALIDATION_FAILED")
            error_of(await http.patch(f"/api/notes/{mine}", json={"level": level}), 422, "VALIDATION_FAILED")
            error_of(await http.patch(f"/api/notes/{stored[level]}", json={"text": "x"}), 404, "NOT_FOUND")
            error_of(await http.delete(f"/api/notes/{stored[level]}"), 404, "NOT_FOUND")


async def test_two_forced_conditions_both_hold(database_url: str) -> None:
    server = forcing("level", 2)

    @server.pipeline.service.middleware()
    async def more(ctx: Context, next: Next) -> None:
        ctx.query.force("text", "mine")
        await next()

    async with client(server, database=database_url) as http:
        for text, level in (("mine", 2), ("mine", 1), ("yours", 2)):
            await server.db(Note).create(text=text, level=level)
        assert [(row["text"], row["level"]) for row in data_of(await http.get("/api/notes"))] == [("mine", 2)]
        made = data_of(await http.post("/api/notes", json={"text": "yours", "level": 1}), 201)
        assert (made["text"], made["level"]) == ("mine", 2)


@pytest.mark.parametrize(
    ("op", "pattern"),
    [
        ("like", "t_am-%"),
        ("like", "Team-%"),
        ("ilike", "T_AM-%"),
        ("ilike", "50\\%%"),
        ("contains", "50%"),
        ("contains", "AM-*"),
        ("starts_with", "Team-"),
        ("ends_with", "É"),
    ],
)
async def test_patterns_bind_writes_as_they_bind_reads(database_url: str, op: str, pattern: str) -> None:
    texts = [
        "team-a",
        "Team-b",
        "tEAM-*x",
        "steam-",
        "50% off",
        "5000",
        "[t]eam-",
        "line\nteam-",
        "é",
        "É",
        "",
    ]
    server = forcing("text", pattern, op)
    async with client(server, database=database_url) as http:
        for text in texts:
            await server.db(Note).create(text=text)
        read = {row["text"] for row in data_of(await http.get("/api/notes?limit=100"))}
        answers = {text: await http.post("/api/notes", json={"text": text}) for text in texts}

    assert {text for text, answer in answers.items() if answer.status_code == 201} == read
    assert {answer.status_code for answer in answers.values()} == {201, 422}
