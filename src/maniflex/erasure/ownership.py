"""Whose a record is, and whose it was: by its row, and by what its versions and audit trails say.

A record that is there is its present owner's, whoever had it before. One that is gone, or that names nobody
any more, is hers whom its past names. `OwnerWalk` goes through the past of a record and says of each step
whose the values before and after it are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.db.current import Primary
from maniflex.db.port import Adapter
from maniflex.erasure.plan import SubjectModel
from maniflex.erasure.statements import bind, filled_in, json_text
from maniflex.sql.tables import find_table

STRETCH = 20_000  # rows of the past that one statement looks at


@dataclass(frozen=True, slots=True)
class PastRecords:
    """Records that were the person's by their past, and are not hers by their row."""

    gone: tuple[str, ...] = ()  # without a row
    former: tuple[str, ...] = ()  # another's now
    orphaned: tuple[str, ...] = ()  # they name nobody any more


class Ownership:
    """Finds the records of one person. What it has read of the past it keeps until `forget`."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._past: dict[SubjectModel, PastRecords] = {}
        self._has_audit: dict[int, bool] = {}  # by database

    def forget(self) -> None:
        """Read the past anew: others may have written."""
        self._past.clear()

    async def owner_keys(self, one: SubjectModel) -> frozenset[str] | None:
        """The keys by which the past of records is hers; None where all of it is."""
        return None if one.is_person else frozenset(await self.keys_of(one))

    async def keys_of(self, one: SubjectModel) -> list[str]:
        """The values of the key of a record that lead to the person."""
        if one.parent is None:
            return [self._subject]
        return sorted({*await self.ids_of(one.parent), *(await self.past_of(one.parent)).gone})

    async def ids_of(self, one: SubjectModel) -> list[str]:
        """The ids of the records of a model that are the person's, deleted ones too."""
        names = {**_names(one), "key": one.key.column}
        text = filled_in("SELECT {id} FROM {table} WHERE {key} AMONG(:keys)", one.store.sql.dialect, names)
        keys = await self.keys_of(one)
        rows = await Primary(one.store.adapter).fetch(bind(text, one.store.sql.dialect, keys=keys))
        return sorted({*(row[0] for row in rows), *(await self.past_of(one)).orphaned})

    async def past_of(self, one: SubjectModel) -> PastRecords:
        """The records that are hers by their past alone."""
        if one not in self._past:
            self._past[one] = await self._read_past(one)
        return self._past[one]

    async def keeps_audit(self, adapter: Adapter) -> bool:
        """Whether the database of a model has the table of an audit trail."""
        if id(adapter) not in self._has_audit:
            row = await Primary(adapter).fetch_one(find_table("audit_log", adapter.dialect))
            self._has_audit[id(adapter)] = row is not None
        return self._has_audit[id(adapter)]

    async def _read_past(self, one: SubjectModel) -> PastRecords:
        keys = await self.keys_of(one)
        ids = {self._subject} if one.is_person else await self._named_by_past(one, keys)
        if not ids:
            return PastRecords()
        names = {**_names(one), "key": one.key.column}
        text = filled_in(
            "SELECT {id}, {key} FROM {table} WHERE {id} AMONG(:ids)", one.store.sql.dialect, names
        )
        rows = await Primary(one.store.adapter).fetch(bind(text, one.store.sql.dialect, ids=sorted(ids)))
        present_keys = set(keys)
        return PastRecords(
            tuple(sorted(ids - {row[0] for row in rows})),
            tuple(sorted(row[0] for row in rows if row[1] is not None and row[1] not in present_keys)),
            tuple(sorted(row[0] for row in rows if row[1] is None)),
        )

    async def _named_by_past(self, one: SubjectModel, keys: Sequence[str]) -> set[str]:
        """The ids of records that a version or a record of an audit trail says were hers."""
        ids: set[str] = set()
        if one.key.secret:
            return ids
        if one.history is not None:
            run, condition = Primary(one.history.adapter), _naming(one, "snapshot", "diff", ("old", "new"))
            table = filled_in("{t}", run.dialect, {"t": one.history.meta.table})
            ids |= await _scan(run, table, "record_id", condition, keys=[*keys])
        if await self.keeps_audit(one.store.adapter):
            run, condition = Primary(one.store.adapter), _naming(one, "result", "changes", ("from", "to"))
            condition = f"model = :model AND ({condition})"
            ids |= await _scan(run, "audit_log", "resource_id", condition, model=one.meta.name, keys=[*keys])
        return ids


