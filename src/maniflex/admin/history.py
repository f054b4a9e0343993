"""The versions of a record: who changed what and when, one against another, and back to one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from maniflex.admin.audit import people_names
from maniflex.admin.form_fields import form_fields, is_fixed
from maniflex.admin.inlines import render_form
from maniflex.admin.list_query import read_number
from maniflex.admin.saving import save_values
from maniflex.admin.search import read_labels
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.translations import ask_whole_record, note_missing, spread, with_translations
from maniflex.admin.visit import Visit, act, show
from maniflex.admin.widgets import as_text, cell, diff_words
from maniflex.errors import Forbidden, InvalidQuery, NotFound
from maniflex.model.meta import Kind
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response

_MOST_VERSIONS = 50
_LONG = 60
Labels = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """A field that a version changed; `parts` are pieces that stayed, went or came."""

    label: str
    old: str
    new: str
    parts: Sequence[tuple[str, str]] = ()
    is_code: bool = False  # JSON, whose lines and columns matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a record."""

    number: int
    operation: str
    actor: str
    time: str
    instant: str
    request_id: str
    reason: str
    url: str
    changes: Sequence[VersionChange]
    back_url: str  # empty on the newest, and where nothing would change
    erased: str = ""  # a sentence on a version that an erasure wrote, or took personal values from


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """What `history.html` is given."""

    label: str
    record_url: str
    history_url: str
    audit_url: str
    work_url: str  # for people who see durable work
    versions: Sequence[Version]
    single: bool
    restore_url: str
    next_url: str
    newest: int  # the number of the last version
    first: str  # of a comparison, and the second
    second: str
    moment: str  # of a state at a time
    comparison: Sequence[VersionChange] | None = None
    state: Sequence[tuple[str, str]] | None = None


async def _versions(
    visit: Visit, site: ModelSite, record_id: str, query: Mapping[str, Any]
) -> list[dict[str, Any]]:
    if not (site.meta.options.versioned or site.meta.options.versioned_diff_only):
        raise NotFound(visit.t("no_such_page"))
    answer = await visit.api.ask("GET", f"{visit.api.path(site, record_id)}/history", query=query)
    if answer.status == 404:
        raise NotFound(visit.t("no_such_record"))
    rows: list[dict[str, Any]] = answer.data
    return rows


async def show_history(visit: Visit) -> Response:
    """The versions of a record, the newest first."""
    site, record_id = visit.site(), visit.params["id"]
    if visit.param("a") and visit.param("b"):
        return await _show_comparison(visit, site, record_id)
    if visit.param("at"):
        return await _show_moment(visit, site, record_id)
    page = min(read_number(visit.param("page"), 3) or 1, 999)
    rows = await _versions(visit, site, record_id, {"limit": _MOST_VERSIONS, "page": page})
    next_url = (
        visit.url(site.table, record_id, "history", page=page + 1) if len(rows) == _MOST_VERSIONS else ""
    )
    return await _page(visit, site, record_id, rows, single=False, is_first_page=page == 1, next_url=next_url)


async def _show_comparison(visit: Visit, site: ModelSite, record_id: str) -> Response:
    """What differs between any two versions."""
    before, after = [
        await _snapshot(visit, site, record_id, *await _one_version(visit, site, record_id, visit.param(key)))
        for key in ("a", "b")
    ]
    names = [field.api for field in site.fields if before.get(field.api) != after.get(field.api)]
    diff = {name: {"old": before.get(name), "new": after.get(name)} for name in names}
    labels = await _labels(visit, site, [(name, value) for name in diff for value in diff[name].values()])
    changes = [_change(visit, site, name, one, labels) for name, one in diff.items()]
    return await _page(visit, site, record_id, [], single=False, is_first_page=False, comparison=changes)


async def _show_moment(visit: Visit, site: ModelSite, record_id: str) -> Response:
    """The record as it was at a time, which is typed in the zone of the person."""
    await _versions(visit, site, record_id, {"limit": 1})
    try:
        local = datetime.fromisoformat(visit.param("at"))
        instant = local if local.tzinfo is not None else local.replace(tzinfo=visit.zone)
        query = {"as_of": instant.astimezone(UTC).isoformat()}
    except (ValueError, OverflowError):  # the first and the last day there is have no instant in every zone
        raise InvalidQuery("at: this is no date and time") from None
    answer = await visit.api.ask("GET", visit.api.path(site, record_id), query=query)
    record = {} if answer.status == 404 else answer.data
    labels = await _labels(visit, site, list(record.items()))
    state = [
        (title_of(f.api), _value_text(visit, site, f.api, record[f.api], labels))
        for f in site.fields
        if f.api in record
    ]
    return await _page(visit, site, record_id, [], single=False, is_first_page=False, state=state)


