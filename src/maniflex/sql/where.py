"""Filters and scopes → conditions. One leaf of a filter is one parameter, named by its place.

Conditions on related records are EXISTS subqueries, so they neither repeat rows nor disturb counts;
whatever record is looked at on the way must be alive and inside the scope.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, RelationKind, RelationMeta
from maniflex.query.operators import Op
from maniflex.query.tree import AnyOf, Compare, Filter, Forced
from maniflex.sql.codec import encode_json
from maniflex.sql.statement import Dialect

if TYPE_CHECKING:
    from maniflex.sql.model import ModelSql

Scope = tuple[Forced, ...]
Condition = sa.ColumnElement[bool]

_SCOPE = "$scope$"  # then its place and the table; no attribute can be called like this


def leaves(filters: Sequence[Filter]) -> Iterator[Compare]:
    """Every comparison, in the order their parameters are numbered."""
    for item in filters:
        if isinstance(item, AnyOf):
            yield from item.conditions
        else:
            yield item


def shape(filters: Sequence[Filter], scope: Scope) -> tuple[Any, ...]:
    """What of filters and scope decides the statement's text."""
    return (
        tuple([_leaf(f) if type(f) is Compare else tuple(map(_leaf, f.conditions)) for f in filters]),  # type: ignore[union-attr]  # AnyOf
        tuple([(f.name, f.op, f.value is None) for f in scope]) if scope else (),
    )


def _leaf(item: Compare) -> tuple[Any, ...]:
    value = item.value
    what = value.name if isinstance(value, FieldMeta) else value is None
    along = (item.few, *[r.name for r in item.path]) if item.path else ()
    return (item.field.name, item.op, what, along)


def values(model: ModelSql, filters: Sequence[Filter], scope: Scope, names: Sequence[str]) -> dict[str, Any]:
    """The parameters of filters and scope; `names` are those the statement wants."""
    found: dict[str, Any] = {}
    for i, item in enumerate(leaves(filters)):
        if item.value is not None and not isinstance(item.value, FieldMeta):
            _put(found, f"f{i}", model.encode_as, item.field, item.op, item.value)
    if scope:
        for name in names:
            if name.startswith(_SCOPE) and name not in found:
                _, place, table = name.split("$")[1:4]
                compare = scope[int(place)].on(model.peer_by_table(table).meta)
                assert compare is not None
                _put(
                    found,
                    f"{_SCOPE}{place}${table}",
                    model.encode_as,
                    compare.field,
                    compare.op,
                    compare.value,
                )
    return found


def parameters(model: ModelSql, item: Compare, name: str) -> dict[str, Any]:
    """The parameters of one `test`."""
    found: dict[str, Any] = {}
    if item.value is not None:
        _put(found, name, model.encode_as, item.field, item.op, item.value)
    return found


def _put(found: dict[str, Any], name: str, encode: Any, field: FieldMeta, op: Op, value: Any) -> None:
    if op is Op.BETWEEN:
        found[name + "$a"], found[name + "$b"] = encode(field, op, value[0]), encode(field, op, value[1])
    else:
        found[name] = encode(field, op, value)


def where(
    model: ModelSql, table: FromClause, filters: Sequence[Filter], scope: Scope, *, live: bool = True
) -> list[Condition]:
    """All conditions on the rows of `table`."""
    numbers = iter(range(10_000))
    conditions = [*(model.live(table) if live else ()), *scoped(model, table, scope)]
    for item in filters:
        if isinstance(item, AnyOf):
            conditions.append(
                sa.or_(*[_condition(model, table, c, next(numbers), scope) for c in item.conditions])
            )
        else:
            conditions.append(_condition(model, table, item, next(numbers), scope))
    return conditions


def scoped(model: ModelSql, table: FromClause, scope: Scope) -> list[Condition]:
    """The scope on the rows of one table, as far as its model has such fields."""
    conditions = []
    for i, forced in enumerate(scope):
        compare = forced.on(model.meta)
        if compare is not None:
            conditions.append(_test(model, table, compare, f"{_SCOPE}{i}${model.meta.table}"))
    return conditions


def _condition(model: ModelSql, table: FromClause, item: Compare, number: int, scope: Scope) -> Condition:
    return _along(model, table, item.path, item, f"f{number}", scope)


def _along(
    model: ModelSql, table: FromClause, path: tuple[RelationMeta, ...], item: Compare, name: str, scope: Scope
) -> Condition:
    if not path:
        return _test(model, table, item, name)
    target, alias, joins = join(model, table, path[0], scope)
    rest = _along(target, alias, path[1:], item, name, scope)
    if item.few and model.dialect is Dialect.SQLITE and path[0].kind is RelationKind.BELONGS_TO:
        # SQLite asks an EXISTS for every row; only a list can be where it begins.
        listed = sa.select(alias.c[target.id.name]).where(*joins[1:], rest)
        return model.at(table, path[0].key or "").in_(listed)  # type: ignore[no-any-return]
    return sa.exists(sa.select(sa.literal_column("1")).where(*joins, rest))


