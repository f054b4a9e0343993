"""Find a PostgreSQL server the tests may create databases in, or start one for them.

In this order: the URL in MANIFLEX_TEST_POSTGRES; a server on 127.0.0.1:5432; server binaries on
this machine, run as a temporary cluster; as root on Debian, the packaged server. `postgres()` gives
the URL and the words that say where it came from, and takes a temporary cluster down again when its
block ends, however it ends. `NoPostgres` says how to get one.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

VARIABLE = "MANIFLEX_TEST_POSTGRES"
MINIMUM_VERSION = 13
Account = pwd.struct_passwd | None

PROBLEMS = (OSError, TimeoutError, ValueError)
PLACES = (
    ("/usr/lib/postgresql", "*/bin"),  # Debian, Ubuntu
    ("/usr", "pgsql-*/bin"),  # Red Hat
    ("/opt/homebrew/opt", "postgresql*/bin"),
    ("/usr/local/opt", "postgresql*/bin"),
)
HELP = f"""\
No PostgreSQL was found, and the tests run on SQLite and on PostgreSQL. One of these will do:
  - name a server that may create databases:  {VARIABLE}=postgresql://user:password@host:5432/postgres
  - have one listen on 127.0.0.1:5432 that the user `postgres`, or you, may create databases in
  - install the server binaries:              apt-get install postgresql  |  brew install postgresql
  - leave PostgreSQL out knowingly:           scripts/test --sqlite-only"""


class NoPostgres(Exception):
    """There is no server to test against; the message says how to get one."""


@contextmanager
def postgres() -> Iterator[tuple[str, str]]:
    """A URL the tests may create databases under, and where it came from."""
    if named := os.environ.get(VARIABLE):
        if problem := asyncio.run(_refusal(named)):
            raise NoPostgres(f"{VARIABLE} is set but cannot be used: {problem}")
        yield named, f"the server named by {VARIABLE}"
    elif local := _listening_server():
        yield local, "the server on 127.0.0.1:5432"
    elif (binaries := _binaries() or _install_package()) is not None:
        with _temporary_cluster(binaries) as url:
            yield url, f"a temporary cluster of {binaries}"
    else:
        raise NoPostgres(HELP)


def _listening_server() -> str | None:
    users = dict.fromkeys(filter(None, (os.environ.get("PGUSER"), getpass.getuser(), "postgres")))
    for user in users:
        url = f"postgresql://{quote(user, safe='')}@127.0.0.1:5432/postgres"
        if asyncio.run(_refusal(url)) is None:
            return url
    return None


async def _refusal(url: str) -> str | None:
    """Why this server will not do; None when it will."""
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=5)
    except (*PROBLEMS, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
        return str(problem) or type(problem).__name__
    try:
        if connection.get_server_version().major < MINIMUM_VERSION:
            return f"PostgreSQL {MINIMUM_VERSION} or newer is needed"
        may = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
        return None if await connection.fetchval(may) else "its user may not create databases"
    finally:
        await connection.close()


def _binaries() -> Path | None:
    """The first directory that holds a server, newest versions first."""
    found = [
        path for root, pattern in PLACES for path in sorted(Path(root).glob(pattern), key=_version)[::-1]
    ]
    if shutil.which("pg_config"):
        answer = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True)
        found.append(Path(answer.stdout.strip()))
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).resolve().parent)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


def _version(path: Path) -> float:
    digits = "".join(letter for letter in path.parent.name if letter.isdigit() or letter == ".")
    try:
        return float(digits or 0)
    except ValueError:
        return 0.0


def _install_package() -> Path | None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    print("postgres  installing the Debian package", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
        if subprocess.run(["apt-get", "-qq", *command], env=environment).returncode != 0:
            return None
    return _binaries()


@contextmanager
def _temporary_cluster(binaries: Path) -> Iterator[str]:
    directory = _directory()
    try:
        account = _account()
        if account is not None:
            os.chown(directory, account.pw_uid, account.pw_gid)
        password = secrets.token_urlsafe(16)
        _initdb(binaries, directory, account, password)
        port = _free_port()
        server = _start(binaries, directory, account, port)
        try:
            url = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
            _wait_for(url, server, directory)
            yield url
        finally:
            _stop(server)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _directory() -> Path:
    # The usual TMPDIR may lie in a home directory that the account below cannot enter.
    parent = "/tmp" if os.geteuid() == 0 else None
    return Path(tempfile.mkdtemp(prefix="maniflex-postgres-", dir=parent))


def _account() -> Account:
    """The account to run as when we are root, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoPostgres(
        "running as root, and there is neither a `postgres` nor a `nobody` account to run a server as"
    )


def _as(account: Account, directory: Path) -> dict[str, Any]:
    options: dict[str, Any] = {
        "cwd": directory,
        "env": {"PATH": os.environ.get("PATH", ""), "HOME": str(directory), "LC_ALL": "C", "TZ": "UTC"},
        # In our own session a Ctrl-C would reach the server before the tests are done with it.
        "start_new_session": True,
    }
    if account is not None:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def _initdb(binaries: Path, directory: Path, account: Account, password: str) -> None:
    pwfile = directory / "password"
    pwfile.write_text(password)
    if account is not None:
        os.chown(pwfile, account.pw_uid, account.pw_gid)
    made = subprocess.run(
        [
            *(binaries / "initdb", "--pgdata", directory / "data", "--username", "postgres"),
            *("--auth", "scram-sha-256", "--pwfile", pwfile),
            *("--encoding", "UTF8", "--no-locale", "--no-sync"),
        ],
        capture_output=True,
        text=True,
        **_as(account, directory),
    )
    if made.returncode != 0:
        raise NoPostgres(f"initdb of {binaries} failed: {made.stderr.strip()}")


def _start(
    binaries: Path, directory: Path, account: Account, port: int, **more: object
) -> subprocess.Popen[bytes]:
    settings: dict[str, object] = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "max_connections": 200,
        # The cluster is thrown away at the end, so nothing is gained by waiting for the disk.
        "fsync": "off",
        "full_page_writes": "off",
        **more,
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [binaries / "postgres", "-D", directory / "data", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_as(account, directory),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(url: str, server: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + 60
    while (problem := asyncio.run(_refusal(url))) is not None:
        if server.poll() is not None or time.monotonic() > deadline:
            log = (directory / "log").read_text(errors="replace")[-2000:]
            raise NoPostgres(f"the temporary PostgreSQL did not come up ({problem}):\n{log}")
        time.sleep(0.1)


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is not None:
        return
    server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    try:
        with postgres() as (url, origin):
            print(url, origin, sep="\n")
    except NoPostgres as problem:
        sys.exit(str(problem))
