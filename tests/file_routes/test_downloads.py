"""Attachments: the file of a record, behind everything that guards the record."""

from __future__ import annotations

import re
from typing import Any

import pytest

from maniflex import Context, Model, Next, Server, belongs_to, field, file
from maniflex.middleware import auth
from maniflex.middleware.db import audit_log, tenancy
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
    server = a_server()
    async with site(server, sqlite_url) as http:
        stored = await server.files.store(b"x", filename='a";x="\r\nSet-Cookie: b.txt')
        answer = await http.get(f"/api/files/{stored.key}")
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        plain, _, extended = answer.headers["content-disposition"].partition("; filename*=")
        assert re.fullmatch(r'(inline|attachment); filename="[^"\r\n]*"', plain)
        assert re.fullmatch(r"UTF-8''[A-Za-z0-9%._~!#$&+^`|-]*", extended)
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


async def test_inline_says_less_and_never_more(sqlite_url: str) -> None:
    class Leaf(Model):
        image: str | None = file(default=None, inline=False)
        page: str | None = file(default=None, inline=True)

    async with site(a_server("memory:", Leaf), sqlite_url) as http:
        leaf = data_of(await http.post("/api/leaves", files={"image": ("a.png", PNG, "image/png")}), 201)
        answer = await http.get(f"/api/leaves/{leaf['id']}/image")
        assert answer.headers["content-disposition"].startswith("attachment")
        leaf = data_of(await http.post("/api/leaves", files={"page": ("a.html", HTML, "text/html")}), 201)
        answer = await http.get(f"/api/leaves/{leaf['id']}/page")
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
        assert album == {"id": album["id"]}  # no answer shows what its caller may not read
        key = (await server.db(Album).read(album["id"])).cover
        error_of(await http.get(f"/api/files/{key}"), 404, "FILE_NOT_FOUND")


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


async def test_histories_show_keys_and_no_urls(database_url: str) -> None:
    class Deed(Model, versioned=True):
        scan: str | None = file(default=None, acl="signed")
        copies: list[str] = file(default_factory=list, acl="public")

    async with site(a_server("memory:", Deed), database_url) as http:
        part = ("a.png", PNG, "image/png")
        deed = data_of(await http.post("/api/deeds", files=[("scan", part), ("copies", part)]), 201)
        assert "signature=" in deed["scan"]
        for path in (
            f"/api/deeds/{deed['id']}/history",
            f"/api/deeds/{deed['id']}/history/1",
            "/api/deed_histories",
            f"/api/deeds/{deed['id']}?as_of={deed['created_at']}",
            f"/api/deeds?as_of={deed['created_at']}",
        ):
            answer = await http.get(path)
            assert answer.status_code == 200, answer.text
            assert "signature" not in answer.text, path
            assert '"uploads/' in answer.text
            assert "/api/files" not in answer.text, path


async def test_a_file_has_no_past(sqlite_url: str) -> None:
    class Deed(Model, versioned=True):
        scan: str | None = file(default=None)

    class Card(Model):
        scan: str | None = file(default=None)

    async with site(a_server("memory:", Deed, Card), sqlite_url) as http:
        for table in ("deeds", "cards"):
            part = {"scan": ("a.png", PNG, "image/png")}
            record = data_of(await http.post(f"/api/{table}", files=part), 201)
            path = f"/api/{table}/{record['id']}/scan"
            for method in ("GET", "HEAD"):
                refused = await http.request(method, f"{path}?as_of={record['created_at']}")
                assert refused.status_code == 400
            error_of(await http.get(f"{path}?as_of=yesterday"), 400, "INVALID_QUERY")
            assert (await http.get(f"{path}?download=1")).content == PNG


class Folder(Model):
    name: str = ""


class Deed(Model, versioned=True, export=True, table="file_deeds"):
    folder_id: str | None = field(default=None, relation="Folder")
    folder: Folder | None = belongs_to()
    secret: str | None = file(default=None, writeonly=True)
    shown: str | None = file(default=None, acl="signed")


async def test_a_key_that_may_not_be_shown_is_nowhere(database_url: str) -> None:
    server = a_server("memory:", Folder, Deed)
    server.pipeline.db.register(audit_log(changes=True), models=[Deed])
    async with site(server, database_url) as http:
        part = ("a.png", PNG, "image/png")
        made = await http.post("/api/file_deeds", files={"secret": part, "shown": part})
        deed = data_of(made, 201)
        path = f"/api/file_deeds/{deed['id']}"
        [row] = await server.raw_query("SELECT secret, shown FROM file_deeds")
        patched = await http.patch(path, json={"folder_id": None})
        answers = [made, patched, *[
            await http.get(f"/api{one}")
            for one in ("/file_deeds", "/deed_histories", "/openapi.json", "/file_deeds/export")
        ], await http.get(path), await http.get(f"{path}/history")]  # fmt: skip
        texts = [answer.text for answer in answers] + [str(await server.raw_query("SELECT * FROM audit_log"))]
        assert [row["secret"] in text for text in texts] == [False] * 9
        export, audit = texts[5], texts[-1]
        assert export.splitlines()[0] == "id,folder_id,created_at,updated_at"  # no file is exported
        assert row["shown"] in audit
        assert "signature" not in audit
        assert (await http.get(f"{path}/secret")).content == PNG
