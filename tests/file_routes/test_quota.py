"""F53: `file_quota` bounds what the files of one caller have in all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from maniflex import Model, Server, field, file
from maniflex.testing import FakeClock
from tests.file_routes.world import MODELS, PNG, a_server, rows_of_files, site, stored_keys
from tests.kit.http import data_of, error_of
from tests.kit.object_stores import s3_storage
from tests.storage.conftest import s3_endpoint as s3_endpoint  # a fixture

FILES = "/api/files"
A, B = {"x-user": "a", "x-tenant": "A"}, {"x-user": "b", "x-tenant": "B"}


class Clip(Model):
    name: str = field(default="")
    image: str | None = file(default=None, upload="presigned")
    cover: str | None = file(default=None)


def _part(size: int) -> dict[str, Any]:
    return {"file": ("a.bin", b"x" * size, "application/octet-stream")}


async def test_a_caller_stores_as_many_bytes_as_it_may(database_url: str) -> None:
    asked: list[str] = []

    async def quota(scope: str) -> int | None:
        asked.append(scope)
        return {"A": 1000, "B": None}[scope]

    server = a_server("memory:", *MODELS, file_quota=quota)
    async with site(server, database_url) as http:
        first = data_of(await http.post(FILES, files=_part(600), headers=A), 201)
        error_of(await http.post(FILES, files=_part(401), headers=A), 413, "FILE_TOO_LARGE")
        data_of(await http.post(FILES, files=_part(400), headers=A), 201)
        error_of(await http.post(FILES, files=_part(0), headers=A), 413, "FILE_TOO_LARGE")
        data_of(await http.post(FILES, files=_part(5000), headers=B), 201)
        form: Any = {"data": {"title": "a"}, "files": {"cover": ("a.png", PNG[:100], "image/png")}}
        error_of(await http.post("/api/albums", headers=A, **form), 413, "FILE_TOO_LARGE")
        assert (await http.delete(f"{FILES}/{first['key']}", headers=A)).status_code == 204
        data_of(await http.post("/api/albums", headers=A, **form), 201)
        assert set(asked) == {"A", "B"}
        assert await stored_keys(server) == await rows_of_files(server)


async def test_uploads_side_by_side_do_not_pass_it_together(database_url: str) -> None:
    server = a_server("memory:", *MODELS, file_quota=lambda scope: 1000)
    async with site(server, database_url) as http:
        answers = await asyncio.gather(*(http.post(FILES, files=_part(600), headers=A) for _ in range(4)))
        assert {answer.status_code for answer in answers} <= {201, 413}
        rows = await server.files.desk.rows.page("", 100)
        assert sum(row.size or 0 for row in rows if row.state != "condemned") <= 1000


WISH = {"filename": "a.bin", "content_type": "application/octet-stream"}
MINT = "/api/clips/image/upload-url"


async def send(http: Any, target: dict[str, Any], size: int) -> httpx.Response:
    """Upload to a URL as its answer says: to this server, or to a bucket."""
    content, fields, method = b"x" * size, target["fields"], target["method"]
    url, headers = target["url"], target["headers"]
    if url.startswith("/"):
        answer: httpx.Response = await http.request(method, url, content=content, headers=headers)
        return answer
    async with httpx.AsyncClient() as outside:
        if fields:
            return await outside.post(url, data=fields, files={"file": content})
        return await outside.request(method, url, content=content, headers=headers)


async def mint(http: Any, status: int = 200, **wish: Any) -> Any:
    answer = await http.post(MINT, json={**WISH, **wish}, headers=A)
    return error_of(answer, 413, "FILE_TOO_LARGE") if status == 413 else data_of(answer, status)


async def stored_bytes(server: Server) -> int:
    storage: Any = server.files.desk.storage
    return sum([(await storage.stat(key)).size async for key in storage.list_keys()])


async def test_a_presigned_upload_holds_its_bytes_until_it_is_named(database_url: str) -> None:
    server = a_server("memory:", Clip, file_quota=lambda scope: 1000)
    async with site(server, database_url) as http:
        await mint(http, 413, size=1001)
        first, second = await mint(http, size=700), await mint(http, size=300)
        assert (first["max_size"], second["max_size"]) == (700, 300)
        for wish in ({}, {"size": 1}):
            await mint(http, 413, **wish)
        error_of(await http.post(FILES, files=_part(1), headers=A), 413, "FILE_TOO_LARGE")
        assert (await send(http, first, 701)).status_code == 413
        assert (await send(http, first, 100)).status_code == 204
        third = await mint(http, size=600)  # the first holds what it has
        await mint(http, 413, size=1)
        assert (await send(http, third, 600)).status_code == 204
        for one in (first, third):
            data_of(await http.post("/api/clips", json={"image": one["key"]}, headers=A), 201)
        await mint(http, 413, size=1)


@pytest.mark.parametrize("stored_in", ["memory", "put", "post"])
async def test_thirty_urls_do_not_store_thirty_times_the_quota(
    database_url: str, s3_endpoint: str, stored_in: Any
) -> None:
    storage: Any = "memory:" if stored_in == "memory" else s3_storage(s3_endpoint, presign=stored_in)
    server = a_server(storage, Clip, file_quota=lambda scope: 1000)
    async with site(server, database_url) as http:
        wishes = [{"size": 1000}, {"size": 1}, {}, *({"size": size} for size in range(1, 28))]
        answers = await asyncio.gather(
            *(http.post(MINT, json={**WISH, **wish}, headers=A) for wish in wishes)
        )
        targets = [answer.json()["data"] for answer in answers if answer.status_code == 200]
        if not targets:  # side by side, they refused each other
            targets = [await mint(http)]
        # S3 holds forms to their policy, which moto does not.
        sizes = [target["max_size"] if stored_in == "post" else 1000 for target in targets]
        await asyncio.gather(*(send(http, target, size) for target, size in zip(targets, sizes, strict=True)))
        assert await stored_bytes(server) <= 1000
        await mint(http, 413, size=1000)


async def test_the_bytes_of_an_upload_that_did_not_come_are_given_back(
    database_url: str, s3_endpoint: str
) -> None:
    clock = FakeClock()
    server = a_server(s3_storage(s3_endpoint, clock=clock), Clip, file_quota=lambda scope: 1000)
    async with site(server, database_url, clock=clock) as http:
        lost = await mint(http)
        await mint(http, 413)
        clock.advance(server.config.signed_url_ttl + timedelta(seconds=1))
        await server.files.sweep()
        late = await mint(http)
        # It began in time and came late, so it is seen by a later look.
        assert (await send(http, lost, 1000)).status_code == 200
        await server.files.sweep()
        clock.advance(timedelta(hours=1, seconds=1))
        await server.files.sweep()
        await mint(http, 413, size=1)
        clock.advance(timedelta(days=2))
        await server.files.sweep()
        assert await rows_of_files(server) == set()
        assert await stored_bytes(server) == 0
        data_of(await http.post(FILES, files=_part(1000), headers=A), 201)
        assert late["key"] != lost["key"]


async def test_what_went_past_the_server_is_judged_whatever_field_names_it(
    database_url: str, s3_endpoint: str
) -> None:
    server = a_server(s3_storage(s3_endpoint), Clip, file_quota=lambda scope: 1000)
    async with site(server, database_url) as http:
        for name in ("image", "cover"):
            target = await mint(http)
            assert (await send(http, target, 1001)).status_code == 200
            answer = await http.post("/api/clips", json={name: target["key"]}, headers=A)
            error_of(answer, 413, "FILE_TOO_LARGE")
            await server.files.sweep()
            assert await stored_bytes(server) == 0


async def test_a_quota_that_cannot_be_told_stores_nothing(database_url: str) -> None:
    def quota(scope: str) -> Any:
        if scope == "A":
            raise KeyError("no such tenant: secret text")
        return "much"

    server = a_server("memory:", *MODELS, file_quota=quota)
    async with site(server, database_url) as http:
        for headers in (A, B):
            answer = await http.post(FILES, files=_part(10), headers=headers)
            error_of(answer, 500, "STORAGE_ERROR")
            assert "secret text" not in answer.text
        assert await rows_of_files(server) == set()
