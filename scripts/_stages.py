"""Run the stages of `scripts/test` one after the other, and try a few failed tests a second time.

A test that fails once in a whole run and passes alone says more about the machine than about the code. So
when no more than `MOST_FAILURES` tests of all stages failed, exactly these run once more, one after the
other, with nothing beside them. If all pass, the stage counts as passed, and the last lines name each of
them: an unsteady test is to be mended, not to be lived with. Stages without tests, as those of ruff and mypy,
have one try.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

MOST_FAILURES = 5
_TESTS_FAILED = 1  # the exit code of pytest; all others are about the run, not about tests


@dataclass(frozen=True, slots=True)
class Stage:
    """A module to run with its arguments; `has_second_try` only where that module is pytest."""

    name: str
    command: Sequence[str]
    environment: dict[str, str] = field(repr=False)
    has_second_try: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    stage: Stage
    code: int
    failures: tuple[str, ...] = ()  # ids of tests

    @property
    def may_run_again(self) -> bool:
        return self.code == _TESTS_FAILED and bool(self.failures)


def run_stages(stages: Sequence[Stage], root: Path) -> int:
    """Run them all, so that one run shows everything there is to mend; 0 if there is nothing."""
    outcomes = [_run(stage, root) for stage in stages]
    unsteady: list[str] = []
    if sum(len(outcome.failures) for outcome in outcomes) <= MOST_FAILURES:
        for index, outcome in enumerate(outcomes):
            if outcome.may_run_again:
                outcomes[index] = _run_again(outcome, root)
                unsteady += [test for test in outcome.failures if test not in outcomes[index].failures]
    for test in unsteady:
        print(f"unsteady: {test}, passed on the second try", flush=True)
    failed = [outcome.stage.name for outcome in outcomes if outcome.code != 0]
    print(f"result    {'failed: ' + ', '.join(failed) if failed else _praise(unsteady)}", flush=True)
    return 1 if failed else 0


def _praise(unsteady: list[str]) -> str:
    return f"all passed, {len(unsteady)} on the second try" if unsteady else "all passed"


def _run(stage: Stage, root: Path) -> _Outcome:
    if not stage.has_second_try:
        return _Outcome(stage, _call(stage.name, stage, stage.command, root))
    with TemporaryDirectory(prefix="maniflex-tests-") as cache:
        code = _call(stage.name, stage, [*stage.command, "-o", f"cache_dir={cache}"], root)
        return _Outcome(stage, code, _read_failures(Path(cache)))


def _run_again(outcome: _Outcome, root: Path) -> _Outcome:
    stage = outcome.stage
    with TemporaryDirectory(prefix="maniflex-tests-") as cache:
        command = ["pytest", "-o", f"cache_dir={cache}", *outcome.failures]
        code = _call("again", stage, command, root)
        # Any other code: it could not run them, so they are failures still.
        has_run = code in (0, _TESTS_FAILED)
        return _Outcome(stage, code, _read_failures(Path(cache)) if has_run else outcome.failures)


def _read_failures(cache: Path) -> tuple[str, ...]:
    """The ids of the tests that failed, from what pytest keeps for --last-failed."""
    file = cache / "v" / "cache" / "lastfailed"
    return tuple(json.loads(file.read_text())) if file.exists() else ()


def _call(label: str, stage: Stage, command: Sequence[str], root: Path) -> int:
    print(f"{label:<9} {' '.join(command)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=root, env=stage.environment)
    try:
        return process.wait()
    except BaseException as stop:
        _wind_down(process, told=isinstance(stop, KeyboardInterrupt))
        raise


def _wind_down(process: subprocess.Popen[bytes], *, told: bool) -> None:
    """Let the tests drop their databases; a terminal's Ctrl-C has told them already."""
    if not told:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
