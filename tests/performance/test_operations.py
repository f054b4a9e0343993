"""The operations panel beside a million finished and a million future runs: few statements, little time."""

from __future__ import annotations

import re
import time

import pytest

from maniflex import Server
from maniflex.sql.statement import Dialect
from tests.kit.panel import Browser, text_of, visiting
from tests.kit.statements import statements_of
from tests.kit.workshop import OPERATIONS, Workshop

MANY = 1_000_000
_PART = 50_000  # of them in one statement
_COLUMNS = "id, type, status, priority, payload, attempt, max_attempts, run_at, created_at, updated_at"
_ID = "'{prefix}0000000-0000-7000-8000-' || "
_REST = "'load.' || (i % 20), '{status}', 0, '[]', {tried}, 3, '{run_at}'"
_FILL = {
    Dialect.SQLITE: f"""
        WITH RECURSIVE n(i) AS (SELECT {{low}} UNION ALL SELECT i + 1 FROM n WHERE i < {{high}})
        INSERT INTO workflow_run ({_COLUMNS})
        SELECT {_ID} printf('%012x', i), {_REST}, '{{created}}', '{{created}}' FROM n""",
    Dialect.POSTGRES: f"""
        INSERT INTO workflow_run ({_COLUMNS})
        SELECT {_ID} lpad(to_hex(i), 12, '0'), {_REST}, '{{created}}', '{{created}}'
          FROM generate_series({{low}}, {{high}}) i""",
}
_LONG_AGO, _FAR = "2026-01-01T00:00:00.000000Z", "2126-01-01T00:00:00.000000Z"


async def fill(server: Server) -> None:
    dialect = server.work.engine.store.adapter.dialect
    for values in (
        {"prefix": "0", "status": "succeeded", "tried": "1", "run_at": _LONG_AGO},
        {"prefix": "1", "status": "pending", "tried": "0", "run_at": _FAR},
    ):
        for low in range(0, MANY, _PART):
            text = _FILL[dialect].format(**values, created=_LONG_AGO, low=low, high=low + _PART - 1)
            await server.raw_exec(text)
    await server.raw_exec("ANALYZE workflow_run")


async def measure(browser: Browser, path: str) -> float:
    """The quickest of five answers, in milliseconds."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        response = await browser.http.get(f"/admin{OPERATIONS}/{path}", headers={"X-Fragment": "1"})
        times.append((time.perf_counter() - began) * 1000)
        assert response.status_code == 200
    return min(times)


@pytest.mark.long
async def test_pages_do_not_feel_two_million_runs(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        await fill(shop.server)
        for n in range(3):
            await shop.fail(n)
        await shop.server.work.submit("report.daily.v1", {})
        with statements_of(shop.server) as statements:
            numbers = text_of(await browser.get(f"{OPERATIONS}/numbers"))
        assert len(statements) <= 8
        assert re.search(r"Due 1 Running 0 Retrying 0 Failed, 24 h 3", numbers)
        states = ("failed", "due", "retrying", "leased", "future")
        queries = [*(f"f_status={state}" for state in states), "f_type=load.7", "f_key=none"]
        paths = ["numbers", "plots", "runs", *(f"runs?{query}" for query in queries)]
        took = {path: round(await measure(browser, path), 1) for path in paths}
        print("\n", database_url.partition(":")[0], took)
        assert took["numbers"] < 50
        assert {path: one for path, one in took.items() if one >= 300} == {}
