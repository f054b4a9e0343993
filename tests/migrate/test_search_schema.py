"""What searching needs in the schema is made at start, follows the declaration, and is no drift."""

from __future__ import annotations

import json
from typing import Any

import pytest

from maniflex import DeclarationError, Server, field
from tests.kit.schema import columns, indexes, kind, model, raw, tables, warnings
from tests.kit.servers import started

TITLE = (str, field(searchable=True))
PLAIN = (str, field())


def note(title: Any = PLAIN, body: Any = PLAIN, **options: Any) -> Any:
    return model("Note", "notes", {"title": title, "body": body}, **options)


async def found(server: Server, note: Any, text: str) -> list[str]:
    answer = await server.execute("list", note, query={"q": text})
    assert answer.status == 200, answer
    return sorted(row["title"] for row in json.loads(answer.body)["data"])  # type: ignore[arg-type]


async def test_rows_that_were_there_before_are_found(database_url: str) -> None:
    before, after = note(), note(TITLE)
    async with started(database_url, before) as server:
        await server.db(before).create(title="running", body="x")
        await server.db(before).create(title="walking", body="run")

    async with started(database_url, after) as server:
        assert await found(server, after, "run") == ["running"]


async def test_changed_fields_are_indexed_anew(database_url: str) -> None:
    versions = [note(TITLE), note(TITLE, TITLE), note(body=TITLE)]
    async with started(database_url, versions[0]) as server:
        await server.db(versions[0]).create(title="running", body="x")
        await server.db(versions[0]).create(title="walking", body="run")
    seen = []
    for version in versions:
        async with started(database_url, version) as server:
            seen.append(await found(server, version, "run"))

    assert seen == [["running"], ["running", "walking"], ["walking"]]


async def test_a_changed_language_is_applied(database_url: str) -> None:
    english, simple = note(TITLE), note(TITLE, search_language="simple")
    seen: list[Any] = []
    for version in (english, simple, english):
        async with started(database_url, version) as server:
            if not seen:
                await server.db(version).create(title="the running", body="")
            seen.append([await found(server, version, q) for q in ("run", "running", "the")])

    hit = ["the running"]
    assert seen == [[hit, hit, []], [[], hit, hit], [hit, hit, []]]


async def test_a_correct_schema_is_quiet_and_left_alone(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "maniflex.migrate")
    made = []
    for _ in range(2):
        caplog.clear()
        async with started(database_url, note(TITLE)):
            pass
        made.append("indexing notes for search" in [r.getMessage() for r in caplog.records])
        assert warnings(caplog) == []

    assert made == [True, False]


async def test_what_is_no_longer_searchable_leaves_nothing_behind(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(database_url, note(TITLE)):
        pass
    with_search = await tables(database_url), await columns(database_url, "notes")
    async with started(database_url, note()) as server:
        await server.db("Note").create(title="a", body="b")

    assert {t for t in await tables(database_url) if t.startswith("notes")} == {"notes"}
    assert "search_vector" not in await columns(database_url, "notes")
    assert warnings(caplog) == []
    assert "notes_fts" in with_search[0] or "search_vector" in with_search[1]


async def test_postgres_searches_with_an_index(postgres_url: str) -> None:
    async with started(postgres_url, note(TITLE)):
        pass

    assert "USING gin (search_vector)" in (await indexes(postgres_url, "notes"))["idx_notes_search_vector"]


async def test_records_do_not_show_the_column(database_url: str) -> None:
    made = note(TITLE)
    async with started(database_url, made) as server:
        record: Any = await server.db(made).create(title="a", body="b")

    assert set(vars(record)) == {"id", "title", "body", "created_at", "updated_at"}


TAKEN = {
    "sqlite": "CREATE TABLE notes_fts (mine TEXT)",
    "postgres": "ALTER TABLE notes ADD COLUMN search_vector tsvector",
}


async def test_what_another_made_under_our_name_is_not_touched(database_url: str) -> None:
    async with started(database_url, note()):
        pass
    await raw(database_url, TAKEN[kind(database_url)])

    with pytest.raises(DeclarationError, match="Note: searching needs"):
        async with started(database_url, note(TITLE)):
            pass
    async with started(database_url, note()):
        pass

    left = await tables(database_url) | await columns(database_url, "notes")
    assert {"notes_fts", "search_vector"} & left


async def test_a_language_the_database_does_not_know_stops_the_start(postgres_url: str) -> None:
    with pytest.raises(DeclarationError, match="no search_language 'klingon'; there are: arabic"):
        async with started(postgres_url, note(TITLE, search_language="klingon")):
            pass


async def test_names_that_need_quoting_are_quoted(database_url: str) -> None:
    odd = model("Order", "order", {"group": (str, field(searchable=True, column="Select"))})
    async with started(database_url, odd) as server:
        await server.db(odd).create(group="running")
        answer = await server.execute("list", odd, query="q=run")

    assert b'"total":1' in bytes(answer.body or b"")


async def test_a_model_of_many_long_names_can_be_searched(database_url: str) -> None:
    table = "t" * 55
    text = (str | None, field(searchable=True, default=None))
    long = model("Long", table, {f"field_{number}": text for number in range(30)})
    async with started(database_url, long) as server:
        await server.db(long).create(field_29="running")
        answer = await server.execute("list", long, query="q=run")

    assert b'"total":1' in bytes(answer.body or b"")
