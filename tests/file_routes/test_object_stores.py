"""Files in an object store: moto, which may be away."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from maniflex import Model, file
from tests.file_routes.world import PNG, a_server, rows_of_files, site
from tests.kit.http import data_of, error_of, total
from tests.kit.object_stores import azure_storage, new_bucket, s3_storage
from tests.storage.conftest import azure_endpoint as azure_endpoint  # fixtures
from tests.storage.conftest import s3_endpoint as s3_endpoint
from tests.storage.test_objects import QUICK, relay

PART = ("a.png", PNG, "image/png")


async def test_forms_downloads_and_urls(database_url: str, s3_endpoint: str) -> None:
    server = a_server(s3_storage(s3_endpoint, key_prefix="app"))
    async with site(server, database_url) as http:
        files: list[Any] = [("name", (None, b"a")), ("image", PART), ("stills", PART)]
        shot = data_of(await http.post("/api/shots", files=files), 201)
        assert (await http.get(f"/api/shots/{shot['id']}/image")).content == PNG
        part = await http.get(f"/api/shots/{shot['id']}/image", headers={"range": "bytes=2-5"})
        assert (part.status_code, part.content) == (206, PNG[2:6])
        assert shot["image"].startswith(s3_endpoint)
        read = data_of(await http.get(f"/api/shots/{shot['id']}"))
        data_of(await http.patch(f"/api/shots/{shot['id']}", json=read))  # URLs of ours mean "as it is"
        assert len(await rows_of_files(server)) == 2


async def test_a_store_that_is_away_is_503_and_back_without_a_restart(
    database_url: str, s3_endpoint: str
) -> None:
    bucket = new_bucket(s3_endpoint)
    async with relay(s3_endpoint) as (endpoint, gate):
        server = a_server(s3_storage(endpoint, bucket, **QUICK))
        async with site(server, database_url) as http:
            files: list[Any] = [("title", (None, b"a")), ("cover", PART)]
            album = data_of(await http.post("/api/albums", files=files), 201)
            gate.hold_answers = True
            error_of(await http.post("/api/albums", files=files), 503, "UNAVAILABLE")
            error_of(await http.post("/api/files", files={"file": PART}), 503, "UNAVAILABLE")
            error_of(await http.get(f"/api/albums/{album['id']}/cover"), 503, "UNAVAILABLE")
            assert await total(http, "/api/albums") == 1
            gate.hold_answers = False
            data_of(await http.post("/api/albums", files=files), 201)
            assert (await http.get(f"/api/albums/{album['id']}/cover")).content == PNG


class Paper(Model):
    shown: str | None = file(default=None, acl="signed")
    saved: str | None = file(default=None, acl="signed", inline=False)
    handed_out: str | None = file(default=None, acl="public", inline=False)
    scans: list[str] = file(default_factory=list, acl="signed", inline=False)


@pytest.mark.parametrize("kind", ["s3", "s3 without botocore", "azure"])
async def test_a_file_that_is_never_shown_is_saved_by_its_url_too(
    database_url: str, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "s3 without botocore":
        monkeypatch.setattr("maniflex.storage.s3.can_sign", lambda: False)
    store_kind = kind.partition(" ")[0]
    endpoint = request.getfixturevalue(f"{store_kind}_endpoint")
    storage = azure_storage(endpoint) if kind == "azure" else s3_storage(endpoint)
    async with site(a_server(storage, Paper), database_url) as http, httpx.AsyncClient() as outside:
        key = data_of(await http.post("/api/files", files={"file": PART}), 201)["key"]
        body = {"shown": key, "saved": key, "handed_out": key, "scans": [key]}
        paper = data_of(await http.post("/api/papers", json=body), 201)

        async def fetch(url: str) -> httpx.Response:
            return await (http if url.startswith("/") else outside).get(url)

        assert (await fetch(paper["shown"])).headers["content-disposition"].startswith("inline")
        for url in (paper["saved"], paper["handed_out"], *paper["scans"]):
            answer = await fetch(url)
            assert (answer.status_code, answer.content) == (200, PNG), url
            assert answer.headers["content-disposition"].startswith("attachment"), url
        assert (urlsplit(paper["saved"]).netloc == "") == (kind != "s3")
        same = data_of(await http.patch(f"/api/papers/{paper['id']}", json=paper))  # URLs mean "as it is"
        assert urlsplit(same["saved"]).path == urlsplit(paper["saved"]).path
