"""Acting on many at once: the chosen ones, or all that match, with a look first.

Up to `AT_ONCE` are changed while the browser waits, each with its row in the audit trail. More become a
durable run with a page of its own: it shows how far it is, is cancelled and goes on, and lists what was
refused, like a change of many records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from maniflex.admin.call import ApiAnswer
from maniflex.admin.operations.desk import ROOT, WorkDesk, acting, show_page
from maniflex.admin.operations.many_batches import MODELS, read_choice
from maniflex.admin.operations.parts import Filters
from maniflex.admin.operations.run_actions import change_run
from maniflex.admin.transfer_start import start_phase
from maniflex.admin.visit import Visit, act
from maniflex.background.processes.overview import count_text
from maniflex.errors import Abort
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

AT_ONCE = 200
_MOST_REFUSALS = 20
_MOST_FORESEEN = 200_000  # beyond it the progress has no end to show
ChangeOne = Callable[[str], Awaitable[ApiAnswer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyView:
    """What `operations/bulk.html` is given."""

    title: str
    action: str
    cancel_url: str
    question: str
    ready: str
    others: str  # how many match and cannot be changed
    refusals: Sequence[tuple[str, str]]  # ids and messages
    controls: Sequence[tuple[str, str]]  # to confirm it with
    done: str  # how many were changed; empty before
    in_background: bool
    button: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen: ids, or all records that match."""

    name: str  # of the list: run or message
    filters: Filters
    eligible: Filters  # what a record must be to be changed
    ids: Sequence[str] = ()

    @property
    def matching(self) -> tuple[tuple[str, str, Any], ...]:
        return (("id", "in", list(self.ids)),) if self.ids else tuple(self.filters)

    @property
    def changeable(self) -> tuple[tuple[str, str, Any], ...]:
        return (*self.matching, *self.eligible)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyForm:
    """What is to be done, and where its form and its list are."""

    action: str
    label: str
    question: str  # the key of its text
    path: str
    list_path: str
    tab: str
    query: str
    reason: str = ""


def chosen_ids(visit: Visit) -> list[str]:
    """The ids of the form; none when all that match are meant, and refused when nothing was chosen."""
    if visit.form_text("all"):
        return []
    ids = list(dict.fromkeys(visit.form_texts("ids")))
    if not ids or len(ids) > AT_ONCE:
        raise Abort(422, "VALIDATION_FAILED", visit.t("nothing_chosen"))
    return ids


async def answer_form(desk: WorkDesk, form: ManyForm, choice: Choice, change: ChangeOne) -> Response:
    """Show how many would change; when that was confirmed, change them or begin to."""
    visit = desk.visit
    if not visit.form_text("confirm"):
        ready = await desk.count(choice.name, choice.changeable)
        others = max(await desk.count(choice.name, choice.matching) - ready, 0)
        return await _show(desk, form, choice, ready=ready, others=others)
    if not choice.ids and await desk.count(choice.name, choice.changeable, AT_ONCE) > AT_ONCE:
        return await _begin(desk, form, choice)
    records = await desk.read_page(choice.name, PageRequest(AT_ONCE, filters=choice.changeable))
    refusals = []
    for record in records:
        answer = await change(record["id"])
        if not answer.ok:
            refusals.append((str(record["id"]), answer.message))
    done = len(records) - len(refusals)
    if refusals:
        return await _show(desk, form, choice, done=f"{done:,}", refusals=refusals[:_MOST_REFUSALS])
    path = form.list_path + (f"?{form.query}" if form.query else "")
    return visit.redirect(path, ok=visit.t("ops_bulk_done", count=f"{done:,}"))


async def _show(
    desk: WorkDesk,
    form: ManyForm,
    choice: Choice,
    *,
    ready: int = 0,
    others: int = 0,
    done: str = "",
    refusals: Sequence[tuple[str, str]] = (),
) -> Response:
    visit = desk.visit
    controls = [("action", form.action), ("query", form.query), ("reason", form.reason), ("confirm", "1")]
    controls += [("ids", one) for one in choice.ids] or [("all", "1")]
    view = ManyView(
        title=form.label,
        action=visit.root + form.path,
        cancel_url=visit.root + form.list_path + (f"?{form.query}" if form.query else ""),
        question=visit.t(form.question, count=count_text(ready), action=form.label.lower()),
        ready=count_text(ready),
        others=count_text(others) if others else "",
        refusals=refusals,
        controls=controls,
        done=done,
        in_background=ready > AT_ONCE,
        button=form.label,
    )
    return await show_page(desk, "bulk.html", view, tab=form.tab, title=form.label)


async def _begin(desk: WorkDesk, form: ManyForm, choice: Choice) -> Response:
    """Have all that match now changed by a durable run."""
    visit = desk.visit
    count = await desk.count(choice.name, choice.changeable, _MOST_FORESEEN)
    transfer = await visit.panel.transfers.add(
        visit.signed_in,
        "work",
        MODELS[choice.name],
        address=visit.ctx.client_ip,
        request_id=visit.ctx.request_id,
        total=count if count <= _MOST_FORESEEN else None,
        settings={
            "list": choice.name,
            "action": form.action,
            "query": form.query,
            "reason": form.reason,
            "zone": desk.zone.key,
            "asked_at": desk.now().isoformat(),
        },
    )
    await start_phase(visit, transfer, "apply")
    return visit.redirect(f"/-/transfers/{transfer.id}")


# Retry, cancel, delete or hurry many runs.


async def change_runs(visit: Visit, desk: WorkDesk) -> Response:
    """Show what would happen; when that was confirmed, do it."""
    action, query = visit.form_text("action"), visit.form_text("query")
    filters, eligible = await read_choice(desk, "run", action, parse_qsl(query))
    choice = Choice(name="run", filters=filters, eligible=eligible, ids=chosen_ids(visit))
    reason, label = visit.short_text("reason", 500), visit.t(f"ops_bulk_{action}")
    form = ManyForm(
        action=action,
        label=label,
        question="ops_bulk_question",
        path=f"{ROOT}/runs/bulk",
        list_path=f"{ROOT}/runs",
        tab="ops_runs",
        query=query,
        reason=reason,
    )
    return await answer_form(
        desk, form, choice, lambda run_id: change_run(desk, run_id, action, reason or "bulk")
    )


ROUTES = (act(f"{ROOT}/runs/bulk", acting(change_runs)),)
