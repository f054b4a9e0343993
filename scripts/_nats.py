"""Find a NATS server with JetStream for the tests of jobs in NATS, or start one for them.

In this order: the URL in MANIFLEX_TEST_NATS; the `nats-server` of this machine, run for the tests alone, so
that nobody else's streams are in their way; a server on 127.0.0.1:4222 that has JetStream; as root on Debian,
the packaged program. `nats()` gives the URL and the words that say where it came from; `NoNats` says how to
get one.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from _component import find_program, free_port, install_package, running

PROGRAM = "nats-server"
VARIABLE = "MANIFLEX_TEST_NATS"
NO_NATS = "MANIFLEX_TEST_NO_NATS"
HELP = f"""\
No NATS server with JetStream was found, and tests of job queues run against one. One of these will do:
  - name one:                      {VARIABLE}=nats://host:4222
  - install the server:            apt-get install nats-server  |  brew install nats-server
  - leave NATS out knowingly:      scripts/test --no-nats"""


class NoNats(Exception):
    """There is no server to test against; the message says how to get one."""


@contextmanager
def nats(*, install: bool = True) -> Iterator[tuple[str, str]]:
    """A URL of a server the tests may make streams on, and where it came from."""
    if named := os.environ.get(VARIABLE):
        yield named, f"the server named by {VARIABLE}"
    elif (program := find_program(PROGRAM)) is not None:
        with _start(program) as url:
            yield url, f"a temporary {program}"
    elif has_jetstream(4222):
        yield "nats://127.0.0.1:4222", "the server on 127.0.0.1:4222"
    elif install and (program := _install()) is not None:
        with _start(program) as url:
            yield url, f"a temporary {program}"
    else:
        raise NoNats(HELP)


def _install() -> str | None:
    return find_program(PROGRAM) if install_package("nats", PROGRAM) else None


@contextmanager
def _start(program: str) -> Iterator[str]:
    port = free_port()
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", "."]
    with running(command, lambda: has_jetstream(port)):
        yield f"nats://127.0.0.1:{port}"


def has_jetstream(port: int) -> bool:
    """What the server says of itself when one connects."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as line:
            greeting = line.makefile("rb").readline()
        return bool(json.loads(greeting.removeprefix(b"INFO ")).get("jetstream"))
    except (OSError, ValueError):
        return False
