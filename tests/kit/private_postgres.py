"""A PostgreSQL server of a test's own, to be stopped and started under whoever uses it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _postgres


class PrivatePostgres:
    """A cluster whose server keeps its port and its data from one start to the next."""

    def __init__(self, binaries: Path, directory: Path) -> None:
        self._binaries = binaries
        self._directory = directory
        self._account = _postgres._account()
        if self._account is not None:
            os.chown(directory, self._account.pw_uid, self._account.pw_gid)
        password = secrets.token_urlsafe(16)
        _postgres._initdb(binaries, directory, self._account, password)
        self._port = _postgres._free_port()
        self.url = f"postgresql://postgres:{password}@127.0.0.1:{self._port}/postgres"
        self._server: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._server = _postgres._start(self._binaries, self._directory, self._account, self._port)
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
        if self._server is not None:
            _postgres._stop(self._server)


@contextmanager
def private_postgres() -> Iterator[PrivatePostgres]:
    """A server that is not running yet; nothing of it is left afterwards."""
    if os.environ.get("MANIFLEX_TEST_SQLITE_ONLY") == "1":
        pytest.skip("PostgreSQL is left out on request")
    binaries = _postgres._binaries()
    if binaries is None:
        pytest.skip("there are no server binaries on this machine")
    directory = _postgres._directory()
    try:
        server = PrivatePostgres(binaries, directory)
        try:
            yield server
        finally:
            server.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
