"""Layers around the whole server (K3)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.middleware.gzip import GZipMiddleware

from maniflex import DeclarationError
from maniflex.testing import client
from tests.kit.http import error_of
from tests.kit.notes import note_server


class Mark:
    """A layer that writes its name into every answer."""

    def __init__(self, app: Any, name: str) -> None:
        self.app, self.name = app, name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def mark(message: Any) -> None:
            if message["type"] == "http.response.start":
                header = (b"x-layer", self.name.encode())
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        await self.app(scope, receive, mark)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/notes", 200),
        ("/api/nowhere", 404),
        ("/live", 200),
        ("/docs", 200),
        ("/static/a.txt", 200),
        ("/static/b.txt", 404),
    ],
)
async def test_layers_see_every_answer_the_first_outermost(
    path: str, status: int, tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "a.txt").write_text("a")
    server = note_server(static_dir=tmp_path)
    server.use(lambda app: Mark(app, "outer"))
    server.use(lambda app: Mark(app, "inner"))
    async with client(server, database=database_url) as http:
        answer = await http.get(path)

    assert (answer.status_code, answer.headers.get_list("x-layer")) == (status, ["inner", "outer"])


async def test_a_layer_of_starlette_fits(sqlite_url: str) -> None:
    server = note_server()
    server.use(GZipMiddleware)
    async with client(server, database=sqlite_url) as http:
        answer = await http.get("/api/openapi.json", headers={"accept-encoding": "gzip"})

    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["openapi"] == "3.1.0"


class Own(BaseException):
    """An exception that is no `Exception`."""


@pytest.mark.parametrize("error", [KeyError("s3cret"), Own("s3cret")])
async def test_a_layer_that_raises_is_a_500_and_the_server_goes_on(
    error: BaseException, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(app: Any) -> Any:
        async def layer(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/api/notes":
                raise error
            await app(scope, receive, send)

        return layer

    server = note_server()
    server.use(lambda app: Mark(app, "outer"))
    server.use(broken)
    async with client(server, database=sqlite_url) as http:
        answer = await http.get("/api/notes", headers={"x-request-id": "r-1"})
        other = await http.get("/live")

    error_of(answer, 500, "PANIC")
    assert "s3cret" not in answer.text
    assert (answer.headers["x-layer"], answer.headers["x-request-id"]) == ("outer", "r-1")
    assert other.status_code == 200
    assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


def test_what_is_no_layer_stops_the_start() -> None:
    server = note_server()
    server.use("layer")  # type: ignore[arg-type]  # that is the mistake
    server.use(lambda: None)  # type: ignore[arg-type, misc]
    server.observe(lambda one, two: None)  # type: ignore[type-var]
    with pytest.raises(DeclarationError) as refusal:
        server.seal()

    assert len(refusal.value.problems) == 3
    assert all(problem.startswith(("server.use: ", "server.observe: ")) for problem in refusal.value.problems)


async def test_a_sealed_server_takes_no_more(sqlite_url: str) -> None:
    server = note_server()
    server.seal()
    with pytest.raises(DeclarationError, match="sealed"):
        server.use(GZipMiddleware)
    with pytest.raises(DeclarationError, match="sealed"):
        server.observe(print)
