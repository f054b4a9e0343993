"""A server on loopback that publishes keys, and can be told to change them, to fail, or to lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

_WRITERS: dict[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}


def published(key: Any, key_id: str, kind: str = "RSA", **more: Any) -> dict[str, Any]:
    """The public half of a key as it stands in a key set."""
    return {**json.loads(_WRITERS[kind].to_jwk(key.public_key())), "kid": key_id, "use": "sig", **more}


class KeyServer:
    """What the address answers, and how often it was asked."""

    def __init__(self, keys: list[dict[str, Any]]) -> None:
        self.keys = keys
        self.status = 200
        self.body: bytes | None = None
        self.headers: dict[str, str] = {}
        self.fetches = 0
        self.gate = Event()  # a fetch waits for it
        self.gate.set()
        self.url = ""

    def answer(self) -> bytes:
        self.fetches += 1
        self.gate.wait(10)
        return json.dumps({"keys": self.keys}).encode() if self.body is None else self.body


@contextmanager
def key_server(*keys: dict[str, Any]) -> Iterator[KeyServer]:
    state = KeyServer(list(keys))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = state.answer()
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    thread = Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{listener.server_port}/keys"
    try:
        yield state
    finally:
        state.gate.set()
        listener.shutdown()
        listener.server_close()
        thread.join()
