"""Files of a directory: what is served, what is refused, and who has the right of way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Server
from maniflex.errors import DeclarationError
from maniflex.testing import client
from tests.kit.asgi import Call, send
from tests.kit.processes import serve_process

ESCAPES = [
    "/static/../secret.txt",
    "/static/%2e%2e/secret.txt",
    "/static/..%2fsecret.txt",
    "/static/docs/../../secret.txt",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/..%5csecret.txt",
    "/static/link.txt",
    "/static/linked/secret.txt",
    "/static/%00",
    "/static/style.css%00.txt",
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    public = tmp_path / "public"
    (public / "docs").mkdir(parents=True)
    (public / "empty").mkdir()
    (public / "style.css").write_text("p {}")
    (public / "docs" / "index.html").write_text("<p>docs")
    (tmp_path / "secret.txt").write_text("hunter2")
    (public / "link.txt").symlink_to(tmp_path / "secret.txt")
    (public / "linked").symlink_to(tmp_path)
    return public


def a_server(static_dir: Path, **settings: Any) -> Server:
    return Server(static_dir=static_dir, **settings)


async def test_files_are_served_with_their_type_and_folders_by_their_index(files: Path) -> None:
    async with client(a_server(files)) as http:
        style = await http.get("/static/style.css")
        assert (style.status_code, style.text) == (200, "p {}")
        assert style.headers["content-type"].startswith("text/css")
        assert (await http.head("/static/style.css")).headers["content-length"] == "4"
        assert (await http.get("/static/docs/")).text == "<p>docs"
        again = await http.get("/static/style.css", headers={"If-None-Match": style.headers["etag"]})
        assert again.status_code == 304


async def test_a_folder_without_its_slash_is_redirected(files: Path) -> None:
    async with client(a_server(files)) as http:
        for path in ("/static", "/static/docs"):
            moved = await http.get(path)
            assert moved.status_code in (301, 307)
            assert httpx.URL(moved.headers["location"]).path == f"{path}/"


async def test_what_is_not_there_is_404_in_the_error_envelope(files: Path) -> None:
    async with client(a_server(files)) as http:
        for path in ("/static/nothing.css", "/static/empty/", "/static/", "/staticstyle.css"):
            missing = await http.get(path)
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "NOT_FOUND"), path
        refused = await http.post("/static/style.css")
        assert (refused.status_code, refused.json()["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize("path", ESCAPES)
async def test_no_path_leads_out_of_the_directory(path: str, files: Path) -> None:
    server = a_server(files)
    # As a listener hands it over; a client library would tidy the path up before sending it.
    async with client(server):
        answer = await send(server, Call("GET", path.encode()))

    assert answer.status in (400, 404)
    assert b"hunter2" not in answer.body


async def test_a_directory_that_does_not_exist_is_fine(tmp_path: Path) -> None:
    async with client(a_server(tmp_path / "nowhere")) as http:
        assert (await http.get("/static/style.css")).status_code == 404


async def test_static_files_can_be_switched_off(files: Path) -> None:
    async with client(a_server(files, static_disabled=True)) as http:
        assert (await http.get("/static/style.css")).status_code == 404


async def test_the_prefix_is_a_setting_and_stands_outside_the_path_prefix(files: Path) -> None:
    async with client(a_server(files, static_prefix="assets/", path_prefix="/v1")) as http:
        assert (await http.get("/assets/style.css")).text == "p {}"
        assert (await http.get("/v1/assets/style.css")).status_code == 404
        assert (await http.get("/static/style.css")).status_code == 404


class Asset(Model):
    name: str


@pytest.mark.parametrize(
    "settings",
    [
        {"static_prefix": "/api/assets"},
        {"static_prefix": "/api"},
        {"static_prefix": "/health"},
        {"static_prefix": ""},
        {"static_prefix": "/assets", "path_prefix": ""},
    ],
)
def test_a_prefix_that_would_hide_routes_stops_the_start(settings: dict[str, Any], files: Path) -> None:
    server = a_server(files, **settings)
    server.register(Asset)

    with pytest.raises(DeclarationError, match="static_prefix"):
        server.seal()


async def test_an_action_may_stand_beside_the_files(files: Path) -> None:
    server = a_server(files, static_prefix="/api/files")

    @server.action("GET", "/{folder}/{name}/size")
    async def size(ctx: Context) -> int:
        return len(ctx.url_param("name"))

    async with client(server) as http:
        assert (await http.get("/api/other/abc/size")).json()["data"] == 3
        assert (await http.get("/api/files/style.css")).text == "p {}"


def test_a_directory_is_served_only_when_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from maniflex import Config, Server\nserver = Server(Config.from_env())\n"
    )
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "hello.txt").write_text("hello")
    for named, expected in (({}, 404), ({"STATIC_DIR": "static"}, 200)):
        with serve_process(tmp_path, DB_WRITE_URL=":memory:", **named) as served:
            assert httpx.get(f"{served.url}/static/hello.txt").status_code == expected
