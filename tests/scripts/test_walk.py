"""`scripts/measure --walk` counts the files that work on one run, which are few enough to be read in turn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import asyncpg

ROOT = Path(__file__).parents[2]
MOST = {"SQLite": 19, "PostgreSQL": 17}  # two thirds of what it passed before the runs had an engine


def walk(postgres_url: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "measure"), "--walk", postgres_url, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_run_passes_few_files_and_the_measure_leaves_nothing(postgres_url: str) -> None:
    output = walk(postgres_url)

    counts = re.findall(r"^ *(\d+)  files on the walk of a run on (\w+)", output, flags=re.MULTILINE)
    assert [database for _, database in counts] == list(MOST)
    for count, database in counts:
        assert 10 < int(count) <= MOST[database], output
    assert "background/runs/attempt.py: Attempt.__init__" in output
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT to_regnamespace('maniflex_walk')") is None
    await connection.close()