def join(
    model: ModelSql, table: FromClause, relation: RelationMeta, scope: Scope
) -> tuple[ModelSql, FromClause, list[Condition]]:
    """The related table under a name of its own, and what ties it to `table`, alive and in scope."""
    target = model.peer(relation.target)
    alias = target.table.alias()
    if relation.kind is RelationKind.BELONGS_TO:
        ties = [alias.c[target.id.name] == model.at(table, relation.key or "")]
    elif relation.kind is RelationKind.HAS_MANY:
        ties = [target.at(alias, relation.key or "") == table.c[model.id.name]]
    else:
        middle = model.peer(relation.through or "")
        between = middle.table.alias()
        ties = [
            middle.at(between, relation.key or "") == table.c[model.id.name],
            middle.at(between, relation.far_key or "") == alias.c[target.id.name],
            *middle.live(between),
            *scoped(middle, between, scope),
        ]
    return target, alias, [*ties, *target.live(alias), *scoped(target, alias, scope)]


def _test(model: ModelSql, table: FromClause, item: Compare, name: str) -> Condition:
    column = table.c[item.field.column]
    if isinstance(item.value, FieldMeta):
        return _compare(column, item.op, table.c[item.value.column])
    return test(model.dialect, column, item, name)


def test(dialect: Dialect, column: Any, item: Compare, name: str) -> Condition:
    """The condition on a column or any other expression; its parameter goes by `name` (`parameters`)."""
    if item.op is Op.IS_NULL or (item.op is Op.EQ and item.value is None):
        return column.is_(None)  # type: ignore[no-any-return]  # SQLAlchemy's operators
    if item.op is Op.NOT_NULL or (item.op is Op.NEQ and item.value is None):
        return column.is_not(None)  # type: ignore[no-any-return]
    if item.op is Op.BETWEEN:
        return sa.and_(column >= sa.bindparam(name + "$a"), column <= sa.bindparam(name + "$b"))
    if item.op in (Op.IN, Op.NOT_IN):
        return one_of(dialect, column, name, negated=item.op is Op.NOT_IN)
    if item.op in _PATTERNS:
        return _matches(dialect, column, item.op, name)
    return _compare(column, item.op, sa.bindparam(name))


def _compare(column: Any, op: Op, other: Any) -> Condition:
    match op:
        case Op.EQ | Op.EQ_FIELD:
            result = column == other
        case Op.NEQ | Op.NEQ_FIELD:
            result = column != other
        case Op.GT | Op.GT_FIELD:
            result = column > other
        case Op.GTE | Op.GTE_FIELD:
            result = column >= other
        case Op.LT | Op.LT_FIELD:
            result = column < other
        case Op.LTE | Op.LTE_FIELD:
            result = column <= other
        case _:
            raise InvalidQuery(f"{op} compares nothing")
    return result  # type: ignore[no-any-return]  # SQLAlchemy's operators


def one_of(dialect: Dialect, column: Any, name: str, *, negated: bool = False) -> Condition:
    """The column is in a list that travels as one parameter, so its length is not part of the shape."""
    if dialect is Dialect.POSTGRES:
        listed: Any = sa.bindparam(name)
        return column != sa.all_(listed) if negated else column == sa.any_(listed)  # type: ignore[no-any-return]
    each = sa.func.json_each(sa.bindparam(name, type_=sa.Text()))
    rows: Any = sa.select(sa.column("value")).select_from(each)
    return column.not_in(rows) if negated else column.in_(rows)  # type: ignore[no-any-return]


_PATTERNS = frozenset({Op.LIKE, Op.ILIKE, Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH})


def _matches(dialect: Dialect, column: Any, op: Op, name: str) -> Condition:
    pattern = sa.bindparam(name, type_=sa.Text())
    if dialect is Dialect.POSTGRES:
        return column.op("LIKE" if op is Op.LIKE else "ILIKE", is_comparison=True)(pattern)  # type: ignore[no-any-return]
    # SQLite's LIKE ignores case, so patterns go to GLOB, which does not.
    left: Any = column if op is Op.LIKE else sa.func.lower(column)
    return left.op("GLOB", is_comparison=True)(pattern)  # type: ignore[no-any-return]


def pattern_value(dialect: Dialect, op: Op, text: str) -> str:
    """The text of a pattern operator as the database's own pattern."""
    if op in (Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH):
        escaped = re_escape_like(text)
        before = "" if op is Op.STARTS_WITH else "%"
        after = "" if op is Op.ENDS_WITH else "%"
        text = f"{before}{escaped}{after}"
    if dialect is Dialect.POSTGRES:
        return text
    return _as_glob(text if op is Op.LIKE else _lower_ascii(text))


def re_escape_like(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _lower_ascii(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def _as_glob(pattern: str) -> str:
    found = []
    escaped = False
    for char in pattern:
        if escaped:
            found.append(f"[{char}]" if char in "*?[" else char)
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            found.append({"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}.get(char, char))
    return "".join(found)


def list_value(dialect: Dialect, items: Sequence[Any]) -> Any:
    """A list as one parameter."""
    return list(items) if dialect is Dialect.POSTGRES else encode_json([*items])
