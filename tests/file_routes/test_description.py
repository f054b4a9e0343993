"""The API description of files."""

from __future__ import annotations

from typing import Any

from openapi_spec_validator import validate

from maniflex import Model, file
from maniflex.middleware import idempotency
from tests.file_routes.world import Album, Shot, a_server


class Clip(Model):
    data: str | None = file(default=None, upload="presigned")


async def described(*models: Any, **settings: Any) -> dict[str, Any]:
    server = a_server(settings.pop("storage", "memory:"), *models, **settings)
    async with server.lifespan():
        document = await server.openapi()
    validate(document)
    return dict(document)


async def test_every_mounted_route_is_described(tmp_path: Any) -> None:
    settings = {"database": f"sqlite:///{tmp_path}/a.db", "openapi_all_methods": True}
    server = a_server("memory:", Album, Shot, Clip, **settings)
    async with server.lifespan():
        document: Any = await server.openapi()
    api_routes = [route for route in server.routes if route[1].startswith("/api")]
    mounted = {(method, path.replace("...}", "}")) for method, path, _ in api_routes}
    paths = document["paths"].items()
    shown = {(method.upper(), path) for path, operations in paths for method in operations}
    assert {route for route in mounted if "openapi" not in route[1] and "docs" not in route[1]} <= shown
    assert ("PUT", "/api/files/{key}") in shown
    assert ("POST", "/api/clips/data/upload-url") in shown
    assert ("GET", "/api/albums/{id}/scans/{index}") in shown
    assert ("GET", "/api/albums/{id}/hidden_one") not in shown


async def test_bodies_list_the_form_and_its_parts(tmp_path: Any) -> None:
    document = await described(Album, database=f"sqlite:///{tmp_path}/a.db")
    create = document["paths"]["/api/albums"]["post"]["requestBody"]["content"]
    assert create.keys() == {"application/json", "multipart/form-data"}
    form = create["multipart/form-data"]
    parts = form["schema"]["properties"]
    assert parts["cover"]["type"] == "string"
    assert parts["cover"]["contentMediaType"] == "image/*"
    assert form["encoding"]["cover"] == {"contentType": "image/*"}
    assert form["encoding"]["facts"] == {"contentType": "application/json"}
    assert (parts["scans"]["type"], parts["scans"]["maxItems"]) == ("array", 3)
    assert not {"proof", "hidden_one"} & parts.keys()
    assert "title" in form["schema"]["required"]
    update = document["paths"]["/api/albums/{id}"]["patch"]["requestBody"]["content"]["multipart/form-data"]
    assert "stamp" not in update["schema"]["properties"]
    download = document["paths"]["/api/albums/{id}/cover"]["get"]["responses"]
    assert {"200", "206", "304", "404", "416"} <= download.keys()
    assert "content" not in download["304"]
    assert all(download[status]["content"].keys() == {"image/*"} for status in ("200", "206"))
    anything = document["paths"]["/api/albums/{id}/scans/{index}"]["get"]["responses"]
    assert anything["200"]["content"].keys() == {"*/*"}
    assert "STORAGE_FULL" in document["paths"]["/api/files"]["post"]["responses"]["507"]["description"]


async def test_the_key_of_an_upload_is_described_where_it_is_taken(tmp_path: Any) -> None:
    database = f"sqlite:///{tmp_path}/a.db"

    async def keyed(*middleware: Any) -> set[tuple[str, str]]:
        document = await described(Clip, database=database, files_middleware=middleware)
        return {
            (method, path)
            for path, operations in document["paths"].items()
            for method, one in operations.items()
            if any(p.get("name") == "Idempotency-Key" for p in one.get("parameters", ()))
        }

    assert await keyed() == set()
    assert await keyed(idempotency.keys()) == {("post", "/api/files"), ("delete", "/api/files/{key}")}
    document = await described(Clip, database=database, files_middleware=[idempotency.keys(required=True)])
    upload = document["paths"]["/api/files"]["post"]
    [header] = [p for p in upload["parameters"] if p["name"] == "Idempotency-Key"]
    assert (header["in"], header["required"]) == ("header", True)
    assert "IDEMPOTENCY_KEY_REUSED" in upload["responses"]["422"]["description"]
    assert "Idempotent-Replayed" in upload["responses"]["201"]["headers"]


async def test_without_a_storage_there_are_no_forms(tmp_path: Any) -> None:
    document = await described(Album, storage=None, database=f"sqlite:///{tmp_path}/a.db")
    assert document["paths"]["/api/albums"]["post"]["requestBody"]["content"].keys() == {"application/json"}
    assert not [path for path in document["paths"] if "files" in path or "cover" in path]
