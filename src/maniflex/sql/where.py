"""Filters and scopes → conditions. One leaf of a filter is one parameter, named by its place.

Conditions on related records are EXISTS subqueries, so they neither repeat rows nor disturb counts;
every record on the way must be alive and inside the scope.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.errors import InvalidQuery, UnusableScope
from maniflex.model.history_row import is_history
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind, RelationMeta
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Filter, Forced, Narrowed, leaves
from maniflex.query.query import Scope as Scope
from maniflex.sql.bindings import conditions_then
from maniflex.sql.operators import WRITERS, Condition, test
from maniflex.sql.statement import by_dialect

if TYPE_CHECKING:
    from maniflex.sql.model import ModelSql

# No attribute can be called like these.
_SCOPE = "$scope$"  # then its place and the table
_PARENT = "$parent$"  # then the key that names the parent


def shape(filters: Sequence[Filter], scope: Scope) -> tuple[Any, ...]:
    """What of filters and scope decides the statement's text."""
    return (
        tuple([_leaf(f) if type(f) is Compare else tuple(map(_leaf, f.conditions)) for f in filters]),  # type: ignore[union-attr]  # AnyOf
        tuple([_narrowed_shape(f) if isinstance(f, Narrowed) else _forced_shape(f) for f in scope])
        if scope
        else (),
    )


def _forced_shape(condition: Forced) -> tuple[Any, ...]:
    return (
        condition.name,
        condition.op,
        _value_shape(condition.value),
        condition.model,
        condition.of_shown,
    )


def _narrowed_shape(condition: Narrowed) -> tuple[Any, ...]:
    return (condition.model, isinstance(condition.filter, AnyOf), *map(_leaf, leaves([condition.filter])))


def _leaf(item: Compare) -> tuple[Any, ...]:
    value = item.value
    what = value.name if isinstance(value, FieldMeta) else _value_shape(value)
    along = (item.few, *[r.name for r in item.path]) if item.path else ()
    return (item.field.name, item.op, what, along)


def _value_shape(value: Any) -> bool | None:
    """What of a value decides the text: None for null, else whether an empty text is asked for."""
    return None if value is None else value == "" or (type(value) is tuple and "" in value)


def values(model: ModelSql, filters: Sequence[Filter], scope: Scope, names: Sequence[str]) -> dict[str, Any]:
    """The parameters of filters and scope; `names` are those the statement wants."""
    arguments: dict[str, Any] = {}
    for i, item in enumerate(leaves(filters)):
        if item.value is not None and not isinstance(item.value, FieldMeta):
            WRITERS[item.op].bind(arguments, f"f{i}", model, item.field, item.value)
    if scope:
        for name in names:
            if name.startswith(_SCOPE) and name not in arguments:
                place, table = name.split("$")[2:4]
                condition = scope[int(place)].on(model.peer_by_table(table).meta)
                assert condition is not None
                if type(condition) is Compare and type(condition.value) is not FieldMeta:
                    bound_name = f"{_SCOPE}{place}${table}"
                    bind = WRITERS[condition.op].bind
                    bind(arguments, bound_name, model, condition.field, condition.value)
                    continue
                for leaf_name, item in named_leaves(condition, f"{_SCOPE}{place}${table}"):
                    if not isinstance(item.value, FieldMeta):
                        WRITERS[item.op].bind(arguments, leaf_name, model, item.field, item.value)
    return arguments


def named_leaves(condition: Filter, name: str) -> Sequence[tuple[str, Compare]]:
    """The comparisons of a condition of the scope, each with the name of its parameter."""
    if isinstance(condition, AnyOf):
        return [(f"{name}${i}", item) for i, item in enumerate(condition.conditions)]
    return ((name, condition),)


def parameters(model: ModelSql, item: Compare, name: str) -> dict[str, Any]:
    """The parameters of one `test`."""
    arguments: dict[str, Any] = {}
    if item.value is not None:
        WRITERS[item.op].bind(arguments, name, model, item.field, item.value)
    return arguments


def where(
    model: ModelSql, table: FromClause, filters: Sequence[Filter], scope: Scope, *, live: bool = True
) -> list[Condition]:
    """All conditions on the rows of `table`."""
    numbers = iter(range(10_000))
    conditions = [*(model.live(table) if live else ()), *scope_conditions(model, table, scope)]
    for item in filters:
        if isinstance(item, AnyOf):
            conditions.append(
                sa.or_(*[_condition(model, table, c, next(numbers), scope) for c in item.conditions])
            )
        else:
            conditions.append(_condition(model, table, item, next(numbers), scope))
    return conditions


def scope_conditions(model: ModelSql, table: FromClause, scope: Scope) -> list[Condition]:
    """The scope on the rows of one table, as far as its model has such fields."""
    return [
        _scope_condition(model, table, condition, name, rule)
        for name, condition, rule in rules_on(model, scope)
    ]


def rules_on(model: ModelSql, scope: Scope) -> Iterator[tuple[str, Filter, Forced | Narrowed]]:
    """What of the scope is about the rows of a model, with the name its parameters begin with."""
    for i, rule in enumerate(scope):
        condition = rule.on(model.meta)
        if condition is not None:
            yield f"{_SCOPE}{i}${model.meta.table}", condition, rule


