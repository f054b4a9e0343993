"""The private parts of a server that tests look at, each reached in this one place."""

from __future__ import annotations

from maniflex import Server
from maniflex.background.environment import Environment
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.dispatcher import Dispatcher
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.runs.worker import RunWorker
from maniflex.db.port import Adapter


def adapter_of(server: Server) -> Adapter:
    """The adapter of the default database."""
    return server._seal().runtime.adapter


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
