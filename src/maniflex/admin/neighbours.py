"""The records before and behind one in the list that it was opened from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from maniflex.admin.list_query import api_query, read_list_query, read_place, sort_field, write_place
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.errors import InvalidQuery
from maniflex.pipeline.steps.browse import PageRequest


async def neighbours_of(visit: Visit, site: ModelSite, record: Mapping[str, Any]) -> tuple[str, str]:
    """The addresses of the record before and of the one behind; empty where there is none."""
    text = visit.param("list")
    if not site.is_walked:
        return "", ""
    try:
        query = read_list_query(parse_qsl(text))
        query = query if query.sort else replace(query, sort=site.admin.sort)
        field = sort_field(site, query)
        has_no_walk = query.trash or (query.q and site.is_searchable and not query.sort)
        if has_no_walk or field.api not in record:
            return "", ""
        value = record[field.api]
        token = write_place((str(value).lower() if isinstance(value, bool) else value, str(record["id"])))
        place = read_place(token, field)
        pairs = api_query(site, query, visit.zone, visit.panel.runtime.clock.now())
    except InvalidQuery:  # an address that was typed by hand
        return "", ""
    addresses = []
    for backwards in (True, False):
        oldest_first = query.sort in ("id", "id:asc")
        page = PageRequest(1, after=place, backwards=backwards, oldest_first=oldest_first)
        answer = await visit.api.page(site, pairs, page)
        records = answer.data if answer.ok else []
        more = {"list": text} if text else {}
        addresses.append(visit.url(site.table, str(records[0]["id"]), **more) if records else "")
    return addresses[0], addresses[1]
