"""The job queue: durable, retried background work, on these runs, in memory, in Redis or in NATS."""

from maniflex.background.jobs.api import SqlQueue
from maniflex.background.jobs.inproc import InProcessQueue
from maniflex.background.jobs.port import (
    Cancellable,
    Delivery,
    EventBus,
    Job,
    Queue,
    Recovered,
    Result,
    Source,
    StatusSink,
)
from maniflex.background.jobs.status import StatusModel
from maniflex.background.jobs.worker import Worker

__all__ = [
    "Cancellable",
    "Delivery",
    "EventBus",
    "InProcessQueue",
    "Job",
    "Queue",
    "Recovered",
    "Result",
    "Source",
    "SqlQueue",
    "StatusModel",
    "StatusSink",
    "Worker",
]
