"""What bound a record when one of its versions was written: a stamp in each row of its history.

A snapshot says to which record a record belonged, not whose that one was, and it does not have hidden fields.
A scope asks for both, so what scopes compare there is written with the version, in its transaction, and is
never looked up later: owners change, and parents are deleted. `binding` of a row is an object of the places,
`{"invoice.tenant_id": {"then": "a", "before": "a"}}`; `before` is of the state that an update found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.model.history_row import RECORD, HistoryOperation
from maniflex.model.meta import FieldMeta, Kind, RelationKind, RelationMeta
from maniflex.query.query import Compare
from maniflex.sql.decimal_order import has_order_key
from maniflex.sql.history_layouts import has_member_then, has_name, is_unknown, value_at, value_then
from maniflex.sql.operators import Condition, test
from maniflex.sql.statement import Dialect, by_dialect
from maniflex.sql.tables import quote

if TYPE_CHECKING:
    from maniflex.sql.model import ModelSql


THEN, BEFORE = "then", "before"
# Kinds that the database writes to JSON as they are compared afterwards.
_KINDS = frozenset({Kind.TEXT, Kind.INT, Kind.BOOL, Kind.UUID})


class BindingPlace(NamedTuple):
    """A field that scopes compare and snapshots do not tell, and the relations that lead to it."""

    path: tuple[RelationMeta, ...]
    field: FieldMeta

    @property
    def name(self) -> str:
        return ".".join([*(relation.name for relation in self.path), self.field.name])

    @property
    def own_name(self) -> str:
        """The field of the record itself that it begins with."""
        return self.path[0].key or "" if self.path else self.field.name

    @property
    def is_written(self) -> bool:
        """Whether rows of a history have it: not what their snapshots tell, nor what JSON cannot hold."""
        return self.field.kind in _KINDS and (bool(self.path) or self.field.secret)


def binding_from_values(history: Any, values: str) -> str:
    """The object as SQL, out of `values`: the record's own fields as JSON, `{"invoice_id": {"then": …}}`."""
    as_text = by_dialect(history.dialect, sqlite=_sqlite_member, postgres=_postgres_member)

    def own_value(place: BindingPlace, side: str) -> str:
        return as_text(values, place.own_name, side, is_key=bool(place.path))

    nothing = by_dialect(history.dialect, sqlite=values, postgres=f"{values}::json")
    return _object(history, own_value) or nothing


def binding_from_columns(history: Any, model: Any, source: str) -> str:
    """The object as SQL, out of a row of the model in `source`, which is as it was before too."""

    def own_value(place: BindingPlace, side: str) -> str:
        column = model.meta.by_name[place.own_name].column
        return f"{quote(source, model.dialect)}.{quote(column, model.dialect)}"

    return _object(history, own_value) or by_dialect(history.dialect, sqlite="NULL", postgres="NULL::json")


def _object(history: Any, own_value: Callable[[BindingPlace, str], str]) -> str:
    function = by_dialect(history.dialect, sqlite="json_object", postgres="json_build_object")
    members = []
    for place in history.binding_places:
        sides = [f"'{side}', {_value(history, place, own_value(place, side))}" for side in (THEN, BEFORE)]
        members.append(f"'{place.name}', {function}({', '.join(sides)})")
    return f"{function}({', '.join(members)})" if members else ""


def _value(history: Any, place: BindingPlace, own: str) -> str:
    """The value at the end of the path that begins with the key `own`."""
    if not place.path:
        return own

    def name(text: str) -> str:
        return quote(text, history.dialect)

    parents = [history.peer(relation.target) for relation in place.path]
    tables = f"{name(parents[0].table.name)} AS b0"
    for i, (relation, parent) in enumerate(zip(place.path[1:], parents[1:], strict=True), 1):
        key = parents[i - 1].meta.by_name[relation.key or ""].column
        tables += (
            f" JOIN {name(parent.table.name)} AS b{i} ON b{i}.{name(parent.id.name)} = b{i - 1}.{name(key)}"
        )
    last = f"b{len(parents) - 1}.{name(place.field.digest_column)}"
    return f"(SELECT {last} FROM {tables} WHERE b0.{name(parents[0].id.name)} = {own})"


def _sqlite_member(values: str, name: str, side: str, *, is_key: bool) -> str:
    return f"json_extract({values}, '$.\"{name}\".{side}')"


def _postgres_member(values: str, name: str, side: str, *, is_key: bool) -> str:
    """A key as text, any other value as JSON."""
    return f"({values}::json -> '{name}' {'->>' if is_key else '->'} '{side}')"


def bound_then(
    binding: Any, dialect: Dialect, path: Sequence[RelationMeta], item: Compare, name: str, side: str = THEN
) -> Condition:
    """That the record was bound as the comparison asks; not so where its history does not say by what."""
    place = BindingPlace(tuple(path), item.field)
    value = value_at(item.field, binding, dialect, place.name, side)
    return sa.and_(has_name(place.name, binding, dialect), test(dialect, value, item, name))


