"""`server.files`: the storage while declaring; storing, reading and cleaning once the server is sealed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

from maniflex._caller import asking
from maniflex._clock import Clock
from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.metrics import Values
from maniflex.config import Config
from maniflex.errors import ConfigError
from maniflex.files.cleaner import Cleaner, CleanReport
from maniflex.files.desk import FileDesk
from maniflex.files.inventory import Adoption, FileCheck, Inventory, OnEach
from maniflex.files.links import FileLinks
from maniflex.files.owner import Owner, bind_signer, owner_in_code, owner_of
from maniflex.files.store import PACKAGE, FileLink, FileStore, ManiflexSecret, StoredFile
from maniflex.model.base import Model
from maniflex.model.class_body import rules_of
from maniflex.model.field import file_fields
from maniflex.model.registry import Registry
from maniflex.pipeline.context import Context
from maniflex.sql.statement import Dialect, Sql, schema_statements
from maniflex.storage.address import from_address
from maniflex.storage.local import LocalStorage
from maniflex.storage.port import METHODS, FileMeta, HasProblems, Reader, Storage, missing_methods

Data = bytes | bytearray | memoryview | str | os.PathLike[str] | AsyncIterable[bytes]


class Files(DeclaredPart):
    """The files of one server."""

    too_late = "the server is sealed; its storage is set before it starts"
    too_early = "the server is not sealed yet; files are stored once it is"
    not_used = "the server has no storage, and no model has a file field"

    def __init__(self) -> None:
        super().__init__()
        self._set_storage: Storage | str | None = None
        self._problems: list[str] = []
        self._desk: FileDesk | None = None
        self._cleaner: Cleaner | None = None
        self._inventory: Inventory | None = None

    # -- until the server is sealed

    def set_storage(self, storage: Storage | str) -> None:
        """Keep files in this storage, or in the one at this address."""
        self.require_open()
        self._set_storage = storage

    def declare(self, registry: Registry, config: Config, logger: logging.Logger, clock: Clock) -> None:
        """Open the storage of a server that is about to be sealed; see whether it has to do with files."""
        self._problems = []
        storage = self._open_storage(config, clock)
        names = [cls.__name__ for cls, _ in registry.options() if _has_file_fields(cls)]
        self._enabled = bool(names) or storage is not None or bool(self._problems)
        if names and storage is None and not self._problems:
            logger.warning("%s: there are file fields, but no storage to upload to", ", ".join(names))
        self._desk = FileDesk(storage, config, logger) if self._enabled else None

    @property
    def declared_desk(self) -> FileDesk | None:
        """The desk of the server that was declared; None where nothing has to do with files."""
        return self._desk

    def _open_storage(self, config: Config, clock: Clock) -> Storage | None:
        chosen = config.storage if self._set_storage is None else self._set_storage
        try:
            storage = from_address(chosen, clock=clock) if isinstance(chosen, str) else chosen
        except ConfigError as error:
            self._problems += error.problems
            return None
        if storage is None:
            return None
        if missing := missing_methods(storage):
            name = type(storage).__name__
            self._problems.append(
                f"storage: a {name} is neither an address nor a storage"
                if len(missing) == len(METHODS)
                else f"storage: {name} lacks {', '.join(missing)}; a storage has {', '.join(METHODS)}"
            )
            return None
        if isinstance(storage, HasProblems):
            self._problems += storage.problems()
        longest: timedelta | None = getattr(storage, "longest_url_ttl", None)
        if longest is not None and config.signed_url_ttl > longest:
            self._problems.append(
                f"signed_url_ttl: {type(storage).__name__} signs URLs for {longest.days} days at most"
            )
        return storage

    def models(self) -> Sequence[type[Model]]:
        """The tables of files, where there are any."""
        return (StoredFile, FileLink, ManiflexSecret) if self._enabled else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema_statements(PACKAGE, "files", dialect) if self._enabled else ()

    def problems(self) -> list[str]:
        """A storage that cannot be used."""
        return list(self._problems)

    # -- once it is

    def use(self, desk: FileDesk | None) -> None:
        """Work with the desk of the server that is attached next."""
        self._desk = desk
        self._enabled = self._desk is not None

    def attach(self, environment: Environment) -> None:
        """Bring the desk to its database, and let it hear of every record that names files."""
        super().attach(environment)
        if self._desk is None:
            self._cleaner = self._inventory = None
            return
        desk = self._desk
        desk.attach(FileStore(environment.stores[StoredFile]), environment.clock)
        stores = [store for store in environment.stores.values() if file_fields(store.meta)]
        links = FileLinks(desk, [store.meta for store in stores])
        for store in stores:
            if not any(isinstance(one, FileLinks) for one in store.seam.listeners):
                store.seam.listen(links)
        self._inventory = Inventory(desk, {store.meta.name: store for store in stores})
        self._cleaner = Cleaner(desk)
        desk.on_condemned = self._cleaner.wake
        environment.metrics.gauge("files_cleanup_failing", self._failing)

    async def prepare(self) -> None:
        """The tables are there: hand the storage the signer of its URLs."""
        if self._desk is not None:
            if self._desk.has_storage and isinstance(self._desk.storage, LocalStorage):
                self._desk.storage.prepare()
            self._desk.signer = await bind_signer(self._desk, self._desk.config)

    def services(self) -> Sequence[Service]:
        """The cleaner, where there is anything to clean."""
        return () if self._cleaner is None or not self.desk.has_storage else (self._cleaner,)

    async def _failing(self) -> Values:
        return [((), float(await self.desk.rows.failing()))]

    @property
    def desk(self) -> FileDesk:
        """The desk, which the routes of files work with."""
        self.require_sealed()
        assert self._desk is not None, "a server that uses files has one"
        return self._desk

    @property
    def has_storage(self) -> bool:
        """Whether the server can take files."""
        return self._desk is not None and self._desk.has_storage

    async def store(self, data: Data, *, filename: str = "", content_type: str | None = None) -> StoredFile:
        """Store bytes, a file of this machine, or what an async iterable gives; records may name its key."""
        desk = self.desk
        if isinstance(data, str | os.PathLike):
            filename = filename or Path(data).name
        chunks = _chunks(data)
        return await desk.store(
            chunks, filename=filename or "file", content_type=content_type, owner=await self._owner()
        )

    async def _owner(self) -> Owner:
        request = asking.get()
        if isinstance(request, Context):
            return await owner_of(request, self.desk.config.file_scope)
        return owner_in_code()

    async def find(self, key: str) -> StoredFile | None:
        """What the database knows of a file."""
        return await self.desk.find(key)

    async def open(self, key: str, *, start: int = 0, length: int | None = None) -> Reader:
        """The bytes of a file, or of a part of it."""
        return await self.desk.open(key, start, length)

    async def stat(self, key: str) -> FileMeta:
        """What the storage knows of a file."""
        return await self.desk.stat(key)

    async def url(
        self,
        key: str,
        *,
        ttl: timedelta | None = None,
        download: bool = False,
        filename: str | None = None,
    ) -> str:
        """A URL that opens the file to whoever has it, for `ttl` or as long as `signed_url_ttl` says.

        In a request, one that leads to this server begins where that request found it mounted.
        """
        desk, request = self.desk, asking.get()
        url = await desk.url(key, ttl=ttl or desk.config.signed_url_ttl, download=download, filename=filename)
        return below_root(request, url) if isinstance(request, Context) else url

    async def delete(self, key: str) -> None:
        """Give up a file that no record names: `FileInUse` while one does, `FileNotFound` without a file."""
        await self.desk.discard(key)

    async def sweep(self) -> CleanReport:
        """Remove now what was given up, and what nobody named in time."""
        self.require_sealed()
        assert self._cleaner is not None, "made along with the desk"
        return await self._cleaner.sweep()

    async def check(self, on_each: OnEach = lambda: None) -> FileCheck:
        """Compare tables, storage and records, and change nothing."""
        self.require_sealed()
        assert self._inventory is not None, "made along with the desk"
        return await self._inventory.check(on_each)

    async def adopt(self, prefix: str = "", on_each: OnEach = lambda: None) -> Adoption:
        """Take in objects that were stored before, and link the records that name them."""
        self.require_sealed()
        assert self._inventory is not None, "made along with the desk"
        return await self._inventory.adopt(prefix, on_each)


def _has_file_fields(cls: type[Model]) -> bool:
    infos = getattr(cls, "__pydantic_fields__", {}).values()
    rules = [rules_of(info) for info in infos]
    return any(one is not None and "file" in one.spec.options for one in rules)


async def _chunks(data: Data) -> AsyncIterator[bytes]:
    if isinstance(data, bytes | bytearray | memoryview):
        yield bytes(data)
    elif isinstance(data, str | os.PathLike):
        async for chunk in read_file(data):
            yield chunk
    else:
        async for chunk in data:
            yield chunk


# The bytes of a file of this machine, read beside the event loop.


AT_ONCE = 256 * 1024


async def read_file(path: str | os.PathLike[str]) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(open, path, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, AT_ONCE):
            yield chunk
    finally:
        file.close()


# URLs that lead to this server, where it is mounted below a path of another application.


def below_root(ctx: Context, url: str) -> str:
    """A URL as this caller reaches it: one that leads here begins where this server is mounted."""
    is_path = url.startswith("/") and not url.startswith("//")
    return f"{ctx.scope.get('root_path') or ''}{url}" if is_path else url
