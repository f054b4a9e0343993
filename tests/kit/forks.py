"""Processes of `maniflex` that are forked from one that has imported it: a start costs a tenth of a second.

They differ from started ones in nothing but the imports. `--long`, and the tests that have the machine to
themselves, start all of them anew.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

START_ANEW = "MANIFLEX_TEST_START_ANEW"  # 1: start every process of its own, import and all
_INHERITED = dict(os.environ)
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_")
_FORK_SERVER = Path(__file__).parent / "programs" / "fork_server.py"
_starting = threading.Lock()


class ForkedProcess:
    """What a test needs of `subprocess.Popen`, for a process that is no child of ours."""

    def __init__(self, command: list[str], pipe: int) -> None:
        self.args = command
        self.returncode: int | None = None
        self._pipe = pipe
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, pipe)
        self.pid = self._number()

    def poll(self) -> int | None:
        """The exit code if there is one."""
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one."""
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _exit_code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._pipe], [], [], timeout)[0]:
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._number()
        return self.returncode

    def _number(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            if not (byte := os.read(self._pipe, 1)):
                raise AssertionError(f"the one that forks has ended: {self.args}")
            line += byte
        return int(line)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    command: list[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: IO[Any],
    stdout: IO[Any],
    stderr: IO[Any],
) -> ForkedProcess:
    """A `maniflex` process with these arguments, in a session of its own."""
    pipe, told = os.pipe()
    message = {"arguments": command, "cwd": str(cwd), "environment": dict(environment)}
    files = [stdin.fileno(), stdout.fileno(), stderr.fileno(), told]
    with _starting:
        socket.send_fds(_server(), [json.dumps(message).encode()], files)
    os.close(told)
    return ForkedProcess(command, pipe)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a fork will do: not if the interpreter would read something else in this environment."""
    if os.environ.get(START_ANEW) == "1":
        return False
    read = {name for name in (*environment, *_INHERITED) if name.startswith(_READ_AT_START)} - {"PYTHONPATH"}
    return all(_INHERITED.get(name) == environment.get(name) for name in read)


@cache
def _server() -> socket.socket:
    """The socket of the one that forks; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command: list[str | Path] = [sys.executable, "-P", _FORK_SERVER]
        process = subprocess.Popen(command, stdin=theirs.fileno(), env=_INHERITED, start_new_session=True)
    atexit.register(_end, ours, process)
    return ours


def _end(requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
    requests.close()
    process.wait(30)
