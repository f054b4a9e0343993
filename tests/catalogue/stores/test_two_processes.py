"""T3: processes that share a store race for the same tokens and keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[3]
TIMES = 60


def race(form: str, place: str, processes: int = 2) -> list[dict[str, Any]]:
    """What each process got, all begun at once."""
    prefix = f"test_{uuid4().hex}"
    command = [sys.executable, "-m", "tests.catalogue.stores.racer", form, place, prefix, str(TIMES)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    racers = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        outputs = []
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            out, _ = racer.communicate(timeout=60)
            outputs.append(json.loads(out))
        return outputs
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()


def check(outcomes: list[dict[str, Any]]) -> None:
    assert sum(one["granted"] for one in outcomes) == 50
    claimed = sorted(key for one in outcomes for key in one["claimed"])
    assert claimed == list(range(TIMES))
    assert {state for one in outcomes for state in one["states"]} <= {"claimed", "running"}


def test_in_sql_no_token_and_no_key_is_given_twice(database_url: str) -> None:
    check(race("sql", database_url))


@pytest.mark.parametrize("processes", [3])
def test_in_redis_no_token_and_no_key_is_given_twice(redis_url: str, processes: int) -> None:
    check(race("redis", redis_url, processes))
