"""The overview of durable work costs the same however many runs there are (check 32)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from maniflex import Run, Server
from maniflex.background.processes.overview import MOST
from maniflex.background.runs.model import WorkflowRun

TYPES = ("mail.send", "bill.pay", "report.daily")
TYPE_OF_N = "CASE n % 3 WHEN 0 THEN 'mail.send' WHEN 1 THEN 'bill.pay' ELSE 'report.daily' END"


def make_server(url: str) -> Server:
    server = Server(url, background=False, slow_after=0, statement_timeout=timedelta(minutes=20))

    async def work(run: Run) -> None: ...

    for type in TYPES:
        server.work.handler(type)(work)
    server.outbox.enable()
    server.schedules.add("nightly", cron="0 2 * * *", run="mail.send", active=False)
    return server


async def fill(server: Server, name: str, count: int, **values: str) -> None:
    """Copies of the one run that there is, with these expressions in the place of its values."""
    is_sqlite = server.adapters[0].dialect == "sqlite"
    series = f"generate_series(1, {count}) AS g (n)"
    if is_sqlite:
        series = (
            f"(WITH RECURSIVE g (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {count})"
            " SELECT n FROM g)"
        )
    own = {"id": f"'{name}-' || n", "type": TYPE_OF_N, **values}
    columns = [meta.column for meta in server._seal().runtime.stores[WorkflowRun].meta.fields]
    chosen = ", ".join(own.get(column, f'w."{column}"') for column in columns)
    names = ", ".join(f'"{column}"' for column in columns)
    await server.raw_exec(
        f"INSERT INTO workflow_run ({names}) SELECT {chosen}"
        f" FROM (SELECT * FROM workflow_run WHERE id = 'first') AS w CROSS JOIN {series}"
    )


class CountedStatements:
    after = 0.0

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, text: str, began: float, ended: float, error: Any) -> None:
        self.count += 1


async def test_an_overview_of_many_runs_is_bounded(database_url: str, long_mode: bool) -> None:
    size = 1_000_000 if long_mode else 300
    few = MOST + 100 if long_mode else 5
    statements = CountedStatements()
    server = make_server(database_url)
    server.adapters[0].observe_statements(statements)  # type: ignore[attr-defined]  # ours has it
    async with server.lifespan():
        run = await server.work.submit("mail.send", {})
        await server.raw_exec(f"UPDATE workflow_run SET id = 'first' WHERE id = '{run.id}'")
        is_sqlite = database_url.startswith("sqlite")
        soon = "'2999-01-01T00:00:00.000000Z'" if is_sqlite else "'2999-01-01Z'::timestamptz"
        await fill(server, "done", size, status="'succeeded'")
        await fill(server, "future", size, run_at=soon)
        await fill(server, "due", few)
        await fill(server, "failed", few, status="'failed'")
        await fill(server, "retrying", few, attempt="1", run_at=soon)
        await server.raw_exec("ANALYZE")

        await server.processes.overview()
        seconds, before = [], statements.count
        for _ in range(9):
            began = time.perf_counter()
            overview = await server.processes.overview()
            seconds.append(time.perf_counter() - began)
        asked = (statements.count - before) / 9

    assert asked <= 8
    most = MOST + 1
    assert (overview.due, overview.failed, overview.retrying) == (
        (most, most, most) if long_mode else (few + 1, few, few)
    )
    if long_mode:
        print(f"{database_url.partition(':')[0]}: {min(seconds) * 1000:.1f} ms, {asked:g} statements")
        assert min(seconds) < 0.05, seconds
