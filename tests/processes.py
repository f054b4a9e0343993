"""Servers in processes of their own, for tests that signal, kill or crowd them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

MANIFLEX = Path(sys.executable).with_name("maniflex")
PATIENCE = 30.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def until(condition: Any, what: str, patience: float = PATIENCE) -> Any:
    """Ask again until the answer is true; a test that waits too long says for what."""
    deadline = time.monotonic() + patience
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience} s in vain: {what}")
        time.sleep(0.01)
    return answer


class Served:
    """One process that serves, with what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://{host}:{port}"
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log of a process that writes JSON."""
        return [json.loads(line) for line in self.output.splitlines()]

    def until_up(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, self.output
            try:
                return http.get(f"{self.url}/ready").status_code == 200
            except httpx.TransportError:
                return False

        with httpx.Client() as http:
            until(answers, f"a server on port {self.port}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit code, once there is one."""
        return self.process.wait(PATIENCE)


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A `maniflex` command that ends by itself."""
    return subprocess.run(
        [MANIFLEX, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def started(
    command: list[str | Path], port: int, *, cwd: Path, host: str = "127.0.0.1", **environment: str
) -> Iterator[Served]:
    """The command as a process; what is left of it and its own processes when the block ends is killed."""
    log = cwd / f"log-{port}.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield Served(process, host, port, log)
    finally:
        with suppress(ProcessLookupError):  # it ended, and so did all it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


@contextmanager
def serving(cwd: Path, *options: str, host: str = "127.0.0.1", **environment: str) -> Iterator[Served]:
    """`maniflex run` on a free port, answering."""
    port = free_port()
    command: list[str | Path] = [MANIFLEX, "run", "app:server", "--host", host, "--port", str(port), *options]
    with started(command, port, cwd=cwd, host=host, **environment) as served:
        served.until_up()
        yield served
