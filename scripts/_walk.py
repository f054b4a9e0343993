"""The body of `scripts/measure --walk`: which files of the package work on one run, from claim to settling.

A worker that is warm drains one run whose handler does nothing, and a profile on all threads notes every
function of the package that is called. Those files a reader opens to follow a run.

    scripts/measure --walk [postgresql://…] [--list]

The package that is measured is the one on PYTHONPATH: so the same script measures another revision.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

SCHEMA = "maniflex_walk"
WARM_AFTER = 3  # runs


class Walk:
    """The functions of the package that are called while it records, by file."""

    def __init__(self, package: Path) -> None:
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.recording = False
        self._root = f"{package}/"

    def note(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if self.recording and event == "call" and code.co_filename.startswith(self._root):
            self.functions[code.co_filename.removeprefix(self._root)].add(code.co_qualname)


async def walk_of_run(database: str, **settings: Any) -> Walk:
    import maniflex

    walk = Walk(Path(maniflex.__file__).parent)
    threading.setprofile(walk.note)  # before the threads of the database begin
    sys.setprofile(walk.note)
    server = maniflex.Server(database, background=False, **settings)

    @server.work.handler("walk")
    async def handle(run: maniflex.Run) -> None:
        """Do nothing: the walk is the engine's."""

    async with server.lifespan():
        worker = server.work.worker()
        for _ in range(WARM_AFTER):
            await server.work.submit("walk")
            await worker.drain()
        await server.work.submit("walk")
        walk.recording = True
        await worker.drain()
        walk.recording = False
    sys.setprofile(None)
    threading.setprofile(None)
    return walk


async def walk_on_postgres(database: str) -> Walk:
    import asyncpg

    try:
        return await walk_of_run(database, schema=SCHEMA)
    finally:
        connection = await asyncpg.connect(database)
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await connection.close()


def show(title: str, walk: Walk, *, listed: bool) -> None:
    files = sorted(walk.functions)
    in_runs = sum(name.startswith("background/runs/") for name in files)
    in_background = sum(name.startswith("background/") for name in files)
    shares = f"{in_background} of background, {in_runs} of runs"
    print(f"{len(files):5}  files on the walk of a run on {title}: {shares}")
    if listed:
        for name in files:
            print(f"         {name}: {', '.join(sorted(walk.functions[name]))}")


def main(databases: list[str], *, listed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        show("SQLite", asyncio.run(walk_of_run(f"sqlite:///{folder}/walk.db")), listed=listed)
    for database in databases:
        show("PostgreSQL", asyncio.run(walk_on_postgres(database)), listed=listed)
