"""Runs and jobs in lists: filters in the address, newest first, page by page without a count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args
from urllib.parse import urlencode

from maniflex.admin.operations.desk import ROOT, WorkDesk, read_instant, seeing, show_page
from maniflex.admin.operations.parts import WorkReach
from maniflex.admin.visit import Visit, show
from maniflex.background.commands import RUN, commands_of
from maniflex.background.jobs.status import Status as JobStatus
from maniflex.background.parameters import span
from maniflex.background.runs.model import Status
from maniflex.errors import InvalidQuery
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

PAGE_SIZE = 50
# What `f_status` takes beside the states of a run.
MEANINGS = ("due", "future", "retrying", "deleted")
_PLAIN = {
    "f_actor": "actor_id",
    "f_tenant": "tenant_id",
    "f_key": "idempotency_key",
    "f_about": "about",
    "f_parent": "parent_id",
    "f_group": "group_key",
}
_TIMES = {"f_created_at~gte": ("created_at", "gte"), "f_created_at~lte": ("created_at", "lte")}
_QUICK = ("due", "leased", "retrying", "future", "failed", "succeeded", "cancelled")
FILTERS = ("f_type", "f_status", "f_error", *_PLAIN, *_TIMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run in a list."""

    id: str
    url: str
    type: str
    status: str
    tone: int
    attempts: str
    time: str
    instant: str
    age: str
    about: str
    about_short: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListView:
    """What `operations/runs.html` is given."""

    rows: Sequence[RunRow]
    url: str
    states: Sequence[tuple[str, str, bool]]  # labels, addresses, whether it is the one that is shown
    bulk_url: str  # empty for people who only look
    bulk_commands: Sequence[tuple[str, str]]  # what can be done with many: names and labels
    submit_url: str
    values: dict[str, str]  # of the filters
    types: Sequence[str]
    statuses: Sequence[str]
    shows_errors: bool
    shows_tenants: bool
    query: str
    next_url: str
    first_url: str
    is_filtered: bool
    is_narrowed: bool  # by more than the state, which has links of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """What a list is narrowed to."""

    filters: tuple[tuple[str, str, Any], ...]
    deleted: bool = False
    sort: str = ""


def tone_of(status: str) -> int:
    """The colour of a badge: 0 at work, 1 good, 2 waits, 3 bad."""
    return {
        "leased": 0,
        "succeeded": 1,
        "fired": 1,
        "delivered": 1,
        "pending": 2,
        "failed": 3,
        "dead": 3,
    }.get(status, 2)


async def read_filter(desk: WorkReach, pairs: Sequence[tuple[str, str]]) -> RunFilter:
    """The conditions of a query string; an unknown filter is refused by name."""
    filters: list[tuple[str, str, Any]] = []
    is_deleted, sort = False, ""
    for name, text in pairs:
        if name.startswith("f_") and name not in FILTERS:
            raise InvalidQuery(f"{name}: there is no such filter")
        if not text or name not in FILTERS:
            continue
        if name == "f_type":
            is_prefix = text.endswith(("*", "."))
            filters.append(("type", "starts_with" if is_prefix else "eq", text.rstrip("*")))
        elif name == "f_status":
            is_deleted, sort = text == "deleted", _order_of(text)
            filters += await status_filters(desk, text)
        elif name == "f_error":
            if not desk.reads_internals:
                raise InvalidQuery("f_error: the texts of errors are for operators")
            filters += [("last_error", "not_null", None), ("last_error", "contains", text)]
        elif name in _PLAIN:
            filters.append((_PLAIN[name], "eq", text))
        else:
            field, op = _TIMES[name]
            filters.append((field, op, _instant(desk, name, text)))
    return RunFilter(filters=tuple(filters), deleted=is_deleted, sort=sort)


