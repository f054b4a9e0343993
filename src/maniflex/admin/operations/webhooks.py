"""Webhooks: who is told of events, what is on its way to them, and what every attempt came to.

Secrets and the values of headers are on none of these pages: the requests behind them do not read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from maniflex.admin.operations.commands import write
from maniflex.admin.operations.desk import (
    ROOT,
    WorkDesk,
    acting,
    read_filters,
    read_instant,
    seeing,
    show_page,
)
from maniflex.admin.operations.events import moment_of
from maniflex.admin.operations.run_list import tone_of
from maniflex.admin.operations.run_page import RunFact, plain_facts
from maniflex.admin.visit import Refusal, Visit, act, show
from maniflex.background.commands import DELIVERY, ENDPOINT, commands_of
from maniflex.background.parameters import span
from maniflex.background.processes.overview import count_text
from maniflex.errors import InvalidQuery
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

PAGE_SIZE = 50
MOST_WAITING = 10_000
STATUSES = ("enabled", "disabled")
DELIVERY_STATUSES = ("pending", "delivered", "failed", "cancelled")
FILTERS = {"f_status": "status", "f_tenant": "tenant_id", "f_actor": "actor_id"}
[RESEND] = commands_of(DELIVERY)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRow:
    """An endpoint in the list."""

    url: str
    address: str
    description: str
    owner: str
    patterns: str
    status: str
    tone: int
    note: str  # since when it fails, or why it is disabled
    waiting: str
    lag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhooksView:
    """What `operations/webhooks.html` is given."""

    rows: Sequence[EndpointRow]
    url: str
    values: Mapping[str, str]
    statuses: Sequence[str]
    next_url: str
    first_url: str
    is_filtered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """A delivery in the list of its endpoint."""

    url: str
    type: str
    status: str
    tone: int
    attempts: str
    answer: str
    age: str
    time: str
    instant: str
    retry: str  # in which time it is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointView:
    """What `operations/endpoint.html` is given."""

    address: str
    url: str
    status: str
    tone: int
    why: str
    facts: Sequence[RunFact]
    rows: Sequence[DeliveryRow]
    states: Sequence[tuple[str, str, bool]]  # labels, addresses, and which one is shown
    next_url: str
    first_url: str
    is_enabled: bool
    can_act: bool
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One request to an endpoint."""

    number: str
    time: str
    instant: str
    lasted: str
    status: str
    tone: int
    error: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryView:
    """What `operations/delivery.html` is given."""

    type: str
    url: str
    status: str
    tone: int
    why: str
    facts: Sequence[RunFact]
    attempts: Sequence[AttemptRow]
    can_resend: bool
    shows_payloads: bool


# -- endpoints


async def show_webhooks(visit: Visit, desk: WorkDesk) -> Response:
    """One page of the endpoints that match, the newest first."""
    chosen_pairs = read_filters(visit, FILTERS)
    filters = []
    for name, text in chosen_pairs:
        if name == "f_status" and text not in STATUSES:
            raise InvalidQuery(f"f_status: is one of {', '.join(STATUSES)}")
        filters.append((FILTERS[name], "eq", text))
    page = PageRequest(PAGE_SIZE, filters=tuple(filters))
    after = visit.param("after")
    page.after = (after, after) if after else None
    records = await desk.read_page("endpoint", page)
    waiting = await _waiting(desk, [one["id"] for one in records])
    url = visit.url("-", "operations", "webhooks")
    is_going_on = page.more and page.last is not None
    view = WebhooksView(
        rows=[_endpoint_row(desk, one, waiting.get(one["id"])) for one in records],
        url=url,
        values={name: dict(chosen_pairs).get(name, "") for name in FILTERS},
        statuses=STATUSES,
        next_url=_next_url(url, chosen_pairs, page) if is_going_on else "",
        first_url=f"{url}?{urlencode(chosen_pairs)}" if after else "",
        is_filtered=bool(chosen_pairs),
    )
    return await show_page(desk, "webhooks.html", view, tab="ops_webhooks")


def _next_url(url: str, chosen_pairs: Sequence[tuple[str, str]], page: PageRequest) -> str:
    assert page.last is not None
    return f"{url}?{urlencode([*chosen_pairs, ('after', page.last[1])])}"


