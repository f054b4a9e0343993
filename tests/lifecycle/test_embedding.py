"""The server inside another application, and under another program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from maniflex import Server
from tests.kit.notes import Note
from tests.kit.processes import free_port, start_process

APP = """
from maniflex import Model, Server

class Note(Model):
    text: str

server = Server(database="sqlite:///app.db")
server.register(Note)
server.on_shutdown(lambda: print("stopped in order", flush=True))
"""


def a_server(database: str, static: Path | None = None) -> Server:
    server = Server(database, static_dir=static or "no-such-directory")
    server.register(Note)
    return server


def outer(server: Server, at: str, *, lifespan: bool) -> FastAPI:
    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:
        async with server.lifespan():
            yield

    app = FastAPI(lifespan=run if lifespan else None)

    @app.get("/hello")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    app.mount(at, server)
    return app


@asynccontextmanager
async def using(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as http,
    ):
        yield http


@pytest.mark.parametrize("lifespan", [True, False], ids=["lifespan", "no lifespan"])
@pytest.mark.parametrize("at", ["/", "/v1"])
async def test_it_works_mounted_under_fastapi(at: str, lifespan: bool, database_url: str) -> None:
    server = a_server(database_url)
    base = at.rstrip("/")
    async with using(outer(server, at, lifespan=lifespan)) as http:
        assert (await http.get("/hello")).json() == {"hello": "world"}
        created = await http.post(f"{base}/api/notes", json={"text": "inside"})
        assert created.status_code == 201, created.text
        note = created.json()["data"]
        assert (await http.get(f"{base}/api/notes/{note['id']}")).json()["data"] == note
        assert (await http.get(f"{base}/api/notes")).json()["meta"]["total"] == 1
        assert (await http.get(f"{base}/ready")).status_code == 200
        missing = await http.get(f"{base}/api/nothing")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "NOT_FOUND")
    await server.stop()


async def test_files_are_found_and_redirected_below_the_place_of_the_mount(
    tmp_path: Path, sqlite_url: str
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.html").write_text("<p>docs")
    (tmp_path / "style.css").write_text("p {}")
    server = a_server(sqlite_url, tmp_path)
    async with using(outer(server, "/v1", lifespan=True)) as http:
        assert (await http.get("/v1/static/style.css")).text == "p {}"
        assert (await http.get("/v1/static")).headers["location"] == "/v1/static/"
        assert (await http.get("/v1/static/docs")).headers["location"].endswith("/v1/static/docs/")
        assert (await http.get("/v1/static/docs/")).text == "<p>docs"


async def test_first_requests_that_come_together_wait_for_one_start(database_url: str) -> None:
    server = a_server(database_url)
    starts: list[str] = []
    server.on_start(lambda: starts.append("started"))
    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answers = await asyncio.gather(*(http.get("/api/notes") for _ in range(10)))

    assert [answer.status_code for answer in answers] == [200] * 10
    assert starts == ["started"]
    await server.stop()


async def test_an_asgi_lifespan_reports_a_start_that_failed(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(sqlite_url)

    @server.on_start
    def fail() -> None:
        raise RuntimeError("no licence")

    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": "lifespan.startup"}

    async def send(message: object) -> None:
        sent.append(message["type"])  # type: ignore[index]  # an ASGI message

    await server({"type": "lifespan"}, receive, send)

    assert sent == ["lifespan.startup.failed"]
    assert "no licence" in caplog.text


def test_uvicorn_serves_it_by_name(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    port = free_port()
    command: list[str | Path] = [sys.executable, "-m", "uvicorn", "app:server", "--port", str(port)]
    with start_process(command, port, cwd=tmp_path) as served:
        served.until_up()
        created = httpx.post(f"{served.url}/api/notes", json={"text": "by uvicorn"})
        assert created.status_code == 201
        served.process.terminate()
        served.ended()
        assert "stopped in order" in served.output
        assert "Traceback" not in served.output


def test_a_script_runs_it_as_a_client_beside_a_serving_process(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/shared.db"

    async def script() -> int:
        writer, reader = a_server(database), a_server(database)
        async with writer.lifespan(), reader.lifespan(role="client"):
            await writer.db(Note).create(text="one")
            await reader.db(Note).create(text="two")
            return await writer.db(Note).count()

    assert asyncio.run(script()) == 2
