"""Which database a test runs on, and what asks for both."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from _test import checks
from tests.kit.databases import ON_SQLITE_ALONE
from tests.kit.processes import ROOT

ONE = "tests/http/test_binding.py"  # of the list
OTHER = "tests/http/test_deletes.py"


def count_by_database(*options: str) -> Counter[tuple[str, str]]:
    """How many tests of the two files run on each database."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, *options, ONE, OTHER], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    ids = [line for line in run.stdout.splitlines() if "::" in line]
    return Counter((id.split("::")[0], name) for id in ids for name in ("sqlite", "postgres") if name in id)


def test_every_file_of_the_list_is_there() -> None:
    assert [file for file in ON_SQLITE_ALONE if not file.is_file()] == []


def test_a_file_of_the_list_runs_on_sqlite_alone_unless_both_are_asked_for() -> None:
    usual, both = count_by_database(), count_by_database("--both")

    assert both[ONE, "sqlite"] == both[ONE, "postgres"] > 0
    assert both[OTHER, "sqlite"] == both[OTHER, "postgres"] > 0
    assert usual == {place: count for place, count in both.items() if place != (ONE, "postgres")}


@pytest.mark.parametrize("arguments", [[], ["tests/http"]])
def test_both_is_handed_to_every_run_of_tests(arguments: list[str]) -> None:
    def asked(*, on_both: bool) -> set[bool]:
        stages = checks(arguments, {}, on_both=on_both)
        return {"--both" in stage.command for stage in stages if "pytest" in stage.command}

    assert asked(on_both=True) == {True}
    assert asked(on_both=False) == {False}
