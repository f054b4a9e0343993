"""The private parts of a server that tests look at, each reached in this one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

import pytest

from maniflex import Model, Server
from maniflex.background.environment import Environment
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.dispatcher import Dispatcher
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.runs.claimer import Rescuer
from maniflex.background.runs.worker import RunWorker
from maniflex.db.port import Adapter
from maniflex.db.store import Store
from maniflex.encryption.memory import OpenedValues
from tests.kit.waiting import eventually


def adapter_of(server: Server) -> Adapter:
    """The adapter of the default database."""
    return server._seal().runtime.adapter


def store_of(server: Server, model: type[Model]) -> Store:
    """What reads and writes the records of a model."""
    return server._seal().runtime.stores[model]


def opened_values_of(server: Server) -> OpenedValues:
    """What the process remembers of encrypted fields."""
    return server._seal().runtime.keys.opened


def metrics_of(server: Server) -> Metrics:
    """What `/metrics` would show."""
    return server._durable.metrics


def outbox_parts(outbox: Outbox) -> tuple[Environment, OutboxStore]:
    """What relays work with."""
    return outbox.require_sealed(), outbox.store


def a_dispatcher(outbox: Outbox, batch: int | None, concurrency: int) -> Dispatcher:
    """One relay that takes its turns when it is told to."""
    return outbox._dispatcher(batch, concurrency)


async def rescue_expired(worker: RunWorker) -> bool:
    """Take back the runs whose leases ran out, without the second look; whether there were any."""
    return await worker.rescuer.at_once()


class ExpiredLeases:
    """Notes the rescuers that have seen a lease run out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._looks: Counter[Rescuer] = Counter()
        look = Rescuer._had_a_chance

        async def count(rescuer: Rescuer, now: datetime) -> bool:
            self._looks[rescuer] += 1
            return await look(rescuer, now)

        monkeypatch.setattr(Rescuer, "_had_a_chance", count)

    async def seen_by(self, workers: Iterable[RunWorker], times: int = 1) -> None:
        """Wait until each of these workers has seen one, so many times from now on."""
        enough = {worker.rescuer: self._looks[worker.rescuer] + times for worker in workers}
        await eventually(
            lambda: all(self._looks[rescuer] >= looks for rescuer, looks in enough.items()),
            "leases that were seen to have run out",
        )


def clients_that_left(server: Server) -> int:
    """How many requests that are still served have lost their client."""
    requests = server._seal().runtime.watch.requests
    return sum(ctx.watched is not None and ctx.watched.client_left for ctx in requests)
