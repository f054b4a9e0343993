"""Scheduled fields: what is due by each, what the last sweep of this process did, and a sweep at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maniflex.admin.operations.desk import ROOT, WorkDesk, acting, seeing, show_page
from maniflex.admin.visit import Visit, act, show
from maniflex.background.processes.overview import count_text
from maniflex.background.scheduled_fields.observers import Report
from maniflex.errors import NotFound
from maniflex.model.field import FieldSchedule, ScheduledAction
from maniflex.pipeline.response import Response


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


ROUTES = (
    show(f"{ROOT}/scheduled", seeing(show_scheduled, all_tenants=True)),
    act(f"{ROOT}/scheduled/sweep", acting(sweep_now, all_tenants=True)),
)
