"""The tables of files and all statements on them, in any dialect."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from maniflex._ids import new_id
from maniflex.background.parameters import instant, parameters_of
from maniflex.db.current import Primary, executor, reading
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.db.store import Store
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import Index, TableRules, is_one_of
from maniflex.sql.statement import load

if TYPE_CHECKING:
    from maniflex.files.owner import Owner


# The tables of files, as internal models without routes: which files there are, and which records name
# them.
#
# Their statements are in `files/sql`, where the states of a file are drawn.


class FileState(StrEnum):
    """Where a file is in its life; `common/files.sql` draws how one state follows from the other."""

    PENDING = "pending"
    STORED = "stored"
    LINKED = "linked"
    CONDEMNED = "condemned"


class StoredFile(Model, table="stored_file", headless=True):
    """A file: its key in the storage, its name, type, size and state, and who may name it."""

    __table_rules__: ClassVar = TableRules(
        checks={"stored_file_state_check": is_one_of("state", tuple(FileState))}
    )
    __omitted__: ClassVar = frozenset({"scope", "lease", "lease_until"})

    key: str = field(unique=True)
    state: FileState = field(default=FileState.PENDING)
    filename: str = field(default="")
    content_type: str = field(default="application/octet-stream")
    size: int | None = field(default=None)  # once all of it is stored
    sha256: str | None = field(default=None)  # unknown of files that went past the server
    etag: str = field(default="")
    acl: str = field(default="private")
    # Of the caller who minted the key; empty: anybody's.
    scope: str = field(default="", hidden=True, index=True)
    tenant_id: str | None = field(default=None, relation=None)
    actor_id: str | None = field(default=None, relation=None)
    expires_at: datetime | None = field(default=None)  # unless a record names it before
    # Of a presigned upload that counts against a quota: the bytes it may have, until they are seen.
    reserved: int | None = field(default=None)
    look_at: datetime | None = field(default=None)  # when it is seen whether it was uploaded
    # A client may still upload to the storage by itself, with a URL of this key; its row stays until then.
    open_until: datetime | None = field(default=None)
    was_linked: bool = field(default=False)  # a record has named it that names it no more
    lease: str | None = field(default=None, hidden=True)  # of the cleaner that removes it
    lease_until: datetime | None = field(default=None)  # not before, after a removal that failed
    attempts: int = field(default=0)  # to remove it, that failed


class FileLink(
    Model,
    table="file_link",
    headless=True,
    indices=[Index(("key", "model", "record_id", "field"), unique=True, name="file_link_once_idx")],
):
    """A record that names a file."""

    key: str
    model: str
    record_id: str = field(relation=None)
    field: str


_SECRET_LABEL = "maniflex_secret.value"  # what a sealed secret is bound to, with its name


class ManiflexSecret(Model, table="maniflex_secret", headless=True):
    """A secret that all processes of a server share; the id is its name."""

    value: str = field(default="", hidden=True)


PACKAGE = "maniflex.files"
_LINKED = ("ids", "keys", "models", "record_ids", "fields")
_UNLINKED = ("keys", "models", "record_ids", "fields")


class Link(NamedTuple):
    """A field of a record that names a file."""

    key: str
    model: str
    record_id: str
    field: str


class LockedFile(NamedTuple):
    """The state of a file that no other transaction changes meanwhile."""

    state: FileState
    is_whole: bool  # all of it is stored, and no cleaner has touched it
    acl: str


class ClaimedFile(NamedTuple):
    """A file that a cleaner is to remove."""

    key: str
    attempts: int
    open_until: datetime | None  # a client may upload it until then


class LinkRow(NamedTuple):
    """A stored link, and the state of its file; None where there is none."""

    id: str
    link: Link
    state: FileState | None


class FileStore:
    """The rows of files and links on one database."""

    def __init__(self, files: Store) -> None:
        self.adapter: Adapter = files.adapter
        self._files = files
        self._primary = Primary(self.adapter)
        self._sql = load(PACKAGE, "files", self.adapter.dialect)
        parameters = parameters_of(self.adapter.dialect)
        self._time, self._texts, self._rows = parameters.time, parameters.texts, parameters.rows

    # -- one file

    async def begin(
        self,
        key: str,
        *,
        filename: str,
        content_type: str,
        acl: str,
        owner: Owner,
        expires_at: datetime,
        now: datetime,
        reserved: int | None = None,
        look_at: datetime | None = None,
        open_until: datetime | None = None,
    ) -> str | None:
        """Note a file that is about to be stored; the id of its row, None when the key is taken."""
        id = new_id()
        statement = self._sql["begin"].bind(
            id=id,
            key=key,
            filename=filename,
            content_type=content_type,
            acl=acl,
            scope=owner.scope,
            tenant_id=owner.tenant_id,
            actor_id=owner.actor_id,
            expires_at=self._time(expires_at),
            reserved=reserved,
            look_at=self._time(look_at),
            open_until=self._time(open_until),
            now=self._time(now),
        )
        return id if await self.adapter.write(statement) else None

    async def adopt(
        self, key: str, *, filename: str, content_type: str, size: int, etag: str, now: datetime
    ) -> bool:
        """Note a file that was stored by others; False when it is known already."""
        statement = self._sql["adopt"].bind(
            id=new_id(),
            key=key,
            filename=filename,
            content_type=content_type,
            size=size,
            etag=etag,
            now=self._time(now),
        )
        return bool(await self.adapter.write(statement))

    async def forget(self, id: str) -> None:
        """Drop the row of a pending file whose key turned out to be another object's."""
        await self.adapter.execute(self._sql["forget"].bind(id=id))

    async def give_up(self, id: str, key: str, now: datetime) -> None:
        """Condemn a file that no record names, also if it has no row or a cleaner has begun to remove it."""
        values = {"new_id": new_id(), "key": key, "now": self._time(now)}
        await self.adapter.execute(self._sql["give_up"].bind(id=id, **values))

    async def give_up_lost(self, key: str, now: datetime) -> None:
        """Condemn a file only if it has no row, or a cleaner has begun to remove it."""
        values = {"new_id": new_id(), "key": key, "now": self._time(now)}
        await self.adapter.execute(self._sql["give_up_lost"].bind(**values))

    async def prolong(self, id: str, expires_at: datetime, now: datetime) -> bool:
        """Keep a pending file for longer; False when it is pending no more."""
        times = {"expires_at": self._time(expires_at), "now": self._time(now)}
        return bool(await self.adapter.write(self._sql["prolong"].bind(id=id, **times)))

    async def complete(
        self,
        id: str,
        *,
        content_type: str,
        size: int,
        sha256: str | None,
        etag: str,
        expires_at: datetime | None,
        now: datetime,
    ) -> bool:
        """Note that all of a pending file is stored; False when it is pending no more."""
        statement = self._sql["complete"].bind(
            id=id,
            content_type=content_type,
            size=size,
            sha256=sha256,
            etag=etag,
            expires_at=self._time(expires_at),
            now=self._time(now),
        )
        return bool(await executor(self.adapter).write(statement))

    async def used_bytes(self, scope: str) -> int:
        """The bytes of all files of one scope that are not given up."""
        row = await executor(self.adapter).fetch_one(self._sql["used_bytes"].bind(scope=scope))
        return 0 if row is None else int(row[0])

    async def unseen_of(self, scope: str, limit: int) -> list[StoredFile]:
        """Presigned uploads of one scope that hold bytes of its quota and may have been uploaded by now."""
        rows = await self._primary.fetch(self._sql["unseen_of"].bind(scope=scope, limit=limit))
        return [self._file(row) for row in rows]

    async def to_look_at(self, now: datetime, limit: int) -> list[StoredFile]:
        """Presigned uploads of which it is time to see whether they came."""
        rows = await self._primary.fetch(self._sql["to_look_at"].bind(now=self._time(now), limit=limit))
        return [self._file(row) for row in rows]

    async def give_back(self, id: str, *, look_at: datetime, now: datetime) -> None:
        """Let a presigned upload that did not come hold no bytes of the quota any more."""
        times = {"look_at": self._time(look_at), "now": self._time(now)}
        await self.adapter.execute(self._sql["give_back"].bind(id=id, **times))

    async def find(self, key: str) -> StoredFile | None:
        row = await reading(self.adapter).fetch_one(self._sql["find"].bind(key=key))
        return None if row is None else self._file(row)

    async def find_all(self, keys: Collection[str]) -> dict[str, StoredFile]:
        """The files of these keys, as far as there are any."""
        rows = await reading(self.adapter).fetch(self._sql["find_all"].bind(keys=self._texts(list(keys))))
        return {file.key: file for file in map(self._file, rows)}

    async def condemn(self, keys: Collection[str], now: datetime, run: Executor | None = None) -> set[str]:
        """Give up files that no record names; the keys of those that were."""
        statement = self._sql["condemn"].bind(keys=self._texts(list(keys)), now=self._time(now))
        return {key for (key,) in await (run or self.adapter).write(statement)}

    def _file(self, row: Row) -> StoredFile:
        decode = self._files.decode
        record = self._files.record(row if decode is None else decode(row))
        assert isinstance(record, StoredFile)
        return record

    # -- links

    async def lock(self, tx: Tx, keys: Collection[str]) -> dict[str, LockedFile]:
        """The states of these files, which no other transaction changes until this one ends."""
        rows = await tx.fetch(self._sql["lock"].bind(keys=self._texts(sorted(keys))))
        return {key: LockedFile(FileState(state), bool(is_whole), acl) for key, state, is_whole, acl in rows}

    async def link(self, tx: Executor, links: Collection[Link], now: datetime) -> None:
        """Note records that name files, which are locked."""
        rows = [(new_id(), *link) for link in links]
        moment = self._time(now)
        await tx.execute(self._sql["link"].bind(now=moment, **self._rows(_LINKED, rows)))
        keys = self._texts(sorted({link.key for link in links}))
        await tx.execute(self._sql["mark_linked"].bind(keys=keys, now=moment))

    async def narrow_acl(self, tx: Executor, keys: Collection[str], acl: str, now: datetime) -> None:
        """Note that the files, which are locked, are no more open than `acl`, whoever names them later."""
        texts = self._texts(sorted(keys))
        await tx.execute(self._sql["narrow_acl"].bind(keys=texts, acl=acl, now=self._time(now)))

    async def unlink(self, tx: Executor, links: Collection[Link]) -> None:
        """Note that these records no longer name these files."""
        await tx.execute(self._sql["unlink"].bind(**self._rows(_UNLINKED, list(links))))

    async def condemn_unlinked(self, tx: Executor, keys: Collection[str], now: datetime) -> set[str]:
        """Give up those of the files, which are locked, that no record names any more."""
        statement = self._sql["condemn_unlinked"].bind(keys=self._texts(sorted(keys)), now=self._time(now))
        return {key for (key,) in await tx.write(statement)}

    async def keep_unlinked(self, tx: Executor, keys: Collection[str], now: datetime) -> None:
        """Keep those of the files, which are locked, that no record names any more."""
        await tx.execute(self._sql["keep_unlinked"].bind(keys=self._texts(sorted(keys)), now=self._time(now)))

    async def links_of(self, key: str) -> list[Link]:
        rows = await reading(self.adapter).fetch(self._sql["links_of"].bind(key=key))
        return [Link(key, *row) for row in rows]

    async def existing_links(self, keys: Collection[str]) -> set[Link]:
        """All links to these files."""
        statement = self._sql["links_of_all"].bind(keys=self._texts(list(keys)))
        return {Link(*row) for row in await self._primary.fetch(statement)}

    # -- cleaning

    async def is_due(self, now: datetime) -> bool:
        """Whether there is anything to remove; asked first, because a claim is a write."""
        return await self._primary.fetch_one(self._sql["due"].bind(now=self._time(now))) is not None

    async def claim(self, lease: str, *, until: datetime, now: datetime, limit: int) -> list[ClaimedFile]:
        """Lease files that are to be removed: condemned ones, and those whose time is over."""
        times = {"until": self._time(until), "now": self._time(now)}
        rows = await self.adapter.write(self._sql["claim"].bind(lease=lease, limit=limit, **times))
        return [
            ClaimedFile(key, attempts, None if open_until is None else instant(open_until))
            for key, attempts, open_until in rows
        ]

    async def remove(self, key: str, lease: str) -> bool:
        """Remove the row of a file whose object is gone; False when the lease is another's by now."""
        return bool(await self.adapter.write(self._sql["remove"].bind(key=key, lease=lease)))

    async def put_back(self, key: str, lease: str, *, retry_at: datetime, now: datetime) -> None:
        """Try again later to remove a file."""
        times = {"retry_at": self._time(retry_at), "now": self._time(now)}
        await self.adapter.write(self._sql["put_back"].bind(key=key, lease=lease, **times))

    async def keep_until(self, key: str, lease: str, *, until: datetime, now: datetime) -> None:
        """Keep the row of a file whose object is gone, and remove the object once more at that time."""
        times = {"until": self._time(until), "now": self._time(now)}
        await self.adapter.execute(self._sql["keep_until"].bind(key=key, lease=lease, **times))

    async def failing(self) -> int:
        """How many files could not be removed yet, though it was tried."""
        return await self._number_of("failing")

    # -- all of them

    async def count(self) -> int:
        return await self._number_of("count")

    async def page(self, after: str, limit: int) -> list[StoredFile]:
        """The files behind an id, in the order of their ids."""
        rows = await self._primary.fetch(self._sql["page"].bind(after=after, limit=limit))
        return [self._file(row) for row in rows]

    async def link_page(self, after: str, limit: int) -> list[LinkRow]:
        """The links behind an id, in the order of their ids."""
        rows = await self._primary.fetch(self._sql["link_page"].bind(after=after, limit=limit))
        return [
            LinkRow(id, Link(*link), None if state is None else FileState(state)) for id, *link, state in rows
        ]

    async def linked_alone(self) -> list[str]:
        """Files that are linked although no record names them."""
        return [key for (key,) in await self._primary.fetch(self._sql["linked_alone"].bind())]

    # -- the secret

    async def shared_secret(self, name: str, fresh: str, now: datetime) -> str:
        """The secret of this name: the one there is, or `fresh` from now on.

        On a server with encrypted fields it is kept sealed, under the key of today.
        """
        keys, sql, now_text = self._files.sql.keys, self._sql, self._time(now)
        sealed = keys.seal_text(fresh, _SECRET_LABEL, name)
        await self.adapter.execute(sql["keep_secret"].bind(id=name, value=sealed, now=now_text))
        row = await self._primary.fetch_one(sql["secret"].bind(id=name))
        assert row is not None, "it was kept just now"
        stored = str(row[0])
        secret = keys.open_text(stored, _SECRET_LABEL, name)
        if not keys.is_current(stored):
            again = keys.seal_text(secret, _SECRET_LABEL, name)
            await self.adapter.execute(
                sql["replace_secret"].bind(id=name, value=again, stored=stored, now=now_text)
            )
        return secret

    async def _number_of(self, name: str) -> int:
        row = await self._primary.fetch_one(self._sql[name].bind())
        return 0 if row is None else int(row[0])
