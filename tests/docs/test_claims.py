"""What pages say without a sample: static files, limits."""

from __future__ import annotations

from pathlib import Path

from maniflex import Server
from maniflex.testing import client
from tests.kit.notes import Note


async def test_static_files_are_served_as_the_page_says(tmp_path: Path) -> None:
    for name, text in (("logo.txt", "logo"), ("docs/index.html", "docs"), ("bare/a.txt", "a")):
        (tmp_path / "static" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "static" / name).write_text(text)
    for name in (".env", ".git/config", "docs/.htpasswd", ".well-known/security.txt", ".well-known/.key"):
        (tmp_path / "static" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "static" / name).write_text("dots")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "static" / "link").symlink_to(tmp_path / "secret")
    server = Server(static_dir=str(tmp_path / "static"))
    server.register(Note)

    async with client(server) as http:
        answers = {
            path: await http.get(f"/static/{path}") for path in ("logo.txt", "docs/", "bare/", "link", "none")
        }
        dots = {
            path: (await http.request(method, f"/static/{path}")).status_code
            for method in ("HEAD", "GET")
            for path in (
                ".env",
                "%2eenv",
                "docs/%2e%2e/.env",
                ".git/config",
                ".git/",
                "docs/.htpasswd",
                ".well-known/security.txt",
                ".well-known/.key",
            )
        }
        refused = await http.post("/static/logo.txt")
        (tmp_path / "static" / "404.html").write_text("nothing here")
        page = await http.get("/static/none")

    assert {path: answer.status_code for path, answer in answers.items()} == {
        "logo.txt": 200,
        "docs/": 200,
        "bare/": 404,
        "link": 404,
        "none": 404,
    }
    assert [path for path, status in dots.items() if status != 404] == [".well-known/security.txt"]
    assert answers["logo.txt"].headers["etag"]
    assert answers["none"].json()["error"] == {"code": "NOT_FOUND", "message": "no such file"}
    assert refused.json()["error"] == {"code": "METHOD_NOT_ALLOWED", "message": "method not allowed"}
    assert refused.headers["allow"] == "GET, HEAD"
    assert (page.status_code, page.text) == (404, "nothing here")


async def test_a_limit_above_the_most_gives_the_most_and_meta_says_so(database_url: str) -> None:
    server = Server()
    server.register(Note)

    async with client(server, database=database_url) as http:
        listed = await http.get("/api/notes?limit=500")
        refused = await http.get("/api/notes?page=1000000001")

    assert listed.json()["meta"]["limit"] == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_QUERY")
