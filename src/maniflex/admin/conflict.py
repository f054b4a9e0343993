"""Two people change one record: who saves second sees both changes and chooses, field by field."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.admin.cells import as_text
from maniflex.admin.file_fields import is_file_list
from maniflex.admin.inlines import inline_tables
from maniflex.admin.names import title_of
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.pipeline.response import Response

_OWN_CONTROLS = ("_csrf", "_newest", "_etag")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldConflict:
    """A field that one of the two changed."""

    name: str
    label: str
    base: str
    theirs: str
    yours: str
    take_yours: bool  # which of the two is chosen at first
    is_choice: bool  # both changed it


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictView:
    """What `conflict.html` is given."""

    label: str
    action: str
    cancel_url: str
    differences: Sequence[FieldConflict]
    controls: Sequence[tuple[str, str]]  # what was typed, to be sent again
    newest: str
    etag: str
    files: Sequence[tuple[str, str, bool]]  # files to choose again: field, label, whether it takes several


def conflicts_of(base: Mapping[str, Any], record: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """The fields that both changed, and not to the same."""
    return [
        name
        for name, value in changes.items()
        if name in base and name in record and record[name] != base[name] and record[name] != value
    ]


async def show_conflict(
    visit: Visit,
    site: ModelSite,
    record: Mapping[str, Any],
    base: Mapping[str, Any],
    changes: Mapping[str, Any],
    etag: str,
    file_names: Collection[str] = (),
) -> Response:
    """The page on which the second of two people chooses; what it sends is saved upon the newest version."""
    differences = []
    secrets = {field.api for field in site.meta.fields if field.secret}
    row_secrets = {
        field.api for table in inline_tables(visit, site) for field in table.fields if field.secret
    }
    for name in {**changes, **dict.fromkeys(base)}:
        is_theirs = name in record and name in base and record[name] != base[name]
        # What was typed into a secret field is shown on no page; it has to be typed again.
        if name in secrets or name in file_names or (name not in changes and not is_theirs):
            continue
        theirs = record.get(name)
        differences.append(
            FieldConflict(
                name=name,
                label=title_of(name),
                base=as_text(base.get(name)),
                theirs=as_text(theirs),
                yours=as_text(changes[name]) if name in changes else "",
                take_yours=not is_theirs,
                is_choice=name in changes,
            )
        )
    parts = () if site.is_singleton else (str(record.get("id", "")),)
    view = ConflictView(
        label=site.label_of(record),
        action=visit.url(site.table, *(parts or ("-",))),
        cancel_url=visit.url(site.table, *parts),
        differences=differences,
        controls=[
            (name, value)
            for name, value in visit.form.multi_items()
            if isinstance(value, str)
            and name not in _OWN_CONTROLS
            and not name.startswith("take.")
            and name[2:] not in secrets
            and not (name.startswith("inline.") and name.rpartition(".")[2] in row_secrets)
        ],
        newest=json.dumps({name: record.get(name) for name in base}),
        etag=etag,
        files=[(name, title_of(name), is_file_list(site.meta.by_api[name])) for name in file_names],
    )
    return await visit.page("conflict.html", view, title=visit.t("conflict"), status=409)
