"""`FileDesk`: stores, finds, names and gives up files, and keeps rows and objects in step.

No object without a row: the row of an upload is committed before its first byte goes out, and removed
after the object is gone. Records are tied to files by `links.py`, in the transaction of the record;
`cleaner.py` removes what was given up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakMethod

from maniflex._clock import Clock, SystemClock
from maniflex.config import Config
from maniflex.db.current import current_tx, detached_context
from maniflex.db.write_seam import after_commit_once
from maniflex.errors import (
    DeclarationError,
    FileExists,
    FileGone,
    FileInUse,
    FileNotFound,
    FileTooLarge,
    FileTypeNotAllowed,
    ManiflexError,
    NoStorage,
    RequestError,
    StorageError,
    StorageFull,
    TransactionError,
    UnknownFile,
)
from maniflex.files.intake import ENOUGH, FileQuota, Intake, clean_content_type, contradicts, no_room
from maniflex.files.store import FileState, StoredFile
from maniflex.model.field import FileRules
from maniflex.pipeline.context import Context
from maniflex.storage.port import (
    OCTET_STREAM,
    FileMeta,
    PresignedUpload,
    Reader,
    ServedHere,
    SignsDownloads,
    Storage,
    check_key,
    key_problem,
    new_key,
    pins_upload_size,
    presign_file,
    sign_urls,
    stat_file,
)
from maniflex.storage.signer import UrlSigner

if TYPE_CHECKING:
    from maniflex.files.owner import Owner
    from maniflex.files.store import FileStore, Link

UNLINKED_PRESIGNED = timedelta(hours=24)  # after its URL expired
LOOKED_AT_EVERY = timedelta(hours=1)  # a presigned upload that did not come
MOST_LOOKED_AT = 100  # presigned uploads at once
NO_RULES = FileRules()
_LONGEST_FILENAME = 255


@dataclass(frozen=True, slots=True)
class MintedUpload:
    """A URL that a client uploads one file to, and the key the file will have."""

    key: str
    max_size: int | None
    upload: PresignedUpload


class LeftFile(NamedTuple):
    """A file whose store failed. Without the id of a row it is given up only if its row is gone."""

    key: str
    id: str | None = None


class FileDesk:
    """The files of one server; at work once `attach` has given it a database."""

    def __init__(self, storage: Storage | None, config: Config, logger: logging.Logger) -> None:
        self._storage = storage
        self.config = config
        self.logger = logger
        self.clock: Clock = SystemClock()
        self._rows: FileStore | None = None
        self.on_condemned: Callable[[], object] = lambda: None  # wakes the cleaner
        self.quota = FileQuota(config.file_quota, lambda: self.rows, self._see_uploads)
        self.signer: UrlSigner | None = None  # of URLs that lead here, once the server is started
        self.uploads = RunningUploads(self)
        self._left_files: set[LeftFile] = set()  # of stores that failed while the database did

    def attach(self, rows: FileStore, clock: Clock) -> None:
        """Use these tables and this clock."""
        self._rows, self.clock = rows, clock

    @property
    def has_storage(self) -> bool:
        return self._storage is not None

    @property
    def storage(self) -> Storage:
        """The storage; `NoStorage` where the server has none."""
        if self._storage is None:
            raise NoStorage()
        return self._storage

    @property
    def rows(self) -> FileStore:
        if self._rows is None:
            raise DeclarationError("the server is not sealed yet, or has neither a storage nor file fields")
        return self._rows

    # -- storing

    def require_no_transaction(self) -> None:
        """Refuse to move bytes while a transaction waits for them."""
        if current_tx(self.rows.adapter) is not None:
            raise TransactionError("TX_OPEN", "files are stored before a transaction begins, not inside one")

    async def store(
        self,
        chunks: AsyncIterable[bytes],
        *,
        filename: str,
        content_type: str | None = None,
        owner: Owner,
        rules: FileRules | None = None,
        ctx: Context | None = None,
    ) -> StoredFile:
        """Store a file. With the `rules` of a field it goes again unless a record names it soon."""
        self.require_no_transaction()
        storage = self.storage
        intake = Intake(
            chunks,
            rules or NO_RULES,
            content_type=content_type,
            on_chunk=lambda: upload.note(),
            room=await self.quota.require_room(owner, 0),
        )
        await intake.look()
        name = clean_filename(filename)
        key = await self._new_key(ctx, name, intake.content_type)
        id = await self._begin(key, name, intake.content_type, rules or NO_RULES, owner)
        upload = Upload(self, id)
        try:
            with self.uploads.keep(upload):
                file = await self._store_bytes(storage, id, key, name, intake, keeps=rules is None)
            if await self.quota.is_passed(owner):
                raise no_room()
            return file
        except BaseException as error:
            if isinstance(error, FileExists) and self.config.file_key is not None:
                await self.rows.forget(id)  # the object is another's, so no cleaner may remove it
            else:
                await self._give_up(LeftFile(key, id))
            if intake.failure is not None and intake.failure is not error:
                raise intake.failure from error
            raise

    async def _store_bytes(
        self, storage: Storage, id: str, key: str, filename: str, intake: Intake, *, keeps: bool
    ) -> StoredFile:
        meta = FileMeta(filename, intake.content_type)
        with storage_errors():
            stored_meta = await storage.store(key, intake, meta)
        now = self.clock.now()
        ttl = self.config.files_unclaimed_ttl if keeps else self.config.files_pending_ttl
        is_ours = await self.rows.complete(
            id,
            content_type=intake.content_type,
            size=stored_meta.size,
            sha256=intake.sha256,
            etag=stored_meta.etag,
            expires_at=now + ttl if ttl else None,
            now=now,
        )
        if not is_ours:
            raise FileGone()
        return await self._existing(key)

    async def _begin(self, key: str, filename: str, content_type: str, rules: FileRules, owner: Owner) -> str:
        """Note the upload; the id of its row, which no other upload to this key has."""
        now = self.clock.now()
        id = await self.rows.begin(
            key,
            filename=filename,
            content_type=content_type,
            acl=rules.acl,
            owner=owner,
            expires_at=now + self.config.files_pending_ttl,
            now=now,
        )
        if id is None:
            raise FileExists(f"{key} is the key of another file already")
        return id

    async def _give_up(self, file: LeftFile) -> None:
        """Condemn a file whose store failed, whether or not its row is still there.

        The row is gone where this process stood still for so long that another took the upload for dead. All
        of the object may be there all the same, and without a row nobody would ever find it.
        """
        self._left_files.add(file)
        with suppress(Exception):
            await self.condemn_left()

    async def condemn_left(self) -> None:
        """Condemn the files whose stores failed, for as long as it takes."""
        while self._left_files:
            file = next(iter(self._left_files))
            if file.id is None:
                await self.rows.give_up_lost(file.key, self.clock.now())
            else:
                await self.rows.give_up(file.id, file.key, self.clock.now())
            self._left_files.discard(file)
            self.on_condemned()

    async def receive(
        self, key: str, chunks: AsyncIterable[bytes], *, max_size: int | None, content_type: str
    ) -> StoredFile:
        """Store the file that a presigned URL of this server was minted for."""
        self.require_no_transaction()
        file = await self.find(key)
        if file is None or file.state is FileState.CONDEMNED:
            raise FileNotFound()
        if file.state is not FileState.PENDING:
            raise FileInUse("a file was uploaded here already")
        upload = Upload(self, file.id, at_least=file.expires_at)
        intake = Intake(chunks, FileRules(max_size=max_size), content_type=content_type, on_chunk=upload.note)
        await intake.look()
        try:
            with storage_errors(), self.uploads.keep(upload):
                meta = await self.storage.store(key, intake, FileMeta(file.filename, content_type))
            return await self._complete(file, meta, intake.sha256)
        except FileExists:
            raise FileInUse("a file was uploaded here already") from None
        except BaseException as error:
            await self._give_up(LeftFile(key))  # a row that is still there may be tried again
            if isinstance(error, UnknownFile):
                raise FileNotFound() from None
            if intake.failure is not None and intake.failure is not error:
                raise intake.failure from error
            raise

    # -- naming

    async def name_all(
        self,
        keys: Collection[str],
        owner: Owner,
        rules: FileRules,
        require_nameable: Callable[[Sequence[StoredFile]], Awaitable[None]],
    ) -> list[StoredFile]:
        """The files of keys that a body names, each held to the rules; the first that is wrong is raised.

        `require_nameable` refuses files that the caller may not name.
        """
        sound_keys = [key for key in keys if key_problem(key) is None]
        by_key = await self.rows.find_all(sound_keys) if sound_keys else {}
        files = [by_key[key] for key in keys if key in by_key]
        if len(files) < len(keys) or any(file.state is FileState.CONDEMNED for file in files):
            raise UnknownFile()
        await require_nameable(files)
        return [await self._name(file, owner, rules) for file in files]

    async def _name(self, file: StoredFile, owner: Owner, rules: FileRules) -> StoredFile:
        key = file.key
        is_unjudged = file.state is FileState.PENDING or (
            rules.upload == "presigned" and file.state is not FileState.LINKED
        )
        if file.state is FileState.PENDING:
            file = await self.complete(file)
        # What went past the server was not held against the quota yet.
        if is_unjudged and await self.quota.is_passed(owner):
            await self.condemn((key,))
            raise no_room()
        if rules.max_size is not None and (file.size or 0) > rules.max_size:
            raise FileTooLarge(f"the file has more than {rules.max_size} bytes")
        if not rules.accepts(file.content_type):
            raise FileTypeNotAllowed(f"the file must be {' or '.join(rules.accept)}")
        if rules.sniff and contradicts(await self._head(key), file.content_type):
            raise FileTypeNotAllowed("the file is not of the type it says")
        return file

    async def _head(self, key: str) -> bytes:
        """The first bytes of a stored file, as many as tell its type."""
        try:
            with storage_errors():
                async with aclosing(await self.storage.open(key, length=ENOUGH)) as reader:
                    return b"".join([chunk async for chunk in reader])
        except FileNotFound:
            raise UnknownFile() from None

    async def complete(self, file: StoredFile) -> StoredFile:
        """A pending file whose object went past the server: look at the object, and note what it is."""
        try:
            with storage_errors():
                meta = await stat_file(self.storage, file.key)
        except FileNotFound:
            raise UnknownFile() from None
        return await self._complete(file, meta, None)

    async def _complete(self, file: StoredFile, meta: FileMeta, sha256: str | None) -> StoredFile:
        # False when another request was quicker; the file is the same.
        await self.rows.complete(
            file.id,
            content_type=clean_content_type(meta.content_type) or OCTET_STREAM,
            size=meta.size,
            sha256=sha256,
            etag=meta.etag,
            expires_at=file.expires_at,
            now=self.clock.now(),
        )
        whole_file = await self.find(file.key)
        if whole_file is None or whole_file.state is FileState.CONDEMNED:
            raise UnknownFile()
        return whole_file

    # -- reading

    async def find(self, key: str) -> StoredFile | None:
        """The row of a file, by its key; None where there is none, or where the text can be no key."""
        return None if key_problem(key) is not None else await self.rows.find(key)

    async def links(self, key: str) -> list[Link]:
        """The records that name a file."""
        return await self.rows.links_of(key)

    async def links_of_all(self, keys: Collection[str]) -> dict[str, list[Link]]:
        """The records that name these files, by the keys of the files."""
        links: dict[str, list[Link]] = {}
        for link in sorted(await self.rows.existing_links(keys)):
            links.setdefault(link.key, []).append(link)
        return links

    async def open(self, key: str, start: int = 0, length: int | None = None) -> Reader:
        """The bytes of a file, or of a part of it; `FileNotFound` where there is none."""
        self._check(key)
        with storage_errors():
            return await self.storage.open(key, start=start, length=length)

    async def stat(self, key: str) -> FileMeta:
        self._check(key)
        with storage_errors():
            return await stat_file(self.storage, key)

    async def url(
        self, key: str, *, ttl: timedelta | None, download: bool = False, filename: str | None = None
    ) -> str:
        self._check(key)
        with storage_errors():
            return await url_of(self, key, ttl=ttl, download=download, filename=filename)

    async def urls(self, keys: Collection[str], acl: str, *, download: bool = False) -> dict[str, str]:
        """The URLs of files; with `download`, such as save them whatever their type."""
        ttl = self.config.signed_url_ttl if acl == "signed" else None
        with storage_errors():
            return await urls_of(self, keys, ttl=ttl, download=download)

    def _check(self, key: str) -> None:
        if key_problem(key) is not None:
            raise FileNotFound()

    async def _existing(self, key: str) -> StoredFile:
        file = await self.rows.find(key)
        if file is None:
            raise FileGone()
        return file

    # -- giving up

    async def condemn(self, keys: Collection[str]) -> None:
        """Give up files that no record names; the cleaner removes them."""
        if keys:
            await self._condemn(keys)

    async def _condemn(self, keys: Collection[str]) -> set[str]:
        """Condemn in the open transaction, if there is one; the cleaner is woken when it is committed."""
        tx = current_tx(self.rows.adapter)
        condemned_keys = await self.rows.condemn(keys, self.clock.now(), tx)
        if condemned_keys and tx is None:
            self.on_condemned()
        elif condemned_keys and tx is not None:
            after_commit_once(tx, self.on_condemned)
        return condemned_keys

    async def discard(self, key: str) -> None:
        """Give up one file: `FileInUse` while a record names it. Who may, the caller has judged."""
        file = await self.find(key)
        # A pending one is left to expire: a client may still have a URL to upload it to.
        if file is None or file.state not in (FileState.STORED, FileState.LINKED):
            raise FileNotFound()
        if not await self._condemn((key,)):
            raise FileInUse()

    # -- minting

    async def mint(
        self, *, filename: str, content_type: str, size: int | None, owner: Owner, rules: FileRules
    ) -> MintedUpload:
        """A URL that a client uploads a file of this field to, if it may have one."""
        if rules.max_size is not None and size is not None and size > rules.max_size:
            raise FileTooLarge(f"the file has more than {rules.max_size} bytes")
        if not rules.accepts(content_type):
            raise FileTypeNotAllowed(f"the file must be {' or '.join(rules.accept)}")
        room = await self.quota.require_room(owner, size or 0)
        most = min((n for n in (rules.max_size, room) if n is not None), default=None)
        if room is not None and size is not None and pins_upload_size(self.storage):
            most = size  # what it holds of the quota, so that others may be uploaded beside it
        name, ttl = clean_filename(filename), self.config.signed_url_ttl
        key = await self._new_key(None, name, content_type)
        with storage_errors():
            upload = await presign_file(
                self.storage, key, ttl=ttl, max_size=most, content_type=content_type, filename=name
            )
        now = self.clock.now()
        expires_at = now + ttl + UNLINKED_PRESIGNED
        id = await self.rows.begin(
            key,
            filename=name,
            content_type=content_type,
            acl=rules.acl,
            owner=owner,
            expires_at=expires_at,
            now=now,
            reserved=None if room is None else most,
            look_at=None if room is None else now + ttl,
            # An upload that passes this server asks nobody whether its row is still there.
            open_until=None if isinstance(self.storage, ServedHere) else expires_at,
        )
        if id is None:
            raise FileExists(f"{key} is the key of another file already")
        if room is not None and await self.quota.is_passed(owner):  # another was quicker
            await self.rows.forget(id)
            raise no_room()
        return MintedUpload(key, most, upload)

    async def _see_uploads(self, owner: Owner) -> None:
        """Look for the presigned uploads of a caller: those that came have a size from now on."""
        for file in await self.rows.unseen_of(owner.scope, MOST_LOOKED_AT):
            with suppress(UnknownFile):
                await self.complete(file)

    async def look_at_uploads(self) -> None:
        """Look for presigned uploads whose URLs are over; one that did not come gives its bytes back.

        It is looked for again, because a slow client may have begun in time.
        """
        now = self.clock.now()
        for file in await self.rows.to_look_at(now, MOST_LOOKED_AT):
            try:
                await self.complete(file)
            except UnknownFile:
                await self.rows.give_back(file.id, look_at=now + LOOKED_AT_EVERY, now=now)
            except RequestError as error:
                self.logger.warning("a presigned upload could not be looked at: %s", error)
                return

    async def _new_key(self, ctx: Context | None, filename: str, content_type: str) -> str:
        if self.config.file_key is None:
            return new_key(filename)
        try:
            outcome = self.config.file_key(ctx, filename, content_type)
            key = await outcome if inspect.isawaitable(outcome) else outcome
        except ManiflexError:
            raise
        except Exception as error:
            raise StorageError(f"file_key raised {type(error).__name__}") from error
        with storage_errors():
            # Before there is a row: by its row an object may be named, and is removed in the end.
            if await self.storage.exists(check_key(key)):
                raise FileExists(f"{key} is the key of another object already")
        return str(key)


class Upload:
    """A file whose bytes are on their way: its row is kept from expiring while they are."""

    def __init__(self, desk: FileDesk, id: str, at_least: datetime | None = None) -> None:
        self._desk = desk
        self._id = id  # of its row
        self._at_least = at_least
        self._noted = desk.clock.monotonic()
        self._every = desk.config.files_pending_ttl.total_seconds() / 3
        self._is_gone = False

    async def note(self) -> None:
        """Look after the row if it is time; `FileGone` when others have taken this upload for dead.

        It is asked once more behind the last byte, so that a process which stood still completes no object.
        """
        if self._is_gone:
            raise FileGone()
        if self._desk.clock.monotonic() - self._noted >= self._every:
            await self.prolong()

    async def prolong(self) -> None:
        desk = self._desk
        now = desk.clock.now()
        until = now + desk.config.files_pending_ttl
        if not await desk.rows.prolong(self._id, max(until, self._at_least or until), now):
            self._is_gone = True
            raise FileGone()
        self._noted = desk.clock.monotonic()


class RunningUploads:
    """The uploads of this process. A timer looks after their rows, also while no byte comes."""

    def __init__(self, desk: FileDesk) -> None:
        self._desk = desk
        self._uploads: set[Upload] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def keep(self, upload: Upload) -> Iterator[None]:
        """Keep the row of an upload while it lasts."""
        self._uploads.add(upload)
        if self._timer is None:
            self._set_timer()
        try:
            yield
        finally:
            self._uploads.discard(upload)

    def _set_timer(self) -> None:
        # One timer for all: that of a short upload serves the next ones, and a loop that closes drops it. It
        # keeps neither these uploads nor the request that began one, as their server may be closed by then.
        every = self._desk.config.files_pending_ttl.total_seconds() / 3
        self._timer = asyncio.get_running_loop().call_later(
            every, call_if_alive, WeakMethod(self.on_time), context=detached_context()
        )

    def on_time(self) -> None:
        """Look after the rows of all uploads, and set the next timer while there are any."""
        self._timer = None
        if self._uploads:
            task = asyncio.create_task(self.prolong_all(), context=detached_context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._set_timer()

    async def prolong_all(self) -> None:
        """Push on the time at which the rows of all uploads expire; an upload whose row is gone ends."""
        for upload in list(self._uploads):
            try:
                await upload.prolong()
            except FileGone:
                pass
            except Exception as error:
                self._desk.logger.warning("the row of an upload could not be prolonged: %s", error)


def call_if_alive(method: WeakMethod[Callable[[], None]]) -> None:
    """Call a method, unless its object is gone."""
    if (call := method()) is not None:
        call()


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn errors that a storage should not raise into `StorageError`, of which a client is told nothing."""
    try:
        yield
    except ManiflexError:
        raise
    except Exception as error:
        kind = StorageFull if StorageFull.is_meant(error) else StorageError
        raise kind(f"the storage raised {type(error).__name__}") from error


