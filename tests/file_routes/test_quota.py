"""F53: `file_quota` bounds what the files of one caller have in all."""

from __future__ import annotations

import asyncio
from typing import Any

from maniflex import Model, field, file
from tests.file_routes.world import MODELS, PNG, a_server, rows_of_files, site, stored_keys
from tests.kit.http import data_of, error_of

FILES = "/api/files"
A, B = {"x-user": "a", "x-tenant": "A"}, {"x-user": "b", "x-tenant": "B"}


class Clip(Model):
    name: str = field(default="")
    image: str | None = file(default=None, upload="presigned")


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


async def test_a_presigned_upload_is_judged_when_it_is_minted_and_named(database_url: str) -> None:
    server = a_server("memory:", Clip, file_quota=lambda scope: 1000)
    async with site(server, database_url) as http:
        wish = {"filename": "a.bin", "content_type": "application/octet-stream"}
        url = "/api/clips/image/upload-url"
        error_of(await http.post(url, json={**wish, "size": 1001}, headers=A), 413, "FILE_TOO_LARGE")
        minted = [data_of(await http.post(url, json=wish, headers=A)) for _ in range(2)]
        assert minted[0]["max_size"] == 1000
        for one in minted:
            sent = await http.put(one["url"], content=b"x" * 700, headers=one["headers"])
            assert sent.status_code in (200, 204), sent.text
        named = [await http.post("/api/clips", json={"image": one["key"]}, headers=A) for one in minted]
        assert [answer.status_code for answer in named] == [413, 201]  # the first made room by going


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