async def _waiting(desk: WorkDesk, ids: Sequence[str]) -> dict[str, tuple[int, datetime]]:
    """How many deliveries wait for each of these endpoints, and since when."""
    webhooks = desk.parts.webhooks
    assert webhooks is not None
    return await webhooks.store.waiting(ids, MOST_WAITING + 1) if ids else {}


def _endpoint_row(
    desk: WorkDesk, endpoint: Mapping[str, Any], waiting: tuple[int, datetime] | None
) -> EndpointRow:
    count, since = waiting or (0, None)
    return EndpointRow(
        url=desk.visit.url("-", "operations", "webhooks", endpoint["id"]),
        address=endpoint["url"],
        description=endpoint.get("description") or "",
        owner=_owner(desk, endpoint),
        patterns=_patterns(desk, endpoint),
        status=endpoint["status"],
        tone=_tone(endpoint),
        note=_note(desk, endpoint),
        waiting=count_text(count),
        lag="" if since is None else span(desk.now() - since),
    )


def _owner(desk: WorkDesk, endpoint: Mapping[str, Any]) -> str:
    if endpoint["is_declared"]:
        return desk.visit.t("ops_by_code")
    return str(endpoint.get("tenant_id") or endpoint.get("actor_id") or "")


def _patterns(desk: WorkDesk, endpoint: Mapping[str, Any]) -> str:
    """What it is told of; a `service.webhook` of code has no patterns."""
    return ", ".join(endpoint["patterns"]) or desk.visit.t("ops_writes_of_models")


def _tone(endpoint: Mapping[str, Any]) -> int:
    if endpoint["status"] == "disabled":
        return 3
    return 2 if endpoint.get("failing_since") else 1


def _note(desk: WorkDesk, endpoint: Mapping[str, Any]) -> str:
    if endpoint["status"] == "disabled":
        return str(endpoint.get("disabled_reason") or "")
    failing_since = read_instant(endpoint.get("failing_since"))
    if failing_since is None:
        return ""
    return desk.visit.t("ops_fails_for", span=span(desk.now() - failing_since))


async def show_endpoint(visit: Visit, desk: WorkDesk) -> Response:
    """One endpoint and its deliveries, the newest first."""
    endpoint = await desk.one("endpoint", visit.params["id"])
    url = visit.url("-", "operations", "webhooks", endpoint["id"])
    status = dict(read_filters(visit, ("f_status",))).get("f_status", "")
    if status and status not in DELIVERY_STATUSES:
        raise InvalidQuery(f"f_status: is one of {', '.join(DELIVERY_STATUSES)}")
    chosen_pairs = [("f_status", status)] if status else []
    filters: list[tuple[str, str, Any]] = [("endpoint_id", "eq", endpoint["id"])]
    filters += [("status", "eq", status)] if status else []
    page = PageRequest(PAGE_SIZE, filters=tuple(filters))
    after = visit.param("after")
    page.after = (after, after) if after else None
    records = await desk.read_page("delivery", page)
    count, since = (await _waiting(desk, [endpoint["id"]])).get(endpoint["id"], (0, None))
    states = [(visit.t("ops_all"), url, not status)]
    states += [(one, f"{url}?{urlencode({'f_status': one})}", one == status) for one in DELIVERY_STATUSES]
    view = EndpointView(
        address=endpoint["url"],
        url=url,
        status=endpoint["status"],
        tone=_tone(endpoint),
        why=_why(desk, endpoint, count, since),
        facts=await _endpoint_facts(desk, endpoint),
        rows=[_delivery_row(desk, one) for one in records],
        states=states,
        next_url=_next_url(url, chosen_pairs, page) if page.more and page.last else "",
        first_url=f"{url}?{urlencode(chosen_pairs)}" if after else "",
        is_enabled=endpoint["status"] == "enabled",
        can_act=desk.can_act,
        zone=visit.zone.key,
    )
    return await show_page(desk, "endpoint.html", view, tab="ops_webhooks", title=endpoint["url"])


