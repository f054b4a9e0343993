"""Files in forms and on pages: one in a field, or several in an order.

The rows of a list are called `files.<field>.<index>.key`, `.place` and `._delete`; new files come behind
those that are there already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maniflex.admin.controls import FormInput
from maniflex.admin.file_sizes import size_text, stored_file
from maniflex.admin.list_query import read_number
from maniflex.model.meta import FieldMeta, Kind

if TYPE_CHECKING:
    from maniflex.admin.site import ModelSite
    from maniflex.admin.visit import Visit

_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif")
_MOST_PLACES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileItem:
    """A file that a record has."""

    name: str
    url: str
    image: str  # where it can be shown
    size: str = ""
    key: str = ""
    place: str = ""
    is_deleted: bool = False


def is_file_list(field_meta: FieldMeta) -> bool:
    """Whether a field holds several files."""
    return "file" in field_meta.extra and field_meta.kind is Kind.JSON


def file_item(
    visit: Visit, site: ModelSite, record_id: str, field_meta: FieldMeta, key: str, index: int
) -> FileItem:
    """One file of a record, by its place in the field."""
    file = stored_file(visit, key)
    name = key.partition("?")[0].rpartition("/")[2]
    query = {"index": index} if is_file_list(field_meta) else {}
    parts = (record_id or "-", "file", field_meta.api)
    url = visit.url(site.table, *parts, **query)
    image = url if name.lower().endswith(_PICTURES) else ""
    size = "" if file is None or file.size is None else size_text(file.size)
    return FileItem(name=name, url=url, image=image, size=size, key=key, place=str(index + 1))


def file_items(
    visit: Visit, site: ModelSite, record: Mapping[str, Any], field_meta: FieldMeta, *, is_typed: bool = False
) -> list[FileItem]:
    """The files of a list, in their order; of a form that was sent, as they were arranged."""
    keys = record.get(field_meta.api)
    if not is_file_list(field_meta) or not isinstance(keys, list):
        return []
    record_id = str(record.get("id", ""))
    items = [file_item(visit, site, record_id, field_meta, str(key), index) for index, key in enumerate(keys)]
    if not is_typed:
        return items
    typed_rows = {row.key: row for row in _typed_rows(visit, field_meta.api)}
    return [
        FileItem(
            name=one.name,
            url=one.url,
            image=one.image,
            size=one.size,
            key=one.key,
            place=typed_rows[one.key].place if one.key in typed_rows else one.place,
            is_deleted=one.key in typed_rows and typed_rows[one.key].is_deleted,
        )
        for one in items
    ]


def read_files(
    visit: Visit, field_meta: FieldMeta, base_values: Mapping[str, Any] | None, form_input: FormInput
) -> None:
    """What a form changes in the files of a field."""
    name = field_meta.api
    uploads: list[Any] = [
        one for one in visit.form.getlist(f"f.{name}") if not isinstance(one, str) and one.filename
    ]
    if uploads:
        form_input.files[name] = uploads
    if not is_file_list(field_meta):
        if not uploads and visit.form.get(f"null.{name}"):
            form_input.values[name] = None
        return
    rows = [row for row in _typed_rows(visit, name) if not row.is_deleted]
    keys = [row.key for row in sorted(rows, key=_place_of)]
    if uploads or keys != ((base_values or {}).get(name) or []):
        form_input.values[name] = keys


def _typed_rows(visit: Visit, name: str) -> Sequence[FileItem]:
    prefix = f"files.{name}."
    indexes = {key[len(prefix) :].partition(".")[0] for key in visit.form if key.startswith(prefix)}
    numbers = sorted(number for number in map(read_number, indexes) if number is not None)
    return [
        FileItem(
            name="",
            url="",
            image="",
            key=visit.form_text(f"{prefix}{number}.key"),
            place=visit.form_text(f"{prefix}{number}.place"),
            is_deleted=bool(visit.form_text(f"{prefix}{number}._delete")),
        )
        for number in numbers[:_MOST_PLACES]
        if visit.form_text(f"{prefix}{number}.key")
    ]


def _place_of(row: FileItem) -> int:
    """Where a row belongs; one without a number goes behind."""
    number = read_number(row.place.strip())
    return _MOST_PLACES if number is None else number
