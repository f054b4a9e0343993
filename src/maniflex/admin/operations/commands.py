"""The forms of commands on runs, messages and schedules: on one record, or on many after a look.

Every form of `background/commands.py` is made here, and every command leaves a row in the audit trail in the
transaction of its change. Up to `AT_ONCE` of many are changed while the browser waits. More become a durable
run with a page of its own: it shows how far it is, is cancelled and goes on, and lists what was refused, as a
change of many records does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from maniflex.admin.audit import NothingStored
from maniflex.admin.operations.desk import ROOT, WorkDesk, acting, read_json, show_page
from maniflex.admin.operations.outbox import read_message_filter
from maniflex.admin.operations.parts import Filters, WorkReach, adapter_of
from maniflex.admin.operations.run_list import read_filter
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.batches import BatchChange, change_one
from maniflex.admin.transfers.store import PastVisitor, Stopped, api_of, start_phase
from maniflex.admin.visit import ApiAnswer, Handler, Refusal, Visit, act
from maniflex.background.commands import (
    COMMANDS,
    GROUP,
    MESSAGE,
    NOUNS,
    RUN,
    SCHEDULE,
    CallerReach,
    Command,
    Noun,
    commands_of,
)
from maniflex.background.processes.overview import count_text
from maniflex.errors import Abort, InvalidQuery, NotFound
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts

AT_ONCE = 200
_MOST_REFUSALS = 20
_MOST_FORESEEN = 200_000  # beyond it the progress has no end to show
# The keys of what is said when a command is done, and of the question before it is done with many.
_DONE = {
    "run": "ops_done_{}",
    "message": "ops_redriven",
    "schedule": "ops_schedule_{}",
    "group": "ops_group_{}",
    "endpoint": "ops_endpoint_{}",
    "delivery": "ops_delivery_{}",
}
_QUESTIONS = {"run": "ops_bulk_question", "message": "ops_redrive_question"}


# -- one record


async def write(
    desk: WorkDesk,
    noun: Noun,
    key: str,
    record_id: str = "",
    *,
    event: str = "",
    reason: str = "",
    fields: Sequence[str] = (),
    **options: Any,
) -> ApiAnswer:
    """Ask an endpoint and note it, in one transaction; the answer says when it was refused."""
    trail, adapter = desk.visit.panel.trail, adapter_of(desk, noun)
    async with trail.writing(
        desk.visit, adapter, event or key, model=noun.record, record_id=record_id
    ) as entry:
        entry.fields, entry.reason = list(fields), reason
        answer = await desk.ask(key, record_id, **options)
        if not answer.ok:
            raise NothingStored(answer)
        if not record_id:
            entry.record_id = answer.data["id"]
    return answer


@dataclass(kw_only=True)
class WorkChange(BatchChange):
    """A command on records of durable work."""

    reach: WorkReach
    command: Command
    why: str  # as the person said
    filters: Filters = ()  # of the records that are meant

    async def page(self, page: PageRequest) -> Sequence[Mapping[str, Any]]:
        page.filters = tuple(self.filters)
        return await self.reach.read_page(self.command.noun.name, page)

    async def ask(self, record_id: str) -> ApiAnswer:
        query = [("reason", self.why)] if self.command.key == "run.delete" and self.why else []
        return await self.reach.ask(self.command.key, record_id, query=query)


def work_change(
    reach: WorkReach, command: Command, why: str, *, note: str = "", filters: Filters = ()
) -> WorkChange:
    """The command as this person does it; `note` stands in the audit trail where nothing was said."""
    return WorkChange(
        model=command.noun.record,
        event=command.event or command.key,
        reason=why or note,
        adapter=adapter_of(reach, command.noun),
        reach=reach,
        command=command,
        why=why,
        filters=filters,
    )


def _press(command: Command) -> Handler:
    """The button of a command."""
    noun = command.noun

    async def press(visit: Visit, desk: WorkDesk) -> Response:
        record_id = visit.params["id"]
        name = (await desk.one(noun.name, record_id))["name"] if noun in (SCHEDULE, GROUP) else ""
        why = visit.short_text("reason", command.longest_reason)
        note = "now" if command.before_its_time else ""
        answer = await change_one(visit, work_change(desk, command, why, note=note), record_id)
        if not answer.ok:
            raise Refusal(answer.response)
        is_gone = noun is SCHEDULE and command.name == "delete"
        place = f"{ROOT}/{noun.place}" + ("" if is_gone else f"/{record_id}")
        return visit.redirect(place, ok=visit.t(_DONE[noun.name].format(command.name), name=name))

    return _acting(noun, press)


def _acting(noun: Noun, do: Any) -> Handler:
    """A form about records of this kind, for those who reach them."""
    return acting(do, all_tenants=noun.needs is CallerReach.ALL, schedules=noun.needs is CallerReach.TENANT)


async def signal_run(visit: Visit, desk: WorkDesk) -> Response:
    """Tell a run something."""
    run_id, name = visit.params["id"], visit.form_text("name").strip()
    body = {"name": name, "payload": read_json(visit, visit.form_text("payload"))}
    answer = await write(desk, RUN, "run.signal", run_id, reason=name, json=body)
    if not answer.ok:
        raise Refusal(answer.response)
    return visit.redirect(f"{ROOT}/runs/{run_id}", ok=visit.t("ops_done_signal", name=name))


# -- many records


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
    """What is to be done, and with what: ids, or all records that match."""

    command: Command
    query: str  # of the list they were chosen from
    reason: str
    filters: Filters
    eligible: Filters  # what a record must be to be changed
    ids: Sequence[str]

    @property
    def name(self) -> str:
        return self.command.noun.name

    @property
    def matching(self) -> tuple[tuple[str, str, Any], ...]:
        return (("id", "in", list(self.ids)),) if self.ids else tuple(self.filters)

    @property
    def changeable(self) -> tuple[tuple[str, str, Any], ...]:
        return (*self.matching, *self.eligible)

    @property
    def list_path(self) -> str:
        return f"{ROOT}/{self.command.noun.place}" + (f"?{self.query}" if self.query else "")


async def _change_many(noun: Noun, visit: Visit, desk: WorkDesk) -> Response:
    """Show how many would change; when that was confirmed, change them or begin to."""
    choice = await _read_choice(noun, visit, desk)
    if not visit.form_text("confirm"):
        ready = await desk.count(choice.name, choice.changeable)
        others = max(await desk.count(choice.name, choice.matching) - ready, 0)
        return await _show(desk, choice, ready=ready, others=others)
    if not choice.ids and await desk.count(choice.name, choice.changeable, AT_ONCE) > AT_ONCE:
        return await _begin(desk, choice)
    records = await desk.read_page(choice.name, PageRequest(AT_ONCE, filters=choice.changeable))
    change = work_change(desk, choice.command, choice.reason, note="bulk")
    refusals = []
    for record in records:
        answer = await change_one(visit, change, record["id"])
        if not answer.ok:
            refusals.append((str(record["id"]), answer.message))
    done_count = len(records) - len(refusals)
    if refusals:
        return await _show(desk, choice, done=f"{done_count:,}", refusals=refusals[:_MOST_REFUSALS])
    return visit.redirect(choice.list_path, ok=visit.t("ops_bulk_done", count=f"{done_count:,}"))


async def _read_choice(noun: Noun, visit: Visit, desk: WorkDesk) -> Choice:
    many = {command.name: command for command in commands_of(noun) if command.takes_many}
    # A list with one command has no control for its name.
    name = visit.form_text("action") if len(many) > 1 else next(iter(many))
    if name not in many:
        raise NotFound(visit.t("no_such_page"))
    query = visit.form_text("query")
    filters, eligible = await read_choice(desk, many[name], parse_qsl(query))
    ids = [] if visit.form_text("all") else list(dict.fromkeys(visit.form_texts("ids")))
    if not visit.form_text("all") and not 0 < len(ids) <= AT_ONCE:
        raise Abort(422, "VALIDATION_FAILED", visit.t("nothing_chosen"))
    return Choice(
        command=many[name],
        query=query,
        reason=visit.short_text("reason", 500),
        filters=filters,
        eligible=eligible,
        ids=ids,
    )


async def _show(
    desk: WorkDesk,
    choice: Choice,
    *,
    ready: int = 0,
    others: int = 0,
    done: str = "",
    refusals: Sequence[tuple[str, str]] = (),
) -> Response:
    visit, noun, name = desk.visit, choice.command.noun, choice.command.name
    label = visit.t(f"ops_bulk_{name}")
    controls = [("action", name), ("query", choice.query), ("reason", choice.reason), ("confirm", "1")]
    controls += [("ids", one) for one in choice.ids] or [("all", "1")]
    view = ManyView(
        title=label,
        action=f"{visit.root}{ROOT}/{noun.place}/bulk",
        cancel_url=visit.root + choice.list_path,
        question=visit.t(_QUESTIONS[noun.name], count=count_text(ready), action=label.lower()),
        ready=count_text(ready),
        others=count_text(others) if others else "",
        refusals=refusals,
        controls=controls,
        done=done,
        in_background=ready > AT_ONCE,
        button=label,
    )
    return await show_page(desk, "bulk.html", view, tab=f"ops_{noun.place}", title=label)


async def _begin(desk: WorkDesk, choice: Choice) -> Response:
    """Have all that match now changed by a durable run."""
    visit = desk.visit
    count = await desk.count(choice.name, choice.changeable, _MOST_FORESEEN)
    transfer = await visit.panel.transfers.add(
        visit.signed_in,
        "work",
        choice.command.noun.record,
        address=visit.ctx.client_ip,
        request_id=visit.ctx.request_id,
        total=count if count <= _MOST_FORESEEN else None,
        settings={
            "list": choice.name,
            "action": choice.command.name,
            "query": choice.query,
            "reason": choice.reason,
            "zone": desk.zone.key,
            "asked_at": desk.now().isoformat(),
        },
    )
    await start_phase(visit, transfer, "apply")
    return visit.redirect(f"/-/transfers/{transfer.id}")


async def read_choice(
    reach: WorkReach, command: Command, pairs: Sequence[tuple[str, str]]
) -> tuple[Filters, Filters]:
    """The conditions of a query string, and those that a record must meet for the command."""
    eligible = command.conditions(reach.now())
    if command.noun is MESSAGE:
        return read_message_filter(reach, pairs), eligible
    run_filter = await read_filter(reach, pairs)
    if run_filter.deleted:
        raise InvalidQuery(reach.panel.texts("ops_run_deleted"))
    return run_filter.filters, eligible


async def resume_work_change(panel: PanelParts, transfer: AdminTransfer, visitor: PastVisitor) -> WorkChange:
    """The change of a transfer, as its person reaches the work now; `Stopped` when it may not any more."""
    settings, parts, rules = transfer.settings, panel.durable, panel.operation_rules
    [command] = (one for one in COMMANDS if one.key == f"{settings['list']}.{settings['action']}")
    if parts is None or rules is None or not rules.admit(visitor.person):
        raise Stopped(panel.texts("ops_forbidden"))
    reach = WorkReach(
        person=visitor.person,
        api=api_of(panel, visitor),
        panel=panel,
        parts=parts,
        rules=rules,
        zone=ZoneInfo(settings["zone"]),
        moment=datetime.fromisoformat(settings["asked_at"]),
    )
    if not reach.can_act or (command.noun.needs is CallerReach.ALL and not reach.sees_all):
        raise Stopped(panel.texts("ops_forbidden"))
    filters, eligible = await read_choice(reach, command, parse_qsl(settings["query"]))
    # What came later was not asked for; and the run that does this is no run to change.
    bounds: list[tuple[str, str, Any]] = [("created_at", "lte", reach.now())]
    if command.noun is RUN and transfer.run_id is not None:
        bounds.append(("id", "neq", transfer.run_id))
    matching = (*filters, *eligible, *bounds)
    return work_change(reach, command, settings["reason"], note="bulk", filters=matching)


ROUTES = (
    *(
        act(f"{ROOT}/{noun.place}/bulk", _acting(noun, partial(_change_many, noun)))
        for noun in NOUNS
        if any(command.takes_many for command in commands_of(noun))
    ),
    *(act(f"{ROOT}/{one.noun.place}/{{id}}/{one.name}", _press(one)) for one in COMMANDS if not one.asks),
    act(f"{ROOT}/runs/{{id}}/signal", acting(signal_run)),
)
