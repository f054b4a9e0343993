"""Find a Chromium for the tests of the panel.

In this order: the program in MANIFLEX_TEST_CHROMIUM; one on the PATH; as root on Debian, the packaged one.
`find` gives its path and the words that say where it came from, or None.
"""

from __future__ import annotations

import os
import shutil
import subprocess

VARIABLE = "MANIFLEX_TEST_CHROMIUM"
NO_BROWSER = "MANIFLEX_TEST_NO_BROWSER"  # its tests are left out, knowingly
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HELP = f"no Chromium was found: set {VARIABLE}=/path/to/chromium, install it, or say --no-browser"


class NoChromium(Exception):
    """There is none, and none can be installed."""


def find(*, install: bool = True) -> tuple[str | None, str]:
    """The path of a Chromium, and where it came from."""
    if named := os.environ.get(VARIABLE):
        return named, f"the one named by {VARIABLE}"
    binary = _binary() or (_install() if install else None)
    return (None, HELP) if binary is None else (binary, binary)


def _binary() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _install() -> str | None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    print("chromium  installing the Debian package", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        if subprocess.run(["apt-get", "-qq", *command], env=environment).returncode != 0:
            return None
    return _binary()
