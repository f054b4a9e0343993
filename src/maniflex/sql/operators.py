"""How the operators of filters are written in SQL, and how their values travel as parameters.

Case is that of ASCII letters on both databases. The operators that take text literally use no pattern:
matching one is a single call that no time limit can interrupt, and long texts of few letters make it slow.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import sqlalchemy as sa

from maniflex._json import encode_json
from maniflex.model.meta import FieldMeta, Kind
from maniflex.query.operators import Op, fold_case
from maniflex.sql.statement import Dialect, by_dialect

if TYPE_CHECKING:
    from maniflex.query.query import Compare
    from maniflex.sql.model import ModelSql

Condition = sa.ColumnElement[bool]
Arguments = dict[str, Any]
TextCondition = Callable[[Any, Any], Any]  # of a column and a text
EndCondition = Callable[[Any, Any, Any], Any]  # of a column, a text and the length of the text

_FIRST, _SECOND, _LENGTH = "$a", "$b", "$n"  # end the names of further parameters


class OperatorWriter(NamedTuple):
    """How one operator is written.

    `condition` takes the dialect, a column or any other expression, and the name of the parameter; the
    writer of an operator that takes a field takes the other column instead. `bind` adds the value of a
    field to the arguments under that name.
    """

    condition: Callable[[Dialect, Any, Any], Any]
    bind: Callable[[Arguments, str, ModelSql, FieldMeta, Any], None]
    null: Callable[[Dialect, Any, Any], Any] | None = None  # the condition where the value is None


# -- conditions


def _compare(compare: Callable[[Any, Any], Any]) -> Callable[[Dialect, Any, str], Any]:
    return lambda dialect, column, name: compare(column, sa.bindparam(name))


def _compare_fields(compare: Callable[[Any, Any], Any]) -> Callable[[Dialect, Any, Any], Any]:
    return lambda dialect, column, other: compare(column, other)


def _is_null(dialect: Dialect, column: Any, name: str) -> Any:
    return column.is_(None)


def _is_not_null(dialect: Dialect, column: Any, name: str) -> Any:
    return column.is_not(None)


def _between(dialect: Dialect, column: Any, name: str) -> Any:
    return sa.and_(column >= sa.bindparam(name + _FIRST), column <= sa.bindparam(name + _SECOND))


def one_of(dialect: Dialect, column: Any, name: str, *, negated: bool = False) -> Condition:
    """The column is in a list that travels as one parameter, so its length is not part of the shape."""
    if dialect is Dialect.POSTGRES:
        items: Any = sa.bindparam(name)
        return column != sa.all_(items) if negated else column == sa.any_(items)  # type: ignore[no-any-return]
    if dialect is not Dialect.SQLITE:
        assert_never(dialect)
    each = sa.func.json_each(sa.bindparam(name, type_=sa.Text()))
    rows: Any = sa.select(sa.column("value")).select_from(each)
    return column.not_in(rows) if negated else column.in_(rows)  # type: ignore[no-any-return]


def _none_of(dialect: Dialect, column: Any, name: str) -> Condition:
    return one_of(dialect, column, name, negated=True)


def _text(conditions: dict[Dialect, TextCondition]) -> Callable[[Dialect, Any, str], Any]:
    return lambda dialect, column, name: conditions[dialect](column, sa.bindparam(name, type_=sa.Text()))


def _end(conditions: dict[Dialect, EndCondition]) -> Callable[[Dialect, Any, str], Any]:
    def write(dialect: Dialect, column: Any, name: str) -> Any:
        length: Any = sa.bindparam(name + _LENGTH, type_=sa.Integer())
        return conditions[dialect](column, sa.bindparam(name, type_=sa.Text()), length)

    return write


def _infix(symbol: str) -> TextCondition:
    return lambda column, text: column.op(symbol, is_comparison=True)(text)


def _lower(column: Any) -> Any:
    """The column in small letters, on PostgreSQL: those of ASCII."""
    return sa.func.lower(sa.collate(column, "C"))


_ZERO: Any = sa.literal_column("0")
_ONE: Any = sa.literal_column("1")

# SQLite's LIKE ignores case, so patterns go to GLOB, which does not.
_LIKE: dict[Dialect, TextCondition] = {
    Dialect.POSTGRES: _infix("LIKE"),
    Dialect.SQLITE: _infix("GLOB"),
}
_ILIKE: dict[Dialect, TextCondition] = {
    Dialect.POSTGRES: _infix("ILIKE"),
    Dialect.SQLITE: lambda column, text: _infix("GLOB")(sa.func.lower(column), text),
}
_CONTAINS: dict[Dialect, TextCondition] = {
    Dialect.POSTGRES: lambda column, text: sa.func.strpos(_lower(column), text) > _ZERO,
    Dialect.SQLITE: lambda column, text: sa.func.instr(sa.func.lower(column), text) > _ZERO,
}
_STARTS_WITH: dict[Dialect, EndCondition] = {
    Dialect.POSTGRES: lambda column, text, length: (
        sa.func.lower(sa.func.left(sa.collate(column, "C"), length)) == text
    ),
    Dialect.SQLITE: lambda column, text, length: (
        sa.func.substr(column, _ONE, length) == sa.collate(text, "NOCASE")
    ),
}
_ENDS_WITH: dict[Dialect, EndCondition] = {
    Dialect.POSTGRES: lambda column, text, length: (
        sa.func.lower(sa.func.right(sa.collate(column, "C"), length)) == text
    ),
    Dialect.SQLITE: lambda column, text, length: (
        sa.func.substr(column, -length, length) == sa.collate(text, "NOCASE")
    ),
}


# -- parameters


def _bind_value(arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any) -> None:
    arguments[name] = model.encode_comparable(field, value)


def _bind_two(arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any) -> None:
    arguments[name + _FIRST] = model.encode_comparable(field, value[0])
    arguments[name + _SECOND] = model.encode_comparable(field, value[1])


def _bind_list(arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any) -> None:
    convert = model.comparison_encoder(field)
    items = value if convert is None else [convert(item) for item in value]
    if field.kind is Kind.BOOL:  # JSON has a type for them, SQLite has none
        items = by_dialect(model.dialect, sqlite=[int(item) for item in items], postgres=items)
    arguments[name] = list_value(model.dialect, items)


def list_value(dialect: Dialect, items: Sequence[Any]) -> Any:
    """A list as one parameter."""
    if dialect is Dialect.SQLITE:
        return encode_json([*items])
    if dialect is Dialect.POSTGRES:
        return list(items)
    assert_never(dialect)


def _bind_text(arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any) -> None:
    arguments[name] = fold_case(value)


def _bind_end(arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any) -> None:
    arguments[name] = fold_case(value)
    arguments[name + _LENGTH] = len(value)


def _bind_pattern(arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any) -> None:
    arguments[name] = _PATTERN_TEXT[model.dialect](value)


def _bind_folded_pattern(
    arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any
) -> None:
    arguments[name] = _FOLDED_PATTERN_TEXT[model.dialect](value)


def _bind_nothing(arguments: Arguments, name: str, model: ModelSql, field: FieldMeta, value: Any) -> None:
    """The condition has no parameter."""


def _as_glob(pattern: str) -> str:
    parts = []
    after_backslash = False
    for char in pattern:
        if after_backslash:
            parts.append(f"[{char}]" if char in "*?[" else char)
            after_backslash = False
        elif char == "\\":
            after_backslash = True
        else:
            parts.append({"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}.get(char, char))
    return "".join(parts)


# A pattern of `like` and of `ilike` as the parameter of its condition.
_PATTERN_TEXT: dict[Dialect, Callable[[str], str]] = {Dialect.POSTGRES: str, Dialect.SQLITE: _as_glob}
_FOLDED_PATTERN_TEXT: dict[Dialect, Callable[[str], str]] = {
    Dialect.POSTGRES: str,
    Dialect.SQLITE: lambda pattern: _as_glob(fold_case(pattern)),
}


WRITERS: dict[Op, OperatorWriter] = {
    Op.EQ: OperatorWriter(_compare(operator.eq), _bind_value, null=_is_null),
    Op.NEQ: OperatorWriter(_compare(operator.ne), _bind_value, null=_is_not_null),
    Op.GT: OperatorWriter(_compare(operator.gt), _bind_value),
    Op.GTE: OperatorWriter(_compare(operator.ge), _bind_value),
    Op.LT: OperatorWriter(_compare(operator.lt), _bind_value),
    Op.LTE: OperatorWriter(_compare(operator.le), _bind_value),
    Op.LIKE: OperatorWriter(_text(_LIKE), _bind_pattern),
    Op.ILIKE: OperatorWriter(_text(_ILIKE), _bind_folded_pattern),
    Op.CONTAINS: OperatorWriter(_text(_CONTAINS), _bind_text),
    Op.STARTS_WITH: OperatorWriter(_end(_STARTS_WITH), _bind_end),
    Op.ENDS_WITH: OperatorWriter(_end(_ENDS_WITH), _bind_end),
    Op.IN: OperatorWriter(one_of, _bind_list),
    Op.NOT_IN: OperatorWriter(_none_of, _bind_list),
    Op.BETWEEN: OperatorWriter(_between, _bind_two),
    Op.IS_NULL: OperatorWriter(_is_null, _bind_nothing),
    Op.NOT_NULL: OperatorWriter(_is_not_null, _bind_nothing),
    Op.EQ_FIELD: OperatorWriter(_compare_fields(operator.eq), _bind_nothing),
    Op.NEQ_FIELD: OperatorWriter(_compare_fields(operator.ne), _bind_nothing),
    Op.GT_FIELD: OperatorWriter(_compare_fields(operator.gt), _bind_nothing),
    Op.GTE_FIELD: OperatorWriter(_compare_fields(operator.ge), _bind_nothing),
    Op.LT_FIELD: OperatorWriter(_compare_fields(operator.lt), _bind_nothing),
    Op.LTE_FIELD: OperatorWriter(_compare_fields(operator.le), _bind_nothing),
}


def test(dialect: Dialect, column: Any, item: Compare, name: str) -> Condition:
    """The condition on a column or any other expression; its parameter goes by `name`."""
    writer = WRITERS[item.op]
    write = writer.condition if item.value is not None or writer.null is None else writer.null
    return write(dialect, column, name)  # type: ignore[no-any-return]
