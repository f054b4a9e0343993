"""A crowd of worker processes and the ledger of what they did."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from maniflex import Run, Server
from tests.kit.processes import PROGRAMS, Program, run_program
from tests.kit.waiting import PATIENCE, until


class Entry(NamedTuple):
    """Something a handler did."""

    kind: str
    run_id: str
    attempt: int
    pid: int


class Crowd:
    """Worker processes, started and ended one by one."""

    def __init__(self, program: Program, ledger: Path) -> None:
        self._program = program
        self._ledger = ledger
        self.pids: list[int] = []
        self.killed: set[int] = set()

    def start(self, **options: Any) -> int:
        self._program.say(json.dumps(options))
        pid = int(self._program.hear())
        self.pids.append(pid)
        return pid

    def send(self, pid: int, number: signal.Signals) -> None:
        os.kill(pid, number)
        if number is signal.SIGKILL:
            self.killed.add(pid)
            self.pids.remove(pid)

    def is_alive(self, pid: int) -> bool:
        try:
            return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # gone before, or between opening and reading
            return False

    def until_gone(self, pid: int) -> None:
        until(lambda: not self.is_alive(pid), f"the end of process {pid}", PATIENCE * 2)

    def entries(self, *kinds: str) -> list[Entry]:
        if not self._ledger.exists():
            return []
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        found = [Entry(kind, run, int(attempt), int(pid)) for kind, run, attempt, pid in lines]
        return [entry for entry in found if not kinds or entry.kind in kinds]

    def starts(self) -> dict[str, list[Entry]]:
        """By run, in the order they happened."""
        starts = defaultdict(list)
        for entry in self.entries("start"):
            starts[entry.run_id].append(entry)
        return starts

    def end(self) -> None:
        for pid in list(self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._program.hang_up()


@contextmanager
def crowd(url: str, directory: Path) -> Iterator[Crowd]:
    """Nobody yet; everybody is gone afterwards."""
    ledger = directory / "ledger.txt"
    with (
        (directory / "workers.log").open("w") as log,
        run_program(PROGRAMS / "workers.py", url, ledger, errors=log) as program,
    ):
        workers = Crowd(program, ledger)
        try:
            yield workers
        finally:
            workers.end()


def a_submitter(url: str) -> Server:
    """The side that submits; it handles nothing itself."""
    server = Server(url, pool_size=4, log_level="ERROR")

    async def elsewhere(run: Run) -> None:
        raise AssertionError("the submitter works on nothing")

    for name in ("tick", "pause", "block", "saga", "steps"):
        server.work.handler(f"default.{name}", max_attempts=50)(elsewhere)
    return server


async def count(server: Server, where: str) -> int:
    [row] = await server.raw_query(f"SELECT count(*) AS n FROM workflow_run WHERE {where}")
    return int(row["n"])
