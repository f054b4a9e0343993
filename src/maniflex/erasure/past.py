"""The past of records, scrubbed: versions and records of audit trails that repeat a person's values.

A pass reads the past of some records from its beginning, a page at a time, and says of each row what it has
to become. What is done looks done (a version has its `erased_at`, JSON has nothing left): it counts once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from maniflex._clock import Clock
from maniflex.background.parameters import parameters_of
from maniflex.db.current import Primary
from maniflex.db.port import Executor, Tx
from maniflex.db.store import Store
from maniflex.erasure.ownership import Ownership, OwnerWalk
from maniflex.erasure.plan import SubjectModel, Treatment
from maniflex.erasure.statements import bind, filled_in
from maniflex.sql.bindings import BEFORE, THEN
from maniflex.sql.statement import by_dialect

PAGE = 500  # rows of the past at a time
AUDIT = "audit_log"
ColumnsOf = Callable[..., Mapping[str, str | None] | None]
_read_json = msgspec.json.Decoder().decode
_write_json = msgspec.json.Encoder().encode
_read_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = msgspec.Raw(b"null")
_VERSIONS = (
    "SELECT id, record_id, version, operation, diff, snapshot, binding,"
    " erased_at IS NOT NULL OR source = 'erasure' FROM {t}"
    " WHERE record_id AMONG(:ids)"
)
_RECORDS = (
    "SELECT id, resource_id, timestamp, operation, changes, result, NULL, source = 'erasure' FROM audit_log"
    " WHERE model = :model AND resource_id AMONG(:ids)"
)


@dataclass(frozen=True, slots=True)
class PastRow:
    """A version, or a record of an audit trail, and what it has to become."""

    table: str
    id: str
    columns: Mapping[str, str | None] | None  # None: it goes


class PastEraser:
    """Finds what the past of records says of one person, and takes it away."""

    def __init__(self, ownership: Ownership, clock: Clock) -> None:
        self._ownership = ownership
        self._clock = clock

    async def pages(
        self,
        one: SubjectModel,
        ids: Sequence[str],
        run: Executor | Primary,
        treatment: Treatment,
        *,
        is_hers: bool = True,
    ) -> AsyncIterator[list[PastRow]]:
        """What has to become of the past of these records; of former ones of hers it is not `is_hers`."""
        if not ids:
            return
        keys = await self._ownership.owner_keys(one)
        if one.history is not None:
            walk = OwnerWalk(one, keys, unless_told=is_hers)
            goes = treatment is Treatment.DELETE and is_hers
            columns_of = partial(_version, one, _bound_names(one, one.history))
            text = filled_in(_VERSIONS, run.dialect, {"t": one.history.meta.table})
            async for rows in read_pages(run, text, ("record_id", "version"), ids=list(ids)):
                yield _scrub_rows(one.history.meta.table, columns_of, walk, rows, goes=goes)
        if await self._ownership.keeps_audit(one.store.adapter):
            walk = OwnerWalk(one, keys, unless_told=is_hers, sides=("from", "to"))
            places, values = ("resource_id", "timestamp", "id"), {"ids": list(ids), "model": one.meta.name}
            columns_of = partial(_audit_record, one)
            async for rows in read_pages(run, _RECORDS, places, **values):
                yield _scrub_rows(AUDIT, columns_of, walk, rows)

    async def scrub(self, rows: Sequence[PastRow], tx: Tx) -> None:
        """Write what the rows have to become, or remove them."""
        dialect, json = tx.dialect, by_dialect(tx.dialect, sqlite="{}", postgres="CAST({} AS json)")
        moment = parameters_of(dialect).time(self._clock.now())
        statements = []
        for row in rows:
            table = filled_in("{t}", dialect, {"t": row.table})
            if row.columns is None:
                statements.append(bind(f"DELETE FROM {table} WHERE id = :id", dialect, id=row.id))
                continue
            assignments = [f"{name} = {json.format(f':{name}')}" for name in row.columns]
            values: dict[str, Any] = {**row.columns}
            if row.table != AUDIT:
                assignments.append("erased_at = :now")
                values["now"] = moment
            text = f"UPDATE {table} SET {', '.join(assignments)} WHERE id = :id"
            statements.append(bind(text, dialect, id=row.id, **values))
        if statements:
            await tx.batch(statements)

    async def forget_deletes(self, one: SubjectModel, ids: Sequence[str], tx: Tx) -> None:
        """Remove the versions that tell of the deletes by this erasure itself."""
        if one.history is not None:
            text = "DELETE FROM {t} WHERE source = 'erasure' AND record_id AMONG(:ids)"
            text = filled_in(text, tx.dialect, {"t": one.history.meta.table})
            await tx.execute(bind(text, tx.dialect, ids=list(ids)))


async def read_pages(
    run: Executor | Primary, text: str, places: tuple[str, ...], **values: Any
) -> AsyncIterator[list[tuple[Any, ...]]]:
    """The rows in the order of these columns, a page at a time; the columns stand behind the id."""
    order, after = ", ".join(places), ", ".join(f":p{i}" for i in range(len(places)))
    first = f"{text} ORDER BY {order} LIMIT {PAGE}"
    later = f"{text} AND ({order}) > ({after}) ORDER BY {order} LIMIT {PAGE}"
    rows = [tuple(row) for row in await run.fetch(bind(first, run.dialect, **values))]
    while rows:
        yield rows
        if len(rows) < PAGE:
            return
        last = (*rows[-1][1:3], rows[-1][0])
        place = {f"p{i}": last[i] for i in range(len(places))}
        rows = [tuple(row) for row in await run.fetch(bind(later, run.dialect, **values, **place))]


def _scrub_rows(
    table: str, columns_of: ColumnsOf, walk: OwnerWalk, rows: Sequence[Any], *, goes: bool = False
) -> list[PastRow]:
    """What the rows of a page have to become; with `goes`, whole versions of hers are removed."""
    scrubbed_rows = []
    for row_id, record_id, _, operation, stored_changes, stored_state, binding, is_done in rows:
        changes, state = json_values(stored_changes) or {}, json_values(stored_state)
        before, after = walk.step(record_id, operation, changes, state)
        if is_done or not (before or after):
            continue
        if goes and after and (before or operation == "create"):
            scrubbed_rows.append(PastRow(table, row_id, None))
            continue
        columns = columns_of(record_id, stored_changes, stored_state, binding, (before, after))
        if columns is not None:
            scrubbed_rows.append(PastRow(table, row_id, columns))
    return scrubbed_rows


def _bound_names(one: SubjectModel, history: Store) -> frozenset[str]:
    """The names under which versions keep personal values that scopes compare."""
    return one.names | {place.name for place in history.sql.binding_places if place.field.personal}


def _version(
    one: SubjectModel,
    bound_names: Collection[str],
    record_id: str,
    diff: Any,
    snapshot: Any,
    binding: Any,
    hers: tuple[bool, bool],
) -> dict[str, str | None] | None:
    before, after = hers
    erased = one.erased_json(record_id)
    sides = [side for side, is_hers in (("old", before), ("new", after)) if is_hers]
    bound_sides = [side for side, is_hers in ((BEFORE, before), (THEN, after)) if is_hers]
    columns = {
        "diff": without_sides(diff, one.names, sides, erased),
        "snapshot": without(snapshot, one.names, erased) if after else _text(snapshot),
        "binding": without_sides(binding, bound_names, bound_sides, erased),
    }
    stored_columns = {"diff": _text(diff), "snapshot": _text(snapshot), "binding": _text(binding)}
    return None if columns == stored_columns else columns


def _audit_record(
    one: SubjectModel, record_id: str, changes: Any, result: Any, _: Any, hers: tuple[bool, bool]
) -> dict[str, str | None] | None:
    before, after = hers
    erased = one.erased_json(record_id)
    sides = [side for side, is_hers in (("from", before), ("to", after)) if is_hers]
    columns = {
        "changes": without_sides(changes, one.names, sides, erased),
        "result": without(result, one.names, erased) if after else _text(result),
    }
    return None if columns == {"changes": _text(changes), "result": _text(result)} else columns


def without(stored: Any, names: Collection[str], erased: Mapping[str, bytes]) -> str | None:
    """The JSON object with null under these names; values that are `erased` already stay."""
    text = _text(stored)
    if text is None:
        return None
    values = _read_raw(text)
    names_told = [n for n in names if n in values and bytes(values[n]) not in (b"null", erased.get(n))]
    if not names_told:
        return text
    return _write_json(
        {name: _NULL if name in names_told else value for name, value in values.items()}
    ).decode()


def without_sides(
    stored: Any, names: Collection[str], sides: Collection[str], erased: Mapping[str, bytes]
) -> str | None:
    """The JSON object of changes with null on these sides of the changes under these names."""
    text = _text(stored)
    if text is None:
        return None
    values, is_changed = _read_raw(text), False
    for name in names:
        change = _read_json(values[name]) if name in values else None
        changed_change = (
            _without_sides(change, sides, erased.get(name)) if isinstance(change, Mapping) else None
        )
        if changed_change != change:
            is_changed = True
            values[name] = msgspec.Raw(_write_json(changed_change))
    return _write_json(values).decode() if is_changed else text


def _without_sides(change: Mapping[str, Any], sides: Collection[str], erased: bytes | None) -> dict[str, Any]:
    return {
        side: None if side in sides and _write_json(value) != erased else value
        for side, value in change.items()
    }


def json_values(stored: Any) -> dict[str, Any] | None:
    """The stored JSON object as a dict."""
    text = _text(stored)
    values = None if text is None else _read_json(text)
    return values if isinstance(values, dict) else None


def _text(stored: Any) -> str | None:
    return stored.decode() if isinstance(stored, bytes) else stored
