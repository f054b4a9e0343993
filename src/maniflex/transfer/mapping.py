"""Which column of a file becomes which field of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maniflex._names import did_you_mean
from maniflex.errors import ManiflexError
from maniflex.model.meta import FieldMeta, ModelMeta

ERROR_COLUMN = "_error"  # of a file with refused lines; an import leaves it out


class WrongMapping(ManiflexError):
    """A mapping that names a column or a field that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMap:
    """The fields by column, and the field that finds a record to update."""

    fields: Mapping[str, FieldMeta]
    key: FieldMeta | None = None

    @property
    def key_column(self) -> str:
        return next((column for column, field in self.fields.items() if field is self.key), "")


def importable_fields(meta: ModelMeta) -> list[FieldMeta]:
    """The fields that a file may fill."""
    marker = meta.soft_delete
    skipped_names = {"id", "created_at", "updated_at", *([marker.field] if marker else [])}
    return [
        field
        for field in meta.fields
        if field.name not in skipped_names
        and not field.readonly
        and not field.hidden
        and "file" not in field.extra
    ]


def key_fields(meta: ModelMeta) -> list[FieldMeta]:
    """The fields that can say which record a line updates."""
    own_keys = [f for f in importable_fields(meta) if f.unique and not f.secret]
    return [*own_keys, *([meta.by_name["id"]] if "id" in meta.by_name else [])]


def suggest_fields(
    columns: Sequence[str], fields: Sequence[FieldMeta], known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The API name for each column: as it was mapped before, or by its name; empty for none."""
    by_name = {plain_name(name): field.api for field in fields for name in (field.name, field.api)}
    api_names = {field.api for field in fields}
    names_by_column: dict[str, str] = {}
    for column in columns:
        name = (known or {}).get(column)
        if name is None or (name and name not in api_names):
            name = "" if column.startswith(ERROR_COLUMN) else by_name.get(plain_name(column), "")
        names_by_column[column] = "" if name in names_by_column.values() else name
    return names_by_column


def plain_name(text: str) -> str:
    """A name without its capitals, blanks and signs."""
    return re.sub(r"[^a-z0-9]+", "_", text.casefold()).strip("_")


def make_map(
    names: Mapping[str, str], fields: Sequence[FieldMeta], keys: Sequence[FieldMeta], upsert: str
) -> ColumnMap:
    """The map that was fields_by_column; `WrongMapping` in one sentence when there can be none."""
    by_api = {field.api: field for field in (*fields, *keys)}
    fields_by_column: dict[str, FieldMeta] = {}
    for column, name in names.items():
        if not name:
            continue
        if name not in by_api:
            raise WrongMapping(f"there is no field {name!r} to import{did_you_mean(name, by_api)}")
        if by_api[name] in fields_by_column.values():
            raise WrongMapping(f"two columns are mapped to {name!r}")
        fields_by_column[column] = by_api[name]
    if not fields_by_column:
        raise WrongMapping("no column is mapped to a field")
    key = next((field for field in keys if field.api == upsert), None)
    if upsert and key is None:
        raise WrongMapping(
            f"{upsert!r} is no unique field{did_you_mean(upsert, [field.api for field in keys])}"
        )
    if key is not None and key not in fields_by_column.values():
        raise WrongMapping(f"no column is mapped to {key.api!r}, which finds the record to update")
    if key is None:
        fields_by_column = {column: field for column, field in fields_by_column.items() if field.name != "id"}
    return ColumnMap(fields=fields_by_column, key=key)
