"""Check 56 of the surface: a thousand requests, a thousand lines, and numbers that add up to a thousand."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import httpx

from tests.kit.processes import serve_process

APP = """
from maniflex import AuthInfo, Config, Context, Model, Next, Server


class Note(Model):
    text: str


server = Server(Config.from_env())
server.register(Note)


@server.pipeline.auth.middleware()
async def sign_in(ctx: Context, next: Next) -> None:
    if ctx.header("x-user") is None:
        ctx.abort(401, "UNAUTHORIZED", "sign in first")
    ctx.auth = AuthInfo(user_id=ctx.header("x-user"), tenant_id="acme")
    await next()


@server.action("POST", "/fail/{kind}")
async def fail(ctx: Context) -> None:
    raise KeyError("broken")
"""
HUGE = b"GET /api/notes HTTP/1.1\r\nHost: x\r\nX-Filler: " + b"x" * 5000
UNREADABLE = b"GET /api/notes HTTP/1.1\r\nHost x\r\n\r\n"


def ask_before_routing(port: int, request: bytes) -> str:
    """The status line of the answer to bytes that are no request, or too large a one."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request)
        return connection.makefile("rb").readline().decode()


def test_a_thousand_requests_of_all_kinds(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    settings = {"DB_WRITE_URL": database_url, "METRICS_ENABLED": "on", "LOG_JSON": "on"}
    with serve_process(tmp_path, **settings, MAX_BODY_SIZE="2KB", MAX_HEADER_SIZE="4KB") as served:
        statuses: list[int] = []
        with httpx.Client(base_url=served.url) as http:
            ada = {"x-user": "ada"}
            for number in range(122):
                made = http.post("/api/notes", json={"text": "hunter2"}, headers=ada)
                record = made.json()["data"]["id"]
                answers = [
                    made,
                    http.get(f"/api/notes/{record}?token=hunter2", headers=ada),
                    http.get("/api/notes"),  # refused by auth
                    http.get(f"/nowhere/{record}"),
                    http.put("/api/notes", headers=ada),
                    http.post("/api/notes", json={"text": "hunter2" * 1000}, headers=ada),
                    http.post(f"/api/fail/{number}", headers=ada),
                    http.get("/docs"),
                ]
                statuses += [answer.status_code for answer in answers]
        for request in [HUGE + b"\r\n\r\n", HUGE, UNREADABLE] * 8:
            statuses.append(int(ask_before_routing(served.port, request).split()[1]))
        assert len(statuses) == 1000

        page = httpx.get(f"{served.url}/metrics").text
        served.send(signal.SIGTERM)
        assert served.ended() == 0
        lines = [line for line in served.lines if line["logger"] == "maniflex.access"]

    assert sorted(line["status"] for line in lines) == sorted(statuses)
    assert set(statuses) == {201, 200, 401, 404, 405, 413, 500, 431, 400}
    assert "hunter2" not in str(lines)
    counts = {
        labels: float(count)
        for labels, count in re.findall(r"^maniflex_requests_total\{(.*)\} (.*)$", page, re.MULTILINE)
        if 'route="/ready"' not in labels  # asked by the test, to know that it is up
    }
    assert sum(counts.values()) == 1000
    assert len(counts) == 11  # as many as kinds of answers; no label has an id in it
    errors = dict(re.findall(r'^maniflex_errors_total\{code="(.*)"\} (.*)$', page, re.MULTILINE))
    assert errors["UNAUTHORIZED"] == errors["NOT_FOUND"] == errors["PANIC"] == "122.0"
    assert errors["HEADERS_TOO_LARGE"] == "16.0"


def test_requests_before_routing_leave_a_line_that_says_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serve_process(tmp_path, LOG_JSON="on", MAX_HEADER_SIZE="4KB") as served:
        for request in (HUGE + b"\r\n\r\n", HUGE, UNREADABLE):
            ask_before_routing(served.port, request)
        served.send(signal.SIGTERM)
        served.ended()
        whole, torn, unreadable = [line for line in served.lines if line["logger"] == "maniflex.access"]

    assert (whole["method"], whole["path"], whole["status"]) == ("GET", "/api/notes", 431)
    assert (torn["status"], unreadable["status"]) == (431, 400)
    assert {line["client_ip"] for line in (whole, torn, unreadable)} == {"127.0.0.1"}
