"""A real browser: `EventSource` that comes back by itself, and a WebSocket whose subprotocol is a token."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx

from tests.kit.chromium import chromium
from tests.kit.processes import MANIFLEX, Served, free_port, start_process
from tests.kit.streams import APP
from tests.kit.waiting import until

TOKEN_APP = (
    APP
    + """
from maniflex.middleware import auth
guard = auth.jwt("a secret that is long enough for everybody")
server.pipeline.auth.register(guard, operations=["subscribe"])
"""
)


def order(served: Served, n: int) -> None:
    answer = httpx.post(f"{served.url}/api/orders", json={"n": n})
    assert answer.status_code == 201, answer.text


def test_event_source_comes_back_by_itself_and_misses_nothing(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    port = free_port()
    command: list[Any] = [MANIFLEX, "run", "app:server", "--port", str(port)]
    environment = {"DATABASE": f"sqlite:///{tmp_path}/orders.db"}
    with chromium() as browser:
        page = browser.new_page()

        def seen() -> list[int]:
            numbers: list[int] = page.evaluate("window.seen")
            return numbers

        with start_process(command, port, cwd=tmp_path, **environment) as served:
            served.until_up()
            page.goto(f"{served.url}/health")
            page.evaluate(
                """() => {
                    window.seen = []; window.resyncs = 0; window.opened = 0;
                    const source = new EventSource("/sse?subscribe=order.*");
                    source.onopen = () => { window.opened += 1 };
                    source.onmessage = (m) => window.seen.push(JSON.parse(m.data).data.n);
                    source.addEventListener("resync", () => { window.resyncs += 1 });
                }"""
            )
            until(lambda: page.evaluate("window.opened") == 1, "an open stream")
            order(served, 1)
            until(lambda: seen() == [1], "the first event")
            order(served, 2)
            until(lambda: seen() == [1, 2], "the second event")
            served.send(signal.SIGTERM)
            assert served.ended() == 0
        with start_process(command, port, cwd=tmp_path, **environment) as served:
            served.until_up()
            order(served, 3)
            until(lambda: seen() == [1, 2, 3], "what was written before the browser came back")
            order(served, 4)
            until(lambda: seen() == [1, 2, 3, 4], "what came afterwards")
            assert page.evaluate("window.resyncs") == 0
            assert page.evaluate("window.opened") >= 2


def test_a_browser_opens_a_websocket_with_a_token(tmp_path: Path) -> None:
    import jwt

    token = jwt.encode({"sub": "ada", "exp": 4_000_000_000}, "a secret that is long enough for everybody")
    (tmp_path / "app.py").write_text(TOKEN_APP)
    port = free_port()
    command: list[Any] = [MANIFLEX, "run", "app:server", "--port", str(port)]
    with (
        start_process(command, port, cwd=tmp_path, DATABASE=f"sqlite:///{tmp_path}/orders.db") as served,
        chromium() as browser,
    ):
        served.until_up()
        page = browser.new_page()
        page.goto(f"{served.url}/health")
        script = """(protocols) => new Promise((resolve) => {
            const ws = new WebSocket(`ws://${location.host}/ws`, protocols);
            ws.onopen = () => ws.send(JSON.stringify({op: "subscribe", patterns: ["order.*"]}));
            ws.onmessage = (m) => resolve([ws.protocol, JSON.parse(m.data).op]);
            ws.onclose = (e) => resolve(["closed", e.code]);
        })"""
        assert page.evaluate(script, ["maniflex.v1", f"access_token.{token}"]) == ["maniflex.v1", "ack"]
        assert page.evaluate(script, [f"access_token.{token}"]) == [f"access_token.{token}", "ack"]
        assert page.evaluate(script, ["access_token.garbage"]) == ["closed", 1006]
        assert page.evaluate(script, []) == ["closed", 1006]
        other = browser.new_page()
        other.goto("about:blank")
        foreign = script.replace("${location.host}", f"127.0.0.1:{port}")
        assert other.evaluate(foreign, [f"access_token.{token}"]) == ["closed", 1006]