def _scope_condition(
    model: ModelSql, table: FromClause, condition: Filter, name: str, rule: Forced | Narrowed
) -> Condition:
    if isinstance(condition, Compare) and not condition.path:
        return _test(model, table, condition, name)
    if is_history(model.meta):
        now = _condition_now(model, table, condition, name, rule)
        return sa.and_(now, *conditions_then(model, table, named_leaves(condition, name)))
    return _condition_now(model, table, condition, name, rule)


def _condition_now(
    model: ModelSql, table: FromClause, condition: Filter, name: str, rule: Forced | Narrowed
) -> Condition:
    if isinstance(condition, Compare) and isinstance(rule, Forced):
        return _belongs(model, model.at(table, condition.path[0].key or ""), condition.path, condition, name)
    items = named_leaves(condition, name)
    return sa.or_(*[_along(model, table, item.path, item, leaf_name, ()) for leaf_name, item in items])


def _belongs(
    model: ModelSql, key: Any, path: tuple[RelationMeta, ...], item: Compare, name: str
) -> Condition:
    """That the record a key names has the field's value, or belongs to one that has.

    A deleted record still says whose its rows are, so it is not asked to be alive.
    """
    try:
        target = model.peer(path[0].target)
    except InvalidQuery as error:
        raise UnusableScope(f"{model.meta.name} cannot be bound through {path[0].name!r}: {error}") from error
    alias = target.table.alias()
    if len(path) == 1:
        rest = _test(target, alias, item, name)
    else:
        rest = _belongs(target, target.at(alias, path[1].key or ""), path[1:], item, name)
    tie = alias.c[target.id.name] == key
    return sa.exists(sa.select(sa.literal_column("1")).where(tie, rest))


def parent_keys(model: ModelMeta, scope: Scope) -> tuple[str, ...]:
    """The keys through whose records the scope binds rows of the model."""
    return tuple([item.path[0].key or "" for _, item in _through_parents(model, scope)])


def parents_inside(model: ModelSql, scope: Scope, names: Collection[str]) -> list[Condition]:
    """For each of those keys that is written, that the record it names is inside the scope."""
    conditions = []
    for i, item in _through_parents(model.meta, scope):
        key = item.path[0].key or ""
        if key in names:
            parent_id: Any = sa.bindparam(_PARENT + key, type_=sa.Text())
            conditions.append(_belongs(model, parent_id, item.path, item, f"{_SCOPE}{i}${model.meta.table}"))
    return conditions


def parent_values(names: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `parents_inside`; `names` are those the statement wants."""
    return {name: row[name.removeprefix(_PARENT)] for name in names if name.startswith(_PARENT)}


def _through_parents(model: ModelMeta, scope: Scope) -> Iterator[tuple[int, Compare]]:
    for i, condition in enumerate(scope):
        binds_written = isinstance(condition, Forced) and not condition.of_shown
        item = condition.on(model) if binds_written else None
        if isinstance(item, Compare) and item.path:
            yield i, item


def _condition(model: ModelSql, table: FromClause, item: Compare, number: int, scope: Scope) -> Condition:
    return _along(model, table, item.path, item, f"f{number}", scope)


def _along(
    model: ModelSql, table: FromClause, path: tuple[RelationMeta, ...], item: Compare, name: str, scope: Scope
) -> Condition:
    if not path:
        return _test(model, table, item, name)
    target, alias, joins = join(model, table, path[0], scope)
    rest = _along(target, alias, path[1:], item, name, scope)
    # SQLite asks an EXISTS for every row; only a list can be where it begins.
    begins_with_few = item.few and by_dialect(model.dialect, sqlite=True, postgres=False)
    if begins_with_few and path[0].kind is RelationKind.BELONGS_TO:
        ids = sa.select(alias.c[target.id.name]).where(*joins[1:], rest)
        return model.at(table, path[0].key or "").in_(ids)  # type: ignore[no-any-return]
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
            *scope_conditions(middle, between, scope),
        ]
    return target, alias, [*ties, *target.live(alias), *scope_conditions(target, alias, scope)]


def _test(model: ModelSql, table: FromClause, item: Compare, name: str) -> Condition:
    if item.field.encrypted is not None:
        return test(model.dialect, _encrypted_column(model, table, item), item, name)
    column = model.comparison_column(item.field, table)
    if isinstance(item.value, FieldMeta):
        other = model.comparison_column(item.value, table)
        return WRITERS[item.op].condition(model.dialect, column, other)  # type: ignore[no-any-return]  # SQLAlchemy's
    return test(model.dialect, column, item, name)


def _encrypted_column(model: ModelSql, table: FromClause, item: Compare) -> Any:
    """What a condition on an encrypted field looks at: its digest, and the column for whether it is null.

    An empty text has no digest. Conditions that it can fulfil see one in its place, and use no index.
    """
    column = table.c[item.field.column]
    if item.value is None:
        return column
    digest = model.digest_column(item.field, table)
    if item.op in (Op.EQ, Op.IN) and not _value_shape(item.value):
        return digest
    return sa.func.coalesce(digest, sa.case((column.is_not(None), sa.literal_column("''"))))