async def _scan(run: Primary, table: str, column: str, condition: str, **values: Any) -> set[str]:
    """The values of a column in rows of this condition: no index leads to them, so all rows are looked at.

    A statement looks at a stretch of ids, so none takes long however old a history is. Rows that others add
    meanwhile are seen by the next pass of an erasure, which ends with one that finds nothing.
    """
    edge = (
        f"SELECT max(id) FROM (SELECT id FROM {table} WHERE id > :after ORDER BY id LIMIT {STRETCH}) AS part"
    )
    query = f"SELECT DISTINCT {column} FROM {table} WHERE id > :after AND id <= :last AND ({condition})"
    ids, after = set[str](), ""
    while (row := await run.fetch_one(bind(edge, run.dialect, after=after))) is not None and row[0]:
        rows = await run.fetch(bind(query, run.dialect, after=after, last=row[0], **values))
        ids.update(row[0] for row in rows)
        after = row[0]
    return ids


def _names(one: SubjectModel) -> dict[str, str]:
    return {"table": one.meta.table, "id": one.meta.by_name["id"].column}


def _naming(one: SubjectModel, state: str, changes: str, sides: tuple[str, str]) -> str:
    """SQL: the stored JSON of a state or of its changes names the person."""
    dialect = one.store.sql.dialect
    texts = [
        text
        for name in one.key_names
        for text in (
            json_text(dialect, state, name),
            *(json_text(dialect, changes, name, side) for side in sides),
        )
    ]
    return " OR ".join(f"{text} AMONG(:keys)" for text in texts)


class WholePast(Ownership):
    """Takes all of the past of a record, whose ever it was: the record itself is over."""

    def __init__(self) -> None:
        super().__init__("")

    async def owner_keys(self, one: SubjectModel) -> frozenset[str] | None:
        return None


class OwnerWalk:
    """Whose the values of records are, step by step of their past.

    Give it the steps of one record after the other, each record from its beginning. Where the past does not
    say whose a record was, it is the person's with `unless_told`; without keys it always is.
    """

    def __init__(
        self,
        one: SubjectModel,
        keys: frozenset[str] | None,
        *,
        unless_told: bool,
        sides: tuple[str, str] = ("old", "new"),
    ) -> None:
        self._names = one.key_names
        self._keys = keys
        self._unless_told = unless_told
        self._sides = sides
        self._record_id: str | None = None
        self._owner: str | None = None

    def step(
        self, record_id: str, operation: str, changes: Mapping[str, Any], state: Mapping[str, Any] | None
    ) -> tuple[bool, bool]:
        """Whether the values before and those after this step are the person's."""
        if record_id != self._record_id:
            self._record_id, self._owner = record_id, None
        before, after = self._owners(operation, changes, state or {})
        self._owner = after or before or self._owner
        return self._is_hers(before), self._is_hers(after or before)

    def _owners(
        self, operation: str, changes: Mapping[str, Any], state: Mapping[str, Any]
    ) -> tuple[str | None, str | None]:
        for name in self._names:
            change = changes.get(name)
            if isinstance(change, Mapping):
                old, new = (_text(change.get(side)) for side in self._sides)
                return (old or self._owner, new) if operation == "update" else (old or new, old or new)
        for name in self._names:
            if name in state:
                owner = _text(state[name]) or self._owner
                # Trails without changes tell of a new owner by the state alone.
                return (self._owner or owner if operation == "update" else owner), owner
        return self._owner, self._owner

    def _is_hers(self, owner: str | None) -> bool:
        if self._keys is None:
            return True
        return self._unless_told if owner is None else owner in self._keys


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
