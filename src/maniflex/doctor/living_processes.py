"""The processes of the application that live now, as their rows in `work_process` say."""

from __future__ import annotations

from datetime import datetime

from maniflex.background.processes.model import ProcessState, WorkProcess
from maniflex.background.processes.overview import describe_no_taker
from maniflex.db.columns import read_columns
from maniflex.db.current import reading
from maniflex.db.records import Records
from maniflex.doctor.subject import OpenDatabase

MOST = 1000


class LivingProcesses:
    """Who is there, and who was."""

    def __init__(self, rows: list[WorkProcess], now: datetime) -> None:
        self._rows, self._now = rows, now
        self.alive = [one for one in rows if one.state(now) is ProcessState.ALIVE]

    @property
    def hosts(self) -> list[str]:
        """Where they run."""
        return sorted({one.host for one in self.alive})

    @property
    def fire_schedules(self) -> bool:
        return any(one.schedules for one in self.alive)

    def take_runs(self, type: str) -> bool:
        return any(one.takes(type) for one in self.alive)

    def take_messages(self, kind: str) -> bool:
        return any(kind in one.kinds or "*" in one.kinds for one in self.alive)

    def no_taker(self, type: str) -> str:
        """That none takes runs of the type, and when the last one that did was seen."""
        return describe_no_taker(self._rows, type, self._now)


async def read_living(database: OpenDatabase) -> LivingProcesses:
    """The processes of the application; none where no durable work is declared, which keeps their rows."""
    subject = database.subject
    store, now = subject.stores.get(WorkProcess), subject.work.clock.now()
    if store is None or store.adapter is not subject.runtime.adapter:
        return LivingProcesses([], now)
    if not await read_columns(store.adapter, store.sql):
        return LivingProcesses([], now)
    records = Records[WorkProcess](store, reading(store.adapter))
    rows = await records.list(sorts="seen_at:desc", limit=MOST)
    return LivingProcesses(rows, now)
