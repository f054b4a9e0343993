"""Find a Redis server for the tests of jobs in Redis, or start one for them.

In this order: the URL in MANIFLEX_TEST_REDIS; a server on 127.0.0.1:6379; the `redis-server` of this
machine, run for the tests alone; as root on Debian, the packaged one. `redis()` gives the URL and the
words that say where it came from, or None: then the tests that need it are skipped, by name.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    elif (binary := _binary() or (_installed() if install else None)) is not None:
        with _temporary(binary) as url:
            yield url, f"a temporary {binary}"
    else:
        yield None, f"none; its tests are skipped ({HELP})"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as line:
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _binary() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _installed() -> str | None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    print("redis     installing the Debian package", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "redis-server"]):
        if subprocess.run(["apt-get", "-qq", *command], env=environment).returncode != 0:
            return None
    return _binary()


@contextmanager
def _temporary(binary: str) -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="maniflex-redis-"))
    port = _free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(
        [binary, *options, "--dir", str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(port, server)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(timeout=20)
        shutil.rmtree(directory, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while not _answers(port):
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("the temporary Redis did not come up")
        time.sleep(0.05)
