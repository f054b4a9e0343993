"""Durable work about one record: its tab, and the failed work on the front page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maniflex._names import snake_case
from maniflex.admin.dashboard import CardView
from maniflex.admin.lists import ask_record
from maniflex.admin.operations.desk import ROOT, WorkDesk, seeing
from maniflex.admin.operations.outbox import MessageRow, message_row
from maniflex.admin.operations.overview import runs_url
from maniflex.admin.operations.run_list import RunRow, run_row
from maniflex.admin.visit import Visit, show
from maniflex.background.processes.overview import FAILED_WITHIN, count_text
from maniflex.errors import NotFound
from maniflex.pipeline.response import Response

_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWorkView:
    """What `operations/record.html` is given."""

    label: str
    title: str
    url: str
    history_url: str
    audit_url: str
    runs: Sequence[RunRow]
    messages: Sequence[MessageRow]


async def show_record_work(visit: Visit, desk: WorkDesk) -> Response:
    """The runs and messages about a record that this person may read."""
    site, record_id = visit.site(), visit.params["id"]
    if not site.has_id or site.is_singleton:
        raise NotFound(visit.t("no_such_page"))
    record = (await ask_record(visit, site, record_id)).data
    about = [("about", "eq", f"{snake_case(site.meta.name)}/{record_id}")]
    now = desk.now()
    runs = await desk.some("run", about, _MOST) if desk.has("run.page") else []
    has_messages = desk.has("message.page") and desk.sees_all
    messages = await desk.some("message", about, _MOST) if has_messages else []
    is_versioned = bool(site.meta.options.versioned or site.meta.options.versioned_diff_only)
    view = RecordWorkView(
        label=site.label_of(record),
        title=site.title,
        url=visit.url(site.table, record_id),
        history_url=visit.url(site.table, record_id, "history") if is_versioned else "",
        audit_url=visit.url("-", "audit", f_model=site.meta.name, f_record=record_id),
        runs=[run_row(desk, one, now) for one in runs],
        messages=[message_row(desk, one) for one in messages],
    )
    crumbs = [(site.plural, visit.url(site.table)), (view.label, view.url)]
    return await visit.page("operations/record.html", view, title=visit.t("ops_work"), crumbs=crumbs)


async def show_failed(visit: Visit, desk: WorkDesk) -> Response:
    """How many runs failed lately, as a card of the front page."""
    since = desk.now() - FAILED_WITHIN
    number = await desk.count("run", [("status", "eq", "failed"), ("updated_at", "gte", since)])
    title = visit.t("ops_failed_work")
    view = CardView(title=title, number=count_text(number), link=runs_url(desk, f_status="failed"))
    return await visit.page("card.html", view, title=title)


ROUTES = (
    show("/{model}/{id}/work", seeing(show_record_work)),
    show(f"{ROOT}/failed", seeing(show_failed)),
)
