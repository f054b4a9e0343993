"""Rows that are marked instead of removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from maniflex import (
    Context,
    DeclarationError,
    Index,
    Model,
    ModelOptions,
    Next,
    Server,
    WithDeletedAt,
    WithIsDeleted,
    field,
    file,
    has_many,
    with_transaction,
)
from maniflex.admin import Inline, ModelAdmin
from maniflex.middleware import response
from maniflex.model.meta import SoftDelete
from maniflex.testing import FakeClock, client
from tests.kit.http import created, data_of, error_of, serving, total
from tests.kit.panel import visiting


class Note(Model, WithDeletedAt):
    text: str = field(unique=True, filterable=True)


class Task(Model, WithIsDeleted, indices=[Index(("text", "place"), unique=True)]):
    text: str = field(filterable=True)
    place: int = field(default=0)


BOTH = pytest.mark.parametrize(("model", "path"), [(Note, "/api/notes"), (Task, "/api/tasks")])


@BOTH
async def test_a_deleted_row_is_absent_everywhere(database_url: str, model: type[Model], path: str) -> None:
    server = Server()
    server.register(model)
    async with client(server, database=database_url) as http:
        record = await created(http, path, text="a")
        kept = await created(http, path, text="b")
        one = f"{path}/{record['id']}"
        response = await http.delete(one)
        assert (response.status_code, response.content) == (204, b"")

        error_of(await http.get(one), 404, "NOT_FOUND")
        error_of(await http.patch(one, json={"text": "c"}), 404, "NOT_FOUND")
        error_of(await http.patch(one, json={}), 404, "NOT_FOUND")
        error_of(await http.delete(one), 404, "NOT_FOUND")
        assert (await http.head(one)).status_code == 404
        assert data_of(await http.get(path)) == [kept]
        assert await total(http, path) == 1
        assert await server.db(model).count() == 1
        assert not await server.db(model).exists({"text": "a"})


@BOTH
async def test_the_row_is_still_in_the_table(database_url: str, model: type[Model], path: str) -> None:
    server = Server()
    server.register(model)
    async with client(server, database=database_url) as http:
        record = await created(http, path, text="a")
        await http.delete(f"{path}/{record['id']}")
        [row] = await server.raw_query(f"SELECT id FROM {path.removeprefix('/api/')}")
        assert row["id"] == record["id"]


@BOTH
async def test_the_value_of_a_deleted_row_can_be_used_again(
    database_url: str, model: type[Model], path: str
) -> None:
    async with serving(database_url, model) as http:
        for _ in range(3):
            record = await created(http, path, text="same")
            assert (await http.post(path, json={"text": "same"})).status_code == 409
            assert (await http.delete(f"{path}/{record['id']}")).status_code == 204
        await created(http, path, text="same")
        assert await total(http, path) == 1


@BOTH
async def test_clients_cannot_set_the_mark(database_url: str, model: type[Model], path: str) -> None:
    async with serving(database_url, model) as http:
        marks = {"deleted_at": "2026-01-01T00:00:00Z", "is_deleted": True}
        record = await created(http, path, text="a", **marks)
        await http.patch(f"{path}/{record['id']}", json={"text": "b", **marks})
        assert (await http.get(f"{path}/{record['id']}")).status_code == 200


async def test_deleting_again_keeps_the_time_of_the_first_deletion(database_url: str) -> None:
    clock = FakeClock(datetime(2026, 5, 1, tzinfo=UTC))
    server = Server(clock=clock)
    server.register(Note)
    server.pipeline.service.register(with_transaction(), operations=["delete"])
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/notes", text="a")
        await http.delete(f"/api/notes/{record['id']}")
        clock.advance(timedelta(hours=1))
        assert (await http.delete(f"/api/notes/{record['id']}")).status_code == 404
        found = await http.get("/api/notes", params={"filter": "deleted_at:eq:2026-05-01T00:00:00Z"})
        assert [row["id"] for row in data_of(found)] == [record["id"]]
        assert data_of(found)[0]["deleted_at"] == "2026-05-01T00:00:00Z"


async def test_a_second_delete_in_the_same_transaction_is_refused(database_url: str) -> None:
    async def first(ctx: Context, next: Next) -> None:
        await ctx.db(Note).delete(ctx.resource_id)
        await next()

    server = Server()
    server.register(Note)
    server.pipeline.service.register(with_transaction(), operations=["delete"])
    server.pipeline.service.register(first, operations=["delete"])
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/notes", text="a")
        one = f"/api/notes/{record['id']}"
        assert (await http.delete(one)).status_code == 404
        assert (await http.get(one)).status_code == 200


class Folder(Model, WithDeletedAt, aggregate=True, export=True):
    name: str = field(filterable=True, searchable=True)
    folder_id: str | None = field(default=None, filterable=True)
    folders: list[Folder] = has_many()


class Label(Model, soft_delete="gone"):
    name: str = field(filterable=True, searchable=True)
    gone: bool = field(default=False, filterable=True, readonly=True)


MARKED = {
    "folders": ("deleted_at:not_null", "deleted_at:neq:null", "deleted_at:gt:2000-01-01"),
    "labels": ("gone:eq:true", "gone:in:true,false", "gone:neq:false"),
}


@pytest.mark.parametrize("table", MARKED)
async def test_no_filter_shows_a_deleted_record_by_its_id(database_url: str, table: str) -> None:
    async with serving(database_url, Folder, Label) as http:
        record = await created(http, f"/api/{table}", name="gone")
        kept = await created(http, f"/api/{table}", name="kept")
        await http.delete(f"/api/{table}/{record['id']}")
        for condition in MARKED[table]:
            group = f"filter[0]=name:eq:gone&filter[0]={condition}"
            for query in (f"filter={condition}", group, f"filter={condition}&q=gone", "select=name&" + group):
                one = f"/api/{table}/{record['id']}?{query}"
                error_of(await http.get(one), 404, "NOT_FOUND")
                assert (await http.head(one)).status_code == 404, query
                listed = [row["name"] for row in data_of(await http.get(f"/api/{table}?{query}"))]
                assert "gone" in listed, query
            # One that is there is still held to the filter.
            group = f"filter[0]=name:eq:kept&filter[0]={condition}"
            assert data_of(await http.get(f"/api/{table}/{kept['id']}?{group}"))["name"] == "kept"


async def test_a_filter_across_a_relation_finds_no_deleted_record_by_its_mark(database_url: str) -> None:
    async with serving(database_url, Folder) as http:
        parent = await created(http, "/api/folders", name="parent")
        child = await created(http, "/api/folders", name="child", folder_id=parent["id"])
        await http.delete(f"/api/folders/{parent['id']}")
        for condition in ("folder.deleted_at:not_null", "folder.folders.deleted_at:not_null"):
            asked = f"/api/folders?filter={condition}"
            assert data_of(await http.get(asked)) == []
            error_of(await http.get(f"/api/folders/{child['id']}?filter={condition}"), 404, "NOT_FOUND")
            counted = await http.get(
                f'/api/folders/aggregate?aggregate={{"select":["count"]}}&filter={condition}'
            )
            assert data_of(counted) == [{"count": 0}]
            exported = await http.get(f"/api/folders/export?format=csv&filter={condition}")
            assert len(exported.text.splitlines()) == 1
        shown = data_of(await http.get("/api/folders?filter=deleted_at:is_null&include=folder"))
        assert [row.get("folder") for row in shown] == [None]


async def test_filtering_by_the_mark_shows_the_marked_rows(database_url: str) -> None:
    async with serving(database_url, Task) as http:
        gone = await created(http, "/api/tasks", text="gone")
        kept = await created(http, "/api/tasks", text="kept")
        await http.delete(f"/api/tasks/{gone['id']}")
        for flag in ("true", "1"):
            found = (await http.get(f"/api/tasks?filter=is_deleted:eq:{flag}")).json()
            assert [row["id"] for row in found["data"]] == [gone["id"]]
            assert found["meta"]["total"] == 1
        for flag in ("false", "0"):
            assert data_of(await http.get(f"/api/tasks?filter=is_deleted:eq:{flag}")) == [kept]


class Flagged(Model, soft_delete="gone", table="things"):
    text: str
    gone: bool


class FlaggedFalse(Model, soft_delete=SoftDelete("gone", timestamp=False), table="things"):
    text: str
    gone: bool = False


class Dated(Model, soft_delete="gone", table="things"):
    text: str
    gone: datetime | None = field(filterable=True, immutable=True)


class DatedByAlias(Model, soft_delete="removed", table="things"):
    text: str
    removed: datetime | None = field(alias="gone")


class OwnDeletedAt(Model, soft_delete=True, table="things"):
    text: str
    deleted_at: datetime | None = field(alias="gone")


class MixinAnew(Model, WithDeletedAt, table="things"):
    text: str
    deleted_at: datetime | None = field(default=None, alias="gone")


class ByRegistration(Model, table="things"):
    text: str
    gone: bool = False


DECLARED = pytest.mark.parametrize(
    ("model", "options", "mark"),
    [
        (Flagged, None, True),
        (FlaggedFalse, None, True),
        (Dated, None, "2026-01-01T00:00:00Z"),
        (DatedByAlias, None, "2026-01-01T00:00:00Z"),
        (OwnDeletedAt, None, "2026-01-01T00:00:00Z"),
        (MixinAnew, None, "2026-01-01T00:00:00Z"),
        (ByRegistration, ModelOptions(soft_delete="gone"), True),
    ],
)


@DECLARED
async def test_no_way_lets_a_client_write_a_marker_of_ones_own(
    sqlite_url: str, model: type[Model], options: ModelOptions | None, mark: object
) -> None:
    server = Server()
    server.register(model, options) if options else server.register(model)

    @server.action("POST", "/store", request=model)
    async def store(ctx: Context) -> object:
        return await ctx.db(model).create(ctx.body)

    @server.action("POST", "/store_all")
    async def store_all(ctx: Context) -> object:
        return [await ctx.db(model).create(item) for item in await ctx.bind_json(list[model])]  # type: ignore[valid-type]

    body = {"text": "a", "gone": mark}
    async with client(server, database=sqlite_url) as http:
        record = await created(http, "/api/things", **body)
        one = f"/api/things/{record['id']}"
        assert (await http.patch(one, json=body)).status_code == 200
        assert (await http.post("/api/store", json=body)).status_code == 200
        assert (await http.post("/api/store_all", json=[body])).status_code == 200
        patched = await server.execute("update", model, record["id"], body=body)
        assert patched.status == 200
        assert data_of(await http.get(one))["gone"] in (None, False)
        assert await total(http, "/api/things") == 3

        assert (await http.delete(one)).status_code == 204
        assert await total(http, "/api/things") == 2
        schemas = (await http.get("/api/openapi.json")).json()["components"]["schemas"]
        for name in (f"{model.__name__}Create", f"{model.__name__}Update"):
            assert "gone" not in schemas[name]["properties"]
        assert schemas[model.__name__]["properties"]["gone"]["readOnly"] is True


def test_a_marker_that_only_clients_could_write_stops_the_start() -> None:
    class Bin(Model, soft_delete="gone"):
        gone: bool = field(default=False, writeonly=True)

    server = Server()
    server.register(Bin)
    with pytest.raises(
        DeclarationError, match=r"Bin\.gone: marks deleted records, which no client may write"
    ):
        server.seal()


class Shelf(Model, table="shelves"):
    name: str
    books: list[Book] = has_many()


class Book(Model, soft_delete="gone", table="books"):
    title: str = field(unique=True, filterable=True)
    shelf_id: str | None = None
    cover: str | None = file()
    gone: bool = False


async def test_neither_forms_nor_files_of_lines_nor_the_panel_write_a_marker(sqlite_url: str) -> None:
    server = Server(storage="memory:")
    server.register(Shelf, Book)
    panel = server.admin(role="superuser")
    panel.add(ModelAdmin(Shelf, inlines=(Inline(Book, columns=("title",)),)))
    panel.add(ModelAdmin(Book, can_import=True))
    async with visiting(server, sqlite_url) as browser:
        http = browser.http
        picture = {"cover": ("a.png", b"\x89PNG\r\n\x1a\n", "image/png")}
        sent = await http.post("/api/books", data={"title": "form", "gone": "true"}, files=picture)
        one = data_of(sent, 201)["id"]
        assert (
            await http.patch(f"/api/books/{one}", data={"gone": "true"}, files=picture)
        ).status_code == 200

        assert 'name="f.gone"' not in await browser.get("/books/new")
        await browser.send("/books", {"f.title": "panel", "f.gone": "true", "_key": "1"})
        await browser.get(f"/books/{one}/edit")
        await browser.send(
            f"/books/{one}", {"f.title": "form", "f.gone": "true", "_seen": '{"title": "form"}'}
        )
        await browser.get("/books")
        await browser.post("/books/bulk", {"all": "1", "action": "set", "set.gone": "true", "confirm": "1"})
        await browser.get("/shelves/new")
        row = {"inline.books.0._id": "", "inline.books.0.title": "inline", "inline.books.0.gone": "true"}
        await browser.send("/shelves", {"f.name": "top", "_key": "2", **row})

        await browser.get("/books/import")
        lines = {"file": ("books.csv", b"title,gone\nline,true\nform,true\n")}
        controls = {"step": "check", "upsert": "title", "map.gone": "gone"}
        place = await browser.post("/books/import", controls, files=lines)
        if place.status_code == 303:
            await browser.post(place.headers["location"].removeprefix(browser.root) + "/start")

        rows = await server.raw_query("SELECT title, gone FROM books ORDER BY title")
    assert {row["title"] for row in rows} >= {"form", "inline", "panel"}
    assert [row["title"] for row in rows if row["gone"]] == []


class Open(Model, soft_delete=True, aggregate=True, export=True):
    text: str = ""


class Closed(Model, soft_delete=True, aggregate=True, export=True):
    text: str = ""
    deleted_at: datetime | None = field(default=None)


class Unseen(Model, WithDeletedAt, aggregate=True, export=True):
    text: str = ""
    deleted_at: datetime | None = field(default=None, hidden=True)


async def test_a_marker_that_a_caller_may_not_filter_by_opens_no_deleted_row(database_url: str) -> None:
    server = Server()
    server.register(Open, Closed, Unseen)
    rule = response.redact_field("deleted_at", lambda ctx: ctx.header("x-admin") is None)
    server.pipeline.response.register(rule, models=[Open])
    where = '{"select":[{"op":"count"}],"where":[{"field":"deleted_at","operator":"not_null"}]}'
    async with client(server, database=database_url) as http:
        for path in ("/api/opens", "/api/closeds", "/api/unseens"):
            record = await created(http, path, text="a")
            assert (await http.delete(f"{path}/{record['id']}")).status_code == 204
            for admin in (True, False):
                is_open = admin and path == "/api/opens"
                for way in (
                    "?filter=deleted_at:not_null",
                    "?filter=deleted_at:ne:null",
                    "?filter[0]=deleted_at:not_null",
                    "/export?filter=deleted_at:not_null",
                    f"/aggregate?aggregate={where}",
                ):
                    headers = {"x-admin": "1"} if admin else {}
                    answer = await http.get(path + way, headers=headers)
                    assert answer.status_code == (200 if is_open else 400), (path, way)
        assert await server.db(Unseen).count([("deleted_at", "not_null", None)]) == 1