def _why(desk: WorkDesk, endpoint: Mapping[str, Any], count: int, since: datetime | None) -> str:
    """How an endpoint does, in a sentence."""
    t = desk.visit.t
    if endpoint["status"] == "disabled":
        return t("ops_endpoint_off", reason=endpoint.get("disabled_reason") or "")
    waits = t("ops_endpoint_nothing_waits")
    if since is not None:
        waits = t("ops_endpoint_waits", count=count_text(count), span=span(desk.now() - since))
    note = _note(desk, endpoint)
    return f"{note[:1].upper()}{note[1:]}. {waits}" if note else waits


async def _endpoint_facts(desk: WorkDesk, endpoint: Mapping[str, Any]) -> list[RunFact]:
    t = desk.visit.t
    facts = [
        RunFact(label=t("ops_patterns"), text=_patterns(desk, endpoint)),
        RunFact(
            label=t("ops_declared"), text=t("ops_by_code" if endpoint["is_declared"] else "ops_by_client")
        ),
        RunFact(label=t("ops_timeout"), text=f"{endpoint['timeout']} s"),
    ]
    plain = {"ops_description": "description", "ops_format": "format", "ops_order": "ordering",
             "ops_signing": "signing", "ops_public_key": "public_key", "ops_actor": "actor_id",
             "ops_tenant": "tenant_id"}  # fmt: skip
    facts += await plain_facts(desk, plain, endpoint)
    for key, name in (
        ("ops_created", "created_at"),
        ("ops_failing_since", "failing_since"),
        ("ops_paused_until", "paused_until"),
        ("ops_disabled_at", "disabled_at"),
        ("ops_served", "served_at"),
    ):
        time, instant = desk.time(endpoint.get(name))
        if time:
            facts.append(RunFact(label=t(key), text=time, instant=instant))
    return [RunFact(label="id", text=endpoint["id"]), *facts]


async def test_endpoint(visit: Visit, desk: WorkDesk) -> Response:
    """Send a ping and say what came back; no transaction is open while the endpoint thinks."""
    endpoint_id = visit.params["id"]
    answer = await desk.ask("endpoint.test", endpoint_id)
    if not answer.ok:
        raise Refusal(answer.response)
    status, error, ms = (answer.data[name] for name in ("status", "error", "ms"))
    came_back = str(error or status)
    await visit.panel.trail.note(
        visit, "endpoint.test", model=ENDPOINT.record, record_id=endpoint_id, reason=came_back[:500]
    )
    place = f"{ROOT}/webhooks/{endpoint_id}"
    if error is None:
        return visit.redirect(place, ok=visit.t("ops_endpoint_tested", status=status, ms=ms))
    return visit.redirect(place, warning=visit.t("ops_endpoint_test_failed", error=error, ms=ms))


async def recover_endpoint(visit: Visit, desk: WorkDesk) -> Response:
    """Send what failed or was cancelled since a moment again."""
    return await _send_again(desk, "endpoint.recover", {"since": moment_of(desk, "since")}, "ops_recovered")


async def replay_endpoint(visit: Visit, desk: WorkDesk) -> Response:
    """Deliver what is kept of the feed since a moment again."""
    body: dict[str, Any] = {"since": moment_of(desk, "since")}
    if visit.form_text("until").strip():
        body["until"] = moment_of(desk, "until")
    if patterns := visit.form_text("patterns").replace(",", " ").split():
        body["patterns"] = patterns
    return await _send_again(desk, "endpoint.replay", body, "ops_replayed")


async def _send_again(desk: WorkDesk, key: str, body: Mapping[str, Any], done: str) -> Response:
    visit, endpoint_id = desk.visit, desk.visit.params["id"]
    answer = await write(desk, ENDPOINT, key, endpoint_id, reason=str(body["since"]), json=body)
    if not answer.ok:
        raise Refusal(answer.response)
    count = f"{answer.data['count']:,}"
    return visit.redirect(f"{ROOT}/webhooks/{endpoint_id}", ok=visit.t(done, count=count))


# -- deliveries


