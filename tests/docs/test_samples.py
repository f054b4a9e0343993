"""Every sample runs, and every page shows the sample it names, word for word."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import runpy
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest

from maniflex import Server
from maniflex.testing import client

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
SAMPLES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py"))
KINDS = ("py", "cfg", "ini", "sh", "yaml")  # the tests of scaling run those that are no Python
SERVES_FOREVER = {"start/app.py"}
SHOWN = [
    (page.relative_to(DOCS).as_posix(), sample, code)
    for page in sorted(DOCS.rglob("*.md"))
    for sample, code in re.findall(
        r"<!-- sample: (\S+) -->\n```\w+\n(.*?)```", page.read_text(), flags=re.DOTALL
    )
]


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name not in SERVES_FOREVER])
def test_the_sample_runs_to_its_end(sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    runpy.run_path(str(EXAMPLES / sample), run_name="__main__")


@pytest.mark.parametrize("sample", [name for name in SAMPLES if name not in SERVES_FOREVER])
def test_the_sample_runs_on_postgres_too(sample: str, postgres_url: str) -> None:
    code = imported(EXAMPLES / sample)
    servers = [value for value in vars(code).values() if isinstance(value, Server)]
    runs = [value for name, value in vars(code).items() if name == "main" or name.startswith("test_")]
    code.client = partial(client, database=None)  # type: ignore[attr-defined]  # the one the server has now

    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(server.on_database(postgres_url))
        for run in runs:
            asyncio.run(run())

    assert runs
    assert tables(postgres_url) != []


def imported(path: Path) -> ModuleType:
    name = f"sample_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def tables(url: str) -> list[str]:
    async def ask() -> list[str]:
        connection = await asyncpg.connect(url)
        try:
            found = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            return [row[0] for row in found]
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_the_first_sample_declares_a_valid_server() -> None:
    command = [sys.executable, "-c", "from maniflex.cli import main; main()", "check", "app:server"]

    checked = subprocess.run(command, cwd=EXAMPLES / "start", capture_output=True, text=True)

    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(("page", "sample", "code"), SHOWN, ids=[f"{page}-{name}" for page, name, _ in SHOWN])
def test_the_page_shows_the_sample_as_it_is(page: str, sample: str, code: str) -> None:
    assert code == (EXAMPLES / sample).read_text(), f"run: python scripts/show_samples.py ({page})"


def test_every_sample_is_shown_in_a_page() -> None:
    files = {path.relative_to(EXAMPLES).as_posix() for kind in KINDS for path in EXAMPLES.rglob(f"*.{kind}")}

    assert {sample for _, sample, _ in SHOWN} == files


async def test_the_first_example_of_the_readme_works(tmp_path: Path, database_url: str) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "app.py").write_text(code)
    ada = {"email": "ada@example.com", "name": "Ada", "phone": "+44 20 7946 0000"}

    async with client(imported(tmp_path / "app.py").server, database=database_url) as http:
        created = await http.post("/api/users", json=ada)
        found = await http.get("/api/users?filter=name:eq:Ada&sort=name:desc&limit=10")

    assert created.status_code == 201
    assert [user["email"] for user in found.json()["data"]] == ["ada@example.com"]
