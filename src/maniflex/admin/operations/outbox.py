"""The outbox: what waits, what was delivered, what is dead and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from maniflex._json import is_unreadable
from maniflex.admin.operations.desk import ROOT, WorkDesk, as_json, read_instant, revealing, seeing, show_page
from maniflex.admin.operations.parts import WorkReach
from maniflex.admin.operations.run_list import tone_of
from maniflex.admin.operations.run_page import RunFact, plain_facts, record_url
from maniflex.admin.visit import Visit, act, show
from maniflex.background.commands import REDRIVE
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.background.parameters import span
from maniflex.db.records import Records
from maniflex.encryption.sealed_json import is_left_shut
from maniflex.errors import InvalidQuery
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

PAGE_SIZE = 50
_MOST_GROUPED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message in the list."""

    id: str
    url: str
    kind: str
    key: str
    status: str
    tone: int
    attempts: str
    age: str
    time: str
    instant: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxView:
    """What `operations/outbox.html` is given."""

    rows: Sequence[MessageRow]
    groups: Sequence[tuple[str, int, str]]  # of dead messages: error texts, how many, addresses
    url: str
    bulk_url: str
    values: Mapping[str, str]
    statuses: Sequence[str]
    query: str
    next_url: str
    first_url: str
    is_filtered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """What `operations/message.html` is given."""

    id: str
    kind: str
    status: str
    tone: int
    why: str
    url: str
    facts: Sequence[RunFact]
    payload: str
    cloudevent: str
    error: str
    shows_payloads: bool
    can_redrive: bool
    reveal_url: str  # where a payload that is stored encrypted is shown; empty where nothing is hidden


_PLAIN = {"f_kind": "kind", "f_key": "key", "f_status": "status", "f_about": "about", "f_tenant": "tenant_id"}
FILTERS = (*_PLAIN, "f_error")


def read_message_filter(reach: WorkReach, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str, Any]]:
    """The conditions of a query string; an unknown filter is refused by name."""
    filters: list[tuple[str, str, Any]] = []
    for name, text in pairs:
        if name.startswith("f_") and name not in FILTERS:
            raise InvalidQuery(f"{name}: there is no such filter")
        if not text or name not in FILTERS:
            continue
        if name == "f_status" and text not in list(MessageStatus):
            raise InvalidQuery(f"f_status: is one of {', '.join(MessageStatus)}")
        if name == "f_error":
            if not reach.reads_internals:
                raise InvalidQuery("f_error: the texts of errors are for operators")
            filters += [("last_error", "not_null", None), ("last_error", "contains", text)]
        else:
            filters.append((_PLAIN[name], "eq", text))
    return filters


async def show_outbox(visit: Visit, desk: WorkDesk) -> Response:
    """One page of the messages that match, the newest first."""
    page = PageRequest(PAGE_SIZE, filters=tuple(read_message_filter(desk, visit.query)))
    after = visit.param("after")
    page.after = (after, after) if after else None
    records = await desk.read_page("message", page)
    chosen_pairs = [(name, text) for name, text in visit.query if name in FILTERS and text]
    url = visit.url("-", "operations", "outbox")
    view = OutboxView(
        rows=[message_row(desk, one) for one in records],
        groups=await _dead_groups(desk, url),
        url=url,
        bulk_url=f"{url}/bulk" if desk.can_act else "",
        values={name: dict(chosen_pairs).get(name, "") for name in FILTERS},
        statuses=list(MessageStatus),
        query=urlencode(chosen_pairs),
        next_url=f"{url}?{urlencode([*chosen_pairs, ('after', page.last[1])])}"
        if page.more and page.last
        else "",
        first_url=f"{url}?{urlencode(chosen_pairs)}" if after else "",
        is_filtered=bool(chosen_pairs),
    )
    return await show_page(desk, "outbox.html", view, tab="ops_outbox")


