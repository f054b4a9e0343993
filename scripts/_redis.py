"""Find a Redis server for the tests of jobs in Redis, or start one for them.

In this order: the URL in MANIFLEX_TEST_REDIS; a server on 127.0.0.1:6379; the `redis-server` of this
machine, run for the tests alone; as root on Debian, the packaged one. `redis()` gives the URL and the
words that say where it came from, or None: then the tests that need it are skipped, by name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from _component import find_program, free_port, install_package, running

VARIABLE = "MANIFLEX_TEST_REDIS"
NAMES = ("redis-server", "valkey-server")
HELP = f"no Redis was found: set {VARIABLE}=redis://…, or install redis-server"


@contextmanager
def redis(*, install: bool = True) -> Iterator[tuple[str | None, str]]:
    """A URL the tests may keep keys under, and where it came from."""
    if named := os.environ.get(VARIABLE):
        yield named, f"the server named by {VARIABLE}"
    elif _answers(6379):
        yield "redis://127.0.0.1:6379/0", "the server on 127.0.0.1:6379"
    elif (program := find_program(*NAMES) or (_install() if install else None)) is not None:
        with _start(program) as url:
            yield url, f"a temporary {program}"
    else:
        yield None, f"none; its tests are skipped ({HELP})"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as line:
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _install() -> str | None:
    return find_program(*NAMES) if install_package("redis", "redis-server") else None


@contextmanager
def _start(program: str) -> Iterator[str]:
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with running([program, *options], lambda: _answers(port)):
        yield f"redis://127.0.0.1:{port}/0"
