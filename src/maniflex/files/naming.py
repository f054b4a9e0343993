"""Keys in bodies: which a caller may name, by the rules of their fields."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import unquote, urlsplit

from maniflex.errors import RequestError, TooManyFiles, ValidationFailed
from maniflex.files.desk import FileDesk
from maniflex.files.owner import Owner
from maniflex.model.file_field import FileRules
from maniflex.model.messages import detail


async def name_keys(
    desk: FileDesk,
    values: Sequence[str],
    current: Collection[str],
    owner: Owner,
    rules: FileRules,
    field: str = "",
) -> list[str]:
    """The keys that the values of a field name; those the record has may stay, whoever minted them."""
    keys = [_current_key(value, current) or value for value in values]
    if len(keys) > rules.max_count:
        raise TooManyFiles(f"there are {len(keys)} files, and {rules.max_count} at most are taken")
    if len(set(keys)) < len(keys):
        raise ValidationFailed(details=[detail(field, "duplicate", "names a file twice")])
    fresh_keys = [key for key in keys if key not in current]
    if fresh_keys:
        try:
            await desk.name_all(fresh_keys, owner, rules)
        except RequestError as error:
            if error.details is None and error.status < 500:
                message = f'field "{field}": {error.message}'
                error.details = [{"field": field, "message": message, "code": error.code.lower()}]
            raise
    return keys


def _current_key(value: str, current: Collection[str]) -> str | None:
    """The key the record has that a value means: the key itself, or a URL we made of it."""
    if value in current:
        return value
    if not current or "/" not in value:
        return None
    try:
        path = unquote(urlsplit(value).path)
    except ValueError:
        return None
    # The longest, because a key may end like another.
    return max((key for key in current if path.endswith(f"/{key}")), key=len, default=None)
