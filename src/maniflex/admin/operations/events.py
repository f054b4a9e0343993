"""Events: the groups and bridges that take them, how far behind they are, and the feed itself.

A look costs the same however much was handed on: what waits is counted up to a bound, and the feed is
searched from its end, so many positions at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from maniflex.admin.operations.commands import write
from maniflex.admin.operations.desk import ROOT, WorkDesk, acting, read_filters, seeing, show_page
from maniflex.admin.operations.run_list import tone_of
from maniflex.admin.operations.run_page import RunFact, plain_facts, record_url
from maniflex.admin.visit import Refusal, Visit, act, show
from maniflex.background.commands import GROUP
from maniflex.background.feed.api import SERVED_EVERY
from maniflex.background.feed.model import BRIDGE, HANDLER
from maniflex.background.feed.store import OF_GROUP, GroupStanding
from maniflex.background.parameters import span
from maniflex.background.processes.overview import count_text
from maniflex.errors import Abort, NotFound
from maniflex.events.cloudevents import write_structured
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

PAGE_SIZE = 50
SEARCHED = 5000  # positions that one look for a type, a subject or a tenant goes back
SHOWN_FROM = 500  # the same without a filter; positions have no holes but where events were removed
_MOST_GROUPS = 500
_LATE = timedelta(minutes=1)
_UNSERVED = 3 * SERVED_EVERY  # processes say that often that they have the code of a group
_MOST_MESSAGES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group, or a bridge to a broker."""

    url: str
    name: str
    kind: str
    patterns: str
    state: str
    tone: int
    behind: str
    waiting: str
    dead: str
    lag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRow:
    """An event in the list."""

    url: str
    position: str
    type: str
    subject: str
    tenant: str
    actor: str
    changed: str
    time: str
    instant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsView:
    """What `operations/events.html` is given."""

    groups: Sequence[GroupRow]
    rows: Sequence[FeedRow]
    unrouted: str  # how many events wait for their position; empty where none does
    url: str
    values: Mapping[str, str]
    searched: str  # how many positions were searched and not found to match; empty where all was shown
    next_url: str
    first_url: str
    is_filtered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What `operations/group.html` is given."""

    name: str
    url: str
    state: str
    tone: int
    why: str
    facts: Sequence[RunFact]
    failures: Sequence[tuple[str, str, str, str]]  # of dead deliveries: addresses, times, instants, errors
    is_paused: bool
    can_act: bool
    can_replay: bool
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """What `operations/event.html` is given."""

    type: str
    facts: Sequence[RunFact]
    data: str
    cloudevent: str
    shows_payloads: bool
    deliveries: Sequence[tuple[str, str, str, int, str]]  # groups, addresses, status, tone, errors


# -- groups


async def show_events(visit: Visit, desk: WorkDesk) -> Response:
    """The groups, and the latest events."""
    if not desk.has("logged_event.page"):
        raise NotFound(visit.t("no_such_page"))
    url = visit.url("-", "operations", "events")
    chosen_pairs = read_filters(visit, FILTERS)
    before, rows, search_width, next_position = await _read_feed(desk, dict(chosen_pairs))
    unrouted_count = await desk.parts.events.store.unrouted_count()
    is_first = before is None
    view = EventsView(
        groups=[_group_row(desk, one) for one in await _standings(desk)] if is_first else [],
        rows=rows,
        unrouted=count_text(unrouted_count) if unrouted_count and is_first else "",
        url=url,
        values={name: dict(chosen_pairs).get(name, "") for name in FILTERS},
        searched=f"{search_width:,}" if search_width else "",
        next_url=f"{url}?{urlencode([*chosen_pairs, ('before', next_position)])}" if next_position else "",
        first_url="" if is_first else f"{url}?{urlencode(chosen_pairs)}",
        is_filtered=bool(chosen_pairs),
    )
    return await show_page(desk, "events.html", view, tab="ops_feed")


async def _standings(desk: WorkDesk) -> list[GroupStanding]:
    """How the groups and bridges stand that this person sees, by name."""
    page = PageRequest(_MOST_GROUPS, filters=(("kind", "in", [HANDLER, BRIDGE]),))
    names = {group["name"] for group in await desk.read_page("group", page, [("sort", "name:asc")])}
    return [one for one in await desk.parts.events.standings() if one.name in names]


def _group_row(desk: WorkDesk, group: GroupStanding) -> GroupRow:
    state, tone, _ = _state_of(desk, group)
    return GroupRow(
        url=desk.visit.url("-", "operations", "groups", group.name),
        name=group.name,
        kind=desk.visit.t(f"ops_group_{group.kind}"),
        patterns=", ".join(group.patterns),
        state=state,
        tone=tone,
        behind=f"{group.behind:,}",
        waiting=count_text(group.waiting),
        dead=count_text(group.dead) if group.dead else "",
        lag=_lag_of(desk, group),
    )


def _lag_of(desk: WorkDesk, group: GroupStanding) -> str:
    return "" if group.since is None else span(max(desk.now() - group.since, timedelta()))


def _state_of(desk: WorkDesk, group: GroupStanding) -> tuple[str, int, str]:
    """How a group does: a word, its tone, and a sentence."""
    t, lag = desk.visit.t, _lag_of(desk, group)
    values = {"waiting": count_text(group.waiting + group.behind), "lag": lag}
    if group.paused:
        key, tone = "paused", 2
    elif group.served_at is None or desk.now() - group.served_at > _UNSERVED:
        key, tone = "unserved", 3
    elif group.since is not None and desk.now() - group.since > _LATE:
        key, tone = "late", 2
    else:
        key, tone = "well", 1
    waits = f" {t('ops_group_waits', **values)}" if lag and key != "well" else ""
    return t(f"ops_group_{key}"), tone, t(f"ops_group_{key}_why") + waits


async def show_group(visit: Visit, desk: WorkDesk) -> Response:
    """One group or bridge."""
    record = await desk.one("group", visit.params["id"])
    [group] = (one for one in await desk.parts.events.standings() if one.name == record["name"])
    state, tone, why = _state_of(desk, group)
    is_handler = group.kind == HANDLER
    view = GroupView(
        name=group.name,
        url=visit.url("-", "operations", "groups", group.name),
        state=state,
        tone=tone,
        why=why,
        facts=_group_facts(desk, group, is_ordered=record["is_ordered"]),
        failures=await _failures(desk, group),
        is_paused=group.paused,
        can_act=desk.can_act,
        can_replay=desk.can_act and is_handler,
        zone=visit.zone.key,
    )
    return await show_page(desk, "group.html", view, tab="ops_feed", title=group.name)


def _group_facts(desk: WorkDesk, group: GroupStanding, *, is_ordered: bool) -> list[RunFact]:
    t, of_group = desk.visit.t, {"f_kind": OF_GROUP + group.name}
    outbox = desk.visit.url("-", "operations", "outbox")
    facts = [
        RunFact(label=t("ops_kind"), text=t(f"ops_group_{group.kind}")),
        RunFact(label=t("ops_patterns"), text=", ".join(group.patterns)),
        RunFact(label=t("ops_position"), text=f"{group.position:,}"),
        RunFact(label=t("ops_behind"), text=f"{group.behind:,}"),
    ]
    for key, number, status in (("ops_group_waiting", group.waiting, "pending"),
                                ("ops_group_dead", group.dead, "dead")):  # fmt: skip
        url = f"{outbox}?{urlencode({**of_group, 'f_status': status})}" if number else ""
        facts.append(RunFact(label=t(key), text=count_text(number), url=url))
    if group.kind == HANDLER:
        order = "ops_order_key" if is_ordered else "ops_order_none"
        facts.append(RunFact(label=t("ops_order"), text=t(order)))
    for key, moment in (("ops_waits_since", group.since), ("ops_served", group.served_at)):
        time, instant = desk.time(moment)
        if time:
            facts.append(RunFact(label=t(key), text=time, instant=instant))
    return facts


async def _failures(desk: WorkDesk, group: GroupStanding) -> list[tuple[str, str, str, str]]:
    """The newest deliveries that were given up, as far as they are among the newest dead messages."""
    if not group.dead or not desk.has("message.page"):
        return []
    filters = [("kind", "eq", OF_GROUP + group.name), ("status", "eq", "dead")]
    messages = await desk.some("message", filters, 10)
    return [
        (
            desk.visit.url("-", "operations", "outbox", one["id"]),
            *desk.time(one["created_at"]),
            (one.get("last_error") or "")[:160],
        )
        for one in messages
    ]


async def replay_group(visit: Visit, desk: WorkDesk) -> Response:
    """Hand events that are kept to a group again."""
    name = visit.params["id"]
    body = {"since": moment_of(desk, "since")}
    answer = await write(desk, GROUP, "group.replay", name, reason=str(body["since"]), json=body)
    if not answer.ok:
        raise Refusal(answer.response)
    message = visit.t("ops_replayed", count=f"{answer.data['count']:,}")
    return visit.redirect(f"{ROOT}/groups/{name}", ok=message)


def moment_of(desk: WorkDesk, name: str) -> str:
    """A moment that somebody chose, in the zone of this person unless it says another."""
    text = desk.visit.form_text(name).strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = desk.visit.t("ops_no_time")
        details = [{"field": name, "message": message, "code": "invalid"}]
        raise Abort(422, "VALIDATION_FAILED", f"{name} {message}", details) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=desk.zone)).isoformat()


# -- the feed

FILTERS = {"f_type": "type", "f_subject": "subject", "f_tenant": "tenant_id"}


async def _read_feed(
    desk: WorkDesk, chosen: Mapping[str, str]
) -> tuple[int | None, list[FeedRow], int, int | None]:
    """Where the list begins, its rows, how far it was searched in vain, and the position of the next page."""
    position = await desk.parts.events.store.position()
    text = desk.visit.param("before")
    before = int(text) if text.isdecimal() and len(text) <= 18 else None
    end = position.last + 1 if before is None else before
    start = max(end - (SEARCHED if chosen else SHOWN_FROM), 0)
    filters: list[tuple[str, str, Any]] = [("position", "lt", end), ("position", "gte", start)]
    for name, value in chosen.items():
        filters += _conditions(FILTERS[name], value)
    page = PageRequest(PAGE_SIZE, filters=tuple(filters))
    records = await desk.read_page("logged_event", page, [("sort", "position:desc")])
    rows = [_feed_row(desk, one) for one in records]
    if page.more:
        return before, rows, 0, records[-1]["position"]
    goes_on = start > position.pruned
    return before, rows, end - start if goes_on and chosen else 0, start if goes_on else None


def _conditions(field: str, value: str) -> list[tuple[str, str, Any]]:
    """A value, or of a type a pattern such as `order.*`, as conditions of a list."""
    if field != "type" or "*" not in value:
        return [(field, "eq", value)]
    first, *middle, last = value.split("*")
    conditions = [("starts_with", first), *(("contains", one) for one in middle), ("ends_with", last)]
    return [(field, operator, part) for operator, part in conditions if part]


def _feed_row(desk: WorkDesk, event: Mapping[str, Any]) -> FeedRow:
    time, instant = desk.time(event["time"])
    return FeedRow(
        url=desk.visit.url("-", "operations", "events", event["id"]),
        position=f"{event['position']:,}",
        type=event["type"],
        subject=event.get("subject") or "",
        tenant=event.get("tenant_id") or "",
        actor=event.get("actor_id") or "",
        changed=(event.get("changed") or "").replace(",", ", "),
        time=time,
        instant=instant,
    )


async def show_event(visit: Visit, desk: WorkDesk) -> Response:
    """One event, and who was handed it."""
    event = await desk.one("logged_event", visit.params["id"])
    feed_events = await desk.parts.events.store.load([event["id"]])
    if not feed_events:
        raise NotFound(visit.t("no_such_record"))
    t = visit.t
    facts = [RunFact(label="id", text=event["event_id"])]
    time, instant = desk.time(event["time"])
    facts.append(RunFact(label=t("time"), text=time, instant=instant))
    if event.get("position") is not None:
        facts.append(RunFact(label=t("ops_position"), text=f"{event['position']:,}"))
    if subject := event.get("subject"):
        facts.append(RunFact(label=t("ops_subject"), text=subject, url=await record_url(desk, subject)))
    plain = {"ops_source": "source", "ops_key_of": "key", "ops_actor": "actor_id", "ops_tenant": "tenant_id",
             "ops_changed_fields": "changed", "ops_data_elsewhere": "dataref"}  # fmt: skip
    facts += await plain_facts(desk, plain, event)
    if event["erased"]:
        facts.append(RunFact(label=t("ops_data"), text=t("ops_erased")))
    view = EventView(
        type=event["type"],
        facts=facts,
        data="" if event.get("data") is None else desk.json_of(event["data"]),
        cloudevent=desk.json_of(write_structured(feed_events[0].event)),
        shows_payloads=desk.rules.show_payloads,
        deliveries=await _deliveries(desk, event["id"]),
    )
    return await show_page(desk, "event.html", view, tab="ops_feed", title=event["type"])


async def _deliveries(desk: WorkDesk, event_id: str) -> list[tuple[str, str, str, int, str]]:
    """The messages to groups that name an event."""
    if not desk.has("message.page"):
        return []
    messages = await desk.some("message", [("about", "eq", f"event/{event_id}")], _MOST_MESSAGES)
    return [
        (
            one["kind"].removeprefix(OF_GROUP),
            desk.visit.url("-", "operations", "outbox", one["id"]),
            one["status"],
            tone_of(one["status"]),
            (one.get("last_error") or "")[:160] if one["status"] != "delivered" else "",
        )
        for one in messages
    ]


ROUTES = (
    show(f"{ROOT}/events", seeing(show_events, all_tenants=True)),
    show(f"{ROOT}/events/{{id}}", seeing(show_event, all_tenants=True)),
    show(f"{ROOT}/groups/{{id}}", seeing(show_group, all_tenants=True)),
    act(f"{ROOT}/groups/{{id}}/replay", acting(replay_group, all_tenants=True)),
)
