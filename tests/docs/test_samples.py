"""Every sample runs, and every page shows the sample it names, word for word."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from maniflex.testing import client

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
SAMPLES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py"))
SERVES_FOREVER = {"start/app.py"}
SHOWN = [
    (page.relative_to(DOCS).as_posix(), sample, code)
    for page in sorted(DOCS.rglob("*.md"))
    for sample, code in re.findall(
        r"<!-- sample: (\S+) -->\n```python\n(.*?)```", page.read_text(), flags=re.DOTALL
    )
]


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name not in SERVES_FOREVER])
def test_the_sample_runs_to_its_end(sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    runpy.run_path(str(EXAMPLES / sample), run_name="__main__")


def test_the_first_sample_declares_a_valid_server() -> None:
    command = [sys.executable, "-c", "from maniflex.cli import main; main()", "check", "app:server"]

    checked = subprocess.run(command, cwd=EXAMPLES / "start", capture_output=True, text=True)

    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(("page", "sample", "code"), SHOWN, ids=[f"{page}-{name}" for page, name, _ in SHOWN])
def test_the_page_shows_the_sample_as_it_is(page: str, sample: str, code: str) -> None:
    assert code == (EXAMPLES / sample).read_text(), f"run: python scripts/show_samples.py ({page})"


def test_every_sample_is_shown_in_a_page() -> None:
    assert {sample for _, sample, _ in SHOWN} == set(SAMPLES)


async def test_the_first_example_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "readme_app.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ada = {"email": "ada@example.com", "password": "analytical", "name": "Ada"}

    async with client(importlib.import_module("readme_app").server) as http:
        created = await http.post("/api/users", json=ada)
        found = await http.get("/api/users?filter=name:eq:Ada&sort=name:desc&limit=10")

    assert created.status_code == 201
    assert [user["email"] for user in found.json()["data"]] == ["ada@example.com"]
