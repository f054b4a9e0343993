"""Keys in bodies: which a caller may name, by the rules of their fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from maniflex.errors import FileForbidden, RequestError, TooManyFiles, ValidationFailed
from maniflex.files.desk import FileDesk
from maniflex.files.model import FileState
from maniflex.files.owner import Owner
from maniflex.files.store import Link
from maniflex.model.file_field import FileRules
from maniflex.model.messages import detail

InReach = Callable[[Sequence[Link]], Awaitable[bool]]  # whether a caller may read one of these records


async def _always(links: Sequence[Link]) -> bool:
    return True


async def name_keys(
    desk: FileDesk,
    values: Sequence[str],
    current: Collection[str],
    owner: Owner,
    rules: FileRules,
    field: str = "",
    in_reach: InReach = _always,
) -> list[str]:
    """The keys that the values of a field name; those the record has may stay, whoever minted them.

    A key that nobody minted is anybody's until records name it; then it takes one of them `in_reach`.
    """
    keys = [_current_key(value, current) or value for value in values]
    if len(keys) > rules.max_count:
        raise TooManyFiles(f"there are {len(keys)} files, and {rules.max_count} at most are taken")
    if len(set(keys)) < len(keys):
        raise ValidationFailed(details=[detail(field, "duplicate", "names a file twice")])
    fresh_keys = [key for key in keys if key not in current]
    if fresh_keys:
        with about_field(field):
            for file in await desk.name_all(fresh_keys, owner, rules):
                is_shared = not file.scope and file.state is FileState.LINKED
                if is_shared and not await in_reach(await desk.links(file.key)):
                    raise FileForbidden()
    return keys


@contextmanager
def about_field(name: str, *kinds: type[RequestError]) -> Iterator[None]:
    """Let refusals of files, all or those of some kinds, say of which field they are."""
    try:
        yield
    except RequestError as error:
        is_meant = not kinds or isinstance(error, kinds)
        if is_meant and error.details is None and error.status < 500:
            message = f'field "{name}": {error.message}'
            error.details = [{"field": name, "message": message, "code": error.code.lower()}]
        raise


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
