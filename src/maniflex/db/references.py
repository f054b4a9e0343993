"""What the keys of one model must refer to: rows that are there, alive and inside the scope.

The check itself is part of the statement that writes (`sql.reference`). This is where keys meet
stores, and where a refused write learns which of its keys led nowhere. A row outside the scope
answers as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from maniflex.db.port import Tx
from maniflex.errors import ForeignKeyViolation, NotFound
from maniflex.model.meta import OnDelete, RelationKind
from maniflex.query.query import through
from maniflex.sql.where import Scope
from maniflex.sql.write import Reference, named_ids

if TYPE_CHECKING:
    from maniflex.db.store import Store

StoresByModel = Mapping[str, "Store"]
CheckedReferences = tuple[Reference, ...]


class References:
    """The keys of one model and the stores of the models they refer to."""

    def __init__(self, store: Store, stores_by_model: StoresByModel) -> None:
        self._meta = store.meta
        self._targets: dict[str, Store] = {}
        self._here: dict[str, Reference] = {}
        self._kept: set[str] = set()  # those no live row may dangle by
        for relation in store.meta.relations.values():
            target = stores_by_model.get(relation.target)
            if relation.kind is not RelationKind.BELONGS_TO or relation.key is None or target is None:
                continue
            if target.meta.options.query is not None:  # what a SELECT gives has no rows to hold on to
                continue
            self._targets[relation.key] = target
            if target.adapter is store.adapter:
                self._here[relation.key] = Reference(relation.key, target.sql)
                if relation.on_delete is not OnDelete.NO_ACTION:
                    self._kept.add(relation.key)

    def __bool__(self) -> bool:
        return bool(self._targets)

    @property
    def kept_keys(self) -> tuple[str, ...]:
        """The keys that must lead somewhere as long as their row is alive."""
        return tuple(key for key in self._here if key in self._kept)

    def records_named(self, values: Mapping[str, Any]) -> Iterator[tuple[Store, str]]:
        """The records these keys of a row name, each with its store."""
        for key in self.kept_keys:
            if values[key] is not None:
                yield self._targets[key], values[key]

    async def to_check(self, values: Mapping[str, Any], scope: Scope) -> CheckedReferences:
        """The references a write must check; those to another database are looked up right away."""
        references = []
        for key, target in self._targets.items():
            value = values.get(key)
            if value is None or (target.meta is self._meta and value == values.get("id")):
                continue
            if key in self._here:
                references.append(self._here[key])
            elif await target.find(value, scope=scope) is None:
                raise self._refusal([key])
        return tuple(references)

    def to_keep(self, values: Mapping[str, Any]) -> CheckedReferences:
        """The references a row that comes back must still have; one to itself comes back with it."""
        keys = [key for key in self.kept_keys if values[key] not in (None, values["id"])]
        return tuple(self._here[key] for key in keys)

    async def dangling(
        self,
        references: CheckedReferences,
        values: Mapping[str, Any],
        scope: Scope,
        tx: Tx | None,
        scope_keys: Iterable[str] = (),
    ) -> ForeignKeyViolation | NotFound:
        """The refusal of a write whose references were not all there.

        `scope_keys` are keys through whose records the scope binds the row itself. Behind a scope rule
        the row could be nowhere but with such a record, so there is no place to write it to.
        """
        keys = list(dict.fromkeys([*(r.key for r in references), *scope_keys]))
        missing = []
        for key in keys:
            target = self._targets.get(key)
            inside = (*scope, *through(self._meta, key, scope))
            if target is None or await target.find(values[key], scope=inside, tx=tx) is None:
                missing.append(key)
        if any(condition.by_rule for key in missing for condition in through(self._meta, key, scope)):
            return NotFound()
        return self._refusal(missing or keys)

    async def hold(
        self, rows: Sequence[Mapping[str, Any]], scope: Scope, tx: Tx
    ) -> tuple[int, ForeignKeyViolation] | None:
        """Hold all that these new rows name, by one statement for each key; the first row that is refused."""
        missing: dict[int, list[str]] = {}
        for key, target in self._targets.items():
            own = target.meta is self._meta
            new_ids = {row["id"] for row in rows} if own else set()
            names = {value for row in rows if (value := row.get(key)) is not None and value not in new_ids}
            if not names:
                continue
            run = tx if key in self._here else target.adapter
            found_ids = {row[0] for row in await run.fetch(named_ids(target.sql, sorted(names), scope))}
            for place, row in enumerate(rows):
                if row.get(key) in names - found_ids:
                    missing.setdefault(place, []).append(key)
        if missing:
            place = min(missing)
            return place, self._refusal(missing[place])
        return None

    def _refusal(self, keys: list[str]) -> ForeignKeyViolation:
        fields = [self._meta.by_name[key] for key in keys]
        error = ForeignKeyViolation(
            self._meta.table, [f.column for f in fields], "a record this one refers to does not exist"
        )
        message = "the record it refers to does not exist"
        error.details = [{"field": f.api, "message": message} for f in fields if not f.hidden] or None
        return error
