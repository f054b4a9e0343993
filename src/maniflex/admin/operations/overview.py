"""Durable work as a whole: numbers and plots, processes, scheduled fields, what the doctor finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from maniflex.admin.operations.desk import ROOT, WorkDesk, acting, seeing, show_page
from maniflex.admin.operations.run_list import status_filters
from maniflex.admin.visit import Visit, act, show
from maniflex.background.parameters import span
from maniflex.background.processes.api import DuePoint, PlotPoint, floor
from maniflex.background.processes.overview import (
    FAILED_WITHIN,
    LATE_RUN,
    Light,
    Overview,
    TypeNumbers,
    count_text,
)
from maniflex.background.processes.store import ProcessState, Sums, WorkProcess
from maniflex.background.scheduled_fields.observers import Report
from maniflex.doctor.check import Finding, Severity
from maniflex.errors import InvalidQuery, NotFound
from maniflex.model.field import FieldSchedule, ScheduledAction
from maniflex.pipeline.response import Response

_LIGHTS = {Light.GREEN: ("●", "ok"), Light.YELLOW: ("▲", "warning"), Light.RED: ("■", "error")}


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberTile:
    """One number of the overview."""

    label: str
    value: str
    url: str = ""
    tone: str = ""  # bad or warn


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """The runs of one type."""

    type: str
    url: str
    due: str
    running: str
    rate: str
    failures: str
    oldest: str
    is_taken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersView:
    """What `operations/_numbers.html` is given."""

    light: str  # ok, warning or error; empty for people of one tenant
    sign: str
    sentence: str
    tiles: Sequence[NumberTile]
    types: Sequence[TypeRow]
    show_types: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotsView:
    """What `operations/_plots.html` is given."""

    plots: Sequence[TimePlot]
    spans: Sequence[tuple[str, str, bool]]  # labels, addresses, whether it is the one that is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewView:
    """What `operations/overview.html` is given."""

    numbers: NumbersView
    plots: PlotsView | None
    numbers_url: str
    plots_url: str
    submit_url: str


async def show_overview(visit: Visit, desk: WorkDesk) -> Response:
    """The whole page."""
    over = _chosen_span(visit)
    root = f"{visit.root}{ROOT}"
    view = OverviewView(
        numbers=await _numbers(desk),
        plots=await _plots(desk, over) if desk.sees_all else None,
        numbers_url=f"{root}/numbers",
        plots_url=f"{root}/plots?over={over}",
        submit_url=f"{root}/runs/new" if desk.can_act and desk.has("run.submit") else "",
    )
    return await show_page(desk, "overview.html", view, tab="ops_overview", title=visit.t("operations"))


async def show_numbers(visit: Visit, desk: WorkDesk) -> Response:
    """The part of the page that is asked for again and again."""
    return visit.part("operations/_numbers.html", view=await _numbers(desk))


async def show_plots(visit: Visit, desk: WorkDesk) -> Response:
    """The plots; they change when processes write what they did, every ten seconds."""
    return visit.part("operations/_plots.html", view=await _plots(desk, _chosen_span(visit)))


def _chosen_span(visit: Visit) -> str:
    over = visit.param("over") or "1h"
    if over not in SPANS:
        raise InvalidQuery(f"over: is one of {', '.join(SPANS)}")
    return over


# -- numbers


async def _numbers(desk: WorkDesk) -> NumbersView:
    if not desk.sees_all:
        return NumbersView(
            light="", sign="", sentence="", tiles=await _own_tiles(desk), types=(), show_types=False
        )
    overview = await desk.parts.processes.overview()
    sign, level = _LIGHTS[overview.light]
    return NumbersView(
        light=level,
        sign=sign,
        sentence=overview.sentence[:1].upper() + overview.sentence[1:] + ".",
        tiles=_tiles(desk, overview),
        types=[_type_row(desk, one, overview.now) for one in overview.types],
        show_types=desk.has("run.page"),
    )


def _tiles(desk: WorkDesk, overview: Overview) -> list[NumberTile]:
    t = desk.visit.t
    tiles = _run_tiles(desk, overview) if desk.has("run.page") else []
    if desk.has("message.page"):
        url = f"{desk.visit.root}{ROOT}/outbox"
        tiles += [
            NumberTile(
                label=t("ops_waiting"),
                value=count_text(overview.messages_waiting),
                url=f"{url}?f_status=pending",
            ),
            NumberTile(
                label=t("ops_dead"),
                value=count_text(overview.messages_dead),
                url=f"{url}?f_status=dead",
                tone="bad" if overview.messages_dead else "",
            ),
        ]
    if desk.has("schedule.page"):
        url = f"{desk.visit.root}{ROOT}/schedules"
        tone = "warn" if overview.schedules_late else ""
        late = count_text(overview.schedules_late)
        tiles.append(NumberTile(label=t("ops_late_schedules"), value=late, url=url, tone=tone))
    url = f"{desk.visit.root}{ROOT}/processes"
    alive = len(overview.alive)
    tiles.append(NumberTile(label=t("ops_alive"), value=str(alive), url=url, tone="" if alive else "bad"))
    return tiles


def _run_tiles(desk: WorkDesk, overview: Overview) -> list[NumberTile]:
    t, now = desk.visit.t, overview.now
    oldest = "–" if overview.oldest_due is None else span(now - overview.oldest_due)
    return [
        NumberTile(label=t("ops_due"), value=count_text(overview.due), url=runs_url(desk, f_status="due")),
        NumberTile(
            label=t("ops_running"),
            value=count_text(overview.running),
            url=runs_url(desk, f_status="leased"),
        ),
        NumberTile(
            label=t("ops_retrying"),
            value=count_text(overview.retrying),
            url=runs_url(desk, f_status="retrying"),
            tone="warn" if overview.retrying else "",
        ),
        NumberTile(
            label=t("ops_failed"),
            value=count_text(overview.failed),
            url=runs_url(desk, f_status="failed"),
            tone="bad" if overview.failed else "",
        ),
        NumberTile(label=t("ops_oldest"), value=oldest),
    ]


async def _own_tiles(desk: WorkDesk) -> list[NumberTile]:
    """The numbers of one tenant, or of one person: what the API would count for them."""
    if not desk.has("run.count"):
        return []
    t, lately = desk.visit.t, ("updated_at", "gte", desk.now() - FAILED_WITHIN)
    labels = {"due": "ops_due", "leased": "ops_running", "retrying": "ops_retrying", "failed": "ops_failed"}
    tiles: dict[str, tuple[str, list[tuple[str, str, Any]]]] = {
        status: (t(key), await status_filters(desk, status)) for status, key in labels.items()
    }
    tiles["failed"][1].append(lately)
    return [
        NumberTile(
            label=label,
            value=count_text(await desk.count("run", filters)),
            url=runs_url(desk, f_status=status),
        )
        for status, (label, filters) in tiles.items()
    ]


def _type_row(desk: WorkDesk, one: TypeNumbers, now: datetime) -> TypeRow:
    return TypeRow(
        type=one.type,
        url=runs_url(desk, f_type=one.type),
        due=count_text(one.due),
        running=count_text(one.running),
        rate=write_number(one.per_minute),
        failures=f"{one.failure_share:.0%}",
        oldest="–" if one.oldest_due is None else span(now - one.oldest_due),
        is_taken=one.is_taken or not one.due,
    )


def runs_url(desk: WorkDesk, **query: str) -> str:
    """The list of runs with these filters."""
    return desk.visit.url("-", "operations", "runs", **query)


# -- plots


async def _plots(desk: WorkDesk, chosen: str) -> PlotsView:
    over, every = SPANS[chosen]
    processes, t = desk.parts.processes, desk.visit.t
    points = await processes.plot(over, every)
    due = await processes.plot_due(over) if desk.has("run.page") else []
    axis = axis_of(processes.now(), over, every)
    ends, minutes = ends_of(axis, desk.visit.zone), every / timedelta(minutes=1)

    def rate(kind: str, name: str) -> list[float]:
        return values_on(axis, points, kind, lambda sums: getattr(sums, name) / minutes)

    kind = "run" if desk.has("run.page") else "message"
    plots = [
        draw_bars(
            t("ops_throughput"),
            [
                (t("ops_succeeded"), "ok", rate(kind, "succeeded")),
                (t("ops_retried"), "warn", rate(kind, "retried")),
                (t("ops_failed_word"), "bad", rate(kind, "failed")),
            ],
            ends,
            write_number,
        )
    ]
    if desk.has("run.page"):
        depth = worst_on(axis, due, every, lambda point: float(point.due))
        waits = values_on(axis, points, "run", _mean_wait)
        plots += [
            draw_bars(t("ops_depth"), [(t("ops_due"), "accent", depth)], ends, write_number),
            draw_bars(t("ops_wait"), [(t("ops_mean_wait"), "accent", waits)], ends, write_seconds),
        ]
    if desk.visit.panel.runtime.request_numbers is not None:  # with `metrics_enabled`
        answers = [
            (t("ops_answered"), "ok", rate("request", "succeeded")),
            (t("ops_errors"), "bad", rate("request", "failed")),
        ]
        plots.append(draw_bars(t("ops_requests"), answers, ends, write_number))
    here = f"{desk.visit.root}{ROOT}/"
    spans = [(t(f"ops_span_{name}"), f"{here}?over={name}", name == chosen) for name in SPANS]
    return PlotsView(plots=plots, spans=spans)


def _mean_wait(sums: Sums) -> float:
    return sums.wait_ms / 1000 / sums.started if sums.started else 0.0


# Plots of durable work as SVG paths: bars over one axis of time, one path for each series.


WIDTH, HEIGHT = 600, 110
# What a person may choose: how far back, and how wide a bar is.
SPANS: Mapping[str, tuple[timedelta, timedelta]] = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "24h": (timedelta(hours=24), timedelta(minutes=20)),
    "14d": (timedelta(days=14), timedelta(hours=4)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """One colour of a plot."""

    label: str
    tone: str  # ok, bad, warn or accent
    path: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePlot:
    """A plot over time; `text` says the same to those who do not see it."""

    title: str
    series: Sequence[PlotSeries]
    top: str  # the value at the upper edge
    begin: str
    end: str
    text: str


def draw_bars(
    title: str,
    values: Sequence[tuple[str, str, Sequence[float]]],
    ends: tuple[str, str],
    write: Callable[[float], str],
) -> TimePlot:
    """Bars that stand on each other; `values` are labels, tones and a number for each interval."""
    heights = [sum(column) for column in zip(*(numbers for _, _, numbers in values), strict=True)]
    top = max(heights, default=0.0)
    scale = (HEIGHT - 2) / top if top else 0.0
    width = WIDTH / max(len(heights), 1)
    bottoms = [0.0] * len(heights)
    series = []
    for label, tone, numbers in values:
        parts = []
        for place, number in enumerate(numbers):
            if number > 0:
                height = max(number * scale, 0.75)
                low = HEIGHT - bottoms[place]
                parts.append(f"M{place * width:.1f},{low:.1f}v-{height:.1f}h{width * 0.8:.1f}v{height:.1f}z")
                bottoms[place] += height
        last = write(numbers[-1]) if numbers else ""
        series.append(PlotSeries(label=label, tone=tone, path="".join(parts), last=last))
    words = [f"{label}: most {write(max(numbers, default=0))}" for label, _, numbers in values]
    return TimePlot(
        title=title, series=series, top=write(top), begin=ends[0], end=ends[1], text="; ".join(words)
    )


def axis_of(now: datetime, over: timedelta, every: timedelta) -> list[datetime]:
    """The beginnings of the intervals, the last of which goes on."""
    last = floor(now, every)
    return [last - every * n for n in reversed(range(over // every))]


def values_on(
    axis: Sequence[datetime],
    points: Sequence[PlotPoint],
    kind: str,
    value: Callable[[Sums], float],
) -> list[float]:
    """What was done of one kind in each interval."""
    by_time = {point.at: value(point.sums) for point in points if point.kind == kind}
    return [by_time.get(at, 0.0) for at in axis]


def worst_on(
    axis: Sequence[datetime],
    points: Sequence[DuePoint],
    every: timedelta,
    value: Callable[[DuePoint], float],
) -> list[float]:
    """The largest value in each interval."""
    by_time: dict[datetime, float] = {}
    for point in points:
        at = floor(point.at, every)
        by_time[at] = max(by_time.get(at, 0.0), value(point))
    return [by_time.get(at, 0.0) for at in axis]


def ends_of(axis: Sequence[datetime], zone: ZoneInfo) -> tuple[str, str]:
    """What stands below the ends of the axis."""
    form = "%H:%M" if axis[-1] - axis[0] < timedelta(days=2) else "%d %b"
    return axis[0].astimezone(zone).strftime(form), axis[-1].astimezone(zone).strftime(form)


def write_number(value: float) -> str:
    """A count, or a rate with what matters of it."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def write_seconds(value: float) -> str:
    """A duration that may be short."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


# The processes of the application: alive, late or gone; red when work is due that one does not
# take.


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
    return await show_page(desk, "processes.html", await _processes_view(desk), tab="ops_processes")


async def show_process_rows(visit: Visit, desk: WorkDesk) -> Response:
    """The part of the page that changes."""
    return visit.part("operations/_processes.html", view=await _processes_view(desk))


async def _processes_view(desk: WorkDesk) -> ProcessesView:
    overview = await desk.parts.processes.overview()
    rows = [_process_row(desk, one, overview) for one in overview.processes]
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


def _process_row(desk: WorkDesk, process: WorkProcess, overview: Overview) -> ProcessRow:
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


# Scheduled fields: what is due by each, what the last sweep of this process did, and a sweep at
# once.


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One scheduled field."""

    model: str
    field: str
    does: str
    due: str
    done: int  # by the last sweep, of the whole model
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledView:
    """What `operations/scheduled.html` is given."""

    rows: Sequence[FieldRow]
    swept_at: str
    summary: str
    failures: Sequence[tuple[str, str, str]]  # fields, ids, messages
    sweep_url: str


