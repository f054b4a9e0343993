"""The palette and the picker: records by a few letters, each model by its own rules."""

from __future__ import annotations

import json
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from maniflex.admin.list_query import any_contains
from maniflex.admin.rendering import SECURITY_HEADERS
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import MOST_COUNTED, show
from maniflex.admin.widgets import Control
from maniflex.errors import NotFound
from maniflex.model.meta import RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit

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


# Records to refer to: what they are called, where a form looks them up, and where a new one is made.


_MOST_LABELS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Picker:
    """What a person may do with the records that a control refers to."""

    pick_url: str = ""  # empty for somebody who may not list them, and has to know the id
    new_url: str = ""
    new_label: str = ""


NO_PICKER = Picker()


async def label_controls(visit: Visit, controls: Sequence[Control]) -> list[Control]:
    """The controls with what the records are called that were typed, prefilled or left out of the answer."""
    ids: dict[str, set[str]] = {}
    for one in controls:
        if one.pick_model and one.text and not one.pick_label:
            ids.setdefault(one.pick_model, set()).add(one.text)
    labels = await read_labels(visit, ids) if ids else {}
    return [
        replace(one, pick_label=one.pick_label or labels.get((one.pick_model, one.text), ""))
        for one in controls
    ]


async def pickers_of(visit: Visit, relations: Iterable[RelationMeta]) -> dict[str, Picker]:
    """The pickers of relations, by the name of the model that they lead to."""
    return await pickers_to(visit, [relation.target for relation in relations])


async def pickers_to(visit: Visit, models: Iterable[str]) -> dict[str, Picker]:
    """The pickers of records of these models, as far as the panel shows them."""
    pickers: dict[str, Picker] = {}
    for name in dict.fromkeys(models):
        target = visit.panel.sites.by_name.get(name)
        if target is None:
            continue
        may_list = await visit.api.may(target, Operation.LIST)
        may_create = target.can_create and await visit.api.may(target, Operation.CREATE)
        pickers[name] = Picker(
            pick_url=visit.url("-", "pick", target.table) if may_list else "",
            new_url=visit.url(target.table, "new") if may_create and not target.is_singleton else "",
            new_label=visit.t("new_record", name=target.title),
        )
    return pickers


async def read_labels(
    visit: Visit, ids: Mapping[str, Collection[str]], *, deleted: bool = False
) -> dict[tuple[str, str], str]:
    """What records are called, by model and id, as far as this person may list them."""
    labels: dict[tuple[str, str], str] = {}
    for name in ids:
        site, some_ids = visit.panel.sites.by_name.get(name), sorted(filter(None, ids[name]))[:_MOST_LABELS]
        if site is None or not some_ids or not site.has_id or site.is_singleton:
            continue
        page = PageRequest(len(some_ids), filters=(("id", "in", some_ids),), deleted=deleted)
        answer = await visit.api.page(site, _label_alone(site), page)
        for record in answer.data if answer.ok else ():
            labels[name, str(record.get("id"))] = site.label_of(record)
    return labels


def _label_alone(site: ModelSite) -> list[tuple[str, str]]:
    """Have records hold no more than what names them; words of a label that are no field may need all."""
    names = {name for _, name, _, _ in string.Formatter().parse(site.admin.label or "") if name}
    fields = [f for f in site.label_fields if f.visible]
    return [] if len(names) > len(fields) else [("select", ",".join(["id", *(f.api for f in fields)]))]
