"""What deletes of records would be refused for and take along, seen without deleting anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from maniflex.db.cascade import ReferringKey
from maniflex.db.current import Primary
from maniflex.db.store import Store
from maniflex.erasure.plan import SubjectModel, Treatment
from maniflex.erasure.statements import bind, filled_in
from maniflex.model.meta import OnDelete

Roots = Mapping[str, set[str]]  # a record that goes along → the records it goes along with
_CHILDREN = "SELECT {id}, {key}{more} FROM {table} WHERE {key} AMONG(:keys)"


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the delete of some records comes to."""

    restricted: Collection[str] = ()  # records that are anonymised instead, because others need them
    along: Mapping[Store, Collection[str]] = field(
        default_factory=dict
    )  # the records that go with the others


class Foresight:
    """Follows what deletes would take along; `going` are the records that are gone by then."""

    def __init__(self) -> None:
        self.going: dict[Store, set[str]] = defaultdict(set)

    async def foresee(self, one: SubjectModel, ids: Sequence[str]) -> Foreseen:
        """What erasing these records comes to."""
        if one.treatment is not Treatment.DELETE:
            return Foreseen()
        along: dict[Store, dict[str, set[str]]] = {one.store: {record_id: {record_id} for record_id in ids}}
        open_places: list[tuple[Store, dict[str, set[str]]]] = [(one.store, along[one.store])]
        restricting: list[tuple[Store, Roots]] = []
        restricted_rows: set[str] = set()
        while open_places:
            store, parents = open_places.pop()
            for link in store.links:
                if link.implicit and store is not one.store and store.meta.soft_delete:
                    continue  # a record that is only marked keeps the rows that join it with others
                children, fixed_ids = await self._children(link, parents)
                for record_id in fixed_ids:
                    restricted_rows |= children[record_id]
                if link.action is OnDelete.RESTRICT:
                    restricting.append((link.store, children))
                elif link.action is OnDelete.CASCADE:
                    rows_along = along.setdefault(link.store, {})
                    new = {
                        record_id: roots_before | roots
                        for record_id, roots in children.items()
                        if not roots <= (roots_before := rows_along.get(record_id, set()))
                    }
                    rows_along.update(new)
                    if new:
                        open_places.append((link.store, new))
        for store, others in restricting:
            going_along = along.get(store, {})
            for record_id, roots in others.items():
                restricted_rows |= roots - going_along.get(record_id, set())
        rows_gone = {
            store: {record_id for record_id, roots in rows.items() if roots - restricted_rows}
            for store, rows in along.items()
        }
        for store, rows in rows_gone.items():
            self.going[store] |= rows
        rows_gone[one.store] -= set(ids)
        return Foreseen(restricted_rows, rows_gone)

    async def _children(
        self, link: ReferringKey, parents: Mapping[str, Collection[str]]
    ) -> tuple[dict[str, set[str]], list[str]]:
        """The live rows that refer to these, and which of them no delete of a rule may touch."""
        meta, dialect = link.store.meta, link.store.sql.dialect
        marker, hold = meta.soft_delete, meta.hold
        deciding_fields = [marker.field] if marker else []
        deciding_fields += [hold] if hold else []
        deciding_fields += [lock.field for lock in meta.locks]
        names = {
            "id": meta.by_name["id"].column,
            "key": meta.by_name[link.key].column,
            "table": meta.table,
            **{f"w{i}": meta.by_name[name].column for i, name in enumerate(deciding_fields)},
        }
        text = _CHILDREN.replace("{more}", "".join(f", {{w{i}}}" for i in range(len(deciding_fields))))
        rows = await Primary(link.store.adapter).fetch(
            bind(filled_in(text, dialect, names), dialect, keys=sorted(parents))
        )
        going_ids = self.going[link.store]
        children: dict[str, set[str]] = {}
        fixed_ids = []
        for record_id, key, *values in rows:
            states = dict(zip(deciding_fields, values, strict=True))
            if record_id in going_ids or (marker is not None and states[marker.field]):
                continue
            children[record_id] = set(parents[key])
            is_kept = meta.options.on_erase == "keep" or (hold is not None and states[hold])
            is_locked = any(states[lock.field] == lock.value for lock in meta.locks)
            if link.action is not OnDelete.RESTRICT and (is_kept or is_locked):
                fixed_ids.append(record_id)
        return children, fixed_ids
