"""Forms on the routes of models."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from maniflex import Context, Model, Next, field, file
from tests.file_routes.world import (
    HTML,
    PDF,
    PNG,
    Album,
    a_server,
    assert_nothing_stored,
    rows_of_files,
    site,
    stored_keys,
)
from tests.kit.asgi import Call, scope_of
from tests.kit.http import created, data_of, error_of, offenders

ALBUMS = "/api/albums"
PNG_PART = ("a.png", PNG, "image/png")


async def test_a_form_with_a_picture_and_values_makes_a_record(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        response = await http.post(ALBUMS, data={"title": "one", "year": "1999"}, files={"cover": PNG_PART})
        album = data_of(response, 201)
        assert re.fullmatch(r"uploads/[0-9a-f-]{36}/a\.png", album["cover"])
        assert (album["title"], album["year"]) == ("one", 1999)
        download = await http.get(f"{ALBUMS}/{album['id']}/cover")
        assert (download.status_code, download.content) == (200, PNG)
        assert download.headers["content-type"] == "image/png"
        assert download.headers["content-length"] == str(len(PNG))
        assert await stored_keys(server) == await rows_of_files(server) == {album["cover"]}


async def test_exactly_max_size_passes_and_one_byte_more_does_not(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        files = {"cover": ("a.png", b"x" * 2001, "image/png")}
        error_of(await http.post(ALBUMS, data={"title": "a"}, files=files), 413, "FILE_TOO_LARGE")
        await assert_nothing_stored(server)
        files = {"cover": ("a.png", b"x" * 2000, "image/png")}
        data_of(await http.post(ALBUMS, data={"title": "a"}, files=files), 201)


async def test_only_accepted_types_are_stored(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        for refused in (("a.pdf", PDF, "application/pdf"), ("a.pdf", PDF, ""), ("a", b"text", "text/plain")):
            response = await http.post(ALBUMS, data={"title": "a"}, files={"cover": refused})
            error_of(response, 415, "FILE_TYPE_NOT_ALLOWED")
        await assert_nothing_stored(server)
        # Without a type it is what its first bytes say.
        album = data_of(await http.post(ALBUMS, data={"title": "a"}, files={"cover": ("a", PNG, "")}), 201)
        assert (await http.get(f"{ALBUMS}/{album['id']}/cover")).headers["content-type"] == "image/png"
        for name, content, kind in (
            ("a.json", b'{"a": 1}', "application/json"),
            ("a.csv", b"a,b\n", "text/csv"),
        ):
            album = data_of(
                await http.post(ALBUMS, data={"title": "a"}, files={"scans": (name, content, kind)}), 201
            )
            assert (await http.get(f"{ALBUMS}/{album['id']}/scans/0")).headers["content-type"] == kind


async def test_what_is_not_valid_stores_nothing(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        for values in (
            {},
            {"title": "x" * 51},
            {"title": "a", "year": "soon"},
            {"title": "a", "is_public": "maybe"},
        ):
            response = await http.post(ALBUMS, data=values, files={"cover": PNG_PART})
            offenders(response)
        await assert_nothing_stored(server)


async def test_parts_have_the_types_of_their_fields(database_url: str) -> None:
    async with site(a_server(), database_url) as http:
        parts: list[Any] = [
            ("title", (None, b"7")),
            ("year", (None, b"null", "application/json")),
            ("is_public", (None, b"1")),
            ("released", (None, b"2026-01-31T12:00:00Z")),
            ("facts", (None, json.dumps({"a": [1, 2.5, None]}).encode(), "application/json")),
            ("unknown", (None, b"x")),
        ]
        album = data_of(await http.post(ALBUMS, files=parts), 201)
        assert album["title"] == "7"
        assert album["year"] is None
        assert album["is_public"] is True
        assert album["released"] == "2026-01-31T12:00:00Z"
        assert album["facts"] == {"a": [1, 2.5, None]}
        empty = data_of(await http.patch(f"{ALBUMS}/{album['id']}", files=[("released", (None, b""))]))
        assert empty["released"] is None
        bad = await http.post(ALBUMS, files=[("facts", (None, b"{", "application/json"))])
        error_of(bad, 400, "INVALID_JSON")


async def test_parts_that_no_field_takes(database_url: str) -> None:
    server = a_server()
    async with site(server, database_url) as http:
        nothing_chosen = ("cover", ("", b"", "application/octet-stream"))
        title = ("title", (None, b"a"))
        album = data_of(await http.post(ALBUMS, files=[title, nothing_chosen]), 201)
        assert album["cover"] is None
        assert offenders(await http.post(ALBUMS, files=[("title", ("a.txt", b"a", "text/plain"))])) == {
            "title": "file"
        }
        two = await http.post(ALBUMS, files=[title, title])
        assert offenders(two) == {"title": "repeated"}
        two = await http.post(ALBUMS, files=[title, ("cover", PNG_PART), ("cover", PNG_PART)])
        assert offenders(two) == {"cover": "repeated"}
        strange = data_of(await http.post(ALBUMS, files=[title, ("strange", PNG_PART)]), 201)
        assert "strange" not in strange
        await assert_nothing_stored(server)


async def test_a_list_takes_files_and_keys_in_their_order(database_url: str) -> None:
    server = a_server()
    async with site(server, database_url) as http:
        first = data_of(
            await http.post(ALBUMS, data={"title": "a"}, files={"scans": ("1.txt", b"1", "text/plain")}), 201
        )
        [key] = first["scans"]
        parts: list[Any] = [
            ("scans", ("2.txt", b"2", "text/plain")),
            ("scans", (None, key.encode())),
            ("scans", ("3.txt", b"3", "text/plain")),
        ]
        album = data_of(await http.patch(f"{ALBUMS}/{first['id']}", files=parts))
        texts = [(await http.get(f"{ALBUMS}/{album['id']}/scans/{n}")).text for n in range(3)]
        assert texts == ["2", "1", "3"]
        error_of(await http.get(f"{ALBUMS}/{album['id']}/scans/3"), 404, "FILE_NOT_FOUND")
        error_of(await http.get(f"{ALBUMS}/{album['id']}/scans/x"), 404, "FILE_NOT_FOUND")
        four: list[Any] = [("scans", (f"{n}.txt", b"x", "text/plain")) for n in range(4)]
        error_of(await http.patch(f"{ALBUMS}/{first['id']}", files=four), 422, "TOO_MANY_FILES")
        assert await stored_keys(server) == set(album["scans"])


async def test_access_options_bind_uploads(database_url: str) -> None:
    server = a_server()
    async with site(server, database_url) as http:
        title = ("title", (None, b"a"))
        assert offenders(await http.post(ALBUMS, files=[title, ("proof", PNG_PART)])) == {"proof": "readonly"}
        hidden = data_of(await http.post(ALBUMS, files=[title, ("hidden_one", PNG_PART)]), 201)
        assert not {"hidden_one", "secret"} & hidden.keys()
        await assert_nothing_stored(server)
        album = data_of(
            await http.post(ALBUMS, files=[title, ("secret", PNG_PART), ("stamp", PNG_PART)]), 201
        )
        assert "secret" not in album
        assert (await http.get(f"{ALBUMS}/{album['id']}/secret")).content == PNG
        error_of(await http.get(f"{ALBUMS}/{album['id']}/hidden_one"), 404, "NOT_FOUND")
        again = await http.patch(f"{ALBUMS}/{album['id']}", files=[("stamp", PNG_PART)])
        assert offenders(again) == {"stamp": "immutable"}
        assert len(await stored_keys(server)) == 2


async def test_a_replaced_file_goes_and_a_refused_one_does_not_stay(database_url: str, storage: str) -> None:
    server = a_server(storage)

    @server.pipeline.service.middleware(models=[Album], operations="update")
    async def refuse(ctx: Context, next: Next) -> None:
        if ctx.field("title") == "late":
            ctx.abort(409, "LATE", "too late")
        await next()

    async with site(server, database_url) as http:
        album = data_of(await http.post(ALBUMS, data={"title": "a"}, files={"cover": PNG_PART}), 201)
        url, first = f"{ALBUMS}/{album['id']}", album["cover"]
        for values, status in (({"title": "late"}, 409), ({"title": "x" * 51}, 422)):
            refused = await http.patch(url, data=values, files={"cover": ("b.png", PNG, "image/png")})
            assert refused.status_code == status
        assert await stored_keys(server) == {first}
        assert (await http.get(f"{url}/cover")).content == PNG
        other = data_of(await http.patch(url, files={"cover": ("b.png", PNG + b"b", "image/png")}))
        assert other["title"] == "a"
        assert await stored_keys(server) == {other["cover"]}
        assert (await http.get(f"{url}/cover")).content == PNG + b"b"
        cleared = data_of(await http.patch(url, json={"cover": None}))
        assert cleared["cover"] is None
        error_of(await http.get(f"{url}/cover"), 404, "FILE_NOT_SET")
        await assert_nothing_stored(server)


async def test_a_record_out_of_reach_costs_no_upload(database_url: str) -> None:
    server = a_server()

    @server.pipeline.auth.middleware(models=[Album], operations="update")
    async def only_mine(ctx: Context, next: Next) -> None:
        ctx.query.force("title", "mine")
        await next()

    async with site(server, database_url) as http:
        album = await created(http, ALBUMS, title="theirs")
        for record_id in (album["id"], "nothing"):
            response = await http.patch(f"{ALBUMS}/{record_id}", files={"cover": PNG_PART})
            error_of(response, 404, "NOT_FOUND")
        assert await rows_of_files(server) == set()  # not even one that is given up


class Ticket(Model):
    status: str = field(default="open", lock_when={"status": "closed"})
    scan: str | None = file(default=None)
    film: str | None = file(default=None, upload="stream")


@pytest.mark.parametrize("name", ["scan", "film"])
async def test_a_locked_record_costs_no_upload(database_url: str, name: str) -> None:
    server = a_server("memory:", Ticket)
    async with site(server, database_url) as http:
        ticket = await created(http, "/api/tickets", status="closed")
        locked = await http.patch(f"/api/tickets/{ticket['id']}", files={name: PNG_PART})
        error_of(locked, 422, "RECORD_LOCKED")
        assert await rows_of_files(server) == set()


async def test_code_sees_and_changes_the_files(database_url: str) -> None:
    server = a_server()
    seen: list[Any] = []

    @server.pipeline.validate.middleware(models=[Album], operations="create")
    async def look(ctx: Context, next: Next) -> None:
        upload = ctx.files["cover"]
        seen.append((upload.field, upload.filename, upload.content_type, upload.size, await upload.read()))
        assert b"".join([chunk async for chunk in upload.stream()]) == PNG
        if upload.filename == "big.png":
            upload.replace(b"small", content_type="image/gif")
        await next()

    @server.pipeline.service.middleware(models=[Album], operations="create")
    async def note_key(ctx: Context, next: Next) -> None:
        seen.append(ctx.field("cover"))
        await next()

    async with site(server, database_url) as http:
        album = data_of(await http.post(ALBUMS, data={"title": "a"}, files={"cover": PNG_PART}), 201)
        assert seen == [("cover", "a.png", "image/png", len(PNG), PNG), album["cover"]]
        big = data_of(
            await http.post(ALBUMS, data={"title": "a"}, files={"cover": ("big.png", PNG, "image/png")}), 201
        )
        download = await http.get(f"{ALBUMS}/{big['id']}/cover")
        assert (download.content, download.headers["content-type"]) == (b"small", "image/gif")


async def test_limits_of_a_form(database_url: str) -> None:
    server = a_server(max_upload_size=10_000, max_form_parts=3, max_body_size=3_000)
    async with site(server, database_url) as http:
        many: list[Any] = [("title", (None, b"a")), *((f"x{n}", (None, b"")) for n in range(3))]
        error_of(await http.post(ALBUMS, files=many), 400, "MULTIPART_ERROR")
        large: list[Any] = [("title", (None, b"a")), ("scans", ("a", b"x" * 10_000, "text/plain"))]
        error_of(await http.post(ALBUMS, files=large), 413, "BODY_READ_ERROR")
        text: list[Any] = [("title", (None, b"a" * 3_001))]
        error_of(await http.post(ALBUMS, files=text), 413, "BODY_READ_ERROR")
        broken = await http.post(
            ALBUMS, content=b"nothing", headers={"content-type": "multipart/form-data; boundary=x"}
        )
        error_of(broken, 400, "MULTIPART_ERROR")
        no_boundary = await http.post(ALBUMS, content=b"x", headers={"content-type": "multipart/form-data"})
        error_of(no_boundary, 400, "MULTIPART_ERROR")
        await assert_nothing_stored(server)


@pytest.mark.parametrize("path", [ALBUMS, "/api/files"])
async def test_a_form_that_says_it_is_too_large_is_refused_unread(database_url: str, path: str) -> None:
    server = a_server(max_upload_size=10_000)
    headers = ((b"content-type", b"multipart/form-data; boundary=x"), (b"content-length", b"10001"))
    events: list[Any] = []

    async def receive() -> dict[str, Any]:
        events.append("read")
        return {"type": "http.request", "body": b"x" * 10_001, "more_body": False}

    async def send(message: Any) -> None:
        events.append(message.get("status"))

    async with site(server, database_url):
        await server(scope_of(Call("POST", path.encode(), headers=headers)), receive, send)
        assert events[0] == 413
        await assert_nothing_stored(server)


async def test_headers_of_a_part_are_bounded(database_url: str) -> None:
    server = a_server()
    async with site(server, database_url) as http:
        for size, status in ((7_000, 201), (8_200, 400)):
            head = b'--x\r\nContent-Disposition: form-data; name="title"\r\nX-Long: ' + b"a" * size
            form = head + b"\r\n\r\na\r\n--x--\r\n"
            kind = {"content-type": "multipart/form-data; boundary=x"}
            answer = await http.post(ALBUMS, content=form, headers=kind)
            assert answer.status_code == status, answer.text
        error_of(answer, 400, "MULTIPART_ERROR")


async def test_other_models_and_servers_without_storage_take_no_forms(database_url: str) -> None:
    async with site(a_server(), database_url) as http:
        error_of(await http.post("/api/notes", files={"text": (None, b"a")}), 415, "UNSUPPORTED_MEDIA_TYPE")
    server = a_server(None)
    async with site(server, database_url) as http:
        error_of(await http.post(ALBUMS, data={"title": "a"}, files={"cover": PNG_PART}), 501, "NO_STORAGE")
        album = await created(http, ALBUMS, title="a")
        error_of(await http.get(f"{ALBUMS}/{album['id']}/cover"), 404, "NOT_FOUND")
        error_of(await http.post("/api/files", files={"file": PNG_PART}), 501, "NO_STORAGE")


@pytest.mark.parametrize("open_in", ["auth", "deserialize", "validate"])
async def test_a_transaction_does_not_wait_for_an_upload(database_url: str, open_in: str) -> None:
    server = a_server()

    async def with_transaction(ctx: Context, next: Next) -> None:
        async with ctx.transaction():
            await next()

    getattr(server.pipeline, open_in).register(with_transaction, models=[Album])
    async with site(server, database_url) as http:
        error_of(await http.post(ALBUMS, data={"title": "a"}, files={"cover": PNG_PART}), 500, "TX_OPEN")
        await created(http, ALBUMS, title="a")


async def test_html_is_stored_and_never_shown(database_url: str, storage: str) -> None:
    async with site(a_server(storage), database_url) as http:
        parts: list[Any] = [("title", (None, b"a")), ("scans", ("a.html", HTML, "text/html"))]
        album = data_of(await http.post(ALBUMS, files=parts), 201)
        shown = await http.get(f"{ALBUMS}/{album['id']}/scans/0")
        assert shown.content == HTML
        assert shown.headers["content-disposition"].startswith("attachment")
        assert shown.headers["x-content-type-options"] == "nosniff"
        assert shown.headers["content-security-policy"] == "sandbox; default-src 'none'"


@pytest.mark.parametrize(
    ("part", "status", "code"),
    [
        (("a.png", PNG + bytes(2000), "image/png"), 413, "FILE_TOO_LARGE"),
        (("a.txt", b"words", "text/plain"), 415, "FILE_TYPE_NOT_ALLOWED"),
        (("a.txt", b"words", "no type"), 415, "FILE_TYPE_NOT_ALLOWED"),
    ],
)
async def test_a_refused_file_says_of_which_field_it_is(
    sqlite_url: str, part: Any, status: int, code: str
) -> None:
    server = a_server()
    async with site(server, sqlite_url) as http:
        files = [("title", (None, b"a")), ("scans", ("b.png", PNG, "image/png")), ("cover", part)]
        refused = await http.post("/api/albums", files=files)
        [about] = error_of(refused, status, code)["details"]
        assert (about["field"], about["code"]) == ("cover", code.lower())
        assert about["message"].startswith('field "cover": ')
        await assert_nothing_stored(server)
