"""Records to and from files, and from one database to another, for the command line.

Files are read and written as one identity through the pipeline, or unscoped.

The engine is `maniflex.transfer`, as in the panel; here are the places it stores into.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec

from maniflex._names import did_you_mean
from maniflex.app.assembly import Assembly
from maniflex.app.server import Server
from maniflex.background.processes.store import ProcessState, WorkProcess
from maniflex.db.current import reading, transaction
from maniflex.db.records import Records
from maniflex.db.transfer.copier import Copier
from maniflex.errors import ConfigError, DeclarationError, RequestError
from maniflex.features.export import Format, stored_fields, write_rows
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.model.texts import locale_rules, localized_fields
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.languages import BodyTexts
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.runtime import Runtime
from maniflex.query.parse import OwnParameters, parse
from maniflex.schema.history import copy_entries
from maniflex.schema.read import (
    make_version_tables,
    read_columns,
    read_heads,
    read_log,
    write_entry,
    write_head,
)
from maniflex.transfer.batches import BATCH, RowOutcome
from maniflex.transfer.cells import importable_fields, key_fields, make_map, suggest_fields
from maniflex.transfer.importer import Importer, RecordTarget, Reply, import_rows
from maniflex.transfer.source import (
    FileFormat,
    RowReader,
    TextForm,
    detect_form,
    first_rows,
    make_reader,
    read_rows,
)

_PIECE = 256 * 1024


def model_of(server: Server, name: str) -> ModelMeta:
    """The model of this name; `DeclarationError` naming a similar one."""
    stores = server._seal().runtime.stores
    metas = {store.meta.name: store.meta for store in stores.values() if not store.meta.is_internal}
    meta = metas.get(name) or next((meta for meta in metas.values() if meta.table == name), None)
    if meta is None:
        raise DeclarationError(f"there is no model {name!r}{did_you_mean(name, metas)}")
    return meta


# -- places to store records in


class PipelineTarget:
    """Stores records by requests of one identity."""

    def __init__(self, server: Server, meta: ModelMeta, auth: AuthInfo) -> None:
        self._server = server
        self._auth = auth
        self._path = f"{server.config.path_prefix}/{meta.table}"
        rules = [rules for field, rules in localized_fields(meta) if not field.secret]
        # Of texts whose answers show one translation alone, unless all of them are selected.
        self._companions = [one.companion for one in rules if one.mode != "split"]

    async def find(self, key: FieldMeta, values: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        """The records with one of these values that the identity may see."""
        records: list[Mapping[str, Any]] = []
        for value in values:
            if key.name == "id":
                response = await self._server.call("GET", f"{self._path}/{value}", auth=self._auth)
                shown_records = [self._data(response)] if response.status < 400 else []
                records += [await self._with_translations(record) for record in shown_records]
                continue
            query = [("filter", f"{key.api}:eq:{value}"), ("limit", "1")]
            response = await self._server.call("GET", self._path, query=query, auth=self._auth)
            if response.status >= 400:
                message = (response.error or {}).get("message", "refused")
                raise DeclarationError(f"records cannot be found by {key.api!r}: {message}")
            records += [await self._with_translations(record) for record in self._data(response)]
        return records

    async def _with_translations(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record with all translations that the identity may see, so that a line can be compared."""
        for name in self._companions if "id" in record else ():
            path, query = f"{self._path}/{record['id']}", [("select", f"id,{name}")]
            response = await self._server.call("GET", path, query=query, auth=self._auth)
            if response.status < 400:  # otherwise the text is hidden from this identity
                record = {**record, **self._data(response)}
        return record

    async def create(self, values: Mapping[str, Any]) -> Reply:
        """Store a new record."""
        return self._reply(await self._server.call("POST", self._path, json=dict(values), auth=self._auth))

    async def update(self, record_id: str, values: Mapping[str, Any]) -> Reply:
        """Change a record."""
        path = f"{self._path}/{record_id}"
        return self._reply(await self._server.call("PATCH", path, json=dict(values), auth=self._auth))

    def _data(self, response: Response) -> Any:
        body = (
            response.body
            if response.body is not None
            else response.encode(self._server._seal().runtime.encode)
        )
        return msgspec.json.decode(body)["data"] if body else {}

    def _reply(self, response: Response) -> Reply:
        error = response.error
        if error is None:
            return Reply(status=response.status, record=self._data(response))
        return Reply(status=response.status, problems=_problems(error.get("details"), str(error["message"])))


