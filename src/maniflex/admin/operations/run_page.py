"""One run: why it is not running, its timeline, steps, payload, result, error, family and origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from maniflex._names import snake_case
from maniflex.admin.audit import people_names
from maniflex.admin.operations.desk import ROOT, WorkDesk, read_instant, revealing, seeing, show_page
from maniflex.admin.operations.run_list import tone_of
from maniflex.admin.visit import Visit, act, show
from maniflex.background.commands import RUN, commands_of
from maniflex.background.parameters import span
from maniflex.background.runs.engine import CHILD
from maniflex.background.runs.model import FINISHED, WorkflowRun
from maniflex.encryption.sealed_json import is_left_shut
from maniflex.errors import NotFound
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

_MOST_EVENTS = 300
_MOST_CHILDREN = 50
_DEEPEST = 8
_BUTTONS = {"retry": "ops_retry", "now": "ops_run_now", "cancel": "ops_cancel"}  # a delete has a form
_PEOPLE = ("actor_id", "created_by", "updated_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFact:
    """One line about a run."""

    label: str
    text: str
    url: str = ""
    instant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunButton:
    """Something that can be done with a run."""

    action: str
    label: str
    danger: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step that is done."""

    name: str
    time: str
    result: str
    is_compensated: bool
    is_undoable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """A run of the family, as deep as it stands in the tree."""

    depth: int
    type: str
    status: str
    tone: int
    url: str
    is_this: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What `operations/run.html` is given."""

    id: str
    type: str
    status: str
    tone: int
    why: str
    url: str
    live_url: str
    facts: Sequence[RunFact]
    buttons: Sequence[RunButton]
    resubmit_url: str
    can_signal: bool
    waits_for: str
    can_delete: bool
    timeline: Timeline
    event_rows: Sequence[tuple[str, str, str, str, str]]  # times, instants, names, durations, data
    steps: Sequence[StepRow]
    payload: str
    result: str
    error: str
    trace: str
    family: Sequence[FamilyRow]
    shows_payloads: bool
    reveal_url: str  # where what is stored encrypted is shown; empty where nothing is hidden


async def show_run(visit: Visit, desk: WorkDesk) -> Response:
    """The page of one run."""
    view = await run_view(desk, visit.params["id"])
    return await show_page(desk, "run.html", view, tab="ops_runs", title=view.type)


async def show_run_part(visit: Visit, desk: WorkDesk) -> Response:
    """The part of the page that changes while a run goes on."""
    return visit.part("operations/_run.html", view=await run_view(desk, visit.params["id"]))


async def find_run(desk: WorkDesk, run_id: str) -> dict[str, Any]:
    """The run, deleted or not."""
    try:
        return await desk.one("run", run_id)
    except NotFound:
        return await desk.one("run", run_id, deleted=True)


async def run_view(desk: WorkDesk, run_id: str) -> RunView:
    """The whole of a run."""
    visit = desk.visit
    run = await find_run(desk, run_id)
    is_deleted = run.get("deleted_at") is not None
    events = await _events(desk, run_id)
    steps = [] if is_deleted else (await desk.ask("run.steps", run_id)).data
    is_over = run["status"] in FINISHED or is_deleted
    timeline = draw_timeline(events, steps, now=desk.now(), is_over=is_over)
    error = dict(run.get("error") or {})
    trace = str(error.pop("trace", "") or "")
    url = visit.url("-", "operations", "runs", run_id)
    status = "deleted" if is_deleted else run["status"]
    return RunView(
        id=run_id,
        type=run["type"],
        status=status,
        tone=tone_of(status),
        why=await _why(desk, run_id, is_deleted=is_deleted),
        url=url,
        live_url="" if is_over else f"{url}/live",
        facts=await _facts(desk, run),
        buttons=_buttons(desk, run, is_deleted=is_deleted),
        resubmit_url=visit.url("-", "operations", "runs", "new", **{"from": run_id}) if desk.can_act else "",
        can_signal=desk.can_act and not is_over,
        waits_for=_awaited_signal(run),
        can_delete=desk.can_act and not is_deleted,
        timeline=timeline,
        event_rows=[_event_row(desk, one) for one in timeline.events],
        steps=[_step_row(desk, step) for step in steps if not step["name"].startswith("@")],
        payload=desk.json_of(run.get("payload")),
        result="" if run.get("result") is None else desk.json_of(run["result"]),
        error=_error_text(desk, run, error),
        trace=trace,
        family=await _family(desk, run),
        shows_payloads=desk.rules.show_payloads,
        reveal_url=f"{url}/reveal" if desk.can_act and is_left_shut(run.get("payload")) else "",
    )


async def _events(desk: WorkDesk, run_id: str) -> list[Any]:
    page = PageRequest(_MOST_EVENTS, filters=(("workflow_id", "eq", run_id),), oldest_first=True)
    return await desk.read_page("event", page)


async def _why(desk: WorkDesk, run_id: str, *, is_deleted: bool) -> str:
    if is_deleted:
        return desk.visit.t("ops_run_deleted")
    run: WorkflowRun = await desk.parts.work.get(run_id)
    sentence = await desk.parts.processes.why(run, names_others=desk.reads_internals)
    return sentence[:1].upper() + sentence[1:] + "."


def _awaited_signal(run: Mapping[str, Any]) -> str:
    name = run.get("waiting_for") or ""
    return "" if name.startswith(CHILD) else name


def _buttons(desk: WorkDesk, run: Mapping[str, Any], *, is_deleted: bool) -> list[RunButton]:
    if not desk.can_act or is_deleted:
        return []
    return [
        RunButton(action=command.name, label=desk.visit.t(key), danger=command.name == "cancel")
        for command in commands_of(RUN)
        if (key := _BUTTONS.get(command.name)) and command.applies_to(run, desk.now())
    ]


async def _facts(desk: WorkDesk, run: Mapping[str, Any]) -> list[RunFact]:
    t = desk.visit.t
    facts = [RunFact(label=t("ops_attempt"), text=f"{run['attempt']} / {run['max_attempts']}")]
    for key, name in (("ops_created", "created_at"), ("ops_run_at", "run_at"), ("ops_changed", "updated_at")):
        if name == "run_at" and run.get("waiting_for"):
            continue  # what it waits for makes it due
        time, instant = desk.time(run.get(name))
        facts.append(RunFact(label=t(key), text=time, instant=instant))
    if run.get("priority"):
        facts.append(RunFact(label=t("ops_priority"), text=str(run["priority"])))
    if run.get("about"):
        facts.append(
            RunFact(label=t("ops_about"), text=run["about"], url=await record_url(desk, run["about"]))
        )
    plain = {
        "ops_worker": "leased_by",
        "ops_group": "group_key",
        "ops_key": "idempotency_key",
        "ops_actor": "actor_id",
        "ops_tenant": "tenant_id",
        "ops_trace": "trace_id",
        "ops_delete_reason": "delete_reason",
    }
    facts += await plain_facts(desk, plain, run)
    origin = await _origin(desk, run)
    return [*facts, *origin]


async def plain_facts(
    desk: WorkDesk, names_by_text: Mapping[str, str], row: Mapping[str, Any]
) -> list[RunFact]:
    """Values of a row as they are; people and tenants by what they are called."""
    labels = await labels_of(desk, row)
    return [
        RunFact(label=desk.visit.t(key), text=labels.get(name, str(row[name])))
        for key, name in names_by_text.items()
        if row.get(name)
    ]


async def labels_of(desk: WorkDesk, row: Mapping[str, Any]) -> dict[str, str]:
    """What the people and the tenant are called that a row of durable work names, by the field."""
    ids = {name: str(row[name]) for name in _PEOPLE if row.get(name)}
    names = await people_names(desk.visit, set(ids.values()))
    labels = {name: names[one] for name, one in ids.items() if one in names}
    tenant = str(row.get("tenant_id") or "")
    return labels | ({"tenant_id": await desk.visit.tenant_label(tenant)} if tenant else {})


async def _origin(desk: WorkDesk, run: Mapping[str, Any]) -> list[RunFact]:
    """The schedule that it was fired by."""
    if not desk.sees_schedules or not desk.has("firing.page"):
        return []
    firings = await desk.some("firing", [("run_id", "eq", run["id"])], 1)
    if not firings:
        return []
    url = desk.visit.url("-", "operations", "schedules", firings[0]["schedule_id"])
    due, instant = desk.time(firings[0]["due_at"])
    return [
        RunFact(label=desk.visit.t("ops_schedule"), text=firings[0]["schedule_name"], url=url),
        RunFact(label=desk.visit.t("ops_due_time"), text=due, instant=instant),
    ]


async def record_url(desk: WorkDesk, about: str) -> str:
    """The page of the record that something is about, if this person may read such records."""
    name, _, record_id = about.partition("/")
    visit = desk.visit
    for site in visit.panel.sites.all:
        if snake_case(site.meta.name) == name and site.has_id:
            may_read = await visit.api.may(site, Operation.READ)
            return visit.url(site.table, record_id) if may_read else ""
    return ""


def _event_row(desk: WorkDesk, event: Any) -> tuple[str, str, str, str, str]:
    time, instant = desk.time(event.at)
    data = {name: value for name, value in event.data.items() if name != "trace"}
    words = ", ".join(f"{name} {value}" for name, value in desk.mask(data).items() if value is not None)
    return time, instant, event.name, event.lasted, words[:400]


def _step_row(desk: WorkDesk, step: Mapping[str, Any]) -> StepRow:
    return StepRow(
        name=step["name"],
        time=desk.time(step["created_at"])[0],
        result=desk.json_of(step["result"]) if step.get("result") is not None else "",
        is_compensated=bool(step["compensated"]),
        is_undoable=bool(step["undoable"]),
    )


def _error_text(desk: WorkDesk, run: Mapping[str, Any], error: dict[str, Any]) -> str:
    if error:
        return "\n".join(f"{name}: {value}" for name, value in desk.mask(error).items())
    return str(run.get("last_error") or "")


async def _family(desk: WorkDesk, run: Mapping[str, Any]) -> list[FamilyRow]:
    """The runs above it, itself, and two generations below."""
    above: list[Mapping[str, Any]] = []
    parent = run.get("parent_id")
    while parent and len(above) < _DEEPEST:
        records = await desk.some("run", [("id", "eq", parent)], 1)
        if not records:
            break
        above.insert(0, records[0])
        parent = records[0].get("parent_id")
    children = await desk.some("run", [("parent_id", "eq", run["id"])], _MOST_CHILDREN)
    ids = [child["id"] for child in children]
    below = await desk.some("run", [("parent_id", "in", ids)], _MOST_CHILDREN) if ids else []
    if not above and not children:
        return []
    rows = [_family_row(desk, one, depth) for depth, one in enumerate(above)]
    rows.append(_family_row(desk, run, len(above), is_this=True))
    for child in reversed(children):
        rows.append(_family_row(desk, child, len(above) + 1))
        grandchildren = [one for one in reversed(below) if one["parent_id"] == child["id"]]
        rows += [_family_row(desk, one, len(above) + 2) for one in grandchildren]
    return rows


def _family_row(desk: WorkDesk, run: Mapping[str, Any], depth: int, *, is_this: bool = False) -> FamilyRow:
    return FamilyRow(
        depth=min(depth, 9),
        type=run["type"],
        status=run["status"],
        tone=tone_of(run["status"]),
        url=desk.visit.url("-", "operations", "runs", run["id"]),
        is_this=is_this,
    )


ROUTES = (
    show(f"{ROOT}/runs/{{id}}", seeing(show_run)),
    show(f"{ROOT}/runs/{{id}}/live", seeing(show_run_part)),
    act(f"{ROOT}/runs/{{id}}/reveal", revealing(show_run, "WorkflowRun")),
)


# The timeline of a run: its events with the time between them, and bars on one axis. Pure.


WIDTH = 600.0
_NARROWEST = 3.0  # a short attempt is still seen
# What a run does behind an event, until the next one.
_AFTER = {
    "created": "wait",
    "leased": "work",
    "retried": "pause",
    "suspended": "pause",
    "released": "wait",
    "hurried": "wait",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """A stretch of the axis."""

    x: float
    width: float
    kind: str  # wait, work, pause or failed
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One event."""

    at: datetime
    name: str
    lasted: str  # until the next event
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The axis and the events."""

    bars: Sequence[TimelineBar]
    ticks: Sequence[tuple[float, str]]  # of steps that were done
    events: Sequence[TimelineEvent]
    total: str
    text: str


def draw_timeline(
    events: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    *,
    now: datetime,
    is_over: bool,
) -> Timeline:
    """The timeline of a run whose events and steps these are, the oldest first."""
    times = [_time(one) for one in events]
    end = times[-1] if times and is_over else max([now, *times])
    begin = times[0] if times else end
    whole = max((end - begin).total_seconds(), 0.001)
    bars, rows = [], []
    for place, event in enumerate(events):
        name, until = str(event["event_type"]), times[place + 1] if place + 1 < len(times) else end
        lasts = until - times[place]
        following = str(events[place + 1]["event_type"]) if place + 1 < len(events) else ""
        kind = _AFTER.get(name, "")
        if kind == "work" and following in ("failed", "retried"):
            kind = "failed"
        rows.append(
            TimelineEvent(
                at=times[place],
                name=name,
                lasted=write_lasting(lasts) if kind else "",
                data=event.get("data") or {},
            )
        )
        if kind and lasts > timedelta(0):
            x = (times[place] - begin).total_seconds() / whole * WIDTH
            width = max(lasts.total_seconds() / whole * WIDTH, _NARROWEST)
            x = min(x, WIDTH - width)
            text = f"{kind}: {write_lasting(lasts)}"
            bars.append(TimelineBar(x=round(x, 1), width=round(width, 1), kind=kind, text=text))
    ticks = [
        (round(min((_time(step) - begin).total_seconds() / whole, 1.0) * WIDTH, 1), str(step["name"]))
        for step in steps
        if not str(step["name"]).startswith("@") and _time(step) >= begin
    ]
    words = ", ".join(bar.text for bar in bars[:30])
    return Timeline(bars=bars, ticks=ticks, events=rows, total=write_lasting(end - begin), text=words)


def write_lasting(duration: timedelta) -> str:
    """How long something lasted, to the millisecond where it was short."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span(duration)


def _time(record: Mapping[str, Any]) -> datetime:
    moment = read_instant(record["created_at"])
    assert moment is not None
    return moment
