"""`scripts/measure --walk` counts the files that work on a request and on a run: few enough to be read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import asyncpg

ROOT = Path(__file__).parents[2]
MOST = {
    "SQLite": {"list": 18, "create": 24, "create with key, history and sign-in": 42, "run": 22},
    "PostgreSQL": {"list": 18, "create": 24, "create with key, history and sign-in": 42, "run": 19},
}
ENTERED = (
    "pipeline/steps/db.py: Database._budget, Database.list",
    "middleware/auth/bearer.py: Bearer",
    "middleware/idempotency/request.py: ",
    "sql/history.py: ",
    "background/runs/attempt.py: Attempt.__init__",
)


def measure(postgres_url: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "measure"), "--walk", postgres_url, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_requests_and_runs_pass_few_files_and_the_measure_leaves_nothing(postgres_url: str) -> None:
    output = measure(postgres_url)

    lines = re.findall(r"^ *(\d+)  files on the walk of a (.+) on (\w+)$", output, flags=re.MULTILINE)
    counts: dict[str, dict[str, int]] = {database: {} for database in MOST}
    for number, name, database in lines:
        counts[database][name] = int(number)
    for database, most in MOST.items():
        assert counts[database].keys() == most.keys()
        too_long = {name: n for name, n in counts[database].items() if not 10 < n <= most[name]}
        assert not too_long, output
    for text in ENTERED:
        assert output.count(text) == len(MOST), f"{text}\n{output}"
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT to_regnamespace('maniflex_walk')") is None
    await connection.close()
