"""`maniflex createsuperuser` and `maniflex superuser`: the people of the panel, from a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.processes import run_command

APP = """
from maniflex import Server
server = Server("{url}")
server.admin()
"""
PASSWORD = "a long enough phrase"


@pytest.fixture
def app(tmp_path: Path, sqlite_url: str) -> Path:
    (tmp_path / "app.py").write_text(APP.format(url=sqlite_url))
    return tmp_path


def test_superusers_are_made_listed_and_disabled(app: Path) -> None:
    def run(*words: str, code: int = 0, stdin: str = "") -> str:
        done = run_command(*words, cwd=app, stdin=stdin)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    make = ("createsuperuser", "app:server", "--email", "Ada@Example.org", "--password-stdin")
    assert "at least 12 characters" in run(*make, code=1, stdin="short\n")
    assert "guessed first" in run(*make, code=1, stdin="123456789012\n")
    assert "there is no superuser" in run("superuser", "list", "app:server")
    assert "ada@example.org may now sign in at /admin" in run(*make, stdin=PASSWORD + "\n")
    assert "already" in run(*make, code=1, stdin=PASSWORD + "\n")
    [row] = json.loads(run("superuser", "list", "app:server", "--json"))
    assert (row["email"], row["roles"], row["active"]) == ("ada@example.org", ["superuser"], True)
    assert "is disabled" in run("superuser", "disable", "app:server", "ada@example.org")
    assert "no superuser nobody" in run("superuser", "enable", "app:server", "nobody@example.org", code=1)
    new = ("superuser", "password", "app:server", "ada@example.org", "--password-stdin")
    assert "new password" in run(*new, stdin="another fine phrase\n")
    assert "0 sessions" in run("superuser", "logout", "app:server", "ada@example.org")


def test_a_server_without_a_panel_has_no_superusers(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text('from maniflex import Server\nserver = Server("sqlite:///x.db")\n')
    done = run_command("superuser", "list", "app:server", cwd=tmp_path)
    assert (done.returncode, "server.admin()" in done.stderr) == (1, True)


def test_nobody_is_made_who_could_not_enter(tmp_path: Path, sqlite_url: str) -> None:
    def refusal(admin: str, *options: str) -> str:
        login = "async def login(ctx, username, password): ..."
        lines = (
            login,
            "from maniflex import Server",
            f"server = Server({sqlite_url!r})",
            f"server.admin({admin})",
        )
        (tmp_path / "app.py").write_text("\n".join(lines) + "\n")
        make = ("createsuperuser", "app:server", "--email", "ada@example.org", "--password-stdin", *options)
        done = run_command(*make, cwd=tmp_path, stdin=PASSWORD + "\n")
        assert done.returncode == 1, done.stdout
        return done.stderr

    assert "superusers cannot sign in to this panel" in refusal("auth=login, role='staff'")
    assert "superusers cannot sign in to this panel" in refusal("auth='pipeline', role=None")
    assert "add --role staff" in refusal("role='staff'")
    assert "add --role superuser" in refusal("", "--role", "agent")