async def show_scheduled(visit: Visit, desk: WorkDesk) -> Response:
    """Every scheduled field of every model."""
    sweeps = desk.parts.scheduled
    last = sweeps.last_report
    report = Report() if last is None else last[1]
    rows = []
    for model, schedule, due in await sweeps.due():
        part = report.per_model.get(model.name)
        rows.append(
            FieldRow(
                model=model.name,
                field=schedule.time,
                does=_sentence(visit, schedule),
                due=count_text(due),
                done=0 if part is None else part.deleted + part.updated,
                skipped=0 if part is None else part.skipped,
            )
        )
    view = ScheduledView(
        rows=rows,
        swept_at="" if last is None else desk.time(last[0])[0],
        summary="" if last is None else _summary(visit, report),
        failures=[(f"{one.model}.{one.field}", one.id or "", one.message) for one in report.errors],
        sweep_url=f"{visit.root}{ROOT}/scheduled/sweep" if desk.can_act else "",
    )
    return await show_page(desk, "scheduled.html", view, tab="ops_scheduled")


def _sentence(visit: Visit, schedule: FieldSchedule) -> str:
    if schedule.action is ScheduledAction.SET_FIELD:
        return visit.t("ops_sets", field=schedule.target, value=schedule.to)
    is_soft = schedule.action is ScheduledAction.SOFT_DELETE
    return visit.t("ops_soft_deletes" if is_soft else "ops_hard_deletes")


