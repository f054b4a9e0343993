"""The page of what was done in the panel: who, when, what, from where. Nothing on it can be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from maniflex.admin.names import title_of
from maniflex.admin.pickers import read_labels
from maniflex.admin.route import show
from maniflex.admin.tables import AdminEvent
from maniflex.admin.visit import Visit
from maniflex.db.records import Records
from maniflex.errors import InvalidQuery
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response

_MOST = 50
_FILTERS = {
    "f_action": "action", "f_actor": "actor_name", "f_model": "model", "f_record": "record_id",
    "f_request": "request_id",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event."""

    time: str
    instant: str
    actor: str
    action: str
    model: str  # what kind of record it was about
    target: str  # the record by its label, or by its id
    record_id: str
    url: str
    fields: str
    address: str
    request_id: str
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """What `audit.html` is given."""

    rows: Sequence[EventRow]
    filters: Sequence[tuple[str, str, str]]  # parameters, labels and values
    url: str
    next_url: str


async def find_events(visit: Visit, filters: Sequence[tuple[str, str, Any]], most: int) -> list[AdminEvent]:
    """The newest events that this person may see: of its tenant, and without a role only its own."""
    person = visit.signed_in
    bound_filters = list(filters)
    if person.tenant_id:
        bound_filters.append(("tenant_id", "eq", person.tenant_id))
    closed_models = [
        name
        for name, site in visit.panel.sites.with_routes.items()
        if not await visit.api.may(site, Operation.READ if site.is_singleton else Operation.LIST)
    ]
    if closed_models:  # no id of a record that this person could not find in a list
        bound_filters.append(("model", "not_in", closed_models))
    if visit.panel.admin.role is None:
        bound_filters.append(("actor_id", "eq", person.id))
    return await visit.panel.trail.records.list(bound_filters, "id:desc", limit=most)


async def event_rows(visit: Visit, events: Sequence[AdminEvent]) -> list[EventRow]:
    """Events as the page shows them, their records by the labels that this person may see.

    Those about a record that is there and that this person may not see are left out.
    """
    ids: dict[str, set[str]] = {}
    for event in events:
        if event.record_id:
            ids.setdefault(event.model, set()).add(event.record_id)
    labels = await read_labels(visit, ids)
    hidden_places: set[tuple[str, str]] = set()
    for name in ids:
        site = visit.panel.sites.by_name.get(name)
        unseen = [id for id in ids[name] if (name, id) not in labels]
        if site is None or not unseen or not site.has_id or site.is_singleton:
            continue
        records: Records[Any] = Records(visit.panel.runtime.stores[site.meta.cls])
        hidden_places |= {(name, record.id) for record in await records.list([("id", "in", unseen)])}
    return [
        _event_row(visit, event, labels.get((event.model, event.record_id), ""))
        for event in events
        if (event.model, event.record_id) not in hidden_places
    ]


def _event_row(visit: Visit, event: AdminEvent, label: str) -> EventRow:
    site = visit.panel.sites.by_name.get(event.model)
    has_page = site is not None and event.record_id and site.has_id
    return EventRow(
        time=event.created_at.astimezone(visit.zone).strftime("%Y-%m-%d %H:%M:%S"),
        instant=event.created_at.isoformat(),
        actor=event.actor_name or visit.t("unknown_person"),
        action=event.action,
        model=title_of(event.model) if event.model else "",
        target=label or event.record_id,
        record_id=event.record_id,
        url=visit.url(site.table, event.record_id) if site is not None and has_page else "",
        fields=", ".join(event.fields),
        address=event.address,
        request_id=event.request_id,
        outcome=event.outcome,
        reason=event.reason,
    )


async def show_audit(visit: Visit) -> Response:
    """The newest events, filtered."""
    filters: list[tuple[str, str, Any]] = []
    kept_pairs = []
    for key, value in visit.query:
        if key.startswith("f_") and key not in _FILTERS:
            raise InvalidQuery(f"{key}: there is no such filter")
        if value and key in _FILTERS:
            filters.append((_FILTERS[key], "eq", value))
            kept_pairs.append((key, value))
    before = visit.param("before")
    events = await find_events(visit, [*filters, ("id", "lt", before)] if before else filters, _MOST + 1)
    values = dict(kept_pairs)
    url = visit.url("-", "audit")
    view = AuditView(
        rows=await event_rows(visit, events[:_MOST]),
        filters=[(key, visit.t(f"audit_{key[2:]}"), values.get(key, "")) for key in _FILTERS],
        url=url,
        next_url=f"{url}?{urlencode([*kept_pairs, ('before', events[_MOST - 1].id)])}"
        if len(events) > _MOST
        else "",
    )
    return await visit.page("audit.html", view, title=visit.t("audit"))


ROUTES = (show("/-/audit", show_audit),)