async def status_filters(desk: WorkReach, status: str) -> list[tuple[str, str, Any]]:
    """The conditions of a state, written so that an index finds its runs among millions of others."""
    now = desk.now()
    if status == "deleted":
        return []
    if status == "due":
        # No index leads with the time alone: the types that have due runs are found lane by lane.
        types = [type for type, _, _ in await desk.parts.work.engine.store.depth(now, 1)]
        return [("type", "in", types), ("status", "eq", "pending"), ("run_at", "lte", now)]
    if status == "future":
        return [("status", "eq", "pending"), ("run_at", "gt", now)]
    if status == "leased":
        return [("status", "eq", "leased"), ("lease_until", "not_null", None)]
    if status == "retrying":
        return [("status", "eq", "pending"), ("attempt", "gt", 0)]
    if status not in list(Status):
        raise InvalidQuery(f"f_status: is one of {', '.join([*Status, *MEANINGS])}")
    return [("status", "eq", status)]


def _order_of(status: str) -> str:
    """The order by which an index finds runs of this state among millions of others."""
    if status in ("failed", "due", "leased"):
        return "updated_at:desc"
    return "run_at:asc" if status == "retrying" else ""


def _instant(desk: WorkReach, name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidQuery(f"{name}: {text!r} is no time such as 2026-01-31T08:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=desk.zone)


async def show_runs(visit: Visit, desk: WorkDesk) -> Response:
    """One page of the runs that match."""
    run_filter = await read_filter(desk, visit.query)
    page = PageRequest(PAGE_SIZE, filters=run_filter.filters, deleted=run_filter.deleted)
    page.after = _place(visit, run_filter)
    query = [("sort", run_filter.sort)] if run_filter.sort else []
    records = await desk.read_page("run", page, query)
    chosen_pairs = [(name, text) for name, text in visit.query if name in FILTERS and text]
    url = visit.url("-", "operations", "runs")
    now = desk.now()
    view = RunListView(
        rows=[run_row(desk, record, now) for record in records],
        url=url,
        states=_states(desk, url, chosen_pairs),
        bulk_url=f"{url}/bulk" if desk.can_act else "",
        bulk_commands=[
            (command.name, visit.t(f"ops_bulk_{command.name}"))
            for command in commands_of(RUN)
            if command.takes_many
        ],
        submit_url=f"{url}/new" if desk.can_act else "",
        values={name: dict(chosen_pairs).get(name, "") for name in FILTERS},
        types=sorted(desk.handlers),
        statuses=[*Status, *MEANINGS],
        shows_errors=desk.reads_internals,
        shows_tenants=desk.sees_all,
        query=urlencode(chosen_pairs),
        next_url=f"{url}?{urlencode([*chosen_pairs, *_after(page, run_filter)])}"
        if page.more and page.last
        else "",
        first_url=f"{url}?{urlencode(chosen_pairs)}" if visit.param("after") else "",
        is_filtered=bool(chosen_pairs),
        is_narrowed=any(name != "f_status" for name, _ in chosen_pairs),
    )
    return await show_page(desk, "runs.html", view, tab="ops_runs")


def _states(desk: WorkDesk, url: str, chosen_pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str, bool]]:
    """The states as links, which keep the other filters."""
    others = [(name, text) for name, text in chosen_pairs if name != "f_status"]
    status_now = dict(chosen_pairs).get("f_status", "")
    links = [(desk.visit.t("ops_all"), f"{url}?{urlencode(others)}" if others else url, not status_now)]
    for status in _QUICK:
        query = urlencode([*others, ("f_status", status)])
        links.append((status, f"{url}?{query}", status == status_now))
    return links


def _after(page: PageRequest, run_filter: RunFilter) -> list[tuple[str, str]]:
    assert page.last is not None
    value, record_id = page.last
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return [("after", record_id), *([("value", text)] if run_filter.sort else [])]


def _place(visit: Visit, run_filter: RunFilter) -> tuple[Any, str] | None:
    record_id, text = visit.param("after"), visit.param("value")
    if not record_id:
        return None
    if not run_filter.sort:
        return record_id, record_id
    try:
        return datetime.fromisoformat(text), record_id
    except ValueError:
        raise InvalidQuery("value: is no place in this list") from None


def run_row(desk: WorkDesk, record: dict[str, Any], now: datetime) -> RunRow:
    """One run as a list shows it."""
    time, instant = desk.time(record["created_at"])
    created_at, about = read_instant(record["created_at"]), record.get("about") or ""
    return RunRow(
        id=record["id"],
        url=desk.visit.url("-", "operations", "runs", record["id"]),
        type=record["type"],
        status=record["status"],
        tone=tone_of(record["status"]),
        attempts=f"{record['attempt']}/{record['max_attempts']}",
        time=time,
        instant=instant,
        age="" if created_at is None else span(now - created_at),
        about=about,
        about_short=_shorten(about),
        error=(record.get("last_error") or "")[:160] if record["status"] != "succeeded" else "",
    )


def _shorten(about: str) -> str:
    """The kind of record and the end of its id, which is what tells ids of one minute apart."""
    kind, slash, record_id = about.partition("/")
    return f"{kind[:20]}{slash}…{record_id[-6:]}" if len(about) > 24 else about


# Jobs: those that are runs are shown as runs; those of a queue apart by their status rows.


_JOB_FILTERS = {"f_type": "type", "f_status": "status", "f_actor": "actor_id", "f_tenant": "tenant_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job."""

    id: str
    url: str  # of the run that it is
    type: str
    status: str
    tone: int
    attempts: str
    time: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsView:
    """What `operations/jobs.html` is given."""

    rows: Sequence[JobRow]
    types: Sequence[tuple[str, str]]  # of jobs that are runs: types and addresses
    note: str
    has_rows: bool
    url: str
    values: Mapping[str, str]
    statuses: Sequence[str]
    next_url: str


async def show_jobs(visit: Visit, desk: WorkDesk) -> Response:
    """The jobs of the queue."""
    jobs = desk.parts.jobs
    url = visit.url("-", "operations", "jobs")
    chosen_pairs = []
    filters: list[tuple[str, str, Any]] = []
    for name, text in visit.query:
        if name.startswith("f_") and name not in _JOB_FILTERS:
            raise InvalidQuery(f"{name}: there is no such filter")
        if name in _JOB_FILTERS and text:
            filters.append((_JOB_FILTERS[name], "eq", text))
            chosen_pairs.append((name, text))
    page = PageRequest(PAGE_SIZE, filters=tuple(filters))
    after = visit.param("after")
    page.after = (after, after) if after else None
    records = await desk.read_page("job", page) if desk.has("job.page") else []
    types = sorted(jobs.types) if jobs.uses_runs else []
    view = JobsView(
        rows=[_job_row(desk, one) for one in records],
        types=[(type, visit.url("-", "operations", "runs", f_type=type)) for type in types],
        note=visit.t("ops_jobs_are_runs") if jobs.uses_runs else visit.t("ops_jobs_apart"),
        has_rows=desk.has("job.page"),
        url=url,
        values={name: dict(chosen_pairs).get(name, "") for name in _JOB_FILTERS},
        statuses=get_args(JobStatus),
        next_url=f"{url}?{urlencode([*chosen_pairs, ('after', page.last[1])])}"
        if page.more and page.last
        else "",
    )
    return await show_page(desk, "jobs.html", view, tab="ops_jobs")


def _job_row(desk: WorkDesk, job: Mapping[str, Any]) -> JobRow:
    is_run = desk.parts.jobs.uses_runs
    return JobRow(
        id=job["id"],
        url=desk.visit.url("-", "operations", "runs", job["id"]) if is_run else "",
        type=job["type"],
        status=job["status"],
        tone=tone_of(job["status"]),
        attempts=f"{job['attempt']}/{job['max_retry']}",
        time=desk.time(job["created_at"])[0],
        error=str(job.get("error") or "")[:160],
    )


ROUTES = (
    show(f"{ROOT}/runs", seeing(show_runs)),
    show(f"{ROOT}/jobs", seeing(show_jobs)),
)
