"""Brokers of events for tests: what takes one away, and a process that holds messages."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from typing import Any, Protocol, Self

import pytest

from maniflex.errors import Timeout, Unavailable
from maniflex.events import Event, RabbitBus
from maniflex.events.consuming import Consumer
from maniflex.events.port import Bus, SubscriptionPlan
from tests.kit.processes import PROGRAMS, Program, free_port, run_program
from tests.kit.tcp_relay import Relay
from tests.kit.waiting import eventually, until

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _rabbitmq


class EventInbox:
    """A handler that keeps its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def data(self) -> list[Any]:
        return [event.data for event in self.events]


class PrivateBroker(Protocol):
    """A broker of one test, which may be killed."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


async def publishes(bus: Bus, event: Event) -> bool:
    """Whether the broker takes the event now."""
    with suppress(Unavailable, Timeout):
        await bus.publish(event)
        return True
    return False


async def publish_through_kills(bus: Bus, server: PrivateBroker) -> set[str]:
    """The ids of forty events that the broker confirmed; it is killed twice and started again."""
    confirmed_ids = set[str]()
    for round in range(2):
        for n in range(20):
            event = Event("a.b", [round, n])
            await bus.publish(event)
            confirmed_ids.add(event.id)
        server.kill()
        with pytest.raises((Unavailable, Timeout)):
            await bus.publish(Event("a.b"))
        server.start()
        await eventually(lambda: publishes(bus, Event("a.back")))
    return confirmed_ids


async def assert_silence_times_out(bus: Bus, relay: Relay, *, within: float) -> None:
    """A broker that says nothing more is given up; the bus reaches it through the relay."""
    relay.hush()
    start = time.monotonic()
    with pytest.raises(Timeout):
        await bus.publish(Event("a.b"))
    assert time.monotonic() - start < within
    relay.speak()


class RelayedOutage:
    """An outage of a broker behind a relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def begin(self) -> None:
        await self._relay.cut()

    async def end(self) -> None:
        await self._relay.listen()


class TidyRabbitBus(RabbitBus):
    """Knows which queues it made, so that a test can remove them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.queues: set[str] = set()

    def consumer(self, plan: SubscriptionPlan) -> Consumer:
        self.queues.add(self.queue_of(plan))
        return super().consumer(plan)


@asynccontextmanager
async def tidy_rabbit_bus(**settings: Any) -> AsyncIterator[TidyRabbitBus]:
    """A bus whose queues and exchange are gone afterwards."""
    bus = TidyRabbitBus(**settings)
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()
        await remove_from_rabbit(settings, bus.exchange, bus.queues)


async def remove_from_rabbit(settings: Mapping[str, Any], exchange: str, queues: set[str]) -> None:
    """Delete an exchange, and the queues behind it."""
    connection = await RabbitBus(**settings).dial()
    channel = await connection.channel()
    for queue in queues:
        await channel.queue_delete(queue)
    await channel.exchange_delete(exchange)
    await connection.close()


class PrivateRabbit:
    """A RabbitMQ server of one test, which may be killed and started again on its files."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="maniflex-rabbitmq-", ignore_cleanup_errors=True)
        self._port = free_port()
        self._server: Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return _rabbitmq.url_of(self._port)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.kill()
        self._directory.cleanup()

    def start(self) -> None:
        """Come up, and answer before this returns."""
        program = _rabbitmq.find()
        assert program is not None, _rabbitmq.HELP
        command = _rabbitmq.command(program, self._port, self._directory.name)
        self._server = Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
        until(lambda: _rabbitmq.speaks_amqp(self._port), "the RabbitMQ server")

    def kill(self) -> None:
        """Die as in a crash."""
        assert self._server is not None
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)  # the script and the server it started
        self._server.wait()


class KafkaCluster:
    """A cluster for tests: a real one, or a mock in a process that a test may stop."""

    def __init__(self, address: str, program: Program | None) -> None:
        self.address = address
        self._program = program

    @property
    def is_real(self) -> bool:
        return self._program is None

    def make_topic(self, topic: str, partitions: int = 3) -> None:
        """The mock cannot be asked by a client to make one; on a real cluster the bus does it."""
        if self._program is not None:
            self._program.say(f"{topic} {partitions}")
            assert self._program.hear() == "0"

    def send(self, number: signal.Signals) -> None:
        """Stop the process of the mock, or let it go on."""
        assert self._program is not None
        self._program.process.send_signal(number)


@contextmanager
def kafka_cluster(address: str | None = None) -> Iterator[KafkaCluster]:
    """The cluster of this address; without one, a mock cluster."""
    if address:
        yield KafkaCluster(address, None)
        return
    with run_program(PROGRAMS / "mock_kafka.py", errors=DEVNULL) as program:
        yield KafkaCluster(program.hear(), program)


class StoppedCluster:
    """An outage of a mock cluster: it answers nothing any more."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    async def begin(self) -> None:
        self._cluster.send(signal.SIGSTOP)

    async def end(self) -> None:
        self._cluster.send(signal.SIGCONT)
