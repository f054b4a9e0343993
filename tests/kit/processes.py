"""Processes of a test's own: servers to signal and kill, and programs to talk to line by line."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import httpx

from tests.kit.forks import ForkedProcess, can_fork, fork
from tests.kit.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
IMPORTS = f"{ROOT / 'src'}:{ROOT}"  # as PYTHONPATH: the package and the tests of this checkout
PROGRAMS = Path(__file__).parent / "programs"
MANIFLEX = Path(sys.executable).with_name("maniflex")


_ports = itertools.cycle(random.Random(os.urandom(8)).sample(range(12_000, 32_000), 20_000))


def free_port() -> int:
    """A port that nobody has, not one of those that the system gives to connections by itself.

    Such a one may be taken by any connection before the process that is to listen there has begun.
    """
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is always a next port")


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# -- commands and servers

Process = subprocess.Popen[bytes] | ForkedProcess


class Served:
    """One process that serves, with what it has written so far."""

    def __init__(self, process: Process, host: str, port: int, log: Path) -> None:
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


def run_command(
    *arguments: str, cwd: Path, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A `maniflex` command that ends by itself."""
    command = [str(MANIFLEX), *arguments]
    with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        given.write(stdin)
        given.seek(0)
        process = _start(command, cwd, environment, stdin=given, stdout=out, stderr=errors)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), errors.read())


def _start(
    command: Sequence[str | Path],
    cwd: Path,
    environment: Mapping[str, str],
    *,
    stdin: IO[Any],
    stdout: IO[Any],
    stderr: IO[Any],
) -> Process:
    """The command in a session of its own: forked if it is `maniflex`, unless it has to be started."""
    variables = {**os.environ, **environment}
    if command[0] in (MANIFLEX, str(MANIFLEX)) and can_fork(variables):
        words = [str(word) for word in command]
        return fork(words, cwd=cwd, environment=variables, stdin=stdin, stdout=stdout, stderr=stderr)
    return subprocess.Popen(
        command, cwd=cwd, env=variables, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )


@contextmanager
def start_process(
    command: list[str | Path], port: int, *, cwd: Path, host: str = "127.0.0.1", **environment: str
) -> Iterator[Served]:
    """The command as a process; what is left of it and its own processes when the block ends is killed."""
    log = cwd / f"log-{port}.txt"
    with log.open("wb") as out, open(os.devnull) as nothing:
        process = _start(command, cwd, environment, stdin=nothing, stdout=out, stderr=out)
    try:
        yield Served(process, host, port, log)
    finally:
        with suppress(ProcessLookupError):  # it ended, and so did all it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


@contextmanager
def serve_process(cwd: Path, *options: str, host: str = "127.0.0.1", **environment: str) -> Iterator[Served]:
    """`maniflex run` on a free port, answering."""
    port = free_port()
    command: list[str | Path] = [MANIFLEX, "run", "app:server", "--host", host, "--port", str(port), *options]
    with start_process(command, port, cwd=cwd, host=host, **environment) as served:
        served.until_up()
        yield served


# -- programs


class Program:
    """A Python program in a process of its own, which a test talks to line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def say(self, line: object = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line it prints; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def hear_rest(self) -> list[str]:
        """All lines it prints until its end."""
        assert self.process.stdout is not None
        return self.process.stdout.read().splitlines()

    def errors(self) -> str:
        """What it has written to the error output that the test asked for."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def hang_up(self) -> None:
        """Close its input and wait for it to end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def run_program(source: str | Path, *arguments: object, errors: Any = None) -> Iterator[Program]:
    """A text or a file as a program that imports what the tests do; it is killed when the block ends."""
    code = [source] if isinstance(source, Path) else ["-c", source]
    with subprocess.Popen(
        [sys.executable, *code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": IMPORTS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    ) as process:
        program = Program(process)
        try:
            yield program
        finally:
            program.kill()


_FORKING = """
import os as _os, sys as _sys
for _line in _sys.stdin:
    _child = _os.fork()
    if not _child:
        live(_line.strip())
        _os._exit(0)
    print(_child, flush=True)
    _os.waitpid(_child, 0)
    print("gone", flush=True)
"""


class Nursery:
    """One place for a process, filled again after every kill."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._pid = 0

    def start(self, line: object = "") -> None:
        """Fork a process, which calls `live` with this line."""
        self._program.say(line)
        self._pid = int(self._program.hear())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        assert self._program.hear() == "gone"
        self._pid = 0

    def until_gone(self) -> None:
        """Wait for a process that ends by itself."""
        assert self._program.hear() == "gone"
        self._pid = 0

    def close(self) -> None:
        if self._pid:
            self.kill()
        self._program.hang_up()


@contextmanager
def nursery(source: str, *arguments: object) -> Iterator[Nursery]:
    """Imports once and forks for every life, so that a life costs a start and not an interpreter.

    The source defines `live(line)`.
    """
    with run_program(source + _FORKING, *arguments) as program:
        place = Nursery(program)
        try:
            yield place
        finally:
            place.close()
