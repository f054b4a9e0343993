"""Compares the tables of files with the storage and the records, and takes in files from before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from maniflex.db.current import Primary
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import FileNotFound, StorageError
from maniflex.files.desk import FileDesk
from maniflex.files.intake import clean_content_type
from maniflex.files.links import keys_in
from maniflex.files.store import FileState, Link, LinkRow, StoredFile
from maniflex.model.field import file_fields
from maniflex.sql.select import rows_among, rows_behind
from maniflex.storage.port import OCTET_STREAM, ListsKeys, Storage, stat_file

PAGE = 500
WHOLE = (FileState.STORED, FileState.LINKED)
OnEach = Callable[[], object]


@dataclass(slots=True)
class FileCheck:
    """What does not fit together; nothing is changed by looking."""

    orphans: list[str] = field(default_factory=list)  # objects without a row
    missing: list[str] = field(default_factory=list)  # rows without an object
    dangling: list[str] = field(
        default_factory=list
    )  # links without a file, or without a record that names it
    unlinked: list[str] = field(default_factory=list)  # keys in records, without a link
    lists_objects: bool = True  # False: the storage cannot tell which objects it has

    @property
    def is_clean(self) -> bool:
        return not (self.orphans or self.missing or self.dangling or self.unlinked)


@dataclass(slots=True)
class Adoption:
    """What was taken in."""

    files: int = 0
    links: int = 0


class Inventory:
    """All files of one server, seen from the storage, the tables and the records."""

    def __init__(self, desk: FileDesk, stores: Mapping[str, Store]) -> None:
        self._desk = desk
        self._stores = stores  # of models with file fields, by their names

    async def check(self, on_each: OnEach = lambda: None) -> FileCheck:
        """Compare both ways; what comes or goes meanwhile is looked at again before it is reported."""
        report = FileCheck()
        await self._check_objects(report, on_each)
        await self._check_rows(report, on_each)
        await self._check_links(report, on_each)
        await self._check_records(report, on_each)
        return report

    async def _check_objects(self, report: FileCheck, on_each: OnEach) -> None:
        storage = self._desk.storage
        if not isinstance(storage, ListsKeys):
            report.lists_objects = False
            return
        async for keys in _pages(storage.list_keys(), on_each):
            known_keys = await self._desk.rows.find_all(keys)
            for key in keys:
                if key not in known_keys and await storage.exists(key) and await self._desk.find(key) is None:
                    report.orphans.append(key)

    async def _check_rows(self, report: FileCheck, on_each: OnEach) -> None:
        async for file in self._files():
            on_each()
            if file.state in WHOLE and not await self._desk.storage.exists(file.key):
                again = await self._desk.find(file.key)
                if again is not None and again.state in WHOLE:
                    report.missing.append(file.key)
        for key in await self._desk.rows.linked_alone():
            report.dangling.append(f"{key}: linked, but no record names it")

    async def _check_links(self, report: FileCheck, on_each: OnEach) -> None:
        after = ""
        while page := await self._desk.rows.link_page(after, PAGE):
            after = page[-1].id
            suspects = await self._suspects(page)
            still_there = await self._desk.rows.existing_links({row.link.key for row in suspects})
            for row in suspects:
                if row.link in still_there:
                    report.dangling.append(_dangling_text(row))
            for _ in page:
                on_each()

    async def _suspects(self, page: Sequence[LinkRow]) -> list[LinkRow]:
        """Links whose file is not linked, or whose record does not name it."""
        ids_by_model: dict[str, list[str]] = {}
        for row in page:
            ids_by_model.setdefault(row.link.model, []).append(row.link.record_id)
        links: set[Link] = set()
        for model, ids in ids_by_model.items():
            store = self._stores.get(model)
            if store is not None:
                rows = await Primary(store.adapter).fetch(rows_among(store.sql, ids))
                links |= {link for row in rows for link in _links(store, _decode(store, row))}
        return [row for row in page if row.state is not FileState.LINKED or row.link not in links]

    async def _check_records(self, report: FileCheck, on_each: OnEach) -> None:
        async for store, links in self._named_links(on_each):
            for link in await self._without_link(links):
                rows = await Primary(store.adapter).fetch(rows_among(store.sql, [link.record_id]))
                if any(link in _links(store, _decode(store, row)) for row in rows):
                    report.unlinked.append(f"{link.key}: {_place(link)} names it without a link")

    async def _without_link(self, links: Sequence[Link]) -> list[Link]:
        existing = await self._desk.rows.existing_links({link.key for link in links})
        return [link for link in links if link not in existing]

    async def adopt(self, prefix: str = "", on_each: OnEach = lambda: None) -> Adoption:
        """Make rows for objects that have none, and links for records that name them."""
        storage, adoption = self._desk.storage, Adoption()
        if not isinstance(storage, ListsKeys):
            raise StorageError(f"{type(storage).__name__} cannot tell which files it has")
        async for keys in _pages(storage.list_keys(prefix), on_each):
            known_keys = await self._desk.rows.find_all(keys)
            for key in keys:
                if key not in known_keys and await self._adopt_object(storage, key):
                    adoption.files += 1
        async for store, links in self._named_links(on_each):
            lacking = [link for link in links if link.key.startswith(prefix)]
            for record_id in dict.fromkeys(link.record_id for link in await self._without_link(lacking)):
                adoption.links += await self._link_record(store, record_id)
        return adoption

    async def _adopt_object(self, storage: Storage, key: str) -> bool:
        try:
            meta = await stat_file(storage, key)
        except FileNotFound:
            return False
        return await self._desk.rows.adopt(
            key,
            filename=meta.filename or key.rpartition("/")[2],
            content_type=clean_content_type(meta.content_type) or OCTET_STREAM,
            size=meta.size,
            etag=meta.etag,
            now=self._desk.clock.now(),
        )

    async def _link_record(self, store: Store, record_id: str) -> int:
        """Link the files that a record names under its lock; keys without a file are left to `check`."""
        rows = self._desk.rows
        async with store.adapter.transaction() as tx:
            links = [link for row in await store.seam.images(tx, [record_id]) for link in _links(store, row)]
            locked_rows = await rows.lock(tx, {link.key for link in links}) if links else {}
            fitting = [
                link for link in links if link.key in locked_rows and locked_rows[link.key].state in WHOLE
            ]
            if fitting:
                await rows.link(tx, fitting, self._desk.clock.now())
            return len(fitting)

    async def _files(self) -> AsyncIterator[StoredFile]:
        after = ""
        while page := await self._desk.rows.page(after, PAGE):
            after = page[-1].id
            for file in page:
                yield file

    async def _named_links(self, on_each: OnEach) -> AsyncIterator[tuple[Store, list[Link]]]:
        """What the records name, page by page."""
        for store in self._stores.values():
            id_place, after = store.sql.names.index("id"), ""
            while rows := await Primary(store.adapter).fetch(rows_behind(store.sql, after, PAGE)):
                after = rows[-1][id_place]
                links = [link for row in rows for link in _links(store, _decode(store, row))]
                for _ in rows:
                    on_each()
                if links:
                    yield store, links


async def _pages(keys: AsyncIterator[str], on_each: OnEach) -> AsyncIterator[list[str]]:
    page: list[str] = []
    async for key in keys:
        on_each()
        page.append(key)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _decode(store: Store, row: Row) -> Row:
    return row if store.decode is None else store.decode(row)


def _links(store: Store, row: Row) -> Iterator[Link]:
    names = store.sql.names
    for f, _ in file_fields(store.meta):
        for key in keys_in(row[names.index(f.name)], f):
            yield Link(key, store.meta.name, str(row[names.index("id")]), f.name)


def _dangling_text(row: LinkRow) -> str:
    state = "not there" if row.state is None else str(row.state)
    if row.state is not FileState.LINKED:
        return f"{row.link.key}: {_place(row.link)} is linked to it, and the file is {state}"
    return f"{row.link.key}: {_place(row.link)} is linked to it, and does not name it"


def _place(link: Link) -> str:
    return f"{link.model} {link.record_id} ({link.field})"
