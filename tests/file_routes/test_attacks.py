"""What nobody should get by asking in an unusual way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from maniflex import Model, Server, field, file
from maniflex.middleware import db
from maniflex.storage import FileMeta, LocalStorage, MemoryStorage
from tests.file_routes.world import HTML, PNG, Film, a_server, assert_nothing_stored, site

PICTURE = ("a.png", PNG, "image/png")


class Paper(Model):
    tenant_id: str = field(default="", relation=None)
    scans: list[str] | None = file(default=None)
    drafts: list[str] = file(default_factory=list, hidden=True)
    image: str | None = file(default=None, acl="signed", inline=False)
    proof: str | None = file(default=None, sniff=True, accept=["image/*"])
    plan: str | None = file(default=None, upload="presigned")


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


def named_by_client(storage: Any) -> Server:
    return a_server(storage, Paper, file_key=lambda ctx, filename, content_type: f"papers/{filename}")


NULL = ("scans", (None, b"null", "application/json"))
EMPTY = ("scans", (None, b"", "text/plain"))
FILE = ("scans", ("a.txt", b"text", "text/plain"))


@pytest.mark.parametrize(
    "parts",
    [
        (NULL, FILE),
        (EMPTY, FILE),
        (FILE, NULL),
        (("drafts", ("a.txt", b"text", "text/plain")), ("drafts", (None, b"key", "text/plain"))),
    ],
    ids=["null before", "empty before", "null behind", "hidden"],
)
async def test_a_list_is_empty_or_has_files(database_url: str, parts: Any) -> None:
    server = a_server("memory:", Paper)
    async with site(server, database_url) as http:
        answer = await http.post("/api/papers", files=list(parts))
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_FAILED")
        await assert_nothing_stored(server)


async def test_a_signed_url_of_a_download_only_field_is_a_download(sqlite_url: str) -> None:
    async with site(a_server("memory:", Paper), sqlite_url) as http:
        paper = (await http.post("/api/papers", files={"image": PICTURE})).json()["data"]
        answer = await http.get(paper["image"])
        assert answer.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_a_chosen_key_neither_opens_nor_removes_the_object_of_another(
    database_url: str, tmp_path: Any, kind: str
) -> None:
    storage = MemoryStorage() if kind == "memory" else LocalStorage(tmp_path / "objects")
    await storage.store("papers/a.png", chunks(b"another's"), FileMeta("a.png", "image/png"))
    server = named_by_client(storage)
    async with site(server, database_url) as http:
        wish = {"filename": "a.png", "content_type": "image/png"}
        assert (await http.post("/api/papers", files={"image": PICTURE})).status_code == 500
        assert (await http.post("/api/files", files={"file": PICTURE})).status_code == 500
        assert (await http.post("/api/papers/plan/upload-url", json=wish)).status_code == 500
        assert (await http.post("/api/papers", json={"plan": "papers/a.png"})).status_code == 422
        await server.files.sweep()
        assert await storage.exists("papers/a.png")


async def test_an_object_that_came_meanwhile_is_kept(database_url: str) -> None:
    class Late(MemoryStorage):
        async def exists(self, key: str) -> bool:
            return False

    storage = Late()
    await storage.store("papers/a.png", chunks(b"another's"), FileMeta("a.png", "image/png"))
    server = named_by_client(storage)
    async with site(server, database_url) as http:
        assert (await http.post("/api/papers", files={"image": PICTURE})).status_code == 500
        await server.files.sweep()
        assert (await storage.stat("papers/a.png")).size == len(b"another's")


async def test_sniffing_is_not_passed_by_naming_a_key(database_url: str) -> None:
    async with site(a_server("memory:", Paper), database_url) as http:
        upload = await http.post("/api/files", files={"file": ("a.png", HTML, "image/png")})
        answer = await http.post("/api/papers", json={"proof": upload.json()["data"]["key"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "FILE_TYPE_NOT_ALLOWED")
        upload = await http.post("/api/files", files={"file": PICTURE})
        answer = await http.post("/api/papers", json={"proof": upload.json()["data"]["key"]})
        assert answer.status_code == 201


async def test_a_file_of_a_model_that_is_gone_is_404(database_url: str) -> None:
    storage = MemoryStorage()
    async with site(a_server(storage, Paper), database_url) as http:
        paper = (await http.post("/api/papers", files={"plan": PICTURE})).json()["data"]
    async with site(a_server(storage, Film), database_url) as http:
        assert (await http.get(f"/api/files/{paper['plan']}")).status_code == 404


async def test_a_file_nobody_minted_is_not_taken_from_the_tenant_whose_record_names_it(
    database_url: str,
) -> None:
    storage = MemoryStorage()
    await storage.store("2024/1.png", chunks(PNG), FileMeta("1.png", "image/png"))
    server = a_server(storage, Paper)
    server.pipeline.db.register(db.tenancy("tenant_id"))
    ours, theirs = ({"x-user": "me", "x-tenant": tenant} for tenant in ("ours", "theirs"))
    async with site(server, database_url) as http:
        await server.files.adopt()
        for _ in range(2):  # the second names what the first has
            answer = await http.post("/api/papers", json={"plan": "2024/1.png"}, headers=ours)
            assert answer.status_code == 201
        for body in ({"plan": "2024/1.png"}, {"scans": ["2024/1.png"]}):
            answer = await http.post("/api/papers", json=body, headers=theirs)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FILE_FORBIDDEN")
        assert (await http.get("/api/files/2024/1.png", headers=theirs)).status_code == 404
