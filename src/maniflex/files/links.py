"""Which records name which files: written in the transaction of the record, whatever writes the record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

from maniflex.db.port import Row, Tx
from maniflex.db.write_seam import Change, after_commit_once
from maniflex.errors import FileForbidden, FileGone, RequestError, TooManyFiles, UnknownFile, ValidationFailed
from maniflex.files.desk import FileDesk
from maniflex.files.owner import Owner, is_uploader
from maniflex.files.store import FileState, Link, LockedFile, StoredFile
from maniflex.model.field import ACLS, FileRules, file_fields, rules_of_field
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.model.value_rules import detail

Place = tuple[int, FieldMeta, FileRules]  # of a file field among the fields of its model


class FileLinks:
    """Listens to the changes of models with file fields."""

    needs_rows = True

    def __init__(self, desk: FileDesk, models: Collection[ModelMeta]) -> None:
        self._desk = desk
        self._places: Mapping[str, Sequence[Place]] = {
            meta.name: [(meta.fields.index(f), f, rules) for f, rules in file_fields(meta)] for meta in models
        }

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """Link the files that rows name now, and let go of those they named before."""
        added: dict[Link, FieldMeta] = {}
        dropped: dict[Link, FileRules] = {}
        for change in changes:
            if change.id is not None:
                self._compare(change, added, dropped)
        if not added and not dropped:
            return
        rows, now = self._desk.rows, self._desk.clock.now()
        locked_rows = await rows.lock(tx, {link.key for link in (*added, *dropped)})
        for link, field in added.items():
            _require_linkable(locked_rows.get(link.key), field)
        if added:
            await rows.link(tx, list(added), now)
            for acl, keys in _narrower(added, locked_rows).items():
                await rows.narrow_acl(tx, keys, acl, now)
        if dropped:
            await rows.unlink(tx, list(dropped))
            kept_keys = {link.key for link, rules in dropped.items() if not rules.auto_delete}
            dropped_keys = {link.key for link in dropped} - kept_keys
            if kept_keys:
                await rows.keep_unlinked(tx, kept_keys, now)
            if dropped_keys and await rows.condemn_unlinked(tx, dropped_keys, now):
                after_commit_once(tx, self._desk.on_condemned)

    def _compare(self, change: Change, added: dict[Link, FieldMeta], dropped: dict[Link, FileRules]) -> None:
        assert change.id is not None, "asked for by `needs_rows`"
        for place, field, rules in self._places[change.meta.name]:
            before = set(_keys(change.before, place, field))
            after = set(_keys(change.after, place, field))
            name, record_id = change.meta.name, change.id
            added.update((Link(key, name, record_id, field.name), field) for key in after - before)
            dropped.update((Link(key, name, record_id, field.name), rules) for key in before - after)


def _narrower(added: Mapping[Link, FieldMeta], locked: Mapping[str, LockedFile]) -> dict[str, set[str]]:
    """By acl, the files whose row says a wider one than a field that names them from now on."""
    acls: dict[str, str] = {}
    for link, field in added.items():
        rules = rules_of_field(field)
        acl = acls.get(link.key, locked[link.key].acl)
        if rules is not None and ACLS.index(rules.acl) < ACLS.index(acl):
            acls[link.key] = rules.acl
    keys: dict[str, set[str]] = {}
    for key, acl in acls.items():
        keys.setdefault(acl, set()).add(key)
    return keys


def keys_in(value: Any, field: FieldMeta) -> list[str]:
    """The keys in the value of a file field, which may be JSON text still."""
    if value is None:
        return []
    if field.load_json is not None:
        items = field.load_json(value) if isinstance(value, str | bytes) else value
        return [key for key in items or () if isinstance(key, str)]
    return [value]


def _keys(row: Row | None, place: int, field: FieldMeta) -> Iterator[str]:
    return iter(() if row is None else keys_in(row[place], field))


def _require_linkable(file: LockedFile | None, field: FieldMeta) -> None:
    """Refuse to name a file that is not there, or that a cleaner is removing."""
    if file is not None and file.state in (FileState.STORED, FileState.LINKED):
        return
    if file is not None and file.state is FileState.CONDEMNED:
        if file.is_whole:
            return
        raise FileGone()
    raise UnknownFile(details=[{"field": field.api, "message": f'field "{field.api}" names no stored file'}])


# Keys in bodies: which a caller may name, by the rules of their fields.


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
            is_foreign = file.scope not in ("", self._owner.scope)
            is_foreign = is_foreign or file.tenant_id not in (None, self._owner.tenant_id)
            if (is_foreign and not self._restores) or not await self._may_read(file, links.get(file.key, ())):
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
