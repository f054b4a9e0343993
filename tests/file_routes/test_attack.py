from __future__ import annotations
from typing import Any
import pytest
from maniflex import Model, field, file
from maniflex.storage import FileMeta, MemoryStorage
from tests.file_routes.world import *


def raw_form(*parts: tuple[str, bytes]) -> dict[str, Any]:
    body = b""
    for headers, content in parts:
        body += b"--B\r\n" + headers.encode("utf-8", "surrogateescape") + b"\r\n\r\n" + content + b"\r\n"
    return {"content": body + b"--B--\r\n", "headers": {"content-type": "multipart/form-data; boundary=B"}}

D = "Content-Disposition: form-data; "

class Paper(Model):
    name: str = field(default="x")
    scans: list[str] | None = file(default=None)
    secret_list: list[str] = file(default_factory=list, hidden=True)
    pic: str | None = file(default=None, acl="signed", inline=False)
    safe: str | None = file(default=None, sniff=True, accept=["image/*"])
    pre: str | None = file(default=None, upload="presigned")


@pytest.mark.parametrize("parts", [
    [(D + 'name="scans"\r\nContent-Type: application/json', b"null"), (D + 'name="scans"; filename="a"', b"xx")],
    [(D + 'name="scans"', b""), (D + 'name="scans"; filename="a"', b"xx")],
    [(D + 'name="secret_list"; filename="a"', b"xx"), (D + 'name="secret_list"', b"xx")],
    [(D + 'name="scans"\r\nContent-Type: application/json', b'{"a":1}'), (D + 'name="scans"; filename="a"', b"xx")],
    [(D + "name*=utf-8''%E2%82%AC", b"")],
    [(D + "name=\"scans\"; filename*=utf-8''%E2%82%AC.txt", b"xx")],
    [(D + "name=\"scans\"; filename*0*=utf-8''%E2%82%AC; filename*1*=x.txt", b"xx")],
    [(D + "name=\"scans\"; filename*0*=bogus''%E2%82%AC; filename*1*=x.txt", b"xx")],
    [(D + "name*=bogus''x", b"xx")],
    [(D + "name*99999=xx", b"xx")],
    [(D + "name*=''", b"xx")],
    [(D + "name*", b"xx")],
    [(D + 'name="scans"; filename', b"xx")],
    [(D + 'name="scans"; filename=', b"xx")],
    [(D + 'name="scans"; filename="../../etc/\x00passwd"', b"xx")],
    [(D + 'name="na\x00me"', b"xx")],
    [(D + 'name="name"', b"\x00xx")],
    [(D + 'name="pic"; filename="a"\r\nContent-Type: text/html; charset="a\\"b', b"xx")],
    [(D + 'name="pic"; filename="a"\r\nContent-Type: \udcff/html', b"xx")],
    [(D + 'name="pic"; filename="a"\r\nContent-Type: image/png\r\nContent-Type: text/html', b"xx")],
    [(D + 'name="pic"; filename="\udcff"', b"xx")],
    [(D + 'name="pic"; filename="' + "a" * 5000 + '"', b"xx")],
    [(D + 'name="pic"; filename="' + "ä" * 3000 + '"', b"xx")],
    [(D + 'name=""; filename="x"', b"xx")],
    [(D + 'name="id"', b"xx")],
    [("X: y", b"xx")],
    [("Content-Disposition: form-data", b"xx")],
    [(D + 'name="name"\r\nContent-Type: text/plain; charset=utf-16', "ä".encode("utf-16"))],
    [(D + 'name="name"\r\nContent-Transfer-Encoding: base64', b"eHg=")],
    [(D + 'name="pic"\r\nContent-Type: application/json', b"[1]")],
    [(D + 'name="pic"\r\nContent-Type: application/json', b'{"a":' * 3000)],
    [(D + 'name="scans"\r\nContent-Type: application/json', b'[["x"],null,3]')],
    [(D + f'name="n{i}"; filename="x"', b"") for i in range(150)],
    [(D + f'name="n{i}"; filename="x"', b"") for i in range(10000)],
])
async def test_forms(sqlite_url: str, parts: Any) -> None:
    server = a_server("memory:", Paper)
    async with site(server, sqlite_url) as http:
        answer = await http.post("/api/papers", **raw_form(*parts))
        print("FORM", parts[0][0][:90].encode("utf-8","replace"), len(parts), answer.status_code, answer.text[:160])
        assert answer.status_code < 500
        made = answer.status_code == 201
        if made:
            data = answer.json()["data"]
            if data["pic"]:
                got = await http.get(data["pic"])
                print("   GOT", got.status_code, dict(got.headers))
        else:
            await assert_nothing_stored(server)


async def test_inline_false_signed(sqlite_url: str) -> None:
    server = a_server("memory:", Paper)
    async with site(server, sqlite_url) as http:
        data = (await http.post("/api/papers", files={"pic": ("a.png", PNG, "image/png")})).json()["data"]
        got = await http.get(data["pic"])
        assert got.headers["content-disposition"].startswith("attachment")


async def bytes_of(data: bytes):
    yield data

@pytest.mark.parametrize("store", ["memory", "local"])
async def test_collision(sqlite_url: str, tmp_path: Any, store: str) -> None:
    from maniflex.storage import LocalStorage
    storage = MemoryStorage() if store == "memory" else LocalStorage(tmp_path / "s")
    await storage.store("docs/a.png", bytes_of(b"precious"), FileMeta("a.png", "image/png"))
    server = a_server(storage, Paper, file_key=lambda ctx, name, kind: f"docs/{name}")
    async with site(server, sqlite_url) as http:
        answer = await http.post("/api/papers", files={"pic": ("a.png", PNG, "image/png")})
        print(answer.status_code, answer.text)
        await server.files.sweep()
        assert await storage.exists("docs/a.png")


async def test_mint_collision(sqlite_url: str) -> None:
    storage = MemoryStorage()
    await storage.store("docs/a.png", bytes_of(b"precious"), FileMeta("a.png", "image/png"))
    server = a_server(storage, Paper, file_key=lambda ctx, name, kind: f"docs/{name}")
    async with site(server, sqlite_url) as http:
        answer = await http.post("/api/papers/pre/upload-url", json={"filename": "a.png", "content_type": "image/png"})
        print(answer.status_code, answer.text)
        made = await http.post("/api/papers", json={"pre": "docs/a.png"})
        print(made.status_code, made.text)
        assert made.status_code == 422


async def test_sniff_by_key(sqlite_url: str) -> None:
    server = a_server("memory:", Paper)
    async with site(server, sqlite_url) as http:
        answer = await http.post("/api/papers", files={"safe": ("a.png", HTML, "image/png")})
        assert answer.status_code == 415
        key = (await http.post("/api/files", files={"file": ("a.png", HTML, "image/png")})).json()["data"]["key"]
        made = await http.post("/api/papers", json={"safe": key})
        assert made.status_code == 415


async def test_removed_model(sqlite_url: str) -> None:
    server = a_server("memory:", Paper)
    async with site(server, sqlite_url) as http:
        key = (await http.post("/api/files", files={"file": ("a.png", PNG, "image/png")})).json()["data"]["key"]
        await http.post("/api/papers", json={"scans": [key]})
        storage = server.files.desk.storage
    server = a_server(storage, Film)
    async with site(server, sqlite_url) as http:
        got = await http.get(f"/api/files/{key}")
        print(got.status_code, got.text[:200] if got.status_code != 200 else "")
        assert got.status_code < 500
        got = await http.delete(f"/api/files/{key}")
        print(got.status_code)
