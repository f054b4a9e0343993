"""The two commands, run as a person would run them."""

from __future__ import annotations

import os
import re
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

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _venv

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
    """The running demo, as the lines it printed; afterwards it is stopped with Ctrl-C."""
    command = [str(DEMO), "--port", str(port), "--database", database]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield _printed(process)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 0, rest
        assert "Traceback" not in rest
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _printed(process: subprocess.Popen[str]) -> list[str]:
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("Ctrl-C"):
            return lines
    raise AssertionError("the demo ended early:\n" + "\n".join(lines))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the printed lines need curl")
def test_the_demo_serves_what_it_prints_and_stops_cleanly(free_port: int, tmp_path: Path) -> None:
    with demo(free_port, f"sqlite:///{tmp_path}/blog.db") as lines:
        statuses = typed(lines)
        # The server itself says where the blog is, too.
        pages = {page: httpx.get(page).status_code for page in re.findall(r"http\S+/docs", " ".join(lines))}
        panels = dict.fromkeys(re.findall(r"http\S+/admin\b", " ".join(lines)))
        logins = [enter_panel(panel, lines) for panel in panels]

    blog, shop, saas = statuses[:5], statuses[5:24], statuses[24:]
    assert blog == ["200", "200", "201", "200", "422"]
    assert shop == ["200", "200", "401", *["200"] * 6, "409", "403", *["200"] * 5, "422", "200", "200"]
    assert saas == ["200", "200", "403", "201"]
    assert list(pages.values()) == [200, 200, 200]
    assert logins == [200, 200, 200]


def enter_panel(panel: str, lines: list[str]) -> int:
    """The status of the front page of a panel, for the superuser whom the demo made."""
    text = " ".join(lines)
    [name], [password] = re.findall(r"sign in as (\S+)\.", text), re.findall(r"accounts is (\S+)\. ", text)
    with httpx.Client(follow_redirects=True) as http:
        page = http.get(f"{panel}/-/login").text
        [token, *_] = re.findall(r'name="_csrf" value="(\w+)"', page)
        controls = {"_csrf": token, "username": name, "password": password}
        front = http.post(f"{panel}/-/login", data=controls)
        return front.status_code if "Sign out" in front.text else 0


def typed(lines: list[str]) -> list[str]:
    """The status of each curl line, all of them typed into one shell."""
    script = ["set -eu"]
    for line in lines:
        if line.startswith("curl"):
            script.append(f"{line.split('   #')[0]} -s -o /dev/null -w '%{{http_code}}\\n'")
        elif re.match(r"[A-Z]+=", line):
            script.append(line)
    done = run("bash", "-c", "\n".join(script))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_secrets_of_the_demo_are_its_owners_alone(free_port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port}"

    with demo(free_port, f"sqlite:///{tmp_path}/blog.db") as lines:
        made = {
            path.name: path.stat().st_mode & 0o777
            for path in tmp_path.iterdir()
            if not path.suffix and path.is_file()
        }
        password = (tmp_path / "demo_password").read_text()
        emails = re.findall(r"[a-z]+@[a-z.]+(?=[,.] |[,.]$)", " ".join(lines))
        accounts = [email for email in emails if not email.endswith("@example.org")]  # the panels' own
        statuses = {account: sign_in(url, account, password).status_code for account in accounts}
    with demo(free_port, f"sqlite:///{tmp_path}/blog.db") as later:
        kept = (tmp_path / "demo_password").read_text()

    assert made == {
        "demo_password": 0o600,
        "encryption_key": 0o600,
        "shop_secret": 0o600,
        "saas_secret": 0o600,
    }
    assert len(statuses) == 6
    assert set(statuses.values()) == {200}
    assert kept == password
    assert password in " ".join(later)


def sign_in(url: str, account: str, password: str) -> httpx.Response:
    example = "shop" if account.endswith("@example.com") else "saas"
    body = {"email": account, "password": password}
    return httpx.post(f"{url}/{example}/api/auth/login", json=body)


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
    url = f"http://127.0.0.1:{free_port}"

    with demo(free_port, database_url) as lines, httpx.Client(base_url=f"{url}/shop/api") as shop:
        password = re.findall(r"password of all these accounts is (\S+)\.", " ".join(lines))[0]
        ada, admin = [token(url, name, password) for name in ("ada@example.com", "admin@example.com")]
        tea = {"product_id": shop.get("/products?filter=name:eq:Tea").json()["data"][0]["id"]}
        refused = shop.post("/orders/place", json={**tea, "fail": True}, headers=ada)
        kept_of_refused = counts(shop, admin)
        placed = shop.post("/orders/place", json=tea, headers=ada)
        order = placed.json()["data"]["id"]
        [receipt] = arrived(shop, "/receipts", ada)
        [shipment] = arrived(shop, "/shipments", ada)
        [run] = arrived(shop, "/workflow_run?filter=status:eq:succeeded", ada)
        [message] = arrived(
            shop, "/outbox_event?filter=status:eq:delivered&filter=kind:eq:order.placed", admin
        )
        kept = counts(shop, admin)

    assert (refused.status_code, kept_of_refused) == (409, [0, 0, 0])
    assert (placed.status_code, kept) == (200, [1, 1, 1])
    assert [receipt["order_id"], shipment["order_id"], run["payload"]["order_id"], message["key"]] == [
        order
    ] * 4


def token(url: str, account: str, password: str) -> dict[str, str]:
    return {"authorization": f"Bearer {sign_in(url, account, password).json()['data']['access_token']}"}


def arrived(shop: httpx.Client, path: str, caller: dict[str, str]) -> list[dict[str, Any]]:
    """What is there once anything is."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found: list[dict[str, Any]] = shop.get(path, headers=caller).json()["data"]
        if found:
            return found
    raise AssertionError(f"nothing came to {path}")


def counts(shop: httpx.Client, caller: dict[str, str]) -> list[int]:
    """How many orders, runs and messages there are."""
    paths = ("/orders", "/workflow_run", "/outbox_event?filter=kind:eq:order.placed")
    return [int(shop.get(path, headers=caller).json()["meta"]["total"]) for path in paths]


def test_the_environment_of_the_tests_serves_the_demo_too() -> None:
    """Otherwise the first test of the demo would install packages under all other tests."""
    text = (ROOT / "scripts" / "_demo.py").read_text()
    extras = set(re.findall(r'"(\w+)"', re.findall(r"_venv\.ensure\((.*?)\)", text)[0]))

    assert extras == {"admin", "auth", "http"}
    assert extras | {"postgres"} <= _venv.IMPLIED["dev"]