def message_row(desk: WorkDesk, record: Mapping[str, Any]) -> MessageRow:
    """One message as a list shows it."""
    created_at = read_instant(record["created_at"])
    time, instant = desk.time(created_at)
    return MessageRow(
        id=record["id"],
        url=desk.visit.url("-", "operations", "outbox", record["id"]),
        kind=record["kind"],
        key=record.get("key") or "",
        status=record["status"],
        tone=tone_of(record["status"]),
        attempts=str(record["attempts"]),
        age="" if created_at is None else span(desk.now() - created_at),
        time=time,
        instant=instant,
        error=(record.get("last_error") or "")[:160] if record["status"] != "delivered" else "",
    )


async def _dead_groups(desk: WorkDesk, url: str) -> list[tuple[str, int, str]]:
    """The newest dead messages by the text of their error."""
    dead = await desk.some("message", REDRIVE.conditions(desk.now()), _MOST_GROUPED)
    texts = Counter((one.get("last_error") or "")[:120] for one in dead)
    return [
        (text, number, f"{url}?{urlencode({'f_status': 'dead', 'f_error': text})}")
        for text, number in texts.most_common(10)
        if text
    ]


async def show_message(visit: Visit, desk: WorkDesk) -> Response:
    """One message."""
    message = await desk.one("message", visit.params["id"])
    records = Records[OutboxMessage](visit.panel.runtime.store(OutboxMessage))
    record = await records.read(message["id"])
    sentence = await desk.parts.processes.why_not_delivered(record)
    t = visit.t
    facts = [RunFact(label=t("ops_attempts"), text=str(message["attempts"]))]
    for key, name in (
        ("ops_created", "created_at"),
        ("ops_not_before", "retry_at"),
        ("ops_delivered", "published_at"),
    ):
        time, instant = desk.time(message.get(name))
        if time:
            facts.append(RunFact(label=t(key), text=time, instant=instant))
    if message.get("about"):
        url = await record_url(desk, message["about"])
        facts.append(RunFact(label=t("ops_about"), text=message["about"], url=url))
    plain = {"ops_key_of": "key", "ops_actor": "actor_id", "ops_tenant": "tenant_id", "ops_trace": "trace_id"}
    facts += await plain_facts(desk, plain, message)
    view = MessageView(
        id=message["id"],
        kind=message["kind"],
        status=message["status"],
        tone=tone_of(message["status"]),
        why=sentence[:1].upper() + sentence[1:] + ".",
        url=visit.url("-", "operations", "outbox", message["id"]),
        facts=facts,
        payload=desk.json_of(message.get("payload")),
        cloudevent=desk.json_of(_cloudevent(desk, record)),
        error=str(message.get("last_error") or ""),
        shows_payloads=desk.rules.show_payloads,
        can_redrive=desk.can_act and REDRIVE.applies_to(message, desk.now()),
        reveal_url=_reveal_url(desk, message),
    )
    return await show_page(desk, "message.html", view, tab="ops_outbox", title=view.kind)


def _reveal_url(desk: WorkDesk, message: Mapping[str, Any]) -> str:
    is_hidden = desk.can_act and is_left_shut(message.get("payload"))
    return desk.visit.url("-", "operations", "outbox", message["id"], "reveal") if is_hidden else ""


def _cloudevent(desk: WorkDesk, stored: OutboxMessage) -> dict[str, Any]:
    """The message as it would be sent as a CloudEvent."""
    message = Message(
        id=stored.id,
        kind=stored.kind,
        key=stored.key,
        payload=stored.payload,
        attempts=stored.attempts,
        created_at=stored.created_at,
        stored=as_json(None if is_unreadable(stored.payload) else stored.payload),
        about=stored.about,
    )
    return message.cloudevent(f"/{desk.visit.panel.runtime.config.service_name or 'maniflex'}")


ROUTES = (
    show(f"{ROOT}/outbox", seeing(show_outbox, all_tenants=True)),
    show(f"{ROOT}/outbox/{{id}}", seeing(show_message, all_tenants=True)),
    act(f"{ROOT}/outbox/{{id}}/reveal", revealing(show_message, "OutboxMessage", all_tenants=True)),
)
