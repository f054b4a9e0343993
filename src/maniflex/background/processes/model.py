"""The tables of processes and of what they did, as ordinary models.

Their statements are in `background/sql`. A process has one row, which it writes every ten seconds while it
lives; what it did in a minute is one row for each kind and type of work.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from maniflex.model.base import Model
from maniflex.model.declared import Index
from maniflex.model.field import field

BEAT = timedelta(seconds=10)
LATE_AFTER = 3 * BEAT
GONE_AFTER = 10 * BEAT


class ProcessState(StrEnum):
    """Whether a process is there, by when it was last seen."""

    ALIVE = "alive"
    LATE = "late"
    GONE = "gone"


class WorkProcess(
    Model,
    table="work_process",
    headless=True,
    indices=[Index(("seen_at",), name="work_process_seen_idx")],
):
    """A process of the application: where it runs, the work it takes and when it was last seen."""

    host: str
    pid: int
    role: str  # server, worker or scheduler
    version: str  # of maniflex
    types: list[str] = field(default_factory=list)  # of runs: exact ones, and prefixes such as `billing.*`
    kinds: list[str] = field(default_factory=list)  # of messages; `*` for every kind
    schedules: bool = field(default=False)  # whether it fires schedules
    concurrency: int = field(default=0)
    running: int = field(default=0)
    started_at: datetime
    seen_at: datetime
    stopped_at: datetime | None = field(default=None)  # when it stopped in good order
    lag_ms: int = field(default=0)  # how late its event loop was at worst, since it was seen before

    def state(self, now: datetime) -> ProcessState:
        """Whether it is alive: seen a moment ago, and not stopped."""
        age = now - self.seen_at
        if self.stopped_at is not None or age > GONE_AFTER:
            return ProcessState.GONE
        return ProcessState.LATE if age > LATE_AFTER else ProcessState.ALIVE

    def takes(self, type: str) -> bool:
        """Whether it takes runs of this type."""
        return any(type == one or (one.endswith("*") and type.startswith(one[:-1])) for one in self.types)


class WorkStat(
    Model,
    table="work_stat",
    headless=True,
    indices=[
        Index(("minute", "kind", "type", "process_id", "seconds"), unique=True, name="work_stat_minute_idx")
    ],
):
    """What one process did of one type in a minute, or all processes in an hour that is long over."""

    minute: datetime  # its beginning
    seconds: int = field(default=60)  # how long it is: 60, or 3600
    process_id: str = field(relation=None)  # "" when it is about all of them
    kind: str  # run, message, request, or due: runs that were due at some moment of the minute
    type: str
    started: int = field(default=0)
    succeeded: int = field(default=0)
    failed: int = field(default=0)
    retried: int = field(default=0)
    busy_ms: int = field(default=0)
    wait_ms: int = field(default=0)
