"""maniflex in the durable-jobs comparison: one file the harness runs, see its README.

Settings are `concurrency` or `concurrency:quiet`, the latter with event rows switched off.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ.get("PYTHONPATH", ""))

import harness  # type: ignore[import-not-found]  # stands beside the harness when it runs

from maniflex import Run, Server

DATABASE = "b_maniflex"
FILE = Path(harness.HOME) / "maniflex.sqlite"
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
    notes = "runs of server.work, one process, uvloop; N concurrent handlers, events on unless 'quiet'"
    drains = ("10", "100", "500", "500:quiet")

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

    async def remaining(self) -> int:
        if not hasattr(self, "app"):
            await self.open()
        rows = await self.app.raw_query(
            "SELECT count(*) AS n FROM workflow_run WHERE status IN ('pending', 'leased')"
        )
        return int(rows[0]["n"])

    async def worker(self, setting: str) -> None:
        concurrency, _, quiet = setting.partition(":")
        app = server(self.url(), events=not quiet, concurrency=int(concurrency))
        async with app.lifespan():
            await asyncio.Event().wait()


class OnPostgres(Maniflex):
    name = "maniflex-pg"
    store = "pg"

    def url(self) -> str:
        return str(harness.pg_dsn(DATABASE))

    async def setup(self) -> None:
        import pgutil  # type: ignore[import-not-found]  # needs a Postgres driver

        pgutil.fresh_db(DATABASE)
        async with server(self.url()).lifespan(role="client"):
            pass


class OnSqlite(Maniflex):
    name = "maniflex-sqlite"
    store = "sqlite"

    def url(self) -> str:
        return f"sqlite:///{FILE}"

    async def setup(self) -> None:
        for path in FILE.parent.glob(FILE.name + "*"):
            path.unlink()
        async with server(self.url()).lifespan(role="client"):
            pass


if __name__ == "__main__":
    harness.main(OnPostgres(), OnSqlite())
