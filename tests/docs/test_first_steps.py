"""The first steps of a new user, typed as README and docs show them, in an empty directory."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import MANIFLEX, Served, free_port, run_command, start_process

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GETTING_STARTED = ROOT / "docs" / "start" / "getting_started.md"
UVICORN = Path(sys.executable).with_name("uvicorn")
COMMANDS: dict[str, list[str | Path]] = {
    "script": [sys.executable, "app.py"],
    "uvicorn": [UVICORN, "app:server", "--port", "PORT"],
    "maniflex": [MANIFLEX, "run", "app:server", "--port", "PORT"],
}

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="the pages show curl lines")


def first_example(page: Path) -> str:
    code: str = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)[0]
    return code


def typed(page: Path, directory: Path, port: int) -> None:
    """The page's app.py; only the port is not the one it shows."""
    code = first_example(page)
    assert "server.run()" in code
    (directory / "app.py").write_text(code.replace("server.run()", f"server.run(port={port})"))


def curl_lines(page: Path) -> list[str]:
    consoles = re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL)
    lines = [line for console in consoles for line in re.split(r"^\$ ", console, flags=re.MULTILINE)]
    return [line for line in lines if line.startswith("curl")]


def typed_into(served: Served, line: str) -> tuple[int, dict[str, object]]:
    """What a curl line of a page answers."""
    assert "localhost:8080" in line
    here = line.strip().replace("localhost:8080", f"127.0.0.1:{served.port}")
    done = subprocess.run(
        ["bash", "-c", f"{here} -s -w '\n%{{http_code}}'"], capture_output=True, text=True, check=True
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_readme_works_typed_by_hand(command: list[str | Path], tmp_path: Path) -> None:
    port = free_port()
    typed(README, tmp_path, port)
    create, find = curl_lines(README)

    with start_process(
        [str(port) if word == "PORT" else word for word in command], port, cwd=tmp_path
    ) as served:
        served.until_up()
        created, ada = typed_into(served, create)
        found, users = typed_into(served, find)
        served.send(signal.SIGINT)
        code = served.ended()

    assert (created, found, code) == (201, 200, 0)
    assert users["data"] == [ada["data"]]
    assert f"http://127.0.0.1:{port}" in served.output
    assert "Traceback" not in served.output
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["blog.db"]


def test_the_first_page_works_typed_by_hand(tmp_path: Path) -> None:
    port = free_port()
    typed(GETTING_STARTED, tmp_path, port)
    lines = curl_lines(GETTING_STARTED)

    with start_process([sys.executable, "app.py"], port, cwd=tmp_path) as served:
        served.until_up()
        answers = [typed_into(served, line) for line in lines]
        served.send(signal.SIGINT)
        assert served.ended() == 0

    assert [status for status, _ in answers] == [201, 422, 200]
    refused = json.dumps(answers[1][1])
    assert '"field": "body"' in refused
    assert '"field": "status"' in refused
    assert answers[2][1]["data"] == [answers[0][1]["data"]]


def test_check_and_routes_show_what_the_first_page_serves(tmp_path: Path) -> None:
    typed(GETTING_STARTED, tmp_path, 8080)

    checked = run_command("check", "app:server", cwd=tmp_path)
    routes = run_command("routes", "app:server", cwd=tmp_path)

    assert (checked.returncode, routes.returncode) == (0, 0)
    table = re.findall(r"^\| ([A-Z]+) \| `([^`]+)` \|", GETTING_STARTED.read_text(), flags=re.MULTILINE)
    served = {tuple(line.split()[:2]) for line in routes.stdout.splitlines()}
    assert table
    assert [row for row in table if row not in served] == []
    assert not (tmp_path / "blog.db").exists()


def test_a_busy_port_is_one_sentence_in_a_script_too(tmp_path: Path) -> None:
    port = free_port()
    typed(README, tmp_path, port)

    with start_process([sys.executable, "app.py"], port, cwd=tmp_path) as served:
        served.until_up()
        refused = subprocess.run(
            [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"maniflex: port {port} on 127.0.0.1 is already in use")
    assert refused.stderr.count("\n") == 1


def test_a_database_that_cannot_be_reached_is_named_in_one_line_without_its_password(tmp_path: Path) -> None:
    database_port = free_port()
    address = f"postgresql://ada:analytical@127.0.0.1:{database_port}/blog"
    (tmp_path / "app.py").write_text(
        f"from maniflex import Server\n\nserver = Server(database={address!r})\n"
    )

    refused = run_command("run", "app:server", "--port", str(free_port()), cwd=tmp_path)

    [line] = [line for line in refused.stderr.splitlines() if "could not start" in line]
    assert refused.returncode == 1
    assert "the database cannot be reached" in line
    assert f"postgresql:blog@127.0.0.1:{database_port}" in line
    assert "analytical" not in refused.stderr
    assert "Traceback" not in refused.stderr