# A scope on the versions of a record: they must tell of a time when the record lay inside it.
#
# Whose a record is may change, and then its history up to that change is not for its new owner. The
# snapshot of a version says how the record was; without snapshots, the next version that changes the
# field does. Where a record is bound through another one, or by a hidden field, the version's stamp says
# it (`bindings.py`); a version without that stamp is not shown. The version that changed an owner shows
# the values from before, so it is left out too.


_ONE: Any = sa.literal_column("1")
_NONE: Any = sa.literal_column("0")
_UPDATE: Any = sa.literal_column(f"'{HistoryOperation.UPDATE.value}'")
_RESTORE: Any = sa.literal_column(f"'{HistoryOperation.RESTORE.value}'")


def conditions_then(
    history: ModelSql, table: FromClause, named_leaves: Sequence[tuple[str, Compare]]
) -> Iterator[Condition]:
    """What has to hold of a version, besides what holds of its record; one of the leaves suffices."""
    then: list[Condition] = []
    before: list[Condition] = []
    for name, item in named_leaves:
        leaf = _leaf(history, name, item)
        if leaf is None:
            return
        then.append(leaf.holds_then(table))
        # What the version did not change was before as it was then; one that stands alone was asked that.
        otherwise = then[-1] if len(named_leaves) > 1 else sa.true()
        before.append(leaf.held_before(table, otherwise))
    yield sa.or_(*then)
    yield sa.or_(*before)


def is_told(item: Compare, path: Sequence[RelationMeta]) -> bool:
    """Whether the past can be asked a comparison at the end of a path: of one record, with one value."""
    leads_to_one = all(relation.kind is RelationKind.BELONGS_TO for relation in path)
    return leads_to_one and not isinstance(item.value, FieldMeta)


def has_stamp(item: Compare, path: Sequence[RelationMeta]) -> bool:
    """Whether versions tell it by their stamps; the others by their values."""
    return bool(path) or item.field.secret


def _leaf(history: ModelSql, name: str, item: Compare) -> _Leaf | _StampedLeaf | None:
    """The comparison, if versions can be asked it."""
    if not item.path or item.path[0].name != RECORD or not is_told(item, item.path[1:]):
        return None
    return (_StampedLeaf if has_stamp(item, item.path[1:]) else _Leaf)(history, name, item)


class _StampedLeaf:
    """One comparison with a value that is not the record's own, or that is hidden."""

    def __init__(self, history: ModelSql, name: str, item: Compare) -> None:
        self._history = history
        self._name = name
        self._item = item

    def holds_then(self, table: FromClause) -> Condition:
        path, dialect = self._item.path[1:], self._history.dialect
        return bound_then(table.c.binding, dialect, path, self._item, self._name)

    def held_before(self, table: FromClause, otherwise: Condition) -> Condition:
        path, dialect = self._item.path[1:], self._history.dialect
        state = bound_then(table.c.binding, dialect, path, self._item, self._name, BEFORE)
        return sa.or_(table.c.operation != _UPDATE, state)


class _Leaf:
    """One comparison with a value that versions tell."""

    def __init__(self, history: ModelSql, name: str, item: Compare) -> None:
        self._history = history
        self._record = history.peer(item.path[0].target)
        self._layouts = history.layouts_of(self._record)
        self._told = item.field
        self._name = name
        self._item = item

    def holds_then(self, table: FromClause) -> Condition:
        """Of the record as it was; before it was deleted, for its deletion."""
        later = self._history.table.alias("later")
        changes = [
            later.c.record_id == table.c.record_id,
            later.c.version > table.c.version,
            later.c.operation != _RESTORE,  # what was null meanwhile is not
            self._has_member(later),
        ]
        holds: Any = sa.case((self._test(later, later.c.diff, "old"), _ONE), else_=_NONE)
        first: Any = sa.select(holds).where(*changes).order_by(later.c.version)
        first = first.limit(_ONE).offset(_NONE).scalar_subquery()
        from_diffs = sa.func.coalesce(first, _ONE) == _ONE
        of_snapshot = self._test(table, table.c.snapshot)
        return sa.case((table.c.snapshot.is_not(None), of_snapshot), else_=from_diffs)

    def held_before(self, table: FromClause, otherwise: Condition) -> Condition:
        """Of the values from before that the version shows; `otherwise` says it of one it does not show."""
        state = sa.case((self._has_member(table), self._test(table, table.c.diff, "old")), else_=otherwise)
        return sa.or_(table.c.operation != _UPDATE, state)

    def _has_member(self, row: FromClause) -> Condition:
        """Whether the diff of a version has the field, by the name that it had then."""
        place = row.c.diff, row.c.schema_version, self._history.dialect
        return has_member_then(self._layouts, self._told, *place)

    def _test(self, row: FromClause, content: Any, *below: str) -> Condition:
        """The comparison with what a version tells; not so where it does not tell the field."""
        dialect, place = self._history.dialect, (content, row.c.schema_version)
        value = value_then(self._layouts, self._told, *place, dialect, *below)
        if self._record.uses_order_keys and has_order_key(self._told, dialect):
            value = sa.func.decimal_order(value)
        holds = test(dialect, value, self._item, self._name)
        if self._layouts.is_plain(self._told):
            return holds
        return sa.and_(sa.not_(is_unknown(self._layouts, self._told, *place, dialect, *below)), holds)
