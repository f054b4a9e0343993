"""The benchmark runs and prints its table; the figures of a run this short mean nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg

ROOT = Path(__file__).parents[2]
QUICK = ("--seconds", "0.2", "--runs", "1", "--rows", "60", "--connections", "4", "--no-wrk")
OPERATIONS = ["read", "list", "update", "create"]


def measured(*options: str, cwd: Path) -> list[tuple[str, str]]:
    """Database and operation of every row that has figures."""
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), *QUICK, *options]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = r" (\d+) \| (\d+) \| \d+\.\d\d \| (\d+) \| (\d+) \|$"
    rows = re.findall(rf"^\| (\w+) \| (\w+) \|{figures}", done.stdout, flags=re.MULTILINE)
    assert all(int(rate) > 0 for row in rows for rate in row[4:])
    return [(row[0], row[1]) for row in rows]


async def test_both_databases_are_measured_and_nothing_is_left(postgres_url: str, tmp_path: Path) -> None:
    rows = measured("--postgres", postgres_url, cwd=tmp_path)

    assert rows == [(label, op) for label in ("SQLite", "PostgreSQL") for op in OPERATIONS]
    connection = await asyncpg.connect(postgres_url)
    schemas = await connection.fetch(
        "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"
    )
    await connection.close()
    assert [row[0] for row in schemas] == ["public"]
    assert os.listdir(tmp_path) == []
