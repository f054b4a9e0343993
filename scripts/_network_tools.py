"""Find HAProxy and PgBouncer for the tests of scaling, or install them.

In this order: the path in MANIFLEX_TEST_HAPROXY or MANIFLEX_TEST_PGBOUNCER; the program of this machine; as
root on Debian, the package. `find(tool)` gives the path and the words that say where it came from; `NoTool`
says how to get one. The tests start them themselves, on ports of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NamedTuple


class Tool(NamedTuple):
    """One program: its variable holds a path, and the other one says that it is left out on purpose."""

    name: str
    variable: str
    left_out: str


HAPROXY = Tool("haproxy", "MANIFLEX_TEST_HAPROXY", "MANIFLEX_TEST_NO_HAPROXY")
PGBOUNCER = Tool("pgbouncer", "MANIFLEX_TEST_PGBOUNCER", "MANIFLEX_TEST_NO_PGBOUNCER")
TOOLS = (HAPROXY, PGBOUNCER)


class NoTool(Exception):
    """The program is not there; the message says how to get it."""


def find(tool: Tool, *, install: bool = True) -> tuple[str, str]:
    """The path of the program, and where it came from."""
    if named := os.environ.get(tool.variable):
        if not os.access(named, os.X_OK):
            raise NoTool(f"{tool.variable} is set but cannot be used: {named} is no program")
        return named, f"the program named by {tool.variable}"
    if path := _on_this_machine(tool.name):
        return path, path
    if install and _install(tool.name) and (path := _on_this_machine(tool.name)):
        return path, f"{path}, of the package"
    raise NoTool(
        f"No {tool.name} was found. Install it (apt-get install {tool.name} or brew), name it "
        f"by {tool.variable}=path, or leave it out knowingly: scripts/test --no-{tool.name}"
    )


def _on_this_machine(name: str) -> str | None:
    # Debian keeps servers where the PATH of a user does not lead.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _install(name: str) -> bool:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    print(f"{name:<9} installing the Debian package", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = (["update"], ["install", "-y", "--no-install-recommends", name])
    return all(subprocess.run(["apt-get", "-qq", *c], env=environment).returncode == 0 for c in commands)
