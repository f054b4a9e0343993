"""Make the project's `.venv` and keep it up to date; only the standard library is used.

`ensure("dev")` returns at once when the environment already holds those extras for the present
`pyproject.toml`, which is what makes the second run of a script fast.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".maniflex-installed.json"
IMPLIED = {"dev": {"dev", "admin", "auth", "http", "postgres"}}


def ensure(*extras: str) -> Path:
    """The interpreter of an environment that has the project and these extras installed."""
    wanted = set[str]().union(*(IMPLIED.get(extra, {extra}) for extra in extras))
    with _alone():
        installed = _installed()
        if installed is None or not wanted <= installed:
            _install(sorted(wanted | (installed or set())))
    return PYTHON


def reexec_inside(python: Path) -> None:
    """Go on in the environment's interpreter; a no-op when already there."""
    if Path(sys.prefix).resolve() != VENV:
        os.execv(python, [str(python), *sys.argv])


@contextmanager
def _alone() -> Iterator[None]:
    # Two scripts started at once would run two pips in one environment.
    directory = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _fingerprint() -> str:
    pyproject = (ROOT / "pyproject.toml").read_bytes()
    return hashlib.sha256(pyproject + str(ROOT).encode()).hexdigest()


def _installed() -> set[str] | None:
    try:
        stamp = json.loads(STAMP.read_text())
        return (
            set(stamp["extras"]) if stamp["fingerprint"] == _fingerprint() and _imports("maniflex") else None
        )
    except (OSError, ValueError, KeyError):
        return None


def _imports(module: str) -> bool:
    check = f"import sys, {module}; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([PYTHON, "-c", check], capture_output=True).returncode == 0
    except OSError:
        return False


def _install(extras: list[str]) -> None:
    if not _imports("pip"):
        print(f"venv      making {VENV.name} with Python {sys.version.split()[0]}", flush=True)
        make = [sys.executable, "-m", "venv", "--clear", str(VENV)]
        _run(make, hint="on Debian: apt-get install python3-venv")
    brackets = f"[{','.join(extras)}]" if extras else ""
    print(f"install   maniflex{brackets}", flush=True)
    STAMP.unlink(missing_ok=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, "-e", f"{ROOT}{brackets}"], hint="packages come from PyPI, or the index pip is set to")
    STAMP.write_text(json.dumps({"fingerprint": _fingerprint(), "extras": extras}))


def _run(command: list[str], *, hint: str) -> None:
    if (code := subprocess.run(command).returncode) != 0:
        sys.exit(f"{Path(sys.argv[0]).name}: `{' '.join(command)}` failed with exit code {code} ({hint})")
