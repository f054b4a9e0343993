"""A few tests that fail in a whole run get a second try, alone; and those that needed it are named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _test
from _stages import Stage, run_stages

ROOT = Path(__file__).parents[2]
PASSES_LATER = """
from pathlib import Path

def test_late(request):
    mark = Path(__file__).with_name(request.node.name + ".seen")
    seen, _ = mark.exists(), mark.touch()
    assert seen
"""
NEVER_PASSES = "def test_never(): assert False\n"
PASSES = "def test_steady(): pass\n"
SIX_FAIL = "import pytest\n\n@pytest.mark.parametrize('n', range(6))\ndef test_six(n): assert False\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def stage(*arguments: str, name: str = "pytest", has_second_try: bool = True) -> Stage:
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    # Plug-ins that are not used take longer to load than these tests take.
    environment = {**own, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return Stage(name, ["pytest", "-q", *arguments], environment, has_second_try)


def closing_lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    lines = capfd.readouterr().out.splitlines()
    return [line for line in lines if line.startswith(("unsteady", "result", "again"))]


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["one process", "two workers"])
def test_a_test_that_passes_on_the_second_try_is_named_and_does_not_fail_the_run(
    suite: Path, workers: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (suite / "test_a.py").write_text(PASSES_LATER)
    (suite / "test_b.py").write_text(PASSES)

    code = run_stages([stage(*workers, "test_a.py", "test_b.py")], suite)

    again, *lines = closing_lines(capfd)
    assert again.endswith(" test_a.py::test_late")
    assert lines == [
        "unsteady: test_a.py::test_late, passed on the second try",
        "result    all passed, 1 on the second try",
    ]
    assert code == 0


def test_a_test_that_fails_twice_fails_the_run(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (suite / "test_a.py").write_text(PASSES_LATER)
    (suite / "test_b.py").write_text(NEVER_PASSES)

    code = run_stages([stage("test_a.py", "test_b.py")], suite)

    assert closing_lines(capfd)[1:] == [
        "unsteady: test_a.py::test_late, passed on the second try",
        "result    failed: pytest",
    ]
    assert code == 1


def test_more_than_five_failures_of_all_stages_get_no_second_try(
    suite: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (suite / "test_six.py").write_text(SIX_FAIL)
    (suite / "test_a.py").write_text(PASSES_LATER)

    codes = [
        run_stages([stage("test_six.py")], suite),
        run_stages([stage("test_six.py", "-k", "not 5"), stage("test_a.py", name="alone")], suite),
    ]

    assert closing_lines(capfd) == ["result    failed: pytest", "result    failed: pytest, alone"]
    assert codes == [1, 1]


def test_the_second_try_can_be_switched_off(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (suite / "test_a.py").write_text(PASSES_LATER)

    code = run_stages([stage("test_a.py", has_second_try=False)], suite)

    assert closing_lines(capfd) == ["result    failed: pytest"]
    assert code == 1


def test_only_failed_tests_are_tried_again(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not a style that is wrong, nor a file that cannot be read, nor a run that could not begin."""
    (suite / "test_a.py").write_text(PASSES_LATER)
    (suite / "test_b.py").write_text("import no_such_module\n")
    style = Stage("ruff", ["ruff", "check", "no_such_directory"], dict(os.environ))

    wrong_style = run_stages([style, stage("test_a.py")], suite)
    no_file = run_stages([stage("no_such_file.py")], suite)
    unreadable = run_stages([stage("test_b.py")], suite)

    results = [line for line in closing_lines(capfd) if line.startswith("result")]
    assert results == ["result    failed: ruff", "result    failed: pytest", "result    failed: pytest"]
    assert (wrong_style, no_file, unreadable) == (1, 1, 1)


def test_a_whole_run_has_second_tries_for_tests_alone() -> None:
    def tried_again(*for_pytest: str, **switch: bool) -> list[str]:
        stages = _test.checks([*for_pytest], {}, **switch)
        return [stage.name for stage in stages if stage.has_second_try]

    assert tried_again() == ["pytest", "pairs", "alone"]
    assert tried_again(has_second_try=False) == []
    assert tried_again("tests/http") == []


def test_a_whole_run_has_every_test_once() -> None:
    together, in_pairs, alone = ([*stage.command] for stage in _test.checks([], {})[-3:])
    places = [one for one in (*together, *in_pairs, *alone) if one.startswith("tests/")]
    files = {one for one in places if one.count("/") == 2}  # of directories that are alone otherwise

    directories = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir()}
    top_files = {f"tests/{path.name}" for path in (ROOT / "tests").glob("test_*.py")}
    assert set(places) - files == directories | top_files
    assert len(places) == len(set(places))
    assert {f"--ignore={name}" for name in files} <= set(alone)
    assert all((ROOT / name).is_file() for name in files)
