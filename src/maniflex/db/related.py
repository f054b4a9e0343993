"""Related records, loaded along: one statement for each relation, however many rows there are.

What is loaded is alive and inside the scope; a reference that leads nowhere and one that leads
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
from maniflex.query.tree import Include
from maniflex.sql.where import Scope


class Entry:
    """A related row and what was loaded along with it."""

    __slots__ = ("related", "row", "store", "weight")

    def __init__(self, store: Store, row: Row, related: Related, weight: int) -> None:
        self.store = store
        self.row = row
        self.related = related
        self.weight = weight  # records it stands for in an answer: itself and all that come with it


Related = Mapping[str, "Entry | list[Entry]"]
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
    loaded = await _load(store, rows, fields, includes, scope, most, budget, tx)
    if budget is not None and any(include.nested for include in includes):
        _check_size(loaded, budget)
    return [related for related, _ in loaded]


def _check_size(loaded: Sequence[tuple[Related, int]], budget: Budget) -> None:
    """Refuse rows that are few and an answer that is large, because records stand in it many times."""
    sizes: dict[int, int] = {}

    def size(related: Related) -> int:
        found = 0
        for entry in related.values():
            for one in entry if isinstance(entry, list) else (entry,):
                if id(one) not in sizes:
                    sizes[id(one)] = rows_size((one.row,)) + size(one.related)
                found += sizes[id(one)]
        return found

    budget.check(sum(size(related) for related, _ in loaded))


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
    found: list[dict[str, Entry | list[Entry]]] = [{} for _ in rows]
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
                found[i][relation.name] = entries
            elif entries:
                found[i][relation.name] = entries[0]
            weights[i] += sum([entry.weight for entry in entries]) if include.nested else len(entries)
    # The same record may stand in an answer many times, so what counts is what would be sent.
    if most is not None and sum(weights) > most:
        raise InvalidQuery(f"include: more than {most} related records; ask for fewer")
    return list(zip(found, weights, strict=True))


async def _entries(
    owner: Store,
    include: Include,
    keys: Sequence[str],
    scope: Scope,
    most: int | None,
    budget: Budget | None,
    tx: Tx | None,
) -> Mapping[str, list[Entry]]:
    target = owner.family[include.relation.target]
    inside = tx if target.adapter is owner.adapter else None
    capped = None if most is None else most + 1
    rows = await target.related(owner, include.relation, keys, scope, most=capped, budget=budget, tx=inside)
    if include.nested:
        nested = await _load(target, rows, target.meta.fields, include.nested, scope, most, budget, inside)
        entries = [Entry(target, row, *more) for row, more in zip(rows, nested, strict=True)]
        for entry in entries:
            entry.weight += 1
    else:
        entries = [Entry(target, row, _NOTHING, 1) for row in rows]
    by_key: dict[str, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(entry.row[-1], []).append(entry)
    return by_key


def attach(record: Model, related: Related) -> Model:
    """Put related records on a record, where its relation attributes find them."""
    for name, entry in related.items():
        values = [_record(e) for e in entry] if isinstance(entry, list) else _record(entry)
        record.__dict__[name] = values
    return record


def _record(entry: Entry) -> Model:
    return attach(entry.store.record(entry.row), entry.related)
