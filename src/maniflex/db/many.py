"""Many new records of one model at once: one statement for 500 of them, and all are stored or none.

Listeners are told of them in batches. A refusal says which record of the call it is about, by its place in
front of the field: `[3].email`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from maniflex._caller import caller
from maniflex.db.port import Row, Tx
from maniflex.db.write_seam import BATCH, Change, ChangeKind
from maniflex.errors import DeclarationError, Detail, RequestError
from maniflex.model.base import Model
from maniflex.sql import write
from maniflex.sql.where import Scope, parent_keys

if TYPE_CHECKING:
    from maniflex.db.store import Store

_MOST_PARAMETERS = 32_000  # of one statement; both databases take a few more


def details_of(error: RequestError, place: str) -> list[Detail]:
    """What an error says of its fields, with the place of the record in front of each."""
    details = [error.details] if isinstance(error.details, Mapping) else [*(error.details or ())]
    if not details:
        return [{"field": place, "message": error.message}]
    return [_put_place(detail, place) for detail in details]


def _put_place(detail: Detail, place: str) -> Detail:
    name = detail.get("field")
    if not name:
        return {**detail, "field": place}
    path, message = f"{place}.{name}", str(detail.get("message", ""))
    return {**detail, "field": path, "message": message.replace(f'field "{name}"', f'field "{path}"', 1)}


def secrets_of(error: RequestError, place: str) -> Iterator[str]:
    """The place, if the error is about a secret field: nothing but names may then be told of the record."""
    if error.secrets:
        yield place


async def create_rows(
    store: Store, records: Sequence[Model], scope: Scope = (), tx: Tx | None = None
) -> list[Row]:
    """Store validated records as new rows, and give the rows back in the same order."""
    if not store.has_transactions:
        raise DeclarationError(
            f"{store.meta.name}: its backend takes no record back, so many are not stored at once; use create"
        )
    async with store.seam.transaction(tx) as own_tx:
        if scope and parent_keys(store.meta, scope):  # each statement looks at the record that it belongs to
            return [await _create_one(store, one, place, scope, own_tx) for place, one in enumerate(records)]
        at_once = max(min(BATCH, _MOST_PARAMETERS // max(len(store.meta.stored), 1)), 1)
        rows: list[Row] = []
        for first in range(0, len(records), at_once):
            rows += await _create_some(store, records[first : first + at_once], first, scope, own_tx)
        return rows


async def _create_one(store: Store, record: Model, place: int, scope: Scope, tx: Tx) -> Row:
    try:
        return await store.create(record, scope=scope, tx=tx)
    except RequestError as error:
        if error.status < 500:
            error.details = details_of(error, f"[{place}]")
        raise


async def _create_some(
    store: Store, records: Sequence[Model], first: int, scope: Scope, tx: Tx
) -> Sequence[Row]:
    """The rows of a statement's worth of records, of which `first` is the place of the first in the call."""
    now = store.clock.now()
    values = [{**record.__dict__, "created_at": now, "updated_at": now} for record in records]
    for place, one in enumerate(values):
        try:
            store.check_lengths(one)
        except RequestError as error:
            error.details = details_of(error, f"[{first + place}]")
            raise
    if store.references is not None:
        dangling_row = await store.references.hold(values, scope, tx)
        if dangling_row is not None:
            place, refusal = dangling_row
            refusal.details = details_of(refusal, f"[{first + place}]")
            raise refusal
    stored_rows = await store.execute_write(write.insert_rows(store.sql, values), tx)
    decode = store.decode
    by_id = {row[store.id_place]: row if decode is None else decode(row) for row in stored_rows}
    for place, one in enumerate(values):
        if one["id"] not in by_id:  # another record has one of its values, and by itself it says which
            by_id[one["id"]] = await _insert_again(store, one, first + place, tx)
    rows = [by_id[one["id"]] for one in values]
    await _tell(store, rows, tx)
    return rows


async def _insert_again(store: Store, values: Mapping[str, Any], place: int, tx: Tx) -> Row:
    try:
        [row] = await store.execute_write(write.insert(store.sql, values), tx)
    except RequestError as error:
        if error.status < 500:
            error.details = details_of(error, f"[{place}]")
        raise
    return row if store.decode is None else store.decode(row)


async def _tell(store: Store, rows: Sequence[Row], tx: Tx) -> None:
    """Tell the listeners of the new rows, all at once."""
    if not store.seam.listeners:
        return
    source = caller().source
    changes = [Change(store.meta, ChangeKind.CREATE, row[store.id_place], None, row, source) for row in rows]
    for listener in store.seam.listeners:
        await listener.note_changes(changes, tx)