class UnscopedTarget:
    """Stores records as code of the application does: validated, bound by no identity."""

    def __init__(self, server: Server, meta: ModelMeta) -> None:
        self._records: Records[Any] = server.db(meta.cls)
        self._meta = meta
        self._texts = BodyTexts(meta)
        self._runtime = server._seal().runtime

    async def find(self, key: FieldMeta, values: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        """The records with one of these values."""
        records = await self._records.list([(key.name, "in", list(values))])
        return [self._plain(record) for record in records]

    async def create(self, values: Mapping[str, Any]) -> Reply:
        """Store a new record."""
        try:
            body = self._body(values, Operation.CREATE)
            record = await self._records.create(self._meta.validator.create(body))
        except RequestError as error:
            return _refusal(error)
        return Reply(status=201, record=self._plain(record))

    async def update(self, record_id: str, values: Mapping[str, Any]) -> Reply:
        """Change a record."""
        try:
            body = self._body(values, Operation.UPDATE)
            record = await self._records.update(record_id, self._meta.validator.patch(body))
        except RequestError as error:
            return _refusal(error)
        return Reply(status=200, record=self._plain(record))

    def _body(self, values: Mapping[str, Any], operation: Operation) -> Mapping[str, Any]:
        """The values by the names of their fields, translations among them."""
        if not self._texts:
            return values
        body = dict(values)
        self._texts.fold(body, operation, "")
        return body

    def _plain(self, record: Model) -> Mapping[str, Any]:
        """A record as the API would show it, with all its translations."""
        serializer = self._runtime.serializers[self._meta.cls]
        encode = self._runtime.encode
        values: dict[str, Any] = msgspec.json.decode(encode(serializer.struct_of(serializer.row(record))))
        for field in self._meta.fields:
            rules = locale_rules(field)
            if rules is not None and not field.secret:
                texts = getattr(record, field.name)
                values[rules.companion] = None if texts is None else dict(texts)
        return values


def _refusal(error: RequestError) -> Reply:
    return Reply(status=error.status, problems=_problems(error.details, str(error)))


def _problems(details: Any, message: str) -> list[tuple[str, str]]:
    problems = [
        (str(detail.get("field") or ""), str(detail.get("message") or message))
        for detail in (details if isinstance(details, list) else ())
        if isinstance(detail, Mapping)
    ]
    return problems or [("", message)]


# -- import


class FileImport:
    """The import of one file."""

    def __init__(
        self, server: Server, meta: ModelMeta, target: RecordTarget, file: Path, kind: FileFormat
    ) -> None:
        self._meta = meta
        self._target = target
        self._file = file
        self._kind = kind
        self._adapter = server._seal().runtime.stores[meta.cls].adapter
        self.form = TextForm()
        self.columns: Sequence[str] = ()

    async def look(self, encoding: str | None, separator: str | None) -> None:
        """Find out how the file is written, and which columns it has."""
        with self._file.open("rb") as file:
            start = file.read(_PIECE)
        form = detect_form(start) if self._kind is not FileFormat.XLSX else TextForm()
        self.form = TextForm(encoding=encoding or form.encoding, separator=separator or form.separator)
        self.columns, _ = await first_rows(self._pieces(), self._kind, self.form)

    def run(
        self, names: Mapping[str, str], upsert: str, *, is_check: bool
    ) -> AsyncIterator[list[RowOutcome]]:
        """Import the file, or find out what would come of that, batch by batch."""
        fields, keys = importable_fields(self._meta), key_fields(self._meta)
        by_column = {**suggest_fields(self.columns, [*fields, *keys]), **names}
        importer = Importer(
            make_map(by_column, fields, keys, upsert), self._kind, zone=ZoneInfo("UTC"), is_check=is_check
        )
        rows = read_rows(self._pieces(), self._reader(), BATCH)
        return import_rows(rows, importer, self, is_rolled_back=self._meta.options.backend is None)

    # -- its ledger

    async def target(self) -> RecordTarget:
        """Where records are stored."""
        return self._target

    def block(self) -> AbstractAsyncContextManager[Any]:
        """A transaction on the records."""
        return transaction(self._adapter)

    async def settle(self, outcomes: Sequence[RowOutcome]) -> None:
        """A command keeps no note of how far it is."""

    def _reader(self) -> RowReader:
        return make_reader(self._kind, self.form, self.columns if self._kind is FileFormat.JSONL else ())

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        with self._file.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece


# -- export


async def export_as(
    server: Server, meta: ModelMeta, auth: AuthInfo, query: Sequence[tuple[str, str]]
) -> AsyncGenerator[bytes, None]:
    """The file that the API would give this identity."""
    path = f"{server.config.path_prefix}/{meta.table}/export"
    response = await server.call("GET", path, query=list(query), auth=auth)
    if response.status >= 300 or response.stream is None:
        message = (response.error or {}).get("message", "the export was refused")
        hint = f"; {meta.name} needs export=True" if response.status == 404 else ""
        raise DeclarationError(f"{message}{hint}")
    return response.stream


def export_unscoped(
    runtime: Runtime, meta: ModelMeta, query: Sequence[tuple[str, str]], kind: Format
) -> AsyncGenerator[bytes, None]:
    """All records that match, without their secrets; no limit and no rule binds it."""
    store = runtime.stores[meta.cls]
    pairs = [pair for pair in query if pair[0] != "format"]
    own = OwnParameters(locales=store.listings.own.locales)
    listing = parse(urlencode(pairs).encode(), meta, store.models, own=own)
    columns = tuple(f for f in (listing.select or meta.fields) if f.exported)
    rows = store.stream(listing, stored_fields(columns), 2**31 - 2)
    return write_rows(runtime, meta, runtime.view_of(None, None), columns, rows, kind)


# The copy of an application's data to another database: which tables there are, on both sides.


class DataCopy:
    """The data of one application in two databases."""

    def __init__(self, server: Server, source: str, target: str) -> None:
        """Addresses of the databases to copy from and to."""
        self._server = server
        self._source, self._target = server.assembled_on(source), server.assembled_on(target)
        own = {store.meta.cls for store in self._source.stores_of(self._source.runtime.adapter)}
        self.left_out = sorted(
            store.meta.name for cls, store in self._source.runtime.stores.items() if cls not in own
        )
        self.copier = Copier(
            self._source.runtime.adapter,
            self._target.runtime.adapter,
            [
                (store.sql, self._target.runtime.stores[store.meta.cls].sql)
                for store in self._source.stores_of(self._source.runtime.adapter)
                if not store.sql.readonly
            ],
            label=source.rpartition("@")[2].partition("?")[0],  # a query may hold a password
        )

    @asynccontextmanager
    async def open(self, *, makes_tables: bool) -> AsyncIterator[Copier]:
        """Both databases open, the source with all tables; the target too, where they are made."""
        async with AsyncExitStack() as stack:
            for assembly in (self._source, self._target):
                adapter = assembly.runtime.adapter
                await adapter.open()
                stack.push_async_callback(adapter.close)
            await _require_tables(self._source)
            if makes_tables:
                await self._server.make_tables(self._target)
            await _require_tables(self._target)
            yield self.copier

    async def living(self) -> list[WorkProcess]:
        """The processes of the application that may write into the source."""
        source = self.copier.source
        store = self._source.runtime.stores.get(WorkProcess)
        if store is None or store.adapter is not source:
            return []
        processes = await Records[WorkProcess](store, reading(source)).list(sorts="seen_at:desc", limit=100)
        now = self._source.runtime.clock.now()
        return [process for process in processes if process.state(now) is ProcessState.ALIVE]

    async def finish(self) -> None:
        """End the copy; a database that migrations keep is at the same revision in the copy.

        What remembers how far the copy is goes last, so that one that is killed here goes on here.
        """
        source, target = self.copier.source, self.copier.target
        heads = await read_heads(reading(source))
        log = await read_log(reading(source))
        async with target.transaction() as tx:
            await copy_entries(reading(source), tx)
            if heads is not None and await read_heads(tx) is None:
                await make_version_tables(tx)
                for head in heads:
                    await write_head(tx, head)
                for entry in log.values():
                    await write_entry(tx, entry)
        await self.copier.finish()


async def _require_tables(assembly: Assembly) -> None:
    """Refuse a database that is not as the application has it: what it lacks cannot be copied."""
    adapter = assembly.runtime.adapter
    problems = []
    for store in assembly.stores_of(adapter):
        if store.sql.readonly:
            continue
        columns = await read_columns(adapter, store.sql)
        missing = [field.column for field in store.meta.fields if field.column not in columns]
        if not columns:
            problems.append(f"{adapter.label} has no table {store.sql.table.name}")
        elif missing:
            problems.append(f"{adapter.label}: {store.sql.table.name} has no column {', '.join(missing)}")
    if problems:
        raise ConfigError(*problems, "start the application on it once, so that its tables are up to date")
