"""Related records, loaded along: one statement for each relation, however many rows there are.

Loaded records are alive and inside the scope; a reference that leads nowhere and one that leads
outside the scope look the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maniflex.db.budget import Budget, rows_size
from maniflex.db.port import Row, Tx
from maniflex.db.store import Store
from maniflex.errors import InvalidQuery
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, RelationKind
from maniflex.query.query import Include
from maniflex.sql.where import Scope


class IncludedRow:
    """A related row and what was loaded along with it."""

    __slots__ = ("related", "row", "store", "weight")

    def __init__(self, store: Store, row: Row, related: Related, weight: int) -> None:
        self.store = store
        self.row = row
        self.related = related
        self.weight = weight  # records it stands for in an answer: itself and all that come with it


Related = Mapping[str, "IncludedRow | list[IncludedRow]"]
_NOTHING: Related = {}


async def load(
    store: Store,
    rows: Sequence[Row],
    fields: Sequence[FieldMeta],
    includes: Sequence[Include],
    scope: Scope = (),
    *,
    most: int | None = None,
    budget: Budget | None = None,
    tx: Tx | None = None,
) -> list[Related]:
    """For each row, its related records by relation name; `InvalidQuery` where there are more than `most`."""
    weighted_rows = await _load(store, rows, fields, includes, scope, most, budget, tx)
    if budget is not None and any(include.nested for include in includes):
        _check_size(weighted_rows, budget)
    return [by_relation for by_relation, _ in weighted_rows]


def _check_size(weighted_rows: Sequence[tuple[Related, int]], budget: Budget) -> None:
    """Refuse rows that are few and an answer that is large, because records stand in it many times."""
    sizes: dict[int, int] = {}

    def size(by_relation: Related) -> int:
        total = 0
        for entry in by_relation.values():
            for one in entry if isinstance(entry, list) else (entry,):
                if id(one) not in sizes:
                    sizes[id(one)] = rows_size((one.row,)) + size(one.related)
                total += sizes[id(one)]
        return total

    budget.check(sum(size(by_relation) for by_relation, _ in weighted_rows))


async def _load(
    store: Store,
    rows: Sequence[Row],
    fields: Sequence[FieldMeta],
    includes: Sequence[Include],
    scope: Scope,
    most: int | None,
    budget: Budget | None,
    tx: Tx | None,
) -> list[tuple[Related, int]]:
    """Related records and their weight, for each row."""
    by_relation: list[dict[str, IncludedRow | list[IncludedRow]]] = [{} for _ in rows]
    weights = [0] * len(rows)
    places = {f.name: i for i, f in enumerate(fields)}
    for include in includes:
        relation = include.relation
        to_one = relation.kind is RelationKind.BELONGS_TO
        place = places[relation.key or ""] if to_one else places["id"]
        keys = list(dict.fromkeys(row[place] for row in rows if row[place] is not None))
        by_key = await _entries(store, include, keys, scope, most, budget, tx) if keys else {}
        for i, row in enumerate(rows):
            entries = by_key.get(row[place], [])
            if not to_one:
                by_relation[i][relation.name] = entries
            elif entries:
                by_relation[i][relation.name] = entries[0]
            weights[i] += sum([entry.weight for entry in entries]) if include.nested else len(entries)
    # The same record may stand in an answer many times, so what counts is what would be sent.
    if most is not None and sum(weights) > most:
        raise InvalidQuery(f"include: more than {most} related records; ask for fewer")
    return list(zip(by_relation, weights, strict=True))


async def _entries(
    owner: Store,
    include: Include,
    keys: Sequence[str],
    scope: Scope,
    most: int | None,
    budget: Budget | None,
    tx: Tx | None,
) -> Mapping[str, list[IncludedRow]]:
    target = owner.stores_by_model[include.relation.target]
    inside = tx if target.adapter is owner.adapter else None
    row_limit = None if most is None else most + 1
    rows = await target.find_related(
        owner, include.relation, keys, scope, most=row_limit, budget=budget, tx=inside
    )
    if include.nested:
        below = await _load(target, rows, target.meta.fields, include.nested, scope, most, budget, inside)
        entries = [IncludedRow(target, row, *more) for row, more in zip(rows, below, strict=True)]
        for entry in entries:
            entry.weight += 1
    else:
        entries = [IncludedRow(target, row, _NOTHING, 1) for row in rows]
    by_key: dict[str, list[IncludedRow]] = {}
    for entry in entries:
        by_key.setdefault(entry.row[-1], []).append(entry)
    return by_key


def attach(record: Model, related: Related) -> Model:
    """Put related records on a record, where its relation attributes find them."""
    for name, entry in related.items():
        values = [_record(e) for e in entry] if isinstance(entry, list) else _record(entry)
        record.__dict__[name] = values
    return record


def _record(entry: IncludedRow) -> Model:
    return attach(entry.store.record(entry.row), entry.related)