def clean_filename(filename: str) -> str:
    """The name of an upload without directories, control characters and half characters."""
    name = filename.replace("\\", "/").rpartition("/")[2].encode("utf-8", "replace").decode()
    printable = "".join(char for char in name if char >= " " and not "\x7f" <= char <= "\x9f").strip()
    return printable[:_LONGEST_FILENAME] or "file"


# URLs that open a file to those who have them.
#
# They lead to the storage, or to this server where the storage has none of its own. A file that is to be
# saved whatever its type has a URL that says so: where the store cannot sign one, it leads here too.


class Desk(Protocol):
    """The part of a desk that makes URLs."""

    config: Config
    signer: UrlSigner | None

    @property
    def storage(self) -> Storage: ...


async def url_of(desk: Desk, key: str, *, ttl: timedelta | None, download: bool, filename: str | None) -> str:
    """The URL of one file, for so long; without a time, a lasting one."""
    if download and (url := await _download_url(desk, key, ttl, filename)):
        return url
    return await desk.storage.url(key, ttl=ttl, download=download, filename=filename)


async def urls_of(
    desk: Desk, keys: Collection[str], *, ttl: timedelta | None, download: bool
) -> dict[str, str]:
    """The URLs of several files, signed in one call where that is possible."""
    urls: dict[str, str] = {}
    for key in dict.fromkeys(keys) if download else ():
        if url := await _download_url(desk, key, ttl, None):
            urls[key] = url
    others = [key for key in dict.fromkeys(keys) if key not in urls]
    if others:
        urls.update(zip(others, await sign_urls(desk.storage, others, ttl=ttl), strict=True))
    return urls


async def _download_url(desk: Desk, key: str, ttl: timedelta | None, filename: str | None) -> str | None:
    """The URL that saves a file; None where the usual one does, or no other can be made."""
    storage, signer = desk.storage, desk.signer
    if isinstance(storage, ServedHere):
        return None
    if isinstance(storage, SignsDownloads) and ttl is not None:
        name = filename or key.rpartition("/")[2]
        if url := await storage.download_url(key, ttl=ttl, filename=name):
            return url
    if signer is None or not desk.config.files_routes:
        return None
    if ttl is None:
        return signer.plain_url(key)
    return signer.read_url(key, ttl=ttl, download=True, filename=filename)
