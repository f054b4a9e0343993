"""What all servers have in common that the tests run against: found, installed, started and stopped alike.

`find_program` looks on the PATH and where administrators' programs are, `install_package` asks Debian's
package manager, and `running` starts a server for a block and ends it with the block, however that ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_ADMINISTRATION = "/usr/local/sbin:/usr/sbin:/sbin"
_PATIENCE = 60.0


class DidNotStart(Exception):
    """A server ended or kept silent instead of answering; the message has the end of its log."""


def find_program(*names: str) -> str | None:
    """The first of these programs that this machine has."""
    places = f"{os.environ.get('PATH', os.defpath)}:{_ADMINISTRATION}"
    return next((path for name in names if (path := shutil.which(name, path=places))), None)


def install_package(label: str, package: str) -> bool:
    """Whether Debian's package could be installed, which only root can."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    print(f"{label:<9} installing the Debian package {package}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = (["update"], ["install", "-y", "--no-install-recommends", package])
    return all(subprocess.run(["apt-get", "-qq", *one], env=environment).returncode == 0 for one in commands)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts_connections(port: int) -> bool:
    """Whether somebody listens on that port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def running(command: Sequence[str], is_ready: Callable[[], bool]) -> Iterator[Path]:
    """Run a server in a directory of its own, gone afterwards; `DidNotStart` if it never gets ready."""
    with tempfile.TemporaryDirectory(prefix="maniflex-tests-", ignore_cleanup_errors=True) as directory:
        log = Path(directory) / "log"
        with log.open("wb") as out:
            server = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                # In our own session a Ctrl-C would reach the server before the tests are done with it.
                start_new_session=True,
            )
        try:
            _wait_until(is_ready, server, log)
            yield Path(directory)
        finally:
            _end(server)


def _wait_until(is_ready: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_ready():
        if server.poll() is not None or time.monotonic() > deadline:
            raise DidNotStart(f"it did not come up:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
