"""HAProxy and PgBouncer as processes of a test, on ports of their own, with the configuration of the docs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.kit.processes import ROOT, accepts, free_port
from tests.kit.waiting import until

sys.path.insert(0, str(ROOT / "scripts"))
import _network_tools
import _postgres
from _network_tools import Tool

SAMPLES = ROOT / "docs" / "examples" / "operate"


def program(tool: Tool) -> str:
    """The path of the program; a test that needs one that is left out on purpose is skipped."""
    if os.environ.get(tool.left_out) == "1":
        pytest.skip(f"{tool.name} is left out on request")
    try:
        return _network_tools.find(tool, install=False)[0]
    except _network_tools.NoTool as problem:
        pytest.fail(str(problem))


def with_changes(sample: str, changes: Mapping[str, object]) -> str:
    """The text of a sample with these parts replaced, each of which must be in it."""
    text = (SAMPLES / sample).read_text()
    for part, replacement in changes.items():
        assert part in text, f"{sample} has no {part}"
        text = text.replace(part, str(replacement))
    return text


class ToolProcess:
    """A running program that listens on `port`."""

    def __init__(self, command: list[str], port: int, directory: Path) -> None:
        self._command = command
        self._directory = directory
        self._account = _postgres._account()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = _postgres._as(self._account, self._directory)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, **options)
        until(self._listens, f"{self._command[0]} on port {self.port}")

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text()
        return accepts(self.port)

    def stop(self) -> None:
        """End at once, with all its connections."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def tool_directory() -> Iterator[Path]:
    """A directory that the account of the server processes may read."""
    directory = _postgres._directory()
    account = _postgres._account()
    if account is not None:
        os.chown(directory, account.pw_uid, account.pw_gid)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def haproxy(configuration: str, port: int) -> Iterator[ToolProcess]:
    """HAProxy with this configuration, listening on this port."""
    path = program(_network_tools.HAPROXY)
    with tool_directory() as directory:
        (directory / "haproxy.cfg").write_text(configuration)
        process = ToolProcess([path, "-db", "-f", str(directory / "haproxy.cfg")], port, directory)
        try:
            process.start()
            yield process
        finally:
            process.stop()


@contextmanager
def pgbouncer(server_url: str, **settings: object) -> Iterator[ToolProcess]:
    """PgBouncer before all databases of a server; anybody may log in, as the account of the URL."""
    path = program(_network_tools.PGBOUNCER)
    parts = urlsplit(server_url)
    login = f"user={parts.username}" + (f" password={parts.password}" if parts.password else "")
    port = free_port()
    changes = {
        "shop = host=127.0.0.1 port=5432 dbname=shop": f"* = host={parts.hostname} port={parts.port} {login}",
        "listen_port = 6432": f"listen_port = {port}",
        "auth_type = scram-sha-256": "auth_type = any",
        "auth_file = /etc/pgbouncer/userlist.txt\n": "",
    }
    more = {"ignore_startup_parameters": "pgbouncer", "unix_socket_dir": "", **settings}
    lines = [f"{name} = {value}\n" for name, value in more.items()]
    with tool_directory() as directory:
        (directory / "pgbouncer.ini").write_text(with_changes("pgbouncer.ini", changes) + "".join(lines))
        process = ToolProcess([path, str(directory / "pgbouncer.ini")], port, directory)
        try:
            process.start()
            yield process
        finally:
            process.stop()
