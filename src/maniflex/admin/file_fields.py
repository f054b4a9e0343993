"""Files in forms and on pages: one in a field, or several in an order.

The rows of a list are called `files.<field>.<index>.key`, `.place` and `._delete`; new files come behind
those that are there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from maniflex.admin.list_query import read_number
from maniflex.admin.widgets import FormInput
from maniflex.model.meta import FieldMeta, Kind

if TYPE_CHECKING:
    from maniflex.admin.site import ModelSite
    from maniflex.admin.visit import Visit
    from maniflex.files.model import StoredFile


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


# What is known of the files that records name: looked up once for a page, by the keys the API showed.


_MOST_PARTS = 12  # of an address, in which the key is looked for
_UNITS = ("KB", "MB", "GB", "TB")


async def note_files(visit: Visit, fields: Sequence[FieldMeta], records: Iterable[Mapping[str, Any]]) -> None:
    """Look up the files of these records in one statement, for `stored_file`."""
    desk = visit.panel.runtime.file_desk
    names = [field.api for field in fields if "file" in field.extra and not field.secret]
    if desk is None or not names:
        return
    values = [value for record in records for name in names for value in _values(record.get(name))]
    keys = {key for value in values for key in _keys_in(value)}
    if keys:
        visit.stored_files.update(await desk.rows.find_all(keys))


def stored_file(visit: Visit, value: str) -> StoredFile | None:
    """The file that a field names, by its key or by an address that ends in its key."""
    return next((visit.stored_files[key] for key in _keys_in(value) if key in visit.stored_files), None)


def _values(value: Any) -> list[str]:
    return (
        [value] if isinstance(value, str) else [str(one) for one in value] if isinstance(value, list) else []
    )


def _keys_in(value: str) -> list[str]:
    """What may be the key: the value itself, or of an address each end of its path, the longest first."""
    if not value.startswith(("http://", "https://", "/")):
        return [value]
    try:
        path = unquote(urlsplit(value).path)
    except ValueError:  # no address after all
        return []
    parts = path.strip("/").split("/")[-_MOST_PARTS:]
    return ["/".join(parts[start:]) for start in range(len(parts))]


def size_text(size: int) -> str:
    """A number of bytes for people, in the units that `max_size` is declared in.

    >>> [size_text(n) for n in (0, 1023, 48_210, 2 * 1024**2, 1024**2 * 3 // 2, 1024**5)]
    ['0 bytes', '1023 bytes', '47 KB', '2 MB', '1.5 MB', '1024 TB']
    """
    if size < 1024:
        return f"{size} byte{'' if size == 1 else 's'}"
    amount = float(size)
    for unit in _UNITS:
        amount /= 1024
        if round(amount, 1) < 1024 or unit == _UNITS[-1]:
            break
    return f"{amount:.1f}".removesuffix(".0") + f" {unit}" if amount < 10 else f"{amount:.0f} {unit}"
