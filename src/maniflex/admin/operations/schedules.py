"""Schedules: their times in words, what the last ones came to, and the form that makes and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from maniflex.admin.operations.commands import write
from maniflex.admin.operations.desk import ROOT, WorkDesk, acting, read_instant, read_json, seeing, show_page
from maniflex.admin.operations.run_list import tone_of
from maniflex.admin.operations.run_page import labels_of
from maniflex.admin.search import read_labels
from maniflex.admin.visit import PanelRoute, Refusal, Visit, act, show
from maniflex.background.commands import SCHEDULE
from maniflex.background.parameters import span
from maniflex.background.processes.overview import LATE_SCHEDULE
from maniflex.background.schedules.cron import Cron, describe
from maniflex.errors import Abort, InvalidSchedule
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

_MOST = 200
_MOST_FIRINGS = 300
_STRIP = 20
_STRIP_IN_LIST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringMark:
    """One firing in a strip."""

    text: str
    tone: int
    sign: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One schedule in the list."""

    url: str
    name: str
    tenant: str
    words: str
    target: str
    status: str
    tone: int
    next: str
    late: str
    strip: Sequence[FiringMark]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleListView:
    """What `operations/schedules.html` is given."""

    rows: Sequence[ScheduleRow]
    new_url: str
    shows_tenants: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """What `operations/schedule.html` is given."""

    name: str
    url: str
    words: str
    status: str
    tone: int
    late: str
    facts: Sequence[tuple[str, str]]
    payload: str
    shows_payloads: bool
    times: Sequence[DueTime]
    zone: str
    own_zone: str
    strip: Sequence[FiringMark]
    firings: Sequence[tuple[str, str, str, str, int, str]]  # due, fired, outcome, run status, tone, url
    error: str
    can_act: bool
    is_active: bool


async def show_schedules(visit: Visit, desk: WorkDesk) -> Response:
    """All schedules that the person sees, by name."""
    page = PageRequest(_MOST)
    records = await desk.read_page("schedule", page, [("sort", "name:asc")])
    firings = await _firings(desk, [one["id"] for one in records])
    marks = await _marks(desk, firings)
    tenants = await _tenant_labels(visit, records)
    view = ScheduleListView(
        rows=[_row(desk, one, tenants, marks.get(one["id"], ())[:_STRIP_IN_LIST]) for one in records],
        new_url=f"{visit.root}{ROOT}/schedules/new" if desk.can_act else "",
        shows_tenants=any(one.get("tenant_id") for one in records) and not desk.tenant,
    )
    return await show_page(desk, "schedules.html", view, tab="ops_schedules")


async def show_schedule(visit: Visit, desk: WorkDesk) -> Response:
    """One schedule."""
    schedule = await desk.one("schedule", visit.params["id"])
    firings = await _firings(desk, [schedule["id"]])
    statuses = await _run_statuses(desk, firings)
    marks = (await _marks(desk, firings, statuses)).get(schedule["id"], ())
    is_active = schedule["status"] == "active"
    view = ScheduleView(
        name=schedule["name"],
        url=visit.url("-", "operations", "schedules", schedule["id"]),
        words=describe(schedule["cron"], schedule["timezone"]),
        status=schedule["status"],
        tone=1 if is_active else 2,
        late=_lateness(desk, schedule),
        facts=await _facts(desk, schedule),
        payload="" if schedule.get("payload") is None else desk.json_of(schedule["payload"]),
        shows_payloads=desk.rules.show_payloads,
        times=times_of(desk, schedule["cron"], schedule["timezone"]) if is_active else [],
        zone=visit.zone.key,
        own_zone=schedule["timezone"],
        strip=marks[:_STRIP],
        firings=[_firing_row(desk, one, statuses) for one in firings[:_STRIP]],
        error=schedule.get("last_error") or "",
        can_act=desk.can_act,
        is_active=is_active,
    )
    return await show_page(desk, "schedule.html", view, tab="ops_schedules", title=view.name)


def times_of(desk: WorkDesk, cron: str, timezone: str) -> list[DueTime]:
    """The next times; none when the stored expression cannot be read."""
    try:
        return next_times(cron, timezone, desk.visit.zone, desk.now())
    except InvalidSchedule:
        return []