async def _snapshot(
    visit: Visit, site: ModelSite, record_id: str, row: Mapping[str, Any], newest: int
) -> Mapping[str, Any]:
    """The values that a version had, rebuilt by the API where only changes are kept."""
    snapshot = row.get("snapshot")
    if isinstance(snapshot, Mapping):
        return snapshot
    query = {"as_of": row["timestamp"]}
    answer = await visit.api.ask("GET", visit.api.path(site, record_id), query=query)
    values: Mapping[str, Any] = answer.data
    return values


async def show_version(visit: Visit) -> Response:
    """One version."""
    site, record_id = visit.site(), visit.params["id"]
    row, newest = await _one_version(visit, site, record_id)
    return await _page(visit, site, record_id, [row], single=True, is_first_page=row["version"] == newest)


async def _one_version(
    visit: Visit, site: ModelSite, record_id: str, number: str = ""
) -> tuple[dict[str, Any], int]:
    text = number or visit.params.get("version") or visit.param("version")
    newest = await _versions(visit, site, record_id, {"limit": 1})
    wanted = read_number(text)
    if not wanted or not newest or wanted > newest[0]["version"]:
        raise NotFound(visit.t("no_such_record"))
    answer = await visit.api.ask("GET", f"{visit.api.path(site, record_id)}/history/{wanted}")
    if answer.ok:
        return answer.data, newest[0]["version"]
    behind = newest[0]["version"] - wanted
    rows = await _versions(visit, site, record_id, {"limit": 1, "page": behind + 1})
    if not rows or rows[0]["version"] != wanted:
        raise NotFound(visit.t("no_such_record"))
    return rows[0], newest[0]["version"]


async def _page(
    visit: Visit,
    site: ModelSite,
    record_id: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    single: bool,
    is_first_page: bool,
    next_url: str = "",
    comparison: Sequence[VersionChange] | None = None,
    state: Sequence[tuple[str, str]] | None = None,
) -> Response:
    try:
        record: Mapping[str, Any] | None = (await ask_whole_record(visit, site, record_id))[0]
    except NotFound:
        record = None  # it was deleted; its history stays for those who may see it
    label = site.label_of(record) if record is not None else record_id
    names = await people_names(visit, {str(row["actor_id"]) for row in rows if row.get("actor_id")})
    values = [
        (name, one.get(key))
        for row in rows
        for name, one in (row.get("diff") or {}).items()
        if isinstance(one, Mapping)
        for key in ("old", "new")
    ]
    labels = await _labels(visit, site, values)
    versions = []
    for number, row in enumerate(rows):
        is_newest = is_first_page and number == 0
        can_go_back = (
            site.can_edit and record is not None and not is_newest and _would_change(site, record, row)
        )
        version = _version(visit, site, record_id, row, labels, can_go_back=can_go_back)
        versions.append(replace(version, actor=names.get(version.actor, version.actor)))
    here = visit.url(site.table, record_id)
    view = HistoryView(
        label=label,
        record_url=here,
        history_url=visit.url(site.table, record_id, "history"),
        audit_url=visit.url("-", "audit", f_model=site.meta.name, f_record=record_id),
        work_url=visit.url(site.table, record_id, "work") if visit.sees_work else "",
        versions=versions,
        single=single,
        restore_url=f"{versions[0].url}/restore" if single and versions and versions[0].back_url else "",
        next_url=next_url,
        newest=max((version.number for version in versions), default=1) if is_first_page else 0,
        first=visit.param("a"),
        second=visit.param("b"),
        moment=visit.param("at"),
        comparison=comparison,
        state=state,
    )
    crumbs = [(site.plural, visit.url(site.table)), (label, here)]
    return await visit.page("history.html", view, title=f"{visit.t('history')}: {label}", crumbs=crumbs)


