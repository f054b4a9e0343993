"""The job queue: durable, retried background work, on these runs, in memory, in Redis or in NATS."""

from maniflex.background.jobs.inproc import InProcessQueue
from maniflex.background.jobs.job import Job, Result
from maniflex.background.jobs.port import (
    Cancellable,
    Delivery,
    EventBus,
    Queue,
    Recovered,
    Source,
    StatusSink,
)
from maniflex.background.jobs.sql import SqlQueue
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
