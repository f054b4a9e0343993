"""What is known of the files that records name: looked up once for a page, by the keys the API showed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from maniflex.model.meta import FieldMeta

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit
    from maniflex.files.model import StoredFile

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
