"""A PostgreSQL server of a test's own, to be stopped and started under whoever uses it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.kit.processes import free_port

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _postgres


class PrivatePostgres:
    """A cluster whose server keeps its port and its data from one start to the next."""

    def __init__(self, binaries: Path, directory: Path, **settings: object) -> None:
        self.binaries = binaries
        self._directory = directory
        self._settings = settings
        self._account = _postgres._account()
        if self._account is not None:
            os.chown(directory, self._account.pw_uid, self._account.pw_gid)
        self.password = self._fill()
        self.port = free_port()
        self.url = f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"
        self._server: subprocess.Popen[bytes] | None = None

    def _fill(self) -> str:
        """Make the cluster; returns the password."""
        password = secrets.token_urlsafe(16)
        _postgres._initdb(self.binaries, self._directory, self._account, password)
        return password

    async def start(self) -> None:
        self._server = _postgres._start(
            self.binaries, self._directory, self._account, self.port, **self._settings
        )
        await asyncio.to_thread(_postgres._wait_for, self.url, self._server, self._directory)

    async def stop(self) -> None:
        await asyncio.to_thread(self.end)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def crash(self) -> None:
        """End without a word to anybody, as after a power cut, and come back."""
        assert self._server is not None
        self._server.send_signal(signal.SIGQUIT)
        await asyncio.to_thread(self._server.wait, 30)
        await self.start()

    def kill(self) -> None:
        """End all processes of the server at once, as `kill -9` does."""
        assert self._server is not None
        self._send(signal.SIGKILL)
        self._server.wait(30)

    def freeze(self) -> None:
        """Stop all processes of the server where they are: it keeps its connections and says nothing."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        assert self._server is not None
        parent = self._server.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in (parent, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        if self._server is not None and self._server.poll() is None:
            self.thaw()
            _postgres._stop(self._server)

    def discard(self) -> None:
        """End without writing anything more: the data goes with its directory."""
        if self._server is not None and self._server.poll() is None:
            self.thaw()
            self._server.send_signal(signal.SIGQUIT)
            try:
                self._server.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class Standby(PrivatePostgres):
    """A streaming replica of another server, which may be promoted."""

    def __init__(self, primary: PrivatePostgres, directory: Path, **settings: object) -> None:
        self._primary = primary
        super().__init__(primary.binaries, directory, **settings)

    def _fill(self) -> str:
        data = self._directory / "data"
        command: list[str | Path] = [
            self.binaries / "pg_basebackup",
            "--pgdata",
            data,
            "--dbname",
            self._primary.url,
        ]
        options = _postgres._as(self._account, self._directory)
        subprocess.run([*command, "--write-recovery-conf", "--checkpoint", "fast"], check=True, **options)
        return self._primary.password

    def promote(self) -> None:
        command: list[str | Path] = [
            self.binaries / "pg_ctl",
            "promote",
            "--pgdata",
            self._directory / "data",
            "--wait",
        ]
        options = _postgres._as(self._account, self._directory)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)


@contextmanager
def private_postgres(**settings: object) -> Iterator[PrivatePostgres]:
    """A server that is not running yet; nothing of it is left afterwards."""
    with _server_directory() as (binaries, directory):
        server = PrivatePostgres(binaries, directory, **settings)
        try:
            yield server
        finally:
            server.discard()


@asynccontextmanager
async def standby_of(primary: PrivatePostgres, **settings: object) -> AsyncIterator[Standby]:
    """A running standby of a server that runs."""
    with _server_directory() as (_, directory):
        standby = await asyncio.to_thread(partial(Standby, primary, directory, **settings))
        try:
            await standby.start()
            yield standby
        finally:
            standby.discard()


@contextmanager
def _server_directory() -> Iterator[tuple[Path, Path]]:
    if os.environ.get("MANIFLEX_TEST_SQLITE_ONLY") == "1":
        pytest.skip("PostgreSQL is left out on request")
    binaries = _postgres._binaries()
    if binaries is None:
        pytest.skip("there are no server binaries on this machine")
    directory = _postgres._directory()
    try:
        yield binaries, directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
