"""`--probe` finds statements that are sent for each record; `--measure` prints what the machine does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from maniflex import Context, Model, Operation, Server, field, has_many
from maniflex.cli.doctor import measure_databases
from maniflex.config import Config
from maniflex.doctor.check import Severity
from maniflex.middleware import auth, db
from tests.kit.doctor import codes_of, report_on, stored


class Author(Model):
    name: str
    poems: list[Poem] = has_many()


class Poem(Model):
    tenant_id: str = field(relation=None, filterable=True)
    author_id: str = field(relation="Author")
    title: str


def server_on(url: str, *, batch: bool = False, computed: bool = True) -> Server:
    server = Server(url)
    server.register(Author, Poem)
    server.pipeline.auth.register(auth.jwt("x" * 20 + url))
    server.pipeline.auth.register(auth.require_role("reader"))
    server.pipeline.auth.register(db.tenancy(shared=[Author]))
    if computed and batch:

        @server.computed(Author, "count", batch=True)
        async def counts(ctx: Context, authors: Sequence[Author]) -> list[int]:
            poems = await ctx.unscoped().db(Poem).list(limit=1000)
            return [sum(poem.author_id == author.id for poem in poems) for author in authors]

    elif computed:

        @server.computed(Author, "count")
        async def count(ctx: Context, author: Author) -> int:
            return await ctx.unscoped().db(Poem).count({"author_id": author.id})

    return server


async def fill(url: str) -> None:
    server = server_on(url)
    async with server.lifespan():
        for n in range(25):
            author = await server.db(Author).create(name=f"author {n}")
            await server.db(Poem).create(tenant_id="acme", author_id=author.id, title=f"poem {n}")


async def probed(server: Server, **options: Any) -> list[Any]:
    return [f for f in await stored(server, probe=True, **options) if f.code == "T126"]


async def test_a_computed_field_that_asks_for_each_record_is_found(database_url: str) -> None:
    await fill(database_url)

    [finding] = await probed(server_on(database_url))

    assert finding.where.startswith("Author (tests/doctor/test_probe.py:")
    assert "for 20 records" in finding.why
    assert '@server.computed(Author, "count", batch=True)' in finding.fix


@pytest.mark.parametrize("options", [{"batch": True}, {"computed": False}], ids=["batch", "none"])
async def test_lists_and_includes_that_ask_once_are_not(database_url: str, options: dict[str, Any]) -> None:
    await fill(database_url)

    assert await probed(server_on(database_url, **options)) == []


class Shelf(Model):
    name: str
    books: list[Book] = has_many()


class Book(Model):
    shelf_id: str = field(relation="Shelf")
    title: str


async def test_an_include_that_asks_for_each_record_is_found(database_url: str) -> None:
    def make() -> Server:
        server = Server(database_url)
        server.register(Shelf, Book)
        server.pipeline.auth.register(auth.allow_anonymous())

        @server.pipeline.response.middleware(models=[Shelf], operations=[Operation.LIST])
        async def look_again(ctx: Context, next: Any) -> None:
            for shelf in ctx.result if ctx.query.includes else ():
                await ctx.db(Shelf).read(shelf.id)
            await next()

        return server

    server = make()
    async with server.lifespan():
        for n in range(25):
            shelf = await server.db(Shelf).create(name=str(n))
            await server.db(Book).create(shelf_id=shelf.id, title=str(n))

    [finding] = await stored(make(), probe=True)
    assert finding.code == "T129"
    assert "include=books" in finding.why


async def test_an_authenticator_that_refuses_identities_of_the_process_is_found(sqlite_url: str) -> None:
    await fill(sqlite_url)
    server = server_on(sqlite_url, computed=False)

    @server.pipeline.auth.middleware(models=[Author])
    async def look_at_the_header(ctx: Context, next: Any) -> None:
        if ctx.header("authorization") is None:
            ctx.abort(401, "UNAUTHORIZED", "who are you?")
        await next()

    [finding] = [f for f in await stored(server, probe=True) if f.code in ("T119", "T126", "T129")]
    assert finding.code == "T119"
    assert finding.where.startswith("Author (")


async def test_without_the_option_nothing_is_asked_for(database_url: str) -> None:
    await fill(database_url)

    assert "T126" not in codes_of(await stored(server_on(database_url)))


async def test_a_list_that_cannot_be_asked_for_is_a_note(sqlite_url: str) -> None:
    await fill(sqlite_url)
    server = server_on(sqlite_url, computed=False)

    @server.pipeline.auth.middleware(models=[Author])
    async def refuse(ctx: Context, next: Any) -> None:
        ctx.abort(403, "CLOSED", "closed")

    findings = [f for f in (await report_on(server, probe=True)).findings if f.code == "T126"]

    assert [(f.severity, "403" in f.why) for f in findings if f.where.startswith("Author")] == [
        (Severity.NOTE, True)
    ]


async def test_the_machine_is_measured_on_a_scratch_database(database_url: str) -> None:
    lines = await measure_databases(Config(database=database_url), seconds=0.2)

    assert [line.split()[0] for line in lines] == ["this", "read", "list", "write", "run"]
    assert all("per second" in line and "(published: " in line for line in lines[1:])
