"""Jobs: those that are runs are shown as runs; those of a queue apart by their status rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlencode

from maniflex.admin.operations.desk import ROOT, WorkDesk, seeing, show_page
from maniflex.admin.operations.run_list import tone_of
from maniflex.admin.visit import Visit, show
from maniflex.background.jobs.status import Status
from maniflex.errors import InvalidQuery
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

PAGE_SIZE = 50
_FILTERS = {"f_type": "type", "f_status": "status", "f_actor": "actor_id", "f_tenant": "tenant_id"}


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
        if name.startswith("f_") and name not in _FILTERS:
            raise InvalidQuery(f"{name}: there is no such filter")
        if name in _FILTERS and text:
            filters.append((_FILTERS[name], "eq", text))
            chosen_pairs.append((name, text))
    page = PageRequest(PAGE_SIZE, filters=tuple(filters))
    after = visit.param("after")
    page.after = (after, after) if after else None
    records = await desk.read_page("job", page) if desk.has("job.page") else []
    types = sorted(jobs.types) if jobs.uses_runs else []
    view = JobsView(
        rows=[_row(desk, one) for one in records],
        types=[(type, visit.url("-", "operations", "runs", f_type=type)) for type in types],
        note=visit.t("ops_jobs_are_runs") if jobs.uses_runs else visit.t("ops_jobs_apart"),
        has_rows=desk.has("job.page"),
        url=url,
        values={name: dict(chosen_pairs).get(name, "") for name in _FILTERS},
        statuses=get_args(Status),
        next_url=f"{url}?{urlencode([*chosen_pairs, ('after', page.last[1])])}"
        if page.more and page.last
        else "",
    )
    return await show_page(desk, "jobs.html", view, tab="ops_jobs")


def _row(desk: WorkDesk, job: Mapping[str, Any]) -> JobRow:
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


ROUTES = (show(f"{ROOT}/jobs", seeing(show_jobs)),)
