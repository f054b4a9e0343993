"""Attachments: the file of a record, behind everything that guards the record."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Model, Next, Server, file
from maniflex.middleware import auth
from maniflex.middleware.db import tenancy
from maniflex.middleware.response import redact_field
from maniflex.storage import LocalStorage, MemoryStorage
from maniflex.testing import client
from tests.file_routes.world import HTML, PDF, PNG, Album, a_server, by_header, site
from tests.kit.http import created, data_of, error_of

ALBUMS = "/api/albums"


async def an_album(http: Any, *parts: Any, **headers: str) -> dict[str, Any]:
    files = [("title", (None, b"a")), *parts]
    return dict(data_of(await http.post(ALBUMS, files=files, headers=headers), 201))


async def test_ranges(database_url: str, storage: str) -> None:
    async with site(a_server(storage), database_url) as http:
        album = await an_album(http, ("cover", ("a.png", PNG, "image/png")))
        url = f"{ALBUMS}/{album['id']}/cover"
        size = len(PNG)
        for text, start, end in (
            ("0-9", 0, 10),
            ("-5", size - 5, size),
            ("1000-", 1000, size),
            ("5-5", 5, 6),
        ):
            part = await http.get(url, headers={"range": f"bytes={text}"})
            assert (part.status_code, part.content) == (206, PNG[start:end])
            assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
            assert part.headers["content-length"] == str(end - start)
        behind = await http.get(url, headers={"range": "bytes=999999-"})
        error_of(behind, 416, "RANGE_NOT_SATISFIABLE")
        assert behind.headers["content-range"] == f"bytes */{size}"
        for text in ("bytes=0-1,3-4", "items=0-1", "bytes=x"):
            whole = await http.get(url, headers={"range": text})
            assert (whole.status_code, whole.content) == (200, PNG)
            assert whole.headers["accept-ranges"] == "bytes"


async def test_conditions(database_url: str) -> None:
    async with site(a_server(), database_url) as http:
        album = await an_album(http, ("cover", ("a.png", PNG, "image/png")))
        url = f"{ALBUMS}/{album['id']}/cover"
        first = await http.get(url)
        tag, changed = first.headers["etag"], first.headers["last-modified"]
        assert not tag.startswith("W/")
        assert first.headers["cache-control"] == "private, no-cache"
        for condition in ({"if-none-match": tag}, {"if-modified-since": changed}):
            again = await http.get(url, headers=condition)
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        other = await http.get(url, headers={"range": "bytes=0-9", "if-range": '"another"'})
        assert (other.status_code, other.content) == (200, PNG)
        same = await http.get(url, headers={"range": "bytes=0-9", "if-range": tag})
        assert same.status_code == 206
        head = await http.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(PNG))
        assert head.headers["etag"] == tag


@pytest.mark.parametrize(
    ("name", "content", "kind", "shown"),
    [
        ("a.png", PNG, "image/png", "inline"),
        ("a.pdf", PDF, "application/pdf", "inline"),
        ("a.txt", b"text", "text/plain; charset=utf-8", "inline"),
        ("a.html", HTML, "text/html", "attachment"),
        ("a.svg", b"<svg/>", "image/svg+xml", "attachment"),
        ("a.xml", b"<a/>", "application/xml", "attachment"),
        ("a.bin", b"\x00\x01", "", "attachment"),
        ("a.weird", b"\x00x", 'image/png"\tx', "attachment"),  # no type at all, so its bytes tell
    ],
)
async def test_only_harmless_types_are_shown(
    sqlite_url: str, name: str, content: bytes, kind: str, shown: str
) -> None:
    async with site(a_server(), sqlite_url) as http:
        album = await an_album(http, ("scans", (name, content, kind)))
        url = f"{ALBUMS}/{album['id']}/scans/0"
        answer = await http.get(url)
        assert answer.content == content
        assert answer.headers["content-disposition"] == f'{shown}; filename="{name}"'
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert ("content-security-policy" in answer.headers) is (kind != "application/pdf")
        saved = await http.get(url, params={"download": "1"})
        assert saved.headers["content-disposition"] == f'attachment; filename="{name}"'


async def test_a_name_cannot_break_out_of_its_header(sqlite_url: str) -> None:
    async with site(a_server(), sqlite_url) as http:
        album = await an_album(http, ("scans", ("Grüße.txt", b"x", "text/plain")))
        answer = await http.get(f"{ALBUMS}/{album['id']}/scans/0")
        assert "filename*=UTF-8''Gr%C3%BC%C3%9Fe.txt" in answer.headers["content-disposition"]
        body = (
            b'--x\r\nContent-Disposition: form-data; name="title"\r\n\r\na\r\n'
            b'--x\r\nContent-Disposition: form-data; name="scans"; filename="a\\";x=\\"\r\tb.txt"\r\n\r\n'
            b"x\r\n--x--\r\n"
        )
        made = await http.post(
            ALBUMS, content=body, headers={"content-type": "multipart/form-data; boundary=x"}
        )
        if made.status_code == 201:
            answer = await http.get(f"{ALBUMS}/{made.json()['data']['id']}/scans/0")
            assert answer.headers["content-disposition"].count('"') == 2
        else:
            error_of(made, 400, "MULTIPART_ERROR")


async def test_inline_false_is_always_a_download(sqlite_url: str) -> None:
    class Leaf(Model):
        image: str | None = file(default=None, inline=False)

    async with site(a_server("memory:", Leaf), sqlite_url) as http:
        leaf = data_of(await http.post("/api/leaves", files={"image": ("a.png", PNG, "image/png")}), 201)
        answer = await http.get(f"/api/leaves/{leaf['id']}/image")
        assert answer.headers["content-disposition"].startswith("attachment")


async def test_a_foreign_record_has_no_file(database_url: str) -> None:
    class Letter(Model):
        tenant_id: str
        scan: str | None = file(default=None)

    server = a_server("memory:", Letter)
    server.pipeline.auth.register(tenancy())

    async with site(server, database_url) as http:
        mine = {"x-user": "a", "x-tenant": "A"}
        letter = data_of(
            await http.post("/api/letters", files={"scan": ("a.png", PNG, "image/png")}, headers=mine), 201
        )
        url = f"/api/letters/{letter['id']}/scan"
        assert (await http.get(url, headers=mine)).content == PNG
        theirs = {"x-user": "b", "x-tenant": "B"}
        foreign, random = (
            await http.get(url, headers=theirs),
            await http.get("/api/letters/none/scan", headers=theirs),
        )
        assert error_of(foreign, 404, "NOT_FOUND") == error_of(random, 404, "NOT_FOUND")
        assert (await http.head(url, headers=theirs)).status_code == 404


async def test_rules_for_reading_cover_files(database_url: str) -> None:
    server = a_server()

    @server.pipeline.auth.middleware(models=[Album], operations="read")
    async def refuse(ctx: Context, next: Next) -> None:
        ctx.abort(418, "TEAPOT", "not here")

    async with site(server, database_url) as http:
        album = await an_album(http, ("cover", ("a.png", PNG, "image/png")))
        url = f"{ALBUMS}/{album['id']}/cover"
        error_of(await http.get(url), 418, "TEAPOT")
        assert (await http.head(url)).status_code == 418


async def test_policies_judge_the_record_of_a_file(database_url: str) -> None:
    server = a_server()

    async def allow(ctx: Context, record: Album) -> bool:
        return record.title != "secret"

    server.pipeline.db.register(auth.enforce(allow), models=[Album], operations=["read", "list"])
    async with site(server, database_url) as http:
        files: list[Any] = [("title", (None, b"secret")), ("cover", ("a.png", PNG, "image/png"))]
        album = data_of(await http.post(ALBUMS, files=files), 201)
        error_of(await http.get(f"{ALBUMS}/{album['id']}/cover"), 403, "FORBIDDEN")
        error_of(await http.get(f"/api/files/{album['cover']}"), 404, "FILE_NOT_FOUND")


async def test_a_field_that_is_hidden_from_a_caller_shows_no_file(database_url: str) -> None:
    server = a_server()
    hide = redact_field("cover", when=lambda ctx: not ctx.has_role("editor"))
    server.pipeline.response.register(hide, models=[Album])
    async with site(server, database_url) as http:
        editor = {"x-user": "a", "x-role": "editor"}
        album = await an_album(http, ("cover", ("a.png", PNG, "image/png")), **editor)
        url, key = f"{ALBUMS}/{album['id']}/cover", album["cover"]
        assert (await http.get(url, headers=editor)).content == PNG
        assert (await http.get(f"/api/files/{key}", headers=editor)).content == PNG
        error_of(await http.get(url, headers={"x-user": "a"}), 404, "NOT_FOUND")
        error_of(await http.get(f"/api/files/{key}", headers={"x-user": "a"}), 404, "FILE_NOT_FOUND")


async def test_soft_deleted_records_show_no_file_until_they_are_back(database_url: str) -> None:
    class Page(Model, soft_delete=True, restore=True):
        scan: str | None = file(default=None)

    server = a_server("memory:", Page)
    async with site(server, database_url) as http:
        page = data_of(await http.post("/api/pages", files={"scan": ("a.png", PNG, "image/png")}), 201)
        url = f"/api/pages/{page['id']}"
        await http.delete(url)
        await server.files.sweep()
        error_of(await http.get(f"{url}/scan"), 404, "NOT_FOUND")
        data_of(await http.post(f"{url}/restore"))
        assert (await http.get(f"{url}/scan")).content == PNG


async def test_a_singleton_has_its_file_below_its_path(database_url: str) -> None:
    class Settings(Model, singleton=True):
        logo: str | None = file(default=None)

    async with site(a_server("memory:", Settings), database_url) as http:
        error_of(await http.get("/api/settings/logo"), 404, "FILE_NOT_SET")
        data_of(await http.patch("/api/settings", files={"logo": ("a.png", PNG, "image/png")}))
        assert (await http.get("/api/settings/logo")).content == PNG


async def test_a_missing_object_is_404(database_url: str) -> None:
    storage = MemoryStorage()
    async with site(a_server(storage), database_url) as http:
        album = await an_album(http, ("cover", ("a.png", PNG, "image/png")))
        await storage.delete(album["cover"])
        url = f"{ALBUMS}/{album['id']}/cover"
        error_of(await http.get(url), 404, "FILE_NOT_FOUND")
        assert (await http.head(url)).status_code == 404


async def test_only_the_part_is_read(sqlite_url: str, tmp_path: Any) -> None:
    storage = LocalStorage(tmp_path / "files")
    asked: list[tuple[int, int | None]] = []
    opens = storage.open

    async def note(key: str, *, start: int = 0, length: int | None = None) -> Any:
        asked.append((start, length))
        return await opens(key, start=start, length=length)

    storage.open = note  # type: ignore[method-assign]
    async with site(a_server(storage), sqlite_url) as http:
        album = await an_album(http, ("cover", ("a.png", PNG, "image/png")))
        await http.get(f"{ALBUMS}/{album['id']}/cover", headers={"range": "bytes=3-6"})
        assert asked == [(3, 4)]


async def test_no_route_without_a_storage(sqlite_url: str) -> None:
    server = Server()
    server.register(Album)
    server.pipeline.auth.register(by_header)
    async with client(server, database=sqlite_url) as http:
        album = await created(http, ALBUMS, title="a")
        error_of(await http.get(f"{ALBUMS}/{album['id']}/cover"), 404, "NOT_FOUND")