async def _tenant_labels(visit: Visit, schedules: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the tenants of schedules are called, by id, as far as this person may list them."""
    site, ids = visit.tenant_site, {str(one["tenant_id"]) for one in schedules if one.get("tenant_id")}
    labels = await read_labels(visit, {site.meta.name: ids}) if site is not None and ids else {}
    return {tenant: label for (_, tenant), label in labels.items()}


def _row(
    desk: WorkDesk, schedule: Mapping[str, Any], tenants: Mapping[str, str], strip: Sequence[FiringMark]
) -> ScheduleRow:
    is_active = schedule["status"] == "active"
    due = read_instant(schedule.get("next_run_at"))
    now = desk.now()
    coming = "" if due is None or due <= now or not is_active else f"in {span(due - now)}"
    return ScheduleRow(
        url=desk.visit.url("-", "operations", "schedules", schedule["id"]),
        name=schedule["name"],
        tenant=tenants.get(schedule.get("tenant_id") or "", schedule.get("tenant_id") or ""),
        words=describe(schedule["cron"], schedule["timezone"]),
        target=schedule["target"],
        status=schedule["status"],
        tone=1 if is_active else 2,
        next=coming,
        late=_lateness(desk, schedule),
        strip=strip,
    )


def _lateness(desk: WorkDesk, schedule: Mapping[str, Any]) -> str:
    """For how long it has been due, when that is too long."""
    due, now = read_instant(schedule.get("next_run_at")), desk.now()
    is_late = schedule["status"] == "active" and due is not None and now - due > LATE_SCHEDULE
    return span(now - due) if is_late and due is not None else ""


async def _facts(desk: WorkDesk, schedule: Mapping[str, Any]) -> list[tuple[str, str]]:
    t = desk.visit.t
    schedule = {**schedule, **await labels_of(desk, schedule)}
    facts = [
        (t("ops_cron"), f"{schedule['cron']} ({schedule['timezone']})"),
        (t("ops_target"), f"{schedule['kind']} {schedule['target']}"),
        (t("ops_policy"), schedule["policy"]),
        (t("ops_next_run"), desk.time(schedule.get("next_run_at"))[0]),
        (t("ops_last_run"), desk.time(schedule.get("last_run_at"))[0]),
        (t("ops_tenant"), schedule.get("tenant_id") or ""),
        (t("ops_actor"), schedule.get("actor_id") or ""),
        (t("ops_created_by"), schedule.get("created_by") or ""),
        (t("ops_updated_by"), schedule.get("updated_by") or ""),
    ]
    return [(label, text) for label, text in facts if text]


# -- what the last times came to


async def _firings(desk: WorkDesk, ids: Sequence[str]) -> list[Any]:
    if not ids:
        return []
    page = PageRequest(_MOST_FIRINGS, filters=(("schedule_id", "in", list(ids)),))
    return await desk.read_page("firing", page, [("sort", "fired_at:desc")])


async def _run_statuses(desk: WorkDesk, firings: Sequence[Any]) -> dict[str, str]:
    ids = [one["run_id"] for one in firings if one.get("run_id")]
    runs = await desk.some("run", [("id", "in", ids)], len(ids)) if ids else []
    return {run["id"]: run["status"] for run in runs}


async def _marks(
    desk: WorkDesk, firings: Sequence[Any], statuses: Mapping[str, str] | None = None
) -> dict[str, list[FiringMark]]:
    """The strips by schedule, the latest first."""
    if statuses is None:
        statuses = await _run_statuses(desk, firings)
    marks: dict[str, list[FiringMark]] = {}
    for one in firings:
        status = _status_of(one, statuses)
        time = desk.time(one["due_at"])[0]
        url = (
            desk.visit.url("-", "operations", "runs", one["run_id"]) if one.get("run_id") in statuses else ""
        )
        sign = {"succeeded": "✓", "failed": "✕", "skipped": "–", "cancelled": "–"}.get(status, "…")
        mark = FiringMark(text=f"{time}: {status}", tone=tone_of(status), sign=sign, url=url)
        marks.setdefault(one["schedule_id"], []).append(mark)
    return marks


def _status_of(firing: Mapping[str, Any], statuses: Mapping[str, str]) -> str:
    if firing["outcome"] == "skipped":
        return "skipped"
    return statuses.get(firing.get("run_id") or "", "fired")


def _firing_row(
    desk: WorkDesk, firing: Mapping[str, Any], statuses: Mapping[str, str]
) -> tuple[str, str, str, str, int, str]:
    status = _status_of(firing, statuses)
    has_run = firing.get("run_id") in statuses
    url = desk.visit.url("-", "operations", "runs", firing["run_id"]) if has_run else ""
    how = desk.visit.t("ops_by_hand") if firing["manual"] else ""
    return desk.time(firing["due_at"])[0], desk.time(firing["fired_at"])[0], how, status, tone_of(status), url


# The next times of a schedule, in its zone and in the reader's, with changes of the clock marked. Pure.


HOW_MANY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTime:
    """One time to come."""

    instant: str
    own: str  # in the zone of the schedule
    theirs: str  # in the zone of the reader; empty when that is the same
    until: str  # from now on
    change: str  # the new offset, when the clock changes before it


def next_times(
    cron: str, timezone: str, zone: ZoneInfo, now: datetime, count: int = HOW_MANY
) -> list[DueTime]:
    """The next times; `InvalidSchedule` when the expression or the zone is wrong."""
    times = Cron.parse(cron, timezone)
    own_zone = ZoneInfo(timezone)
    offset = now.astimezone(own_zone).utcoffset()
    moment: datetime | None = now
    rows: list[DueTime] = []
    while len(rows) < count and moment is not None:
        moment = times.after(moment)
        if moment is None:
            break
        own = moment.astimezone(own_zone)
        is_changed, offset = own.utcoffset() != offset, own.utcoffset()
        rows.append(
            DueTime(
                instant=moment.isoformat(),
                own=_write(own),
                theirs="" if zone.key == timezone else _write(moment.astimezone(zone)),
                until=span(moment - now),
                change=own.strftime("UTC%z") if is_changed else "",
            )
        )
    return rows


def _write(moment: datetime) -> str:
    return moment.strftime("%a %Y-%m-%d %H:%M:%S" if moment.second else "%a %Y-%m-%d %H:%M")


# Making and changing schedules: a form with the times it would have.


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
    show(f"{ROOT}/schedules", seeing(show_schedules, schedules=True)),
    show(f"{ROOT}/schedules/{{id}}", seeing(show_schedule, schedules=True)),
    PanelRoute("GET", f"{ROOT}/schedules/new", acting(show_new, schedules=True), writes=True),
    act(f"{ROOT}/schedules/new", acting(create_schedule, schedules=True)),
    show(f"{ROOT}/schedules/preview", seeing(show_preview, schedules=True)),
    PanelRoute("GET", f"{ROOT}/schedules/{{id}}/edit", acting(show_edit, schedules=True), writes=True),
    act(f"{ROOT}/schedules/{{id}}/edit", acting(update_schedule, schedules=True)),
)