def _delivery_row(desk: WorkDesk, delivery: Mapping[str, Any]) -> DeliveryRow:
    now, created_at = desk.now(), read_instant(delivery["created_at"])
    retry_at = read_instant(delivery["retry_at"])
    waits = delivery["status"] == "pending" and retry_at is not None and retry_at > now
    time, instant = desk.time(created_at)
    return DeliveryRow(
        url=desk.visit.url("-", "operations", "deliveries", delivery["id"]),
        type=delivery["type"],
        status=delivery["status"],
        tone=tone_of(delivery["status"]),
        attempts=str(delivery["attempt_count"]),
        answer=(delivery.get("last_error") or str(delivery.get("last_status") or ""))[:160],
        age="" if created_at is None else span(now - created_at),
        time=time,
        instant=instant,
        retry=span(retry_at - now) if waits and retry_at is not None else "",
    )


async def show_delivery(visit: Visit, desk: WorkDesk) -> Response:
    """One delivery with its attempts."""
    delivery = await desk.one("delivery", visit.params["id"])
    endpoint = await desk.one("endpoint", delivery["endpoint_id"])
    attempts = (await desk.ask("delivery.attempts", delivery["id"])).data
    t = visit.t
    event_url = visit.url("-", "operations", "events", delivery["event_id"])
    facts = [
        RunFact(label="id", text=delivery["id"]),
        RunFact(
            label=t("ops_endpoint"),
            text=endpoint["url"],
            url=visit.url("-", "operations", "webhooks", endpoint["id"]),
        ),
        RunFact(label=t("ops_event"), text=delivery["event_id"], url=event_url),
        RunFact(label=t("ops_attempts"), text=str(delivery["attempt_count"])),
    ]
    is_pending = delivery["status"] == "pending"
    for key, name in (
        ("ops_created", "created_at"),
        ("ops_not_before", "retry_at" if is_pending else ""),
        ("ops_delivered", "delivered_at"),
    ):
        time, instant = desk.time(delivery.get(name))
        if time:
            facts.append(RunFact(label=t(key), text=time, instant=instant))
    view = DeliveryView(
        type=delivery["type"],
        url=visit.url("-", "operations", "deliveries", delivery["id"]),
        status=delivery["status"],
        tone=tone_of(delivery["status"]),
        why=_why_not_delivered(desk, delivery, endpoint),
        facts=facts,
        attempts=[_attempt_row(desk, one) for one in attempts],
        can_resend=desk.can_act and RESEND.applies_to(delivery, desk.now()),
        shows_payloads=desk.rules.show_payloads,
    )
    return await show_page(desk, "delivery.html", view, tab="ops_webhooks", title=view.type)


def _why_not_delivered(desk: WorkDesk, delivery: Mapping[str, Any], endpoint: Mapping[str, Any]) -> str:
    t, now = desk.visit.t, desk.now()
    last = delivery.get("last_error") or str(delivery.get("last_status") or "")
    if delivery["status"] != "pending":
        return t(f"ops_delivery_is_{delivery['status']}", last=last)
    retry_at, paused_until = read_instant(delivery["retry_at"]), read_instant(endpoint.get("paused_until"))
    due = max((one for one in (retry_at, paused_until) if one is not None), default=now)
    if due <= now:
        return t("ops_delivery_is_due")
    return t("ops_delivery_waits", span=span(due - now), last=last)


def _attempt_row(desk: WorkDesk, attempt: Mapping[str, Any]) -> AttemptRow:
    time, instant = desk.time(attempt["time"])
    status, error = attempt.get("status"), attempt.get("error") or ""
    return AttemptRow(
        number=str(attempt["number"]),
        time=time,
        instant=instant,
        lasted=f"{attempt['ms']:,} ms",
        status="–" if status is None else str(status),
        tone=3 if error else 1,
        error=error,
        answer=(attempt.get("answer") or "") if desk.rules.show_payloads else "",
    )


ROUTES = (
    show(f"{ROOT}/webhooks", seeing(show_webhooks, all_tenants=True)),
    show(f"{ROOT}/webhooks/{{id}}", seeing(show_endpoint, all_tenants=True)),
    show(f"{ROOT}/deliveries/{{id}}", seeing(show_delivery, all_tenants=True)),
    act(f"{ROOT}/webhooks/{{id}}/test", acting(test_endpoint, all_tenants=True)),
    act(f"{ROOT}/webhooks/{{id}}/recover", acting(recover_endpoint, all_tenants=True)),
    act(f"{ROOT}/webhooks/{{id}}/replay", acting(replay_endpoint, all_tenants=True)),
)
