"""The palette and the picker: records by a few letters, each model by its own rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.admin.call import MOST_COUNTED
from maniflex.admin.layout import SECURITY_HEADERS
from maniflex.admin.list_query import any_contains
from maniflex.admin.route import show
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.errors import NotFound
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

MOST_HITS = 20
_FEW = 5
_MOST_MODELS = 40
_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A record or a page that was found."""

    id: str
    label: str
    kind: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """What `search.html` is given, for the palette and for pickers."""

    q: str
    hits: Sequence[Hit]
    title: str = ""
    url: str = ""


async def find_records(visit: Visit, site: ModelSite, text: str, most: int) -> list[Hit]:
    """The records of a model that a person may list and that match; the newest without a text."""
    hits = await _by_id(visit, site, text) if text and site.has_id else []
    if text and not (site.is_searchable or site.search_fields):
        return hits
    for record in await _matching(visit, site, text, most):
        record_id = str(record.get("id", ""))
        if record_id and all(hit.id != record_id for hit in hits):
            url = visit.url(site.table, record_id)
            hits.append(Hit(id=record_id, label=site.label_of(record), kind=site.title, url=url))
    return hits[:most]


async def _matching(visit: Visit, site: ModelSite, text: str, most: int) -> list[Mapping[str, Any]]:
    """By whole words where there is full text search; by parts of words if that finds nothing."""
    if text and site.is_searchable:
        answer = await visit.api.page(site, [("q", text)], PageRequest(most, keyset=False))
        if answer.ok and answer.data:
            return list(answer.data)
    if text and not site.search_fields:
        return []
    conditions = []
    if text and await _is_large(visit, site):
        # Parts of words are looked for in every row, which takes seconds here; whole values have an index.
        fields = [field for field in site.search_fields if field.unique or field.index]
        if not fields:
            return []
        conditions = [("filter[0]", f"{field.api}:eq:{text}") for field in fields]
    elif text:
        conditions = any_contains(site, text)
    answer = await visit.api.page(site, conditions, PageRequest(most, keyset=site.has_id))
    return list(answer.data) if answer.ok else []


async def _is_large(visit: Visit, site: ModelSite) -> bool:
    if site.meta.options.backend is not None:  # how it finds them is its own
        return False
    return (await visit.api.count_some(site, (), MOST_COUNTED) or 0) > MOST_COUNTED


async def _by_id(visit: Visit, site: ModelSite, text: str) -> list[Hit]:
    """The record whose id was typed."""
    if len(text) < 8 or " " in text:
        return []
    answer = await visit.api.page(site, (), PageRequest(1, filters=(("id", "eq", text),)))
    records = answer.data if answer.ok else []
    return [
        Hit(id=text, label=site.label_of(record), kind=site.title, url=visit.url(site.table, text))
        for record in records
    ]


async def pick(visit: Visit) -> Response:
    """Records to refer to: 20 at a time, by the target's own permissions; for scripts as JSON."""
    site = visit.site()
    text = visit.param("q").strip()[:_LONGEST]
    if not site.has_id or not await visit.api.may(site, Operation.LIST):
        raise NotFound(visit.t("no_such_page"))
    hits = await find_records(visit, site, text, MOST_HITS)
    if visit.is_fragment:
        body = json.dumps([{"id": hit.id, "label": hit.label} for hit in hits]).encode()
        return Response(200, body=body, content_type="application/json", headers=SECURITY_HEADERS)
    view = SearchView(q=text, hits=hits, title=site.plural, url=visit.url("-", "pick", site.table))
    return await visit.page("search.html", view, title=visit.t("pick_title", name=site.plural))


async def search(visit: Visit) -> Response:
    """Pages and records of all models by a few letters."""
    text = visit.param("q").strip()[:_LONGEST]
    hits: list[Hit] = []
    letters = text.casefold()
    open_sites = [site for site in visit.panel.sites.all if await visit.api.may(site, Operation.LIST)]
    for site in open_sites:
        if letters and letters in f"{site.plural} {site.title}".casefold():
            hits.append(Hit(id="", label=site.plural, kind=visit.t("list"), url=visit.url(site.table)))
            if site.can_create and await visit.api.may(site, Operation.CREATE):
                label = visit.t("new_record", name=site.title)
                hits.append(Hit(id="", label=label, kind=visit.t("form"), url=visit.url(site.table, "new")))
    if len(text) > 1:
        for site in [one for one in open_sites if one.is_searchable or one.search_fields][:_MOST_MODELS]:
            hits += await find_records(visit, site, text, _FEW)
    view = SearchView(q=text, hits=hits[:60], title=visit.t("search"), url=visit.url("-", "search"))
    return await visit.page("search.html", view, title=visit.t("search"))


ROUTES = (show("/-/search", search), show("/-/pick/{model}", pick))
