"""maniflex in the durable-jobs comparison: one file the harness runs, see its README.

Settings are `concurrency` or `concurrency:quiet`, the latter with event rows switched off.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ.get("PYTHONPATH", ""))

import harness  # type: ignore[import-not-found]  # stands beside the harness when it runs

from maniflex import Run, Server
from maniflex.cli import main

DATABASE = "b_maniflex"
FILE = Path(harness.HOME) / "maniflex.sqlite"
UNFINISHED = "SELECT count(*) FROM workflow_run WHERE status IN ('pending', 'leased')"
app: Server
BODY = {"noop": harness.noop_async, "slow": harness.slow_async}


def server(url: str, *, events: bool = True, concurrency: int = 10) -> Server:
    app = Server(url, work_events=events, work_concurrency=concurrency, log_level="WARNING")
    for kind, body in BODY.items():

        @app.work.handler(kind)
        async def handle(run: Run, body: Any = body) -> None:
            await body(run.payload["i"])

    return app


class Maniflex(harness.Contender):  # type: ignore[misc]  # the harness has no types
    crash = "10"
    notes = "`maniflex worker`, one process; N concurrent handlers, events on unless 'quiet'"
    drains = ("10", "100", "1000", "1000:quiet")

    def url(self) -> str:
        raise NotImplementedError

    async def open(self) -> None:
        self.app = server(self.url())
        await self.app.start(role="client")

    async def close(self) -> None:
        await self.app.stop()

    async def enqueue(self, kind: str, i: int) -> None:
        await self.app.work.submit(kind, {"i": i})

    async def bulk(self, kind: str, ids: list[int]) -> None:
        await self.app.work.submit_many(kind, [{"i": i} for i in ids])

    def worker(self, setting: str) -> None:
        global app
        concurrency, _, quiet = setting.partition(":")
        app = server(self.url(), events=not quiet, concurrency=int(concurrency))
        main(["worker", f"{__name__}:app"])


class OnPostgres(Maniflex):
    name = "maniflex-pg"
    store = "pg"

    def url(self) -> str:
        return str(harness.pg_dsn(DATABASE))

    async def remaining(self) -> int:
        import pgutil  # type: ignore[import-not-found]  # needs a Postgres driver

        return int(await pgutil.count(DATABASE, UNFINISHED))

    async def setup(self) -> None:
        import pgutil

        pgutil.fresh_db(DATABASE)
        async with server(self.url()).lifespan(role="client"):
            pass


class OnSqlite(Maniflex):
    name = "maniflex-sqlite"
    store = "sqlite"

    def url(self) -> str:
        return f"sqlite:///{FILE}"

    def remaining(self) -> int:
        with closing(sqlite3.connect(FILE)) as connection:
            return int(connection.execute(UNFINISHED).fetchone()[0])

    async def setup(self) -> None:
        for path in FILE.parent.glob(FILE.name + "*"):
            path.unlink()
        async with server(self.url()).lifespan(role="client"):
            pass


if __name__ == "__main__":
    harness.main(OnPostgres(), OnSqlite())
