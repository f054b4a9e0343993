"""What is imported, and what is said when a package is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from maniflex import DeclarationError, events

CLIENTS = {
    "KafkaBus": ("confluent_kafka", "kafka"),
    "NatsBus": ("nats", "nats"),
    "RabbitBus": ("aio_pika", "rabbitmq"),
    "RedisBus": ("redis", "redis"),
}


def run(source: str) -> str:
    command = [sys.executable, "-c", source]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_naming_events_imports_no_client_of_a_broker() -> None:
    clients = "('redis', 'nats', 'aio_pika', 'confluent_kafka')"
    source = f"""
import sys
import maniflex, maniflex.events
from maniflex.events import Event, InProcessBus, MemoryDedupe, dedupe
print([name for name in sys.modules if name.split('.')[0] in {clients}])
"""
    assert run(source) == "[]"


@pytest.mark.parametrize("bus", CLIENTS)
def test_a_missing_package_is_a_declaration_error_with_the_line_to_type(bus: str) -> None:
    package, extra = CLIENTS[bus]
    source = f"""
import sys
sys.modules['{package}'] = None
from maniflex.errors import DeclarationError
from maniflex import events
assert '{bus}' in dir(events)
try:
    events.{bus}
except DeclarationError as error:
    print(error)
"""
    assert f"pip install 'maniflex[{extra}]'" in run(source)


@pytest.mark.parametrize(("bus", "scheme"), [("RedisBus", "redis://"), ("RabbitBus", "amqp://")])
def test_an_address_of_something_else_is_refused_where_it_is_declared(bus: str, scheme: str) -> None:
    with pytest.raises(DeclarationError, match=f"{bus}: a URL begins with {scheme}") as refused:
        getattr(events, bus)("http://me:secret@127.0.0.1")

    assert "secret" not in str(refused.value)