def _would_change(site: ModelSite, record: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    snapshot = row.get("snapshot")
    if row.get("erased_at"):  # what it would bring back is not what was
        return False
    if not isinstance(snapshot, Mapping):
        return row.get("operation") != "delete"
    return bool(_restorable(site, record, snapshot))


def _restorable(site: ModelSite, record: Mapping[str, Any], snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a version that differ from those of now and may be written."""
    values, record = spread(site, snapshot), dict(record)
    note_missing(site, values, record)
    return {
        field_meta.api: values[field_meta.api]
        for field_meta in with_translations(site, form_fields(site, record), record)
        if field_meta.api in values
        and field_meta.api in record
        and not is_fixed(site, field_meta, is_new=False)
        and not field_meta.secret
        and "file" not in field_meta.extra
        and values[field_meta.api] != record[field_meta.api]
    }


def _version(
    visit: Visit,
    site: ModelSite,
    record_id: str,
    row: Mapping[str, Any],
    labels: Labels,
    *,
    can_go_back: bool,
) -> Version:
    number = int(row["version"])
    time_field = site.meta.by_name.get("created_at")
    stamp = str(row.get("timestamp", ""))
    diff = row.get("diff") or {}
    return Version(
        number=number,
        operation=str(row.get("operation", "")),
        actor=str(row.get("actor_id") or ""),
        time=cell(time_field, stamp, visit.zone).text if time_field is not None and stamp else stamp,
        instant=stamp,
        request_id=str(row.get("request_id") or ""),
        reason=str(row.get("reason") or ""),
        url=visit.url(site.table, record_id, "history", str(number)),
        changes=[
            _change(visit, site, name, one, labels) for name, one in diff.items() if isinstance(one, Mapping)
        ],
        back_url=visit.url(site.table, record_id, "edit", version=number) if can_go_back else "",
        erased=_erased_text(visit, row),
    )


def _erased_text(visit: Visit, row: Mapping[str, Any]) -> str:
    if row.get("erased_at"):
        return visit.t("version_erased")
    return visit.t("version_of_erasure") if row.get("source") == "erasure" else ""


def _change(
    visit: Visit, site: ModelSite, name: str, one: Mapping[str, Any], labels: Labels
) -> VersionChange:
    old, new = (_value_text(visit, site, name, one.get(key), labels) for key in ("old", "new"))
    is_code = any(isinstance(one.get(key), dict | list) for key in ("old", "new"))
    is_long = min(len(old), len(new)) > _LONG
    parts = diff_words(old, new, by_line=is_code) if is_long else ()
    return VersionChange(label=title_of(name), old=old, new=new, parts=parts, is_code=is_code)


async def _labels(visit: Visit, site: ModelSite, values: Sequence[tuple[str, Any]]) -> Labels:
    """What the records are called that keys among these values refer to, by model and id."""
    ids: dict[str, set[str]] = {}
    for name, value in values:
        field = site.meta.by_api.get(name)
        relation = None if field is None else site.parents.get(field.name)
        if relation is not None and isinstance(value, str):
            ids.setdefault(relation.target, set()).add(value)
    return await read_labels(visit, ids) if ids else {}


def _value_text(visit: Visit, site: ModelSite, name: str, value: Any, labels: Labels) -> str:
    """A value of a version; times and keys as the page of the record shows them."""
    field = site.meta.by_api.get(name)
    relation = None if field is None else site.parents.get(field.name)
    if relation is not None and (relation.target, value) in labels:
        return labels[relation.target, value]
    if field is not None and field.kind is Kind.DATETIME and value is not None:
        return cell(field, value, visit.zone, whole=True).text
    return as_text(value)


async def values_of_version(visit: Visit, site: ModelSite, record: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a version had and that may be written again; 404 for a version there is not."""
    record_id = str(record.get("id", ""))
    snapshot = await _snapshot(visit, site, record_id, *await _one_version(visit, site, record_id))
    return _restorable(site, record, snapshot)


async def show_edit(visit: Visit) -> Response:
    """The form of a record, with the values of now or of a version."""
    site = visit.site()
    if not site.can_edit:
        raise NotFound(visit.t("no_such_page"))
    record, etag = await ask_whole_record(visit, site, visit.params["id"])
    if not await visit.api.may(site, Operation.UPDATE):
        raise Forbidden()
    old_values = await values_of_version(visit, site, record) if visit.param("version") else {}
    return await render_form(visit, site, record, etag=etag, version_values=old_values)


async def restore_version(visit: Visit) -> Response:
    """Save the values of a version without a look at the form."""
    site = visit.site()
    if not site.can_edit:
        raise NotFound(visit.t("no_such_page"))
    record, etag = await ask_whole_record(visit, site, visit.params["id"])
    values = await values_of_version(visit, site, record)
    text = visit.t("version_restored", version=visit.params["version"])
    return await save_values(visit, site, str(record["id"]), values, etag=etag, text=text)


ROUTES = (
    show("/{model}/{id}/edit", show_edit),
    show("/{model}/{id}/history", show_history),
    show("/{model}/{id}/history/{version}", show_version),
    act("/{model}/{id}/history/{version}/restore", restore_version),
)