def _summary(visit: Visit, report: Report) -> str:
    values = {name: getattr(report, name) for name in ("deleted", "updated", "skipped", "failed")}
    return visit.t("ops_sweep_summary", **values)


async def sweep_now(visit: Visit, desk: WorkDesk) -> Response:
    """Serve what is due, in this process; a sweep commits batch by batch, so its event comes behind it."""
    if not desk.parts.scheduled.has_fields:
        raise NotFound(visit.t("no_such_page"))
    report = await desk.parts.scheduled.sweep()
    summary = _summary(visit, report)
    await visit.panel.trail.note(visit, "sweep", reason=summary, outcome="failed" if report.failed else "ok")
    return visit.redirect(f"{ROOT}/scheduled", ok=summary)


# What the doctor finds in the running application, as a page that changes nothing.


_TONES = {Severity.ERROR: 3, Severity.WARNING: 2, Severity.NOTE: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """One finding."""

    code: str
    severity: str
    tone: int
    where: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorView:
    """What `operations/doctor.html` is given."""

    rows: Sequence[FindingRow]
    summary: str
    silenced: Sequence[tuple[str, str, str]]  # codes, places, reasons


async def show_doctor(visit: Visit, desk: WorkDesk) -> Response:
    """The findings, those that hurt first."""
    report = await desk.parts.examine()
    order = list(_TONES)
    findings = sorted(report.findings, key=lambda one: order.index(one.severity))
    counts = {severity.value: report.count(severity) for severity in Severity}
    view = DoctorView(
        rows=[_finding_row(one) for one in findings],
        summary=visit.t("ops_findings", **counts),
        silenced=[(one.code, one.where, ignore.reason) for one, ignore in report.silenced],
    )
    return await show_page(desk, "doctor.html", view, tab="ops_doctor")


def _finding_row(finding: Finding) -> FindingRow:
    return FindingRow(
        code=finding.code,
        severity=finding.severity.value,
        tone=_TONES[finding.severity],
        where=finding.where,
        why=finding.why,
        fix=finding.fix,
    )


ROUTES = (
    replace(
        show(f"{ROOT}/", seeing(show_overview), link="operations"), shows_link=lambda visit: visit.sees_work
    ),
    show(ROOT, seeing(show_overview)),
    show(f"{ROOT}/numbers", seeing(show_numbers)),
    show(f"{ROOT}/plots", seeing(show_plots, all_tenants=True)),
    show(f"{ROOT}/processes", seeing(show_processes, all_tenants=True)),
    show(f"{ROOT}/processes/rows", seeing(show_process_rows, all_tenants=True)),
    show(f"{ROOT}/scheduled", seeing(show_scheduled, all_tenants=True)),
    act(f"{ROOT}/scheduled/sweep", acting(sweep_now, all_tenants=True)),
    show(f"{ROOT}/doctor", seeing(show_doctor, all_tenants=True)),
)
