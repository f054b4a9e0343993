"""What can be done with many records at once: delete, restore, set a field, actions of the application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniflex.admin.form_fields import is_settable
from maniflex.admin.site import ModelSite, title_of
from maniflex.model.meta import FieldMeta, Kind
from maniflex.pipeline.operation import Operation

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit

_SETTABLE = (
    Kind.TEXT,
    Kind.INT,
    Kind.FLOAT,
    Kind.DECIMAL,
    Kind.BOOL,
    Kind.DATETIME,
    Kind.DATE,
    Kind.TIME,
    Kind.UUID,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChoice:
    """Something that can be done with the chosen records."""

    value: str
    label: str


async def bulk_choices(visit: Visit, site: ModelSite, *, trash: bool) -> list[BulkChoice]:
    """What this person may do with records of a model."""
    if not site.has_id or not site.can_write:
        return []
    if trash:
        may = site.meta.options.restore and await visit.api.may(site, Operation.UPDATE)
        return [BulkChoice(value="restore", label=visit.t("restore"))] if may else []
    choices = []
    may_update = site.can_edit and await visit.api.may(site, Operation.UPDATE)
    if may_update and await settable_fields(visit, site):
        choices.append(BulkChoice(value="set", label=visit.t("set_field")))
    choices += [
        BulkChoice(value=f"action:{action.name}", label=action.label)
        for action in site.actions
        if action.on == "records" and await visit.api.may(site, action.operation)
    ]
    if await may_export(visit, site):
        choices.append(BulkChoice(value="export", label=visit.t("export")))
    if site.can_delete and await visit.api.may(site, Operation.DELETE):
        choices.append(BulkChoice(value="delete", label=visit.t("delete")))
    return choices


async def may_export(visit: Visit, site: ModelSite) -> bool:
    """Whether this person may have records of the model as a file."""
    is_open = bool(site.meta.options.export and site.admin.can_export)
    return is_open and await visit.api.may(site, Operation.EXPORT)


async def settable_fields(visit: Visit, site: ModelSite) -> list[FieldMeta]:
    """The fields that this person can set on many records; scope rules keep theirs as they are."""
    kept_names = await visit.api.stamped_fields(site, Operation.UPDATE)
    return [
        f
        for f in site.fields
        if f.kind in _SETTABLE
        and not f.unique
        and "file" not in f.extra
        and is_settable(site, f)
        and f.name not in kept_names
    ]


async def bulk_fields(visit: Visit, site: ModelSite) -> list[tuple[str, str]]:
    """The names and labels of those fields."""
    return [(f.api, title_of(f.api)) for f in await settable_fields(visit, site)]


async def model_actions(visit: Visit, site: ModelSite) -> list[tuple[str, str]]:
    """Actions on the model as a whole: addresses and labels."""
    return [
        (visit.url(site.table, "bulk"), action.label)
        for action in site.actions
        if site.can_write and action.on == "model" and await visit.api.may(site, action.operation)
    ]
