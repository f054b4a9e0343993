"""What `/metrics` says of requests, errors, connections and statements, and to whom."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from maniflex import Context, Server
from maniflex.pipeline.observation import MOST_CODES
from maniflex.testing import client
from tests.kit.notes import Note
from tests.kit.processes import free_port, run_command, serve_process
from tests.kit.waiting import eventually

TOKEN = "a token of some length"


def numbers(page: str, name: str) -> dict[str, float]:
    """Labels → value of one number."""
    found = re.findall(rf"^maniflex_{name}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


async def test_requests_in_flight_are_those_being_answered(sqlite_url: str) -> None:
    server, go_on = Server(metrics_enabled=True), asyncio.Event()
    begun = 0

    @server.action("GET", "/hang")
    async def hang(ctx: Context) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()

    async with client(server, database=sqlite_url) as http:
        requests = [asyncio.create_task(http.get("/api/hang")) for _ in range(3)]
        await eventually(lambda: begun == 3)
        page = (await http.get("/metrics")).text
        go_on.set()
        await asyncio.gather(*requests)
        later = (await http.get("/metrics")).text

    assert numbers(page, "requests_in_flight") == {"": 4.0}  # and the one that asks
    assert numbers(later, "requests_in_flight") == {"": 1.0}


async def test_statements_and_connections_are_counted_by_database(database_url: str) -> None:
    server = Server(metrics_enabled=True)
    server.register(Note)
    async with client(server, database=database_url) as http:
        before = numbers((await http.get("/metrics")).text, "db_statement_seconds_count")
        for _ in range(5):
            await http.post("/api/notes", json={"text": "x"})
        await http.get("/api/notes")
        page = (await http.get("/metrics")).text

    [(label, count)] = numbers(page, "db_statement_seconds_count").items()
    assert count - before[label] >= 6
    user = urlsplit(database_url).username
    assert user is None or f"{user}@" not in label
    states = {f'{label},state="{state}"' for state in ("busy", "idle")}
    connections = numbers(page, "db_pool_connections")
    assert connections.keys() == states
    assert sum(connections.values()) >= 1


async def test_codes_that_an_application_makes_of_what_clients_send_stay_bounded(sqlite_url: str) -> None:
    server = Server(metrics_enabled=True)

    @server.action("GET", "/refuse/{code}")
    async def refuse(ctx: Context) -> None:
        ctx.abort(400, ctx.url_param("code"), "no")

    async with client(server, database=sqlite_url) as http:
        for number in range(MOST_CODES + 50):
            await http.get(f"/api/refuse/CODE_{number}")
        errors = numbers((await http.get("/metrics")).text, "errors_total")

    assert len(errors) == MOST_CODES + 1
    assert errors['code="other"'] == 50


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}", 200),
        ("Bearer é", 401),
    ],
)
async def test_a_token_guards_the_page(sqlite_url: str, header: str | None, status: int) -> None:
    server = Server(metrics_enabled=True, metrics_token=TOKEN)
    async with client(server, database=sqlite_url) as http:
        headers = {} if header is None else {"authorization": header.encode()}
        answer = await http.get("/metrics", headers=headers)  # type: ignore[arg-type]  # bytes are taken too

    assert answer.status_code == status
    assert (answer.headers.get("www-authenticate") == "Bearer") is (status == 401)


def an_app(path: Path, **settings: Any) -> None:
    keywords = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    (path / "app.py").write_text(f"from maniflex import Server\n\nserver = Server({keywords})\n")


def test_the_page_can_have_a_port_of_its_own(tmp_path: Path) -> None:
    own = free_port()
    an_app(tmp_path, metrics_enabled=True, metrics_port=own)
    with serve_process(tmp_path) as served:
        assert httpx.get(f"{served.url}/metrics").status_code == 404
        page = httpx.get(f"http://127.0.0.1:{own}/metrics")
        elsewhere = httpx.get(f"http://127.0.0.1:{own}/api/openapi.json")

    assert 'route="/ready"' in page.text
    assert elsewhere.status_code == 404
    assert f"answers metrics on http://127.0.0.1:{own}" in served.output


def test_a_port_of_its_own_is_for_one_process(tmp_path: Path) -> None:
    an_app(tmp_path, metrics_enabled=True, metrics_port=9)
    refused = run_command("run", "app:server", "--workers", "2", cwd=tmp_path)

    assert refused.returncode == 2
    assert "metrics_port is one port for one process" in refused.stderr
