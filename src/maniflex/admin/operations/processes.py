"""The processes of the application: alive, late or gone; red when work is due that one does not take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from maniflex.admin.operations.desk import ROOT, WorkDesk, seeing, show_page
from maniflex.admin.visit import Visit, show
from maniflex.background.parameters import span
from maniflex.background.processes.model import ProcessState, WorkProcess
from maniflex.background.processes.overview import LATE_RUN, Overview
from maniflex.pipeline.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process."""

    host: str
    pid: str
    role: str
    version: str
    takes: str
    running: str
    started: str
    seen: str
    lag: str
    state: str
    tone: int
    idle: str  # the type that is due and that it takes and does not work on


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesView:
    """What `operations/processes.html` is given."""

    rows: Sequence[ProcessRow]
    light: str
    sentence: str
    live_url: str


async def show_processes(visit: Visit, desk: WorkDesk) -> Response:
    """All processes of the last day."""
    return await show_page(desk, "processes.html", await _view(desk), tab="ops_processes")


async def show_process_rows(visit: Visit, desk: WorkDesk) -> Response:
    """The part of the page that changes."""
    return visit.part("operations/_processes.html", view=await _view(desk))


async def _view(desk: WorkDesk) -> ProcessesView:
    overview = await desk.parts.processes.overview()
    rows = [_row(desk, one, overview) for one in overview.processes]
    alive = len(overview.alive)
    t = desk.visit.t
    return ProcessesView(
        rows=rows,
        light="ok" if alive and not any(row.idle for row in rows) else "error",
        sentence=t("ops_alive_count", count=alive) if alive else t("ops_none_alive"),
        live_url=f"{desk.visit.root}{ROOT}/processes/rows",
    )


def idle_type(process: WorkProcess, overview: Overview) -> str:
    """A type that has been due for long, that the process takes, and that it has room for and leaves."""
    has_room = process.running < process.concurrency
    if process.state(overview.now) is not ProcessState.ALIVE or not has_room:
        return ""
    for one in overview.types:
        is_late = one.oldest_due is not None and overview.now - one.oldest_due > LATE_RUN
        if is_late and not one.running and process.takes(one.type):
            return one.type
    return ""


def _row(desk: WorkDesk, process: WorkProcess, overview: Overview) -> ProcessRow:
    now: datetime = overview.now
    state = process.state(now)
    t = desk.visit.t
    parts = [*process.types, *(f"{kind} ✉" for kind in process.kinds)]
    parts += [t("ops_fires_schedules")] if process.schedules else []
    idle = idle_type(process, overview)
    tones = {ProcessState.ALIVE: 1, ProcessState.LATE: 2, ProcessState.GONE: 3}
    word = t("ops_stopped") if process.stopped_at is not None else state.value
    return ProcessRow(
        host=process.host if desk.reads_internals else t("ops_some_host"),
        pid=str(process.pid) if desk.reads_internals else "",
        role=process.role,
        version=process.version,
        takes=", ".join(parts),
        running=f"{process.running} / {process.concurrency}",
        started=desk.time(process.started_at)[0],
        seen=t("ops_ago", span=span(now - process.seen_at)),
        lag=f"{process.lag_ms} ms",
        state=word,
        tone=3 if idle else tones[state],
        idle=idle,
    )


ROUTES = (
    show(f"{ROOT}/processes", seeing(show_processes, all_tenants=True)),
    show(f"{ROOT}/processes/rows", seeing(show_process_rows, all_tenants=True)),
)
