"""Find a RabbitMQ server for the tests of events, or start one for them.

In this order: the URL in MANIFLEX_TEST_RABBITMQ; a server on 127.0.0.1:5672; the `rabbitmq-server` of this
machine, run for the tests alone; as root on Debian, the packaged one. `rabbitmq()` gives the URL and the
words that say where it came from; `NoRabbit` says how to get one. A Kafka cluster is only ever named, by
MANIFLEX_TEST_KAFKA: no usable broker is packaged, and the tests run against the mock cluster of the client.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from _component import find_program, free_port, install_package, running

# The program beside the one on the PATH: that one runs the server as another user.
PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
VARIABLE = "MANIFLEX_TEST_RABBITMQ"
NO_RABBITMQ = "MANIFLEX_TEST_NO_RABBITMQ"
KAFKA_VARIABLE = "MANIFLEX_TEST_KAFKA"
HELP = f"""\
No RabbitMQ server was found, and tests of events run against one. One of these will do:
  - name one:                      {VARIABLE}=amqp://user:password@host:5672/
  - install the server:            apt-get install rabbitmq-server  |  brew install rabbitmq
  - leave RabbitMQ out knowingly:  scripts/test --no-rabbitmq"""


class NoRabbit(Exception):
    """There is no server to test against; the message says how to get one."""


@contextmanager
def rabbitmq(*, install: bool = True) -> Iterator[tuple[str, str]]:
    """A URL of a server the tests may declare queues on, and where it came from."""
    if named := os.environ.get(VARIABLE):
        yield named, f"the server named by {VARIABLE}"
    elif speaks_amqp(5672):
        yield url_of(5672), "the server on 127.0.0.1:5672"
    elif (program := find() or (_install() if install else None)) is not None:
        port = free_port()
        with running(command(program, port, "."), lambda: speaks_amqp(port)):
            yield url_of(port), f"a temporary {program}"
    else:
        raise NoRabbit(HELP)


def find() -> str | None:
    """The program of this machine."""
    return find_program(*PROGRAMS)


def url_of(port: int) -> str:
    """A server of this machine, with the login that it has from its beginning."""
    return f"amqp://guest:guest@127.0.0.1:{port}/"


def command(program: str, port: int, directory: str | Path) -> Sequence[str]:
    """How a server is started that keeps all its files in this directory."""
    place = Path(directory).absolute() if str(directory) != "." else Path("$PWD")
    settings = {
        "RABBITMQ_NODENAME": f"maniflex{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": free_port(),
        "RABBITMQ_MNESIA_BASE": place / "data",
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": place / "pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": place / "plugins",
        "RABBITMQ_CONFIG_FILE": place / "none",
        "RABBITMQ_ADVANCED_CONFIG_FILE": place / "none",
        "HOME": place,
    }
    words = " ".join(f'{name}="{value}"' for name, value in settings.items())
    return ["sh", "-c", f'exec env {words} "{program}"']


def speaks_amqp(port: int) -> bool:
    """Whether somebody there begins a connection."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as line:
            line.sendall(b"AMQP\x00\x00\x09\x01")
            return line.recv(7).startswith(b"\x01\x00\x00")
    except OSError:
        return False


def _install() -> str | None:
    return find() if install_package("rabbitmq", "rabbitmq-server") else None
