"""Keys and URLs in answers, signed URLs of this server, and uploads to signed URLs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from maniflex import Context, Model, Next, Server, belongs_to, field, file
from maniflex.errors import PresignUnsupported
from maniflex.storage import MemoryStorage
from maniflex.testing import FakeClock
from tests.file_routes.world import (
    PNG,
    Shot,
    a_server,
    assert_nothing_stored,
    rows_of_files,
    site,
    stored_keys,
)
from tests.kit.http import data_of, error_of, offenders

SHOTS = "/api/shots"
PART = ("a.png", PNG, "image/png")


async def a_shot(http: Any, *names: str) -> dict[str, Any]:
    files = [("name", (None, b"one")), *((name, PART) for name in names or ("image", "poster", "stills"))]
    return dict(data_of(await http.post(SHOTS, files=files), 201))


async def test_answers_show_urls_where_the_field_says_so(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        made = await a_shot(http)
        empty = data_of(await http.post(SHOTS, json={"name": "empty"}), 201)
        assert (empty["image"], empty["poster"], empty["stills"]) == (None, None, [])
        read = data_of(await http.get(f"{SHOTS}/{made['id']}"))
        listed = (await http.get(SHOTS, params={"sort": "created_at"})).json()["data"]
        patched = data_of(await http.patch(f"{SHOTS}/{made['id']}", json={"name": "two"}))
        for shot in (made, read, listed[0], patched):
            assert re.fullmatch(r"/api/files/uploads/[^?]+\?expires=\d+&signature=[0-9a-f]+", shot["image"])
            assert re.fullmatch(r"/api/files/uploads/[^?]+", shot["poster"])
            for url in (shot["image"], shot["poster"], *shot["stills"]):
                answer = await http.get(url)
                assert (answer.status_code, answer.content) == (200, PNG)
        assert listed[1]["image"] is None
        public = await http.get(read["poster"])
        assert public.headers["cache-control"] == "public, max-age=31536000, immutable"


class Frame(Model):
    shot_id: str = field(relation="Shot")
    shot: Shot = belongs_to()


async def test_urls_open_their_files_and_nothing_else_before_the_auth_step(database_url: str) -> None:
    server = a_server("memory:", Shot, Frame)

    @server.pipeline.auth.middleware()
    async def demand(ctx: Context, next: Next) -> None:
        ctx.require_auth()
        await next()

    known = {"x-user": "ada"}
    async with site(server, database_url) as http:
        files: list[Any] = [("name", (None, b"one")), ("image", PART), ("poster", PART)]
        made = data_of(await http.post(SHOTS, files=files, headers=known), 201)
        data_of(await http.post("/api/frames", json={"shot_id": made["id"]}, headers=known), 201)
        [frame] = data_of(await http.get("/api/frames?include=shot", headers=known))
        for shot in (made, frame["shot"]):
            for url in (shot["image"], shot["poster"]):
                for method in ("GET", "HEAD"):
                    assert (await http.request(method, url)).status_code == 200
        path = urlsplit(made["image"]).path
        error_of(await http.get(path), 401, "UNAUTHORIZED")
        assert (await http.get(path, headers=known)).status_code == 200
        error_of(await http.delete(made["image"]), 401, "UNAUTHORIZED")
        error_of(await http.get(f"{SHOTS}/{made['id']}/image"), 401, "UNAUTHORIZED")


async def test_only_the_url_of_a_key_is_kept_for_a_year(database_url: str) -> None:
    async with site(a_server(), database_url) as http:
        made = await a_shot(http, "poster")
        path = f"{SHOTS}/{made['id']}"
        first = await http.get(f"{path}/poster")
        await http.patch(path, files={"poster": ("b.png", PNG + b"other", "image/png")})
        second = await http.get(f"{path}/poster", headers={"if-none-match": first.headers["etag"]})
        assert first.headers["cache-control"] == second.headers["cache-control"] == "private, no-cache"
        assert (second.status_code, second.content) == (200, PNG + b"other")


async def test_urls_of_a_mounted_server_begin_where_it_is_mounted(database_url: str) -> None:
    class Film(Model):
        original: str | None = file(default=None, upload="presigned", acl="signed")
        poster: str | None = file(default=None, acl="public")

    async def link(ctx: Context) -> str:
        return await server.files.url(ctx.query_param("key") or "")

    server = a_server("memory:", Film)
    server.action("GET", "/link")(link)
    outer = Starlette(routes=[Mount("/shop", server)])
    async with (
        site(server, database_url),
        httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://test") as http,
    ):
        wish = {"filename": "raw.png", "content_type": "image/png"}
        target = data_of(await http.post("/shop/api/films/original/upload-url", json=wish))
        sent = await http.put(target["url"], content=PNG, headers=target["headers"])
        assert (target["url"].startswith("/shop/api/files/"), sent.is_success) == (True, True)
        made = data_of(
            await http.post("/shop/api/films", data={"original": target["key"]}, files={"poster": PART}), 201
        )
        for name in ("original", "poster"):
            opened = await http.get(made[name])
            assert (opened.status_code, opened.content) == (200, PNG), made[name]
        path = f"/shop/api/films/{made['id']}"
        same = data_of(await http.patch(path, json={"poster": made["poster"]}))
        assert same["poster"] == made["poster"]
        url = data_of(await http.get("/shop/api/link", params={"key": target["key"]}))
        assert url.startswith("/shop/api/files/")
        assert (await http.get(url)).content == PNG


async def test_the_keys_of_a_page_are_signed_in_one_call(sqlite_url: str) -> None:
    storage = MemoryStorage()
    calls: list[int] = []
    sign = storage.urls

    async def note(keys: Any, *, ttl: Any) -> list[str]:
        calls.append(len(keys))
        return await sign(keys, ttl=ttl)

    storage.urls = note  # type: ignore[method-assign]
    async with site(a_server(storage), sqlite_url) as http:
        for _ in range(5):
            await a_shot(http, "image", "stills")
        calls.clear()
        await http.get(SHOTS)
        assert calls == [5, 5]
        calls.clear()
        await http.get("/api/notes")
        assert calls == []


async def test_a_changed_or_expired_signature_opens_nothing(database_url: str, storage: str) -> None:
    clock = FakeClock()
    server = Server(storage=storage, clock=clock, signed_url_ttl=60)

    class Shot(Model):
        image: str | None = file(default=None, acl="signed")

    server.register(Shot)
    async with site(server, database_url, clock=clock) as http:
        made = data_of(await http.post(SHOTS, files={"image": PART}), 201)
        url = made["image"]
        assert (await http.get(url)).content == PNG
        assert (await http.head(url)).status_code == 200
        last = "0" if url[-1] != "0" else "1"
        expires = re.search(r"expires=(\d+)", url)
        assert expires is not None
        later = url.replace(expires[0], f"expires={int(expires[1]) + 1}")
        for changed in (url[:-1] + last, later, url.replace("a.png", "b.png"), url + "&download=1"):
            error_of(await http.get(changed), 404, "FILE_NOT_FOUND")
        clock.advance(timedelta(seconds=61))
        error_of(await http.get(url), 404, "FILE_NOT_FOUND")


async def test_no_log_line_has_a_signed_url(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(MemoryStorage):
        async def open(self, key: str, **more: Any) -> Any:
            raise OSError("broken")

    caplog.set_level("DEBUG", "maniflex")
    caplog.set_level("WARNING", "httpx")
    server = a_server(Breaking(), Shot, Clip, access_log=True)
    async with site(server, sqlite_url) as http:
        made = await a_shot(http, "image")
        error_of(await http.get(made["image"]), 500, "STORAGE_ERROR")
        error_of(await http.get(made["image"] + "0"), 404, "FILE_NOT_FOUND")
        minted = data_of(await http.post(MINT, json=WISH))
        await http.put(minted["url"], content=b"x" * 2001, headers=minted["headers"])
    assert "STORAGE_ERROR" in caplog.text
    assert "signature" not in caplog.text
    assert "expires=" not in caplog.text


async def test_urls_of_code_may_say_name_and_disposition(database_url: str) -> None:
    server = a_server()
    async with site(server, database_url) as http:
        stored = await server.files.store(PNG, filename="a.png", content_type="image/png")
        url = await server.files.url(stored.key, download=True, filename="Bild.png")
        answer = await http.get(url)
        assert answer.headers["content-disposition"] == 'attachment; filename="Bild.png"'
        plain = await http.get(
            f"/api/files/{stored.key}?filename=evil.html&download=0&content_type=text/html"
        )
        assert plain.headers["content-disposition"] == 'inline; filename="a.png"'
        assert plain.headers["content-type"] == "image/png"


async def test_sending_back_what_was_read_changes_nothing(database_url: str, storage: str) -> None:
    server = a_server(storage)
    async with site(server, database_url) as http:
        made = await a_shot(http)
        keys = await stored_keys(server)
        read = data_of(await http.get(f"{SHOTS}/{made['id']}"))
        again = data_of(await http.patch(f"{SHOTS}/{made['id']}", json=read))
        assert await stored_keys(server) == keys
        for name in ("image", "poster"):
            assert urlsplit(again[name]).path == urlsplit(made[name]).path
        [still] = again["stills"]
        assert (await http.get(still)).content == PNG
        other = await a_shot(http)
        swapped = await http.patch(f"{SHOTS}/{made['id']}", json={"image": other["image"]})
        error_of(swapped, 422, "FILE_NOT_FOUND")


async def test_the_version_of_a_record_does_not_change_with_its_signatures(database_url: str) -> None:
    class Page(Model, optimistic_lock=True):
        image: str | None = file(default=None, acl="signed")

    clock = FakeClock()
    server = Server(storage="memory:", clock=clock)
    server.register(Page)
    async with site(server, database_url, clock=clock) as http:
        made = await http.post("/api/pages", files={"image": PART})
        url = f"/api/pages/{data_of(made, 201)['id']}"
        first = await http.get(url)
        clock.advance(timedelta(seconds=5))
        second = await http.get(url)
        assert data_of(first)["image"] != data_of(second)["image"]
        assert first.headers["etag"] == second.headers["etag"]
        match = {"if-match": first.headers["etag"]}
        assert (await http.patch(url, files={"image": PART}, headers=match)).status_code == 200
        stale = await http.patch(url, files={"image": PART}, headers=match)
        error_of(stale, 412, "PRECONDITION_FAILED")
        assert len(await stored_keys(server)) == 1


async def test_a_link_to_a_private_field_closes_a_public_file(database_url: str) -> None:
    async with site(a_server(), database_url) as http:
        made = await a_shot(http, "poster")
        key = made["poster"].removeprefix("/api/files/")
        assert (await http.get(made["poster"])).headers["cache-control"].startswith("public")
        data_of(await http.post("/api/albums", json={"title": "a", "cover": key}), 201)
        assert (await http.get(made["poster"])).headers["cache-control"].startswith("private")


# -- presigned uploads


class Clip(Model):
    data: str | None = file(default=None, upload="presigned", max_size=2000, accept=["image/*"])


MINT = "/api/clips/data/upload-url"
WISH = {"filename": "a.png", "content_type": "image/png"}


async def test_a_file_goes_to_the_signed_url_and_a_record_names_it(database_url: str, storage: str) -> None:
    server = a_server(storage, Clip)
    async with site(server, database_url) as http:
        minted = data_of(await http.post(MINT, json={**WISH, "size": len(PNG)}))
        assert minted.keys() == {"url", "method", "fields", "headers", "key", "max_size", "expires_at"}
        early = await http.post("/api/clips", json={"data": minted["key"]})
        error_of(early, 422, "FILE_NOT_FOUND")
        error_of(await http.get(f"/api/files/{minted['key']}"), 404, "FILE_NOT_FOUND")
        sent = await http.request(minted["method"], minted["url"], content=PNG, headers=minted["headers"])
        assert sent.status_code == 204
        clip = data_of(await http.post("/api/clips", json={"data": minted["key"]}), 201)
        assert (await http.get(f"/api/clips/{clip['id']}/data")).content == PNG
        again = await http.request(minted["method"], minted["url"], content=PNG, headers=minted["headers"])
        error_of(again, 409, "FILE_IN_USE")
        assert await stored_keys(server) == {minted["key"]}


async def test_no_url_is_made_for_a_file_the_field_does_not_take(database_url: str) -> None:
    server = a_server("memory:", Clip)
    async with site(server, database_url) as http:
        error_of(await http.post(MINT, json={**WISH, "size": 2001}), 413, "FILE_TOO_LARGE")
        error_of(
            await http.post(MINT, json={**WISH, "content_type": "text/html"}), 415, "FILE_TYPE_NOT_ALLOWED"
        )
        assert offenders(await http.post(MINT, json={})).keys() == {"filename", "content_type"}
        assert await rows_of_files(server) == set()


async def test_the_url_takes_no_other_file(database_url: str) -> None:
    server = a_server("memory:", Clip)
    async with site(server, database_url) as http:
        minted = data_of(await http.post(MINT, json=WISH))
        url, headers = minted["url"], minted["headers"]
        error_of(await http.put(url, content=b"x" * 2001, headers=headers), 413, "FILE_TOO_LARGE")

        async def chunks() -> Any:
            yield b"x" * 1500
            yield b"x" * 1500

        error_of(await http.put(url, content=chunks(), headers=headers), 413, "FILE_TOO_LARGE")
        other = {"content-type": "text/html"}
        error_of(await http.put(url, content=PNG, headers=other), 415, "FILE_TYPE_NOT_ALLOWED")
        error_of(
            await http.put(url.replace("max=2000", "max=3000"), content=PNG, headers=headers),
            404,
            "FILE_NOT_FOUND",
        )
        error_of(
            await http.put(f"/api/files/{minted['key']}", content=PNG, headers=headers), 404, "FILE_NOT_FOUND"
        )
        assert (await http.put(url, content=PNG, headers=headers)).status_code == 204


async def test_what_was_uploaded_past_the_server_is_judged_when_it_is_named(database_url: str) -> None:
    class Wide(Model):
        data: str | None = file(default=None, upload="presigned")

    class Narrow(Model):
        data: str | None = file(default=None, max_size=10, accept=["image/*"])

    server = a_server("memory:", Wide, Narrow)
    async with site(server, database_url) as http:
        for content, kind, status in ((PNG, "image/png", 413), (b"pdf", "application/pdf", 415)):
            wish = {"filename": "a", "content_type": kind}
            minted = data_of(await http.post("/api/wides/data/upload-url", json=wish))
            await http.put(minted["url"], content=content, headers=minted["headers"])
            assert (await http.post("/api/narrows", json={"data": minted["key"]})).status_code == status
            data_of(await http.post("/api/wides", json={"data": minted["key"]}), 201)


@pytest.mark.parametrize("operation", ["create", "update"])
async def test_rules_for_writing_cover_the_minting(sqlite_url: str, operation: str) -> None:
    server = a_server("memory:", Clip)

    @server.pipeline.auth.middleware(models=[Clip], operations=operation)
    async def refuse(ctx: Any, next: Any) -> None:
        ctx.abort(418, "TEAPOT", "no")

    async with site(server, sqlite_url) as http:
        error_of(await http.post(MINT, json=WISH), 418, "TEAPOT")


async def test_a_storage_that_signs_no_uploads_says_so(database_url: str) -> None:
    class Plain(MemoryStorage):
        async def presign_upload(self, *args: Any, **more: Any) -> Any:
            raise PresignUnsupported

    server = a_server(Plain(), Clip)
    async with site(server, database_url) as http:
        error_of(await http.post(MINT, json=WISH), 501, "PRESIGN_UNSUPPORTED")
        await assert_nothing_stored(server)


@pytest.mark.parametrize("kind", ["readonly", "hidden"])
async def test_closed_fields_have_no_url(sqlite_url: str, kind: str) -> None:
    options: dict[str, Any] = {kind: True}

    class Closed(Model):
        data: str | None = file(default=None, upload="presigned", **options)  # type: ignore[misc]

    async with site(a_server("memory:", Closed), sqlite_url) as http:
        wish = {"filename": "a", "content_type": "application/pdf"}
        response = await http.post("/api/closeds/data/upload-url", json=wish)
        error_of(response, 404, "NOT_FOUND")
