"""Rows of a file → requests: what a row becomes, what came of it, and an import from first row to last.

The importer knows no database: it asks `RecordTarget`, which is the API as one person sees it, or the records
themselves. `import_rows` is the one driver, for all who keep an `ImportLedger`; `batches.py` says which rows
are stored together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from maniflex.errors import InvalidQuery, ManiflexError
from maniflex.model.meta import FieldMeta
from maniflex.model.texts import TEXT
from maniflex.query.values import convert_value
from maniflex.transfer.batches import RowOutcome, RowResult, store_batch, try_batch
from maniflex.transfer.cells import (
    CellProblem,
    ColumnMap,
    is_same,
    read_cell,
    read_native,
    value_in_record,
)
from maniflex.transfer.source import FileFormat, SourceRow

MOST_REMEMBERED = 500_000  # values of unique fields that a check compares within the file
_FAILED = 500
OUTAGES = (429, 503, 504)


class TryLater(ManiflexError):
    """The server could not answer for now; the same row may pass in a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to one request: a record, or the problems with their fields."""

    status: int
    record: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[tuple[str, str]] = ()


class RecordTarget(Protocol):
    """Where records are found and stored."""

    async def find(self, key: FieldMeta, values: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        """The records with one of these values of a unique field."""

    async def create(self, values: Mapping[str, Any]) -> Reply:
        """Store a new record."""

    async def update(self, record_id: str, values: Mapping[str, Any]) -> Reply:
        """Change a record."""


class Importer:
    """Makes records of rows."""

    target: RecordTarget  # attached by `import_rows`

    def __init__(
        self,
        columns: ColumnMap,
        kind: FileFormat,
        *,
        zone: ZoneInfo,
        is_check: bool = False,
    ) -> None:
        self._columns = columns
        self._is_native = kind is FileFormat.JSONL  # values come with their types
        self._is_csv = kind is FileFormat.CSV
        self._zone = zone
        self.is_check = is_check
        self._records: dict[Any, dict[str, Any]] = {}  # those of the batch, by the value of the key
        self._seen: dict[tuple[str, str], int] = {}  # of a check: unique values and their lines

    async def prepare(self, rows: Sequence[SourceRow]) -> None:
        """Look up the records that the rows of a batch would update."""
        self._records = {}
        key, column = self._columns.key, self._columns.key_column
        if key is None:
            return
        cells = (self._cell_of(key, row.values.get(column)) for row in rows)
        values = {value for cell in cells if (value := find_value(key, cell)) is not None}
        for record in await self.target.find(key, list(values)) if values else ():
            if key.api in record:
                self._records[find_value(key, record[key.api])] = dict(record)

    def _cell_of(self, key: FieldMeta, cell: Any) -> Any:
        try:
            return self._read(key, cell)
        except CellProblem:
            return None

    def _read(self, known_field: FieldMeta, cell: Any) -> Any:
        if self._is_native:
            return read_native(known_field, cell)
        return read_cell(known_field, cell, self._zone, is_csv=self._is_csv)

    async def act(self, row: SourceRow) -> RowOutcome:
        """Create or update the record of a row."""
        if row.problem:
            return _refusal(row, [("", row.problem)])
        values, problems = self.values_of(row)
        if problems:
            return _refusal(row, problems)
        key = self._columns.key
        if key is not None:
            key_value = values.get(key.api)
            if key_value in (None, ""):
                return _refusal(row, [(key.api, "is empty, so no record can be found by it")])
            record = self._records.get(find_value(key, key_value))
            if record is not None:
                return await self._update(row, record, values)
            if self.is_check and (key.api, str(key_value)) in self._seen:  # an earlier line creates it
                return RowOutcome(line=row.line, result=RowResult.UPDATED, is_asked=False)
            if key.name == "id":
                return _refusal(row, [("id", "there is no such record")])
        return await self._create(row, values)

    def values_of(self, row: SourceRow) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """The values of a row by API name; None for an empty cell."""
        values: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for column, known_field in self._columns.fields.items():
            if column not in row.values:
                continue
            cell = row.values[column]
            if cell is None or (cell == "" and not self._is_native):
                values[known_field.api] = None
                continue
            try:
                values[known_field.api] = self._read(known_field, cell)
            except CellProblem as problem:
                problems.append((known_field.api, str(problem)))
        return values, problems

    async def _create(self, row: SourceRow, values: Mapping[str, Any]) -> RowOutcome:
        # An empty cell gives nothing, so that defaults apply; a null of a jsonl file is one.
        body = {
            name: value
            for name, value in values.items()
            if name != "id" and (value is not None or self._is_native)
        }
        if self.is_check and (problem := self._twice(row, body)):
            return _refusal(row, [problem])
        reply = await self.target.create(body)
        if reply.status >= 400:
            return self._refuse(row, reply)
        self._remember(row, body)
        key = self._columns.key
        if key is not None and key.api in reply.record and not self.is_check:
            self._records[find_value(key, reply.record[key.api])] = dict(reply.record)
        record_id = str(reply.record.get("id", ""))
        return RowOutcome(line=row.line, result=RowResult.CREATED, record_id=record_id, fields=list(body))

    async def _update(self, row: SourceRow, record: dict[str, Any], values: Mapping[str, Any]) -> RowOutcome:
        """Send what differs; fields that answers do not show are written when a record is created."""
        changes = {}
        for known_field in self._columns.fields.values():
            name = known_field.api
            is_told, own_value = value_in_record(known_field, record)
            is_translation = TEXT in known_field.extra  # which not every answer shows
            if name not in values or name == "id" or not (is_told or is_translation):
                continue
            value = values[name]
            if not is_told and value is None:
                continue
            if value is None and not known_field.nullable and not self._is_native:
                continue  # an empty cell says nothing about a field that is never empty
            if not (is_told and is_same(known_field, own_value, value)):
                changes[name] = value
        record_id = str(record.get("id", ""))
        if not changes:
            return RowOutcome(line=row.line, result=RowResult.UNCHANGED, record_id=record_id, is_asked=False)
        reply = await self.target.update(record_id, changes)
        if reply.status >= 400:
            return self._refuse(row, reply)
        # A value that the server settles, such as the tenant, may be all that the line says differently.
        is_changed = any(record.get(name) != value for name, value in reply.record.items())
        record.update(reply.record)
        result = RowResult.UPDATED if is_changed else RowResult.UNCHANGED
        return RowOutcome(line=row.line, result=result, record_id=record_id, fields=list(changes))

    def _refuse(self, row: SourceRow, reply: Reply) -> RowOutcome:
        if reply.status in OUTAGES:
            raise TryLater(reply.problems[0][1] if reply.problems else "the server is busy")
        problems = list(reply.problems)
        if reply.status >= _FAILED:
            problems = [("", "the server failed at this line; its log says why")]
        return RowOutcome(line=row.line, result=RowResult.REFUSED, problems=problems)

    def _twice(self, row: SourceRow, body: Mapping[str, Any]) -> tuple[str, str] | None:
        """The unique value that an earlier line of the file has too."""
        for known_field in self._columns.fields.values():
            value = body.get(known_field.api)
            if known_field.unique and value is not None and not known_field.secret:
                line = self._seen.get((known_field.api, str(value)))
                if line is not None:
                    return known_field.api, f"line {line} has the same value"
        return None

    def _remember(self, row: SourceRow, body: Mapping[str, Any]) -> None:
        if not self.is_check:
            return
        for known_field in self._columns.fields.values():
            value = body.get(known_field.api)
            if known_field.unique and value is not None and len(self._seen) < MOST_REMEMBERED:
                self._seen[known_field.api, str(value)] = row.line


def find_value(key: FieldMeta, value: Any) -> Any:
    """What records are found by, however it is written; None for what no record can have."""
    try:
        return None if value in (None, "") else convert_value(value, key, key.api)
    except InvalidQuery:
        return None


def _refusal(row: SourceRow, problems: Sequence[tuple[str, str]]) -> RowOutcome:
    """A row that no request was made for."""
    return RowOutcome(line=row.line, result=RowResult.REFUSED, problems=problems, is_asked=False)


# One import from its first row to its last, whoever asks for it.


class ImportLedger(Protocol):
    """Where an import notes how far it is, and as whom it goes on."""

    async def target(self) -> RecordTarget:
        """Where the next batch is stored; refuses when that is not wanted or not allowed any more."""

    def block(self) -> AbstractAsyncContextManager[Any]:
        """A transaction on the records, and on the note how far they are."""

    async def settle(self, outcomes: Sequence[RowOutcome]) -> None:
        """Note what came of some rows: in the block that stored them, of a check behind it."""


async def import_rows(
    rows: AsyncIterator[list[SourceRow]],
    importer: Importer,
    ledger: ImportLedger,
    *,
    done: int = 0,
    is_rolled_back: bool = True,
) -> AsyncIterator[list[RowOutcome]]:
    """Import the rows behind the first `done`, each once; gives what came of them, batch by batch."""
    read_count = 0
    async for batch in rows:
        rows_left = batch[max(done - read_count, 0) :]
        read_count += len(batch)
        while rows_left:
            importer.target = await ledger.target()
            if importer.is_check:
                outcomes = await try_batch(
                    rows_left, block=ledger.block, prepare=importer.prepare, act=importer.act
                )
                await ledger.settle(outcomes)
            else:
                outcomes = await store_batch(
                    rows_left,
                    block=ledger.block,
                    prepare=importer.prepare,
                    act=importer.act,
                    settle=ledger.settle,
                    is_rolled_back=is_rolled_back,
                )
            yield outcomes
            rows_left = rows_left[len(outcomes) :]
