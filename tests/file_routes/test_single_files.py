"""`/files`: upload, read and delete by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, Next
from maniflex.middleware import auth, db
from maniflex.storage import MemoryStorage
from tests.file_routes.world import (
    PNG,
    Album,
    a_server,
    assert_nothing_stored,
    rows_of_files,
    site,
    stored_keys,
)
from tests.kit.asgi import Call, send
from tests.kit.http import created, data_of, error_of

FILES = "/api/files"
A, B = {"x-user": "a", "x-tenant": "A"}, {"x-user": "b", "x-tenant": "B"}
PART = ("Grüße 1.png", PNG, "image/png")


async def upload(http: Any, part: Any = PART, **headers: str) -> str:
    return str(data_of(await http.post(FILES, files={"file": part}, headers=headers), 201)["key"])


async def test_upload_read_name_delete(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        made = data_of(await http.post(FILES, files={"file": PART}, headers=A), 201)
        assert made == {
            "key": made["key"],
            "content_type": "image/png",
            "size": len(PNG),
            "filename": PART[0],
        }
        url = f"{FILES}/{made['key']}"
        assert (await http.get(url, headers=A)).content == PNG
        part = await http.get(url, headers={**A, "range": "bytes=0-4"})
        assert (part.status_code, part.content) == (206, PNG[:5])
        assert (await http.head(url, headers=A)).headers["content-length"] == str(len(PNG))
        response = await http.post("/api/albums", json={"title": "a", "cover": made["key"]}, headers=A)
        album = data_of(response, 201)
        error_of(await http.delete(url, headers=A), 409, "FILE_IN_USE")
        assert (await http.get(url, headers=A)).content == PNG
        await http.delete(f"/api/albums/{album['id']}", headers=A)
        await assert_nothing_stored(server)


async def test_a_file_that_no_record_names_is_deleted_by_its_owner(database_url: str) -> None:
    server = a_server()
    async with site(server, database_url) as http:
        key = await upload(http, **A)
        url = f"{FILES}/{key}"
        admin_of_b = {**B, "x-role": "admin"}
        for headers in (B, {}, admin_of_b):
            error_of(await http.delete(url, headers=headers), 404, "FILE_NOT_FOUND")
        other = await upload(http, **A)
        root = {"x-user": "root", "x-role": "admin"}
        assert (await http.delete(f"{FILES}/{other}", headers=root)).status_code == 204
        assert (await http.delete(url, headers=A)).status_code == 204
        error_of(await http.get(url, headers=A), 404, "FILE_NOT_FOUND")
        error_of(await http.delete(url, headers=A), 404, "FILE_NOT_FOUND")
        await assert_nothing_stored(server)
        anybodys = await upload(http)
        error_of(await http.delete(f"{FILES}/{anybodys}", headers=A), 404, "FILE_NOT_FOUND")
        admin = {"x-user": "root", "x-role": "admin"}
        assert (await http.delete(f"{FILES}/{anybodys}", headers=admin)).status_code == 204


async def test_other_tenants_neither_name_nor_read_a_file(database_url: str) -> None:
    async with site(a_server(), database_url) as http:
        key = await upload(http, **A)
        for body in ({"cover": key}, {"scans": [key]}):
            response = await http.post("/api/albums", json={"title": "a", **body}, headers=B)
            error_of(response, 403, "FILE_FORBIDDEN")
        error_of(await http.get(f"{FILES}/{key}", headers=B), 404, "FILE_NOT_FOUND")
        error_of(await http.get(f"{FILES}/{key}"), 404, "FILE_NOT_FOUND")
        assert (await http.head(f"{FILES}/{key}", headers=B)).status_code == 404
        data_of(await http.post("/api/albums", json={"title": "a", "cover": key}, headers=A), 201)


@pytest.mark.parametrize("reads", ["key", "owner", "record"])
async def test_files_read_says_what_opens_a_file(database_url: str, reads: str) -> None:
    async with site(a_server(files_read=reads), database_url) as http:
        owner, other = {"x-user": "a"}, {"x-user": "b"}
        key = await upload(http, **owner)
        url = f"{FILES}/{key}"
        assert (await http.get(url, headers=owner)).status_code == 200
        assert (await http.get(url, headers=other)).status_code == 404
        album = data_of(await http.post("/api/albums", json={"title": "a", "cover": key}, headers=owner), 201)
        assert (await http.get(url, headers=owner)).status_code == (404 if reads == "record" else 200)
        assert (await http.get(url, headers=other)).status_code == (200 if reads == "key" else 404)
        assert (await http.get(f"/api/albums/{album['id']}/cover")).status_code == 200


async def test_a_forced_scope_binds_linked_files(database_url: str) -> None:
    server = a_server()

    @server.pipeline.auth.middleware(operations="read_file")
    async def only_mine(ctx: Context, next: Next) -> None:
        if ctx.header("x-title"):
            ctx.query.force("title", ctx.header("x-title"), model=Album)
        await next()

    async with site(server, database_url) as http:
        key = await upload(http)
        await created(http, "/api/albums", title="mine", cover=key)
        assert (await http.get(f"{FILES}/{key}", headers={"x-title": "mine"})).status_code == 200
        error_of(await http.get(f"{FILES}/{key}", headers={"x-title": "other"}), 404, "FILE_NOT_FOUND")


async def test_the_key_is_decoded_once(database_url: str) -> None:
    storage = MemoryStorage()
    server = a_server(storage, file_key=lambda ctx, name, kind: f"a/50%/{name}")
    async with site(server, database_url) as http:
        for name in ("x+y.png", "%2F.png", "ä ö.png", "a%41.png"):
            key = await upload(http, (name, PNG, "image/png"), **A)
            assert key == f"a/50%/{name}"
            url = f"{FILES}/{quote(key)}"
            assert (await http.get(url, headers=A)).content == PNG
            assert (await http.get(f"{FILES}/{quote(key, safe='')}", headers=A)).content == PNG
            assert (await http.delete(url, headers=A)).status_code == 204


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/api/files/", 400),
        (b"/api/files/%zz", 400),
        (b"/api/files/a%", 400),
        (b"/api/files/%ff", 400),
        (b"/api/files/../secret", 404),
        (b"/api/files/%2e%2e/secret", 404),
        (b"/api/files/%2e%2e%2fsecret", 404),
        (b"/api/files/a/..%2f..%2fsecret", 404),
        (b"/api/files/%00", 404),
        (b"/api/files//etc/passwd", 404),
        (b"/api/files/link", 404),
        (b"/api/files/link/secret", 404),
        (b"/api/files/a.meta.json", 404),
        (b"/api%2Ffiles/a", 404),
        (b"/api/files", 405),
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_no_path_leads_outside(
    sqlite_url: str, tmp_path: Path, path: bytes, status: int, method: str
) -> None:
    directory = tmp_path / "uploads"
    directory.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (directory / "link").symlink_to(tmp_path / "secret")
    (directory / "a.meta.json").write_bytes(b"secret")
    server = a_server(f"file:{directory}")
    async with site(server, sqlite_url):
        answer = await send(server, Call(method, path))
        assert answer.status == status, answer.body
        assert b"secret" not in answer.body
    assert (tmp_path / "secret").read_bytes() == b"secret"


async def test_what_is_no_upload_is_refused(database_url: str) -> None:
    server = a_server(max_upload_size=2_000)
    async with site(server, database_url) as http:
        error_of(await http.post(FILES, files={"other": PART}), 400, "NO_FILE")
        error_of(await http.post(FILES, files={"file": (None, b"text")}), 400, "NO_FILE")
        error_of(await http.post(FILES, json={}), 415, "UNSUPPORTED_MEDIA_TYPE")
        error_of(await http.post(FILES, files={"file": ("a", b"x" * 2_000)}), 413, "BODY_READ_ERROR")
        two = [("file", PART), ("file", PART)]
        error_of(await http.post(FILES, files=two), 413, "BODY_READ_ERROR")
        small = ("a", b"x")
        error_of(await http.post(FILES, files=[("file", small), ("file", small)]), 400, "MULTIPART_ERROR")
        await assert_nothing_stored(server)


async def test_auth_and_own_middleware_stand_before_the_routes(database_url: str) -> None:
    order: list[str] = []

    async def limit(ctx: Context, next: Next) -> None:
        order.append(f"own {ctx.operation}")
        await next()

    server = a_server(files_middleware=[limit])

    @server.pipeline.auth.middleware()
    async def demand(ctx: Context, next: Next) -> None:
        order.append("auth")
        ctx.require_auth()
        await next()

    @server.pipeline.response.middleware(operations="read_file")
    async def mark(ctx: Context, next: Next) -> None:
        await next()
        assert ctx.response is not None
        ctx.response.set_header("x-mark", "1")

    async with site(server, database_url) as http:
        error_of(await http.post(FILES, files={"file": PART}), 401, "UNAUTHORIZED")
        key = await upload(http, **A)
        assert order == ["auth", "auth", "own upload_file"]
        error_of(await http.get(f"{FILES}/{key}"), 401, "UNAUTHORIZED")
        assert (await http.get(f"{FILES}/{key}", headers=A)).headers["x-mark"] == "1"
        error_of(await http.delete(f"{FILES}/{key}"), 401, "UNAUTHORIZED")
        assert await stored_keys(server) == await rows_of_files(server) == {key}


async def test_middleware_that_answers_nothing_is_a_failure_and_no_success(sqlite_url: str) -> None:
    server = a_server()

    @server.pipeline.auth.middleware(operations=["upload_file", "read_file", "delete_file"])
    async def swallow(ctx: Context, next: Next) -> None:
        """Neither goes on nor answers."""

    async with site(server, sqlite_url) as http:
        assert (await http.post(FILES, files={"file": PART})).status_code == 500
        assert (await http.delete(f"{FILES}/a")).status_code == 500


async def test_roles_can_be_demanded_of_an_operation(database_url: str) -> None:
    server = a_server()
    server.pipeline.auth.register(auth.require_role("uploader"), operations="upload_file")
    async with site(server, database_url) as http:
        error_of(await http.post(FILES, files={"file": PART}, headers=A), 403, "FORBIDDEN")
        key = await upload(http, **{**A, "x-role": "uploader"})
        assert (await http.get(f"{FILES}/{key}", headers=A)).status_code == 200


async def test_the_routes_can_be_left_out_or_moved(database_url: str) -> None:
    async with site(a_server(files_routes=False), database_url) as http:
        error_of(await http.post(FILES, files={"file": PART}), 404, "NOT_FOUND")
    async with site(a_server(files_path="/media/raw"), database_url) as http:
        key = data_of(await http.post("/api/media/raw", files={"file": PART}), 201)["key"]
        assert (await http.get(f"/api/media/raw/{key}")).content == PNG
        error_of(await http.get(f"{FILES}/{key}"), 404, "NOT_FOUND")


async def test_mistakes_stop_the_start(sqlite_url: str) -> None:
    class File(Model):
        name: str

    server = a_server("memory:", File, files_middleware=[lambda ctx: None])
    server.action("POST", "/files/{id}/scan")(lambda ctx: None)
    with pytest.raises(DeclarationError) as error:
        server.seal()
    text = str(error.value)
    assert "File: its path '/files' is the one of files" in text
    assert "files_middleware" in text
    assert "action POST /files/{id}/scan" in text


async def test_open_routes_are_warned_of(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    a_server().seal()
    assert "no auth middleware covers" not in caplog.text
    server = a_server()
    server.pipeline.auth.registrations.clear()
    server.seal()
    assert "no auth middleware covers upload_file, read_file, delete_file" in caplog.text


@pytest.mark.parametrize("step", ["db", "auth"])
async def test_a_rate_limit_counts_them(sqlite_url: str, step: str) -> None:
    server = a_server()
    getattr(server.pipeline, step).register(db.rate_limit(2, 3600))
    async with site(server, sqlite_url) as http:
        stored = [await http.post("/api/files", files={"file": PART}) for _ in range(3)]
        assert [answer.status_code for answer in stored] == [201, 201, 429]
        path = f"/api/files/{data_of(stored[0], 201)['key']}"
        reads = [await http.request(method, path) for method in ("GET", "HEAD", "GET")]
        assert [answer.status_code for answer in reads] == [200, 200, 429]
        gone = [await http.delete(path, headers={"x-user": "ada"}) for _ in range(3)]
        assert gone[2].status_code == 429
        assert len(await rows_of_files(server)) <= 2
        other = await http.post("/api/files", files={"file": PART}, headers={"x-user": "bob"})
        assert other.status_code == 201


async def test_a_rate_limit_of_other_models_does_not(sqlite_url: str) -> None:
    server = a_server()
    server.pipeline.db.register(db.rate_limit(1, 3600), models=["Note"])
    async with site(server, sqlite_url) as http:
        answers = [await http.post("/api/files", files={"file": PART}) for _ in range(3)]
        assert {answer.status_code for answer in answers} == {201}


async def test_entries_of_the_auth_step_stand_before_the_routes_alone(database_url: str) -> None:
    keys = {"ada's": AuthInfo(user_id="ada", roles=["uploader"]), "bob's": AuthInfo(user_id="bob")}
    order: list[str] = []

    async def note(ctx: Context, next: Next) -> None:
        order.append(ctx.auth.user_id if ctx.auth else "")
        await next()

    guards = [auth.api_keys(keys=keys), note, auth.require_role("uploader"), db.rate_limit(3, 3600)]
    server = a_server("memory:", files_middleware=guards)
    server.pipeline.auth.registrations.clear()
    ada, bob = {"x-api-key": "ada's"}, {"x-api-key": "bob's"}
    async with site(server, database_url) as http:
        error_of(await http.post(FILES, files={"file": PART}), 401, "UNAUTHORIZED")
        error_of(await http.post(FILES, files={"file": PART}, headers=bob), 403, "FORBIDDEN")
        key = await upload(http, **ada)
        assert order == ["bob", "ada"]
        assert (await http.get(f"{FILES}/{key}", headers=ada)).content == PNG
        error_of(await http.get(f"{FILES}/{key}", headers=bob), 403, "FORBIDDEN")
        statuses = [(await http.post(FILES, files={"file": PART}, headers=ada)).status_code for _ in range(3)]
        assert statuses[-1] == 429
        assert (await http.get("/api/albums")).status_code == 200
        described = (await server.openapi())["paths"]
        assert described["/api/files"]["post"]["security"]
        assert not described["/api/albums"]["get"].get("security")


async def test_an_entry_that_cannot_stand_there_is_told_what_can(sqlite_url: str) -> None:
    for entry in (db.tenancy(), db.force_filter("title", "a")):
        with pytest.raises(DeclarationError, match=r"files_middleware: db\..* it does nothing there; what"):
            a_server("memory:", files_middleware=[entry]).seal()


async def test_a_guard_of_the_routes_is_no_reason_to_warn(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = a_server("memory:", files_middleware=[auth.require_role("admin")])
    server.pipeline.auth.registrations.clear()
    server.seal()
    assert "no auth middleware covers" not in caplog.text
