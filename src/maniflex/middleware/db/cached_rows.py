"""What the database step found, as bytes and back: rows, totals and related rows, without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from maniflex.db.includes import IncludedRow, Related
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.model.annotations import TYPES
from maniflex.model.meta import FieldMeta, Kind
from maniflex.pipeline.context import Context
from maniflex.pipeline.steps.db import listing_of
from maniflex.query.query import Include

_TYPES: dict[Kind, Any] = {**TYPES, Kind.JSON: str}


class _Included(msgspec.Struct, array_like=True):
    """The rows of one relation, each once, and which of them belong to which row of the owner."""

    places: list[list[int] | int | None]
    rows: msgspec.Raw
    weights: list[int]
    nested: list[_Included]


class _Outcome(msgspec.Struct, array_like=True):
    rows: msgspec.Raw
    total: int
    more: bool
    included: list[_Included]


def pack(ctx: Context, store: Store, includes: Sequence[Include], *, one: bool) -> bytes | None:
    """The outcome of the database step; None when it cannot be told exactly."""
    fields = store.meta.fields if one else listing_of(ctx, store).fields
    rows: Sequence[Any] = [ctx.row] if one else ctx.rows or ()
    try:
        outcome = _Outcome(
            msgspec.Raw(_pack_rows(fields, rows)), ctx.total, ctx.more, _pack_related(includes, ctx.related)
        )
        return msgspec.msgpack.encode(outcome)
    except (ValueError, TypeError, msgspec.MsgspecError):  # a value of SQLite that no type describes
        return None


def unpack(ctx: Context, store: Store, includes: Sequence[Include], content: bytes, *, one: bool) -> None:
    """Leave the outcome on the context, as the database step would; `MsgspecError` for anything else."""
    outcome = msgspec.msgpack.decode(content, type=_Outcome)
    listing = None if one else listing_of(ctx, store)
    fields = store.meta.fields if listing is None else listing.fields
    rows = _unpack_rows(fields, outcome.rows)
    related_rows = _unpack_related(store, includes, outcome.included, len(rows))
    if one:
        [ctx.row] = rows
        if not ctx.resource_id:  # of a singleton, which the database step would have looked up
            ctx.resource_id = str(ctx.row[store.sql.names.index("id")])
    else:
        ctx.rows, ctx.listing = rows, listing
    ctx.total, ctx.more, ctx.related = outcome.total, outcome.more, related_rows


def _pack_rows(fields: Sequence[FieldMeta], rows: Sequence[Any]) -> bytes:
    secret = [field.secret for field in fields]
    visible_rows = [tuple(None if hide else row[i] for i, hide in enumerate(secret)) for row in rows]
    content = msgspec.msgpack.encode(visible_rows)
    if _decoder(tuple(field.kind for field in fields)).decode(content) != visible_rows:
        raise ValueError("the rows are not what they would be read as")
    return content


def _unpack_rows(fields: Sequence[FieldMeta], content: msgspec.Raw) -> list[Row]:
    rows: list[Row] = _decoder(tuple(field.kind for field in fields)).decode(content)
    return rows


@lru_cache(maxsize=1024)
def _decoder(kinds: tuple[Kind, ...]) -> msgspec.msgpack.Decoder[Any]:
    row: Any = tuple[tuple(_TYPES[kind] | None for kind in kinds)]  # type: ignore[misc]  # known at run time
    return msgspec.msgpack.Decoder(list[row])


def _pack_related(includes: Sequence[Include], related: Sequence[Related]) -> list[_Included]:
    relations = []
    for include in includes:
        entries: dict[int, IncludedRow] = {}
        places: list[list[int] | int | None] = []
        numbers: dict[int, int] = {}
        for by_relation in related:
            entry = by_relation.get(include.relation.name)
            several = entry if isinstance(entry, list) else [] if entry is None else [entry]
            for one in several:
                entries.setdefault(id(one), one)
                numbers.setdefault(id(one), len(numbers))
            ids = [numbers[id(one)] for one in several]
            places.append(ids if isinstance(entry, list) else ids[0] if ids else None)
        unique = list(entries.values())
        fields = unique[0].store.meta.fields if unique else ()
        rows = msgspec.Raw(_pack_rows(fields, [one.row for one in unique]))
        below = _pack_related(include.nested, [one.related for one in unique])
        relations.append(_Included(places, rows, [one.weight for one in unique], below))
    return relations


def _unpack_related(
    store: Store, includes: Sequence[Include], packed: Sequence[_Included], count: int
) -> list[Related]:
    if not includes:
        return []
    relations_of_rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for include, one in zip(includes, packed, strict=True):
        target = store.stores_by_model[include.relation.target]
        rows = _unpack_rows(target.meta.fields, one.rows) if one.weights else []
        below: Sequence[Related] = _unpack_related(target, include.nested, one.nested, len(rows))
        entries = [
            IncludedRow(target, row, below[i] if below else {}, weight)
            for i, (row, weight) in enumerate(zip(rows, one.weights, strict=True))
        ]
        for by_relation, place in zip(relations_of_rows, one.places, strict=True):
            if isinstance(place, list):
                by_relation[include.relation.name] = [entries[i] for i in place]
            elif place is not None:
                by_relation[include.relation.name] = entries[place]
    return relations_of_rows  # type: ignore[return-value]  # a dict is such a mapping
