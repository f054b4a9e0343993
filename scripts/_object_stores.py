"""Start the object stores that the tests of storage talk to: moto for S3, Azurite for Azure.

moto is a Python package among the development dependencies. Azurite is a package of npm: an `azurite-blob`
on the PATH is used, else one in `.tools/`, where `scripts/test` installs it if it has to. Each listens on a
free port of this machine, keeps everything in memory and ends with its block. MANIFLEX_TEST_S3 and
MANIFLEX_TEST_AZURE name endpoints that run already; MANIFLEX_TEST_NO_AZURE=1 leaves Azure out knowingly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from _component import DidNotStart, accepts_connections, free_port, running

S3_VARIABLE = "MANIFLEX_TEST_S3"
AZURE_VARIABLE = "MANIFLEX_TEST_AZURE"
NO_AZURE = "MANIFLEX_TEST_NO_AZURE"
TOOLS = Path(__file__).resolve().parent.parent / ".tools"
AZURITE = "azurite@3"
ACCOUNT = "devstoreaccount1"  # the one that every Azurite has
S3_HELP = 'moto is not installed: pip install -e ".[dev]"'
AZURE_HELP = f"""\
Azurite was not found and could not be installed, and tests of storage run against it. One of these will do:
  - install Node.js with npm:       apt-get install nodejs npm  |  brew install node
  - name one that runs:             {AZURE_VARIABLE}=http://127.0.0.1:10000/{ACCOUNT}
  - leave Azure out knowingly:      scripts/test --no-azure"""


class NoObjectStore(Exception):
    """There is no server to test against; the message says how to get one."""


@contextmanager
def s3() -> Iterator[tuple[str, str]]:
    """An endpoint that speaks S3 and takes any credentials, and where it came from."""
    if named := os.environ.get(S3_VARIABLE):
        yield named, f"the server named by {S3_VARIABLE}"
    elif find_spec("moto") is None:
        raise NoObjectStore(S3_HELP)
    else:
        port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with _serve(command, port):
            yield f"http://127.0.0.1:{port}", "a temporary moto"


@contextmanager
def azure(*, install: bool = True) -> Iterator[tuple[str, str]]:
    """An endpoint that speaks to Azure's clients and checks signatures, and where it came from."""
    if named := os.environ.get(AZURE_VARIABLE):
        yield named, f"the server named by {AZURE_VARIABLE}"
    elif (binary := _azurite() or (_install_azurite() if install else None)) is None:
        raise NoObjectStore(_why_no_azurite())
    else:
        port = free_port()
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        options = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        with _serve([binary, *place, *options], port):
            yield f"http://127.0.0.1:{port}/{ACCOUNT}", f"a temporary {binary}"


def _azurite() -> str | None:
    if not shutil.which("node"):
        return None
    return shutil.which("azurite-blob") or shutil.which(
        "azurite-blob", path=str(TOOLS / "node_modules" / ".bin")
    )


def _install_azurite() -> str | None:
    if not shutil.which("node") or not (npm := shutil.which("npm")):
        return None
    print(f"azure     installing {AZURITE} into {TOOLS.name}/", flush=True)
    TOOLS.mkdir(exist_ok=True)
    options = ["--no-audit", "--no-fund", "--loglevel", "error", "--prefix", str(TOOLS)]
    if subprocess.run([npm, "install", *options, AZURITE]).returncode != 0:
        return None
    return _azurite()


def _why_no_azurite() -> str:
    missing = [tool for tool in ("node", "npm") if not shutil.which(tool)]
    because = f"{' and '.join(missing)} not found on the PATH" if missing else "npm could not install it"
    return f"{because}.\n{AZURE_HELP}"


@contextmanager
def _serve(command: list[str], port: int) -> Iterator[None]:
    try:
        with running(command, lambda: accepts_connections(port)):
            yield
    except DidNotStart as problem:
        raise NoObjectStore(str(problem)) from problem


if __name__ == "__main__":
    try:
        with s3() as s3_server, azure(install=False) as azure_server:
            print(*s3_server, *azure_server, sep="\n")
    except NoObjectStore as problem:
        sys.exit(str(problem))
