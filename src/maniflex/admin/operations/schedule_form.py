"""Making and changing schedules: a form with the times it would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.admin.call import Refusal
from maniflex.admin.operations.commands import write
from maniflex.admin.operations.desk import ROOT, WorkDesk, acting, read_json, seeing, show_page
from maniflex.admin.operations.schedules import DueTime, next_times
from maniflex.admin.visit import PanelRoute, Visit, act, show
from maniflex.background.commands import SCHEDULE
from maniflex.background.schedules.cron import describe
from maniflex.errors import Abort, InvalidSchedule
from maniflex.pipeline.response import Response

NAMES = ("name", "cron", "timezone", "kind", "target", "payload", "policy")
_NEW = {"name": "", "cron": "0 2 * * *", "timezone": "UTC", "kind": "run", "target": "", "policy": "once"}
_CHOICES = {"kind": ("run", "action", "url"), "policy": ("once", "skip", "all")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewView:
    """What `operations/_times.html` is given."""

    words: str
    times: Sequence[DueTime]
    zone: str
    own_zone: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFormView:
    """What `operations/schedule_form.html` is given."""

    title: str
    action: str
    cancel_url: str
    preview_url: str
    values: Mapping[str, str]
    choices: Mapping[str, Sequence[str]]
    types: Sequence[str]
    preview: PreviewView
    errors: Mapping[str, Sequence[str]]
    shows_payload: bool


# -- the form


async def show_new(visit: Visit, desk: WorkDesk) -> Response:
    """The form of a new schedule."""
    return await _form(desk, _NEW, source="")


async def show_edit(visit: Visit, desk: WorkDesk) -> Response:
    """The form of a stored one."""
    schedule = await desk.one("schedule", visit.params["id"])
    return await _form(desk, _texts_of(desk, schedule), source=schedule["id"])


async def create_schedule(visit: Visit, desk: WorkDesk) -> Response:
    """Store a new schedule."""
    return await _save(desk, source="", stored=None)


async def update_schedule(visit: Visit, desk: WorkDesk) -> Response:
    """Change one: what differs from what is stored is sent."""
    schedule = await desk.one("schedule", visit.params["id"])
    return await _save(desk, source=schedule["id"], stored=schedule)


def _texts_of(desk: WorkDesk, schedule: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: str(schedule[name]) for name in NAMES if name != "payload"}
    payload = schedule.get("payload")
    return {**texts, "payload": "" if payload is None else desk.whole_json_of(payload)}


async def _save(desk: WorkDesk, *, source: str, stored: Mapping[str, Any] | None) -> Response:
    visit = desk.visit
    texts = {name: visit.form_text(name) for name in NAMES}
    if visit.form_text("preview"):  # without scripts: look at the times first
        return await _form(desk, texts, source=source)
    try:
        changes = _changes(desk, texts, stored)
    except Abort as error:
        details: Any = error.details
        return await _form(desk, texts, source=source, errors={"payload": [d["message"] for d in details]})
    if not changes:
        return visit.redirect(f"{ROOT}/schedules/{source}", ok=visit.t("nothing_changed"))
    key = "schedule.update" if source else "schedule.create"
    reason = visit.short_text("reason", 500)
    answer = await write(desk, SCHEDULE, key, source, reason=reason, fields=list(changes), json=changes)
    if answer.status in (400, 409, 422):
        errors: dict[str, list[str]] = {}
        for detail in answer.details or [{"field": "", "message": answer.message}]:
            place = str(detail.get("field", "")).partition(".")[0]
            errors.setdefault(place if place in NAMES else "", []).append(str(detail.get("message", "")))
        return await _form(desk, texts, source=source, errors=errors)
    if not answer.ok:
        raise Refusal(answer.response)
    return visit.redirect(f"{ROOT}/schedules/{answer.data['id']}", ok=visit.t("saved"))


def _changes(desk: WorkDesk, texts: Mapping[str, str], stored: Mapping[str, Any] | None) -> dict[str, Any]:
    values: dict[str, Any] = {name: texts[name].strip() for name in NAMES if name != "payload"}
    if desk.rules.show_payloads or stored is None:
        before = None if stored is None else stored.get("payload")
        values["payload"] = desk.restore_secrets(read_json(desk.visit, texts["payload"]), before)
    if stored is None:
        return {name: value for name, value in values.items() if value not in ("", None)}
    return {name: value for name, value in values.items() if value != stored.get(name)}


async def _form(
    desk: WorkDesk,
    texts: Mapping[str, str],
    *,
    source: str,
    errors: Mapping[str, Sequence[str]] | None = None,
) -> Response:
    visit = desk.visit
    root = visit.url("-", "operations", "schedules")
    title = visit.t("ops_edit_schedule") if source else visit.t("ops_new_schedule")
    view = ScheduleFormView(
        title=title,
        action=f"{root}/{source}/edit" if source else f"{root}/new",
        cancel_url=f"{root}/{source}" if source else root,
        preview_url=f"{root}/preview",
        values={name: texts.get(name, "") for name in NAMES},
        choices=_CHOICES,
        types=desk.types_to_schedule,
        preview=_preview(desk, texts.get("cron", ""), texts.get("timezone", "")),
        errors=errors or {},
        shows_payload=desk.rules.show_payloads or not source,
    )
    status = 422 if errors else 200
    return await show_page(desk, "schedule_form.html", view, tab="ops_schedules", title=title, status=status)


async def show_preview(visit: Visit, desk: WorkDesk) -> Response:
    """The times that an expression would have."""
    view = _preview(desk, visit.param("cron"), visit.param("timezone") or "UTC")
    return visit.part("operations/_times.html", view=view)


def _preview(desk: WorkDesk, cron: str, timezone: str) -> PreviewView:
    zone = desk.visit.zone.key
    try:
        times = next_times(cron, timezone, desk.visit.zone, desk.now())
    except InvalidSchedule as error:
        return PreviewView(words="", times=(), zone=zone, own_zone=timezone, error=str(error))
    return PreviewView(words=describe(cron, timezone), times=times, zone=zone, own_zone=timezone, error="")


ROUTES = (
    PanelRoute("GET", f"{ROOT}/schedules/new", acting(show_new, schedules=True), writes=True),
    act(f"{ROOT}/schedules/new", acting(create_schedule, schedules=True)),
    show(f"{ROOT}/schedules/preview", seeing(show_preview, schedules=True)),
    PanelRoute("GET", f"{ROOT}/schedules/{{id}}/edit", acting(show_edit, schedules=True), writes=True),
    act(f"{ROOT}/schedules/{{id}}/edit", acting(update_schedule, schedules=True)),
)
