"""The trash of a model: who deleted each record, as far as the audit tells a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from maniflex.admin.audit_page import find_events
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit

_SAME_REQUEST = timedelta(minutes=1)


async def deleters_of(visit: Visit, site: ModelSite, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The names of those who deleted these records in the panel, by id."""
    times = {str(record["id"]): _deletion_time(site, record) for record in records if record.get("id")}
    if not times:
        return {}
    filters = [
        ("model", "eq", site.meta.name),
        ("action", "eq", "delete"),
        ("outcome", "eq", "ok"),
        ("record_id", "in", list(times)),
    ]
    names: dict[str, str] = {}
    for event in await find_events(visit, filters, 5 * len(times)):
        moment = times[event.record_id]
        # A record may have been deleted before, brought back, and deleted again outside the panel.
        is_this_one = moment is None or abs(event.created_at - moment) < _SAME_REQUEST
        if is_this_one:
            names.setdefault(event.record_id, event.actor_name)
    return names


def _deletion_time(site: ModelSite, record: Mapping[str, Any]) -> datetime | None:
    marker = site.meta.soft_delete
    field = None if marker is None else site.meta.by_name.get(marker.field)
    value = None if field is None else record.get(field.api)
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
