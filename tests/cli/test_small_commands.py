"""`config`, `shell`, `backup`, `completion` and `version`, as somebody types them."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shlex
import sqlite3
import subprocess
from pathlib import Path

import pytest

from maniflex import Config
from maniflex.cli.routes import show_value
from tests.kit.commands import Commands
from tests.kit.postgres import as_role
from tests.kit.processes import MANIFLEX, serve_process
from tests.kit.waiting import until

APP = """
from datetime import timedelta
from maniflex import Config, Model, Server, field
from maniflex.middleware import db

class Post(Model):
    title: str
    tenant_id: str = field(default="", relation=None)

server = Server(Config.from_env(files_signing_key="k" * 40, shutdown_timeout=timedelta(seconds=7)))
server.register(Post)
server.pipeline.db.register(db.tenancy("tenant_id"))
"""


@pytest.fixture
def commands(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    (tmp_path / "app.py").write_text(APP)
    return Commands(tmp_path, database_url, monkeypatch)


# -- config


def test_config_says_every_setting_and_where_it_came_from(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_WRITE_URL", "postgresql://shop:hunter22@localhost/shop?password=hunter22")
    monkeypatch.setenv("PORT", "9000")
    rows = {row["setting"]: row for row in commands.json("config", "app:server")}
    assert set(rows) == set(Config.__dataclass_fields__)
    assert rows["port"] == {"setting": "port", "value": 9000, "source": "variable", "variable": "PORT"}
    assert (rows["shutdown_timeout"]["value"], rows["shutdown_timeout"]["source"]) == ("7s", "code")
    assert (rows["host"]["value"], rows["host"]["source"]) == ("127.0.0.1", "default")
    page = commands("config", "app:server")
    assert "hunter22" not in page
    address = "postgresql://shop:hun@ter@localhost/shop?sslmode=require&sslpassword=hunter22"
    assert (
        show_value("database", address)
        == "postgresql://shop:********@localhost/shop?sslmode=require&sslpassword=********"
    )
    assert "k" * 40 not in page
    changed = [row["setting"] for row in commands.json("config", "app:server", "--changed")]
    assert changed == ["database", "port", "shutdown_timeout", "files_signing_key"]


def test_values_of_all_kinds_are_shown() -> None:
    assert show_value("on_start", print) == "print"
    assert show_value("worker_type_prefixes", ("a.", "b.")) == "a., b."
    assert show_value("files_signing_key", "") == ""
    assert show_value("x", object()) == "object"


# -- shell


def test_code_of_the_shell_awaits_and_prints_its_last_value(commands: Commands) -> None:
    code = "post = await db(Post).create(title='a')\npost.title * 2"
    assert commands("shell", "app:server", "-c", code) == "'aa'\n"
    assert commands("shell", "app:server", "-c", "await db(Post).count()") == "1\n"
    assert commands("shell", "app:server", "-c", "x = 1") == ""


def test_a_shell_that_only_reads_writes_nothing(commands: Commands) -> None:
    commands("shell", "app:server", "-c", "await db(Post).create(title='a')")
    for code in (
        "await db(Post).create(title='b')",
        "await server.raw_exec('DELETE FROM posts')",
        "async with server.transaction():\n    await db(Post).create(title='c')",
        "await server.raw_exec('VACUUM')",
        "await server.raw_exec('ANALYZE')",
    ):
        refusal = commands("shell", "app:server", "--read-only", "-c", code, code=1)
        assert "nothing was written: --read-only" in refusal
    assert commands("shell", "app:server", "--read-only", "-c", "await db(Post).count()") == "1\n"


@pytest.mark.parametrize(
    "way_out",
    [
        "SET TRANSACTION READ WRITE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SET default_transaction_read_only = off",
        "BEGIN READ WRITE",
        "; COMMIT",
    ],
)
def test_a_shell_that_only_reads_cannot_be_told_to_write(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, way_out: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    commands = Commands(tmp_path, postgres_url, monkeypatch)
    commands("shell", "app:server", "-c", "await db(Post).create(title='a')")
    writes = (f"await server.raw_exec({way_out!r})", "await server.raw_exec('DELETE FROM posts')")
    for code in ("\n".join(writes), "async with server.transaction():\n    " + "\n    ".join(writes)):
        page = commands("shell", "app:server", "--read-only", "-c", code, code=1)
        assert "nothing was written: --read-only" in page or "transaction()" in page
    assert commands("shell", "app:server", "-c", "await db(Post).count()") == "1\n"


def test_a_shell_that_only_reads_makes_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(APP)
    commands = Commands(tmp_path, f"sqlite:///{tmp_path}/none.db", monkeypatch)
    refusal = commands("shell", "app:server", "--read-only", "-c", "1", code=1)
    assert "it is made when the server starts" in refusal
    assert not (tmp_path / "none.db").exists()


def test_as_a_user_the_scope_rules_bind(commands: Commands) -> None:
    commands("shell", "app:server", "-c", "for t in 'abb':\n    await db(Post).create(title=t, tenant_id=t)")
    of_b = ("--as", "u1", "--tenant", "b", "--role", "editor")
    assert commands("shell", "app:server", *of_b, "-c", "await db(Post).count()") == "2\n"
    assert commands("shell", "app:server", "-c", "await db(Post).count()") == "3\n"
    commands("shell", "app:server", "--role", "editor", "-c", "1", code=2)


def test_an_error_of_the_code_is_shown_from_there_on(commands: Commands) -> None:
    page = commands("shell", "app:server", "-c", "1 / 0", code=1)
    assert "ZeroDivisionError" in page
    assert "maniflex/cli" not in page
    assert "SyntaxError" in commands("shell", "app:server", "-c", "1 +", code=1)


def type_at_prompt(directory: Path, url: str, *lines: str, options: tuple[str, ...] = ()) -> str:
    """What the terminal shows."""
    (directory / "app.py").write_text(APP)
    master, slave = pty.openpty()
    with subprocess.Popen(
        [MANIFLEX, "shell", "app:server", *options],
        cwd=directory,
        env={**os.environ, "DB_WRITE_URL": url, "TERM": "dumb"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        os.write(master, "".join(f"{line}\n" for line in (*lines, "exit()")).encode())
        output = b""
        while True:
            try:
                output += os.read(master, 4096)
            except OSError:  # nobody has the other end any more
                break
        assert process.wait(60) == 0
    os.close(master)
    return output.decode()


def test_the_prompt_awaits(tmp_path: Path, sqlite_url: str) -> None:
    page = type_at_prompt(
        tmp_path, sqlite_url, "(await db(Post).create(title='typed')).title", "await db(Post).count()"
    )
    assert "'typed'" in page
    assert "1\r\n" in page
    assert "server, db and Post are here" in page


def test_the_prompt_shows_where_typed_code_failed_and_nothing_else(tmp_path: Path, sqlite_url: str) -> None:
    page = type_at_prompt(tmp_path, sqlite_url, "1 / 0", "await db(Post).read('nobody')")
    assert "ZeroDivisionError" in page
    assert "NotFound" in page
    assert "During handling of the above exception" not in page
    assert "maniflex/cli" not in page


def test_a_prompt_that_only_reads_says_so_of_a_write(tmp_path: Path, database_url: str) -> None:
    type_at_prompt(tmp_path, database_url, "await db(Post).create(title='a')")
    writes = ("await db(Post).create(title='b')", "await server.raw_exec('VACUUM')")
    page = type_at_prompt(tmp_path, database_url, *writes, options=("--read-only",))
    assert page.count("the database is open for reading alone; nothing was written") == 2


# -- backup


def test_a_backup_is_whole_and_has_the_checksum_it_says(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    commands = Commands(tmp_path, sqlite_url, monkeypatch)
    assert "there is no database" in commands("backup", "app:server", "copy.db", code=1)
    commands("shell", "app:server", "-c", "for n in range(50):\n    await db(Post).create(title=str(n))")
    writer = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")  # somebody else is writing
    page = commands("backup", "app:server", "copy.db")
    writer.execute("ROLLBACK")
    writer.close()
    copy = tmp_path / "copy.db"
    assert hashlib.sha256(copy.read_bytes()).hexdigest() in page
    assert "integrity ok" in page
    assert sqlite3.connect(copy).execute("SELECT count(*) FROM posts").fetchone() == (50,)
    assert [path.name for path in tmp_path.glob("copy.db*")] == ["copy.db"]
    before = copy.read_bytes()
    assert "is there already" in commands("backup", "app:server", "copy.db", code=1)
    assert copy.read_bytes() == before
    assert "there is no directory" in commands("backup", "app:server", "no/such/copy.db", code=1)


def test_a_damaged_database_is_said_to_be(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    commands = Commands(tmp_path, sqlite_url, monkeypatch)
    commands("shell", "app:server", "-c", "for n in range(500):\n    await db(Post).create(title='x' * 100)")
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"\xff" * 4096
    path.write_bytes(content)
    refusal = commands("backup", "app:server", "copy.db", code=1)
    assert "damaged" in refusal or "malformed" in refusal
    assert not (tmp_path / "copy.db").exists()


def test_on_postgresql_the_command_to_type_is_printed(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    url, shown = as_role(postgres_url, "ada:geheim"), as_role(postgres_url, "ada")
    page = Commands(tmp_path, url, monkeypatch)("backup", "app:server", "shop.dump")
    assert f"pg_dump --format=custom --file=shop.dump {shown}\n" in page
    assert "geheim" not in page

    options = "sslmode=prefer&password=geheim&sslpassword=geheim&application_name=shop&pgbouncer=true"
    page = Commands(tmp_path, f"{url}?{options}", monkeypatch)("backup", "app:server", "the shop.dump")
    line = page.splitlines()[-1]
    address = f"{shown}?sslmode=prefer&application_name=shop"
    assert shlex.split(line) == ["pg_dump", "--format=custom", "--file=the shop.dump", address]
    assert f"'{address}'" in line


# -- the rest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(commands: Commands, shell: str) -> None:
    assert "_MANIFLEX_COMPLETE" in commands("completion", shell)


def test_bash_completes_commands(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "_MANIFLEX_COMPLETE": "bash_complete",
        "COMP_WORDS": "maniflex sched",
        "COMP_CWORD": "1",
    }
    done = subprocess.run([MANIFLEX], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["plain,scheduler", "plain,schedules"]


def test_versions_of_all_that_matters_are_told(commands: Commands) -> None:
    from importlib.metadata import version

    assert commands("version").split() == ["maniflex", version("maniflex")]
    versions = json.loads(commands("version", "--all", "--json"))
    assert versions["sqlite"] == sqlite3.sqlite_version
    assert versions["asyncpg"] == version("asyncpg")


def test_routes_are_listed_as_json(commands: Commands) -> None:
    routes = commands.json("routes", "app:server")
    assert {"method": "GET", "path": "/api/posts", "owner": "Post"} in routes
    guarded = {
        (row["method"], row["path"]): row["guards"]
        for row in commands.json("routes", "app:server", "--guards")
    }
    assert guarded["GET", "/docs"] == "open"


def test_run_says_where_api_and_reference_are(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serve_process(tmp_path, DB_WRITE_URL=sqlite_url) as served:
        until(lambda: f"API at {served.url}/api" in served.output, "the address of the API")
        assert f"reference at {served.url}/docs" in served.output
