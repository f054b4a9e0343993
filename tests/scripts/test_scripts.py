"""The two commands, run as a person would run them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "scripts" / "demo"
TEST = ROOT / "scripts" / "test"


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


@pytest.fixture
def without_a_new_python(tmp_path: Path) -> str:
    """A PATH on which every Python there is says that it is too old."""
    for tool in ("bash", "dirname", "basename"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    return str(tmp_path)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize("script", [TEST, DEMO], ids=["test", "demo"])
def test_an_old_python_is_named_in_one_sentence(script: Path, without_a_new_python: str) -> None:
    refused = run(script, PATH=without_a_new_python, PYTHON="")

    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "Python 3.11 or newer is needed" in refused.stderr


@pytest.mark.parametrize("script", [TEST, DEMO], ids=["test", "demo"])
def test_help_is_there_without_installing_anything(script: Path) -> None:
    helped = run(script, "--help")

    assert helped.returncode == 0
    assert helped.stdout.startswith(f"usage: scripts/{script.name}")


def test_a_named_postgres_that_cannot_be_used_is_an_error_and_not_passed_over() -> None:
    finder = ROOT / "scripts" / "_postgres.py"

    refused = run(sys.executable, finder, MANIFLEX_TEST_POSTGRES="postgresql://nobody@127.0.0.1:1/none")

    assert refused.returncode == 1
    assert "MANIFLEX_TEST_POSTGRES is set but cannot be used" in refused.stderr


def test_an_azurite_that_cannot_be_had_is_named_with_the_flag_that_leaves_it_out(tmp_path: Path) -> None:
    starter = ROOT / "scripts" / "_object_stores.py"
    elsewhere = {"MANIFLEX_TEST_S3": "http://127.0.0.1:1", "MANIFLEX_TEST_AZURE": ""}

    refused = run(sys.executable, starter, PATH=str(tmp_path), **elsewhere)

    assert refused.returncode == 1
    assert "node and npm not found on the PATH" in refused.stderr
    assert "scripts/test --no-azure" in refused.stderr


def test_object_stores_that_run_already_are_used() -> None:
    starter = ROOT / "scripts" / "_object_stores.py"

    shown = run(sys.executable, starter, MANIFLEX_TEST_S3="http://a", MANIFLEX_TEST_AZURE="http://b").stdout

    assert shown.splitlines()[::2] == ["http://a", "http://b"]


def test_a_busy_port_is_named_in_one_sentence(taken_port: int) -> None:
    refused = run(DEMO, "--port", str(taken_port))

    assert refused.returncode == 1
    assert refused.stderr == f"scripts/demo: port {taken_port} is in use; choose another with --port\n"


@contextmanager
def demo(port: int, database: str) -> Iterator[list[str]]:
    """The running demo, as the curl lines it printed; afterwards it is stopped with Ctrl-C."""
    command = [str(DEMO), "--port", str(port), "--database", database]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield _curl_lines(process)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 0, rest
        assert "Traceback" not in rest
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _curl_lines(process: subprocess.Popen[str]) -> list[str]:
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            return [shown.strip() for shown in lines if shown.strip().startswith("curl")]
    raise AssertionError("the demo ended early:\n" + "".join(lines))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the printed lines need curl")
def test_the_demo_serves_what_it_prints_and_stops_cleanly(free_port: int, tmp_path: Path) -> None:
    with demo(free_port, f"sqlite:///{tmp_path}/blog.db") as lines:
        statuses = [status_of(line) for line in lines]

    assert statuses == ["200", "200", "201", "200", "422", *["200"] * 6, "409"]


def status_of(line: str) -> str:
    only_the_status = "-s -o /dev/null -w '%{http_code}'"
    return run("bash", "-c", f"{line.split('#')[0]} {only_the_status}").stdout


def test_a_second_run_of_the_demo_keeps_the_data(free_port: int, database_url: str) -> None:
    posts = f"http://127.0.0.1:{free_port}/api/posts"

    with demo(free_port, database_url):
        [first] = httpx.get(f"{posts}?limit=1&sort=created_at:asc").json()["data"]
        total = httpx.get(posts).json()["meta"]["total"]
        assert httpx.patch(f"{posts}/{first['id']}", json={"title": "Kept"}).status_code == 200
    with demo(free_port, database_url):
        kept = httpx.get(f"{posts}/{first['id']}").json()["data"]
        assert kept["title"] == "Kept"
        assert httpx.get(posts).json()["meta"]["total"] == total


def test_the_demo_keeps_an_order_with_its_run_and_message_or_none_of_them(
    free_port: int, database_url: str
) -> None:
    tea = {"item": "Tea", "price": "4.50"}

    with demo(free_port, database_url), httpx.Client(base_url=f"http://127.0.0.1:{free_port}/api") as shop:
        refused = place(shop, **tea, fail=True)
        kept_of_refused = counts(shop)
        placed = place(shop, **tea)
        order = placed.json()["data"]["id"]
        [receipt] = arrived(shop, "/receipts")
        [shipment] = arrived(shop, "/shipments")
        [run] = arrived(shop, "/workflow_run?filter=status:eq:succeeded", user="ada")
        [message] = arrived(shop, "/outbox_event?filter=status:eq:delivered", user="admin")
        kept = counts(shop)

    assert (refused.status_code, kept_of_refused) == (409, [0, 0, 0])
    assert (placed.status_code, kept) == (200, [1, 1, 1])
    assert [receipt["order_id"], shipment["order_id"], run["payload"]["order_id"], message["key"]] == [
        order
    ] * 4


def test_the_demo_shows_a_run_to_nobody_else(free_port: int, tmp_path: Path) -> None:
    with (
        demo(free_port, f"sqlite:///{tmp_path}/shop.db"),
        httpx.Client(base_url=f"http://127.0.0.1:{free_port}/api") as shop,
    ):
        place(shop, item="Tea", price="4.50")
        anonymous = [
            shop.get(path).status_code for path in ("/workflow_run", "/workflow_event", "/outbox_event")
        ]
        seen = {user: total(shop, "/workflow_run", user) for user in ("ada", "grace", "admin")}
        written = shop.post("/receipts", json={"order_id": "1", "text": "paid"}, headers={"x-user": "ada"})

    assert anonymous == [401, 401, 401]
    assert seen == {"ada": 1, "grace": 0, "admin": 1}
    assert written.status_code == 403


def place(shop: httpx.Client, **order: object) -> httpx.Response:
    return shop.post("/orders/place", json=order, headers={"x-user": "ada"})


def arrived(shop: httpx.Client, path: str, user: str = "") -> list[dict[str, Any]]:
    """What is there once anything is."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found: list[dict[str, Any]] = shop.get(path, headers={"x-user": user}).json()["data"]
        if found:
            return found
    raise AssertionError(f"nothing came to {path}")


def counts(shop: httpx.Client) -> list[int]:
    """How many orders, runs and messages there are."""
    return [total(shop, path) for path in ("/orders", "/workflow_run", "/outbox_event")]


def total(shop: httpx.Client, path: str, user: str = "admin") -> int:
    return int(shop.get(path, headers={"x-user": user}).json()["meta"]["total"])
