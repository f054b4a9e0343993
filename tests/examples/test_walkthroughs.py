"""The examples as a new user meets them: their pages typed by hand, their routes, what is left to do."""

from __future__ import annotations

import shutil
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.secret_files import secret_in
from tests.kit.processes import IMPORTS, ROOT, Served, free_port, run_command, start_process
from tests.kit.walkthrough import Typed, example_command, type_all

EXAMPLES = ["saas", "orders"]
OPEN = ("/health", "/live", "/ready", "/docs", "/api/openapi.json", "/ ")


@contextmanager
def served_example(name: str, directory: Path, database: str) -> Iterator[Served]:
    port = free_port()
    command = example_command(name, port)
    with start_process(
        command, port, cwd=directory, DB_WRITE_URL=database, PYTHONPATH=IMPORTS, ACCESS_LOG="false"
    ) as served:
        served.until_up()
        yield served


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages show curl lines")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_works_typed_by_hand(name: str, tmp_path: Path, database_url: str) -> None:
    page = ROOT / "examples" / name / "README.md"
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # its commands are for the directory of the project

    with served_example(name, tmp_path, database_url) as served:
        typed = type_all(page, "Try it", served.url, tmp_path, DB_WRITE_URL=database_url)
        served.send(signal.SIGINT)
        code = served.ended()

    assert len(typed) >= 25
    assert [str(one) for one in typed if one.status != one.expected] == []
    assert (code, "Traceback" in served.output) == (0, False)
    assert secrets_told(typed) == []


def secrets_told(typed: list[Typed]) -> list[Typed]:
    """The answers that show a password, a hash of one, or the digest of a code."""
    return [one for one in typed if "argon2" in one.body or "hunter22" in one.body or "digest" in one.body]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_secret_is_made_once_for_its_owner_alone(name: str, tmp_path: Path) -> None:
    first = run_command("check", f"examples.{name}.app:server", cwd=tmp_path, PYTHONPATH=IMPORTS)
    [made] = tmp_path.rglob("token_secret")
    secret, mode = made.read_text(), stat.S_IMODE(made.stat().st_mode)
    again = run_command("check", f"examples.{name}.app:server", cwd=tmp_path, PYTHONPATH=IMPORTS)

    assert (first.returncode, again.returncode) == (0, 0), first.stderr
    assert (mode, len(secret) >= 43, made.read_text()) == (0o600, True, secret)
    keys = ["encryption_key", "token_secret"] if name == "orders" else ["token_secret"]
    assert sorted(path.name for path in made.parent.iterdir() if path.is_file()) == keys


def test_all_that_start_at_once_have_the_same_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        secrets = set(threads.map(secret_in, [tmp_path / "deep" / "secret"] * 8))

    assert len(secrets) == 1
    assert len(list((tmp_path / "deep").iterdir())) == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_route_says_who_may_use_it(name: str, tmp_path: Path) -> None:
    printed = run_command(
        "routes", "--guards", f"examples.{name}.app:server", cwd=tmp_path, PYTHONPATH=IMPORTS
    )

    assert printed.returncode == 0, printed.stderr
    api = [line for line in printed.stdout.splitlines() if not line[8:].startswith(OPEN)]
    assert len(api) > 40
    assert [line for line in api if "auth.jwt" not in line.split("; ")[0]] == []


def test_guards_are_shown_with_what_they_ask_for(tmp_path: Path) -> None:
    printed = run_command("routes", "--guards", "examples.saas.app:server", cwd=tmp_path, PYTHONPATH=IMPORTS)

    lines = {" ".join(line.split()[:2]): line.split(maxsplit=2)[2] for line in printed.stdout.splitlines()}
    assert lines["DELETE /api/projects/{id}"] == (
        "auth: auth.jwt; guards: auth.require_role(admin, owner), db.tenancy(organization_id), "
        "db.rate_limit(120 in 60 s), idempotency.keys"
    )
    assert lines["POST /api/signup"] == (
        "auth: auth.jwt; open: auth.allow_anonymous; guards: db.rate_limit(20 in 60 s), idempotency.keys"
    )
    assert "auth.require_owner(id unless owner)" in lines["PATCH /api/members/{id}"]
    assert "validate.field_role(role: owner)" in lines["PATCH /api/members/{id}"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_check_for_production_says_what_is_left_to_do(name: str, tmp_path: Path) -> None:
    command = ("check", "--production", f"examples.{name}.app:server")

    as_it_is = run_command(*command, cwd=tmp_path, PYTHONPATH=IMPORTS)
    migrated = run_command(*command, cwd=tmp_path, PYTHONPATH=IMPORTS, AUTO_MIGRATE="false")

    assert as_it_is.returncode == 1
    assert as_it_is.stderr.splitlines()[1:] == [
        "  auto_migrate is on, so every start changes the schema; migrate as a step of its own:"
        " auto_migrate=False, or AUTO_MIGRATE=false where the settings are Config.from_env()"
    ]
    assert (migrated.returncode, migrated.stderr) == (0, "")
    notes = [line for line in migrated.stdout.splitlines() if line.startswith("note:")]
    assert len(notes) == len(set(notes)) > 0


@pytest.mark.parametrize(("name", "variable"), [("saas", "SAAS_SECRET"), ("orders", "SHOP_SECRET")])
def test_a_short_secret_is_named_by_the_check_for_production(
    name: str, variable: str, tmp_path: Path
) -> None:
    environment = {variable: "short", "SHOP_KEY": "A" * 43, "AUTO_MIGRATE": "false", "PYTHONPATH": IMPORTS}

    checked = run_command("check", "--production", f"examples.{name}.app:server", cwd=tmp_path, **environment)

    assert checked.returncode == 1
    assert "32 bytes" in checked.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
