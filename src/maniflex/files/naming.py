"""Keys in bodies: which a caller may name, by the rules of their fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from maniflex.errors import FileForbidden, RequestError, TooManyFiles, ValidationFailed
from maniflex.files.desk import FileDesk
from maniflex.files.model import FileState, StoredFile
from maniflex.files.owner import Owner, is_uploader
from maniflex.files.store import Link
from maniflex.model.file_field import FileRules
from maniflex.model.messages import detail

InReach = Callable[[Sequence[Link]], Awaitable[bool]]  # whether a caller may read one of these records


class KeyNamer:
    """Judges the keys that one request names.

    A file that records name takes one of them in reach of the caller. One that no record names may be named
    by its uploader alone, and by a request that `restores` a record which has named it before.
    """

    def __init__(self, desk: FileDesk, owner: Owner, in_reach: InReach, *, restores: bool = False) -> None:
        self._desk = desk
        self._owner = owner
        self._in_reach = in_reach
        self._restores = restores

    async def name_keys(
        self, values: Sequence[str], current: Collection[str], rules: FileRules, field: str
    ) -> list[str]:
        """The keys that the values of a field name; those the record has may stay, whoever uploaded them."""
        keys = [_current_key(value, current) or value for value in values]
        if len(keys) > rules.max_count:
            raise TooManyFiles(f"there are {len(keys)} files, and {rules.max_count} at most are taken")
        if len(set(keys)) < len(keys):
            raise ValidationFailed(details=[detail(field, "duplicate", "names a file twice")])
        fresh_keys = [key for key in keys if key not in current]
        if fresh_keys:
            with about_field(field):
                await self._desk.name_all(fresh_keys, self._owner, rules, self._require_nameable)
        return keys

    async def _require_nameable(self, files: Sequence[StoredFile]) -> None:
        """`FileForbidden` for a file that the caller may not read, or that another scope uploaded."""
        linked_keys = [file.key for file in files if file.state is FileState.LINKED]
        links = await self._desk.links_of_all(linked_keys) if linked_keys else {}
        for file in files:
            is_foreign = file.scope not in ("", self._owner.scope) and not self._restores
            if is_foreign or not await self._may_read(file, links.get(file.key, ())):
                raise FileForbidden()

    async def _may_read(self, file: StoredFile, links: Sequence[Link]) -> bool:
        if file.state is FileState.LINKED:
            return await self._in_reach(links)
        return self._restores or is_uploader(file, self._owner)


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
