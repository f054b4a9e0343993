"""Body entries as a client meets them."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

import pytest

from maniflex import Context, DeclarationError, Model, Server, belongs_to, field, has_many
from maniflex.middleware import body
from maniflex.testing import client
from tests.catalogue.rules_app import build, serve
from tests.kit.http import created, data_of, error_of, offenders, total


class Note(Model):
    text: str = ""
    count: int = field(default=0, max=100)
    level: Literal[1, 2] = 1
    ratio: float = 0.0
    done: bool = False
    day: date | None = None
    shown: str = field(default="", alias="shownAs")
    version: int = field(default=1, readonly=True)
    internal: str = field(default="", hidden=True)


class Author(Model):
    name: str = ""
    books: list[Book] = has_many()


class Book(Model):
    title: str = ""
    author_id: str | None = None
    author: Author | None = belongs_to()


KB = 1024


async def test_a_body_may_be_as_large_as_its_route_says(database_url: str) -> None:
    """C26."""
    server = build([Note, Author, Book])
    server.pipeline.deserialize.register(body.max_body_size("10KB"), models=[Note])
    server.pipeline.deserialize.register(body.max_body_size(8 * KB * KB), models=[Author])
    answers = []

    async def act(ctx: Context) -> dict[str, int]:
        answers.append(len((await ctx.bind_json())["text"]))
        return {"length": answers[-1]}

    server.action("POST", "/large", middleware=[body.max_body_size("8MB")])(act)
    server.action("POST", "/small", middleware=[body.max_body_size("10KB")])(act)
    async with client(server, database=database_url) as http:
        error_of(await http.post("/api/notes", json={"text": "x" * 11 * KB}), 413, "BODY_READ_ERROR")
        assert await total(http, "/api/notes") == 0
        data_of(await http.post("/api/notes", json={"text": "x" * 9 * KB}), 201)
        data_of(await http.post("/api/authors", json={"name": "x" * 5 * KB * KB}), 201)
        data_of(await http.post("/api/large", json={"text": "x" * 5 * KB * KB}))
        error_of(await http.post("/api/small", json={"text": "x" * 11 * KB}), 413, "BODY_READ_ERROR")
        assert answers == [5 * KB * KB]


async def test_a_body_without_a_length_is_counted_while_it_is_read(database_url: str) -> None:
    async def parts() -> Any:
        yield b'{"text": "'
        for _ in range(11):
            yield b"x" * KB
        yield b'"}'

    async with serve(database_url, [Note], ("deserialize", body.max_body_size("10KB"))) as http:
        answer = await http.post("/api/notes", content=parts(), headers={"Content-Type": "application/json"})
        error_of(answer, 413, "BODY_READ_ERROR")
        assert await total(http, "/api/notes") == 0


@pytest.mark.parametrize("size", [0, -1, "1TB", "2GB", 1024**3 + 1, True])
def test_a_size_that_cannot_be_meant_stops_the_start(size: Any) -> None:
    with pytest.raises(DeclarationError, match="size"):
        build([Note], ("deserialize", body.max_body_size(size))).seal()


async def test_unknown_keys_are_taken_out(database_url: str) -> None:
    seen: list[set[str]] = []

    async def look(ctx: Context, next: Any) -> None:
        seen.append(set(ctx.body))
        await next()

    server = build([Note], ("validate", body.strip_unknown_fields()))
    server.pipeline.validate.register(look, operations="create")
    async with client(server, database=database_url) as http:
        await created(http, "/api/notes", text="x", shownAs="y", extra=1, internal="z")
        assert seen == [{"text", "shownAs"}]


async def test_unknown_keys_are_refused_with_everything_else(database_url: str) -> None:
    server = build([Note])
    server.pipeline.deserialize.register(body.reject_unknown_fields(), at="after")
    async with client(server, database=database_url) as http:
        answer = await http.post("/api/notes", json={"txet": "x", "count": 101, "internal": "x"})
        assert offenders(answer) == {"txet": "unknown", "count": "max", "internal": "unknown"}
        messages = [detail["message"] for detail in answer.json()["error"]["details"]]
        assert any("did you mean 'text'" in message for message in messages)
        assert not any("did you mean 'internal'" in message for message in messages)
        note = data_of(await http.post("/api/notes", json={"text": "x", "version": 7, "id": "x"}), 201)
        assert note["version"] == 1
        answer = await http.patch(f"/api/notes/{note['id']}", json={"shown": "x"})
        assert offenders(answer) == {"shown": "unknown"}


async def test_the_setting_refuses_unknown_keys_everywhere(database_url: str) -> None:
    """K17."""
    async with serve(database_url, [Note], unknown_fields="refuse") as http:
        assert offenders(await http.post("/api/notes", json={"txet": "x"})) == {"txet": "unknown"}
    async with serve(database_url, [Note]) as http:
        data_of(await http.post("/api/notes", json={"txet": "x"}), 201)


@pytest.mark.parametrize("setting", ["ignore", "refuse"])
async def test_the_name_of_a_relation_is_refused_in_any_case(database_url: str, setting: str) -> None:
    """K17."""
    async with serve(database_url, [Book, Author], unknown_fields=setting) as http:
        author = await created(http, "/api/authors", name="x")
        answer = await http.post("/api/books", json={"author": {"name": "x"}, "title": 7, "id": "x"})
        assert offenders(answer) == {"author": "relation", "title": "type"}
        assert any('"author_id"' in detail["message"] for detail in answer.json()["error"]["details"])
        book = await created(http, "/api/books", author_id=author["id"])
        answer = await http.patch(f"/api/books/{book['id']}", json={"author": author["id"]})
        assert offenders(answer) == {"author": "relation"}
        assert offenders(await http.patch(f"/api/authors/{author['id']}", json={"books": []})) == {
            "books": "relation"
        }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "42", 42),
        ("count", "-7", -7),
        ("level", "2", 2),
        ("ratio", "1.5", 1.5),
        ("ratio", "1e3", 1000.0),
        ("done", "TRUE", True),
        ("done", "0", False),
        ("day", "2026-02-01", "2026-02-01"),
        ("text", "42", "42"),
    ],
)
async def test_text_is_read_where_there_is_one_reading(
    database_url: str, name: str, text: str, value: Any
) -> None:
    async with serve(database_url, [Note], ("validate", body.coerce_types())) as http:
        assert (await created(http, "/api/notes", **{name: text}))[name] == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("count", text) for text in ["", " 42 ", "4 2", "0x1f", "NaN", "1e3", "1.0", "101", "٤٢"]),
        *(("ratio", text) for text in ["", "NaN", "inf", "1e999", " 1"]),
        *(("done", text) for text in ["", "yes", "2"]),
        ("level", "3"),
        ("day", "01.02.2026"),
    ],
)
async def test_other_text_fails_as_usual(database_url: str, name: str, text: str) -> None:
    async with serve(database_url, [Note], ("validate", body.coerce_types())) as http:
        assert set(offenders(await http.post("/api/notes", json={name: text}))) == {name}


class Vault(Model):
    title: str = ""
    risk: int = field(default=0, hidden=True)
    version: int = field(default=1, readonly=True)
    keeper_id: str | None = field(default=None, hidden=True, relation=Author)


@pytest.mark.parametrize("refuses", ["setting", "entry", "nothing"])
async def test_a_hidden_name_is_answered_like_one_that_does_not_exist(
    database_url: str, refuses: str
) -> None:
    """Neither its own name, nor that of a relation over it, nor "did you mean" tells that it is there."""
    server = Server(unknown_fields="refuse" if refuses == "setting" else "ignore")
    server.register(Vault, Author, Book)
    if refuses == "entry":
        server.pipeline.deserialize.register(body.reject_unknown_fields(), at="after")
    async with client(server, database=database_url) as http:
        made = (await http.post("/api/vaults", json={"version": 7})).json()["data"]
        path = f"/api/vaults/{made['id']}"
        assert made["version"] == 1  # what clients may know and not set is dropped
        for name in ("risk", "keeper_id", "keeper", "rsk", "keeper_i"):
            for send in (http.post, http.patch):
                url = "/api/vaults" if send == http.post else path
                hidden = await send(url, json={"title": "x", name: 5})
                unknown = await send(url, json={"title": "x", "zzzzzz": 5})
                assert hidden.status_code == unknown.status_code, (name, hidden.text)
                if refuses != "nothing":
                    assert hidden.status_code == 422
                    assert hidden.text.replace(name, "zzzzzz") == unknown.text
