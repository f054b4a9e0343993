"""How versions of a history were written: the names and types that the fields of now had then.

Every version carries the number of its layout: which field stood under which name, in which column, of which
kind. Layouts and the changes of columns between them (`schema/history.py` keeps them) say what a field of
now was called then; a column is what a field is known by, because its name and its alias may change.
A version without a number is from before layouts were kept: it is read by the names of the first layout, and
only as far as it has them.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec
import sqlalchemy as sa

from maniflex._json import encode_json
from maniflex._tables import PartialTable
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.sql.codec import literal
from maniflex.sql.operators import Condition
from maniflex.sql.statement import Dialect, by_dialect
from maniflex.sql.tables import column_type

# Conversions that succeed for every value, and come to the same in Python and on both databases.
TOTAL = frozenset(
    {
        (Kind.INT, Kind.FLOAT),
        (Kind.INT, Kind.DECIMAL),
        (Kind.INT, Kind.TEXT),
        (Kind.INT, Kind.BOOL),
        (Kind.BOOL, Kind.INT),
        (Kind.DECIMAL, Kind.TEXT),
        (Kind.DECIMAL, Kind.FLOAT),
    }
)


class SchemaEntry(NamedTuple):
    """A layout of a model, or a change of its columns; `number` rises with time."""

    number: int
    noted_at: datetime
    what: str  # layout, rename, drop, retype, add or fill
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FieldThen:
    """A field as the versions of one layout have it."""

    name: str  # in snapshots and diffs
    kind: Kind
    is_secret: bool = False  # then: versions do not have it
    is_certain: bool = True  # no migration has changed its values in a way that only its author knows


@dataclass(frozen=True, slots=True)
class FilledField:
    """A field that came later, with one value for all records that were there."""

    value: Any
    # Versions from then on may be of an older release, which does not see what others put there.
    added_at: datetime


Reading = FieldThen | FilledField | None  # None: it was not there, or is not known


def layout_of(meta: ModelMeta) -> list[list[Any]]:
    """The fields of a model as a layout keeps them: name, column, kind and whether it is a secret."""
    return [[f.api, f.column, f.kind.value, f.secret] for f in meta.fields]


def form_of(value: Any) -> Any:
    """A value of a row in the form that histories have."""
    return msgspec.to_builtins(value, enc_hook=str)


# From the form that answers and histories have to the type of a row.
_READERS: dict[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: str,
    Kind.INT: int,
    Kind.FLOAT: float,
    Kind.BOOL: bool,
    Kind.DECIMAL: Decimal,
    Kind.DATETIME: datetime.fromisoformat,
    Kind.DATE: date.fromisoformat,
    Kind.TIME: time.fromisoformat,
    Kind.UUID: UUID,
    Kind.BYTES: b64decode,
    Kind.JSON: encode_json,
}
_FORMS: dict[Kind, tuple[type, ...]] = {
    **dict.fromkeys(Kind, (str,)),
    Kind.INT: (int,),
    Kind.FLOAT: (int, float),
    Kind.BOOL: (bool,),
    Kind.JSON: (object,),
}


def typed_value(field: FieldMeta, value: Any) -> Any:
    """A value of a history as rows have it; `ValueError` when it is of another type."""
    if value is None:
        return None
    is_form = isinstance(value, _FORMS[field.kind]) and (
        field.kind is Kind.BOOL or not isinstance(value, bool)
    )
    if not is_form and field.kind is not Kind.JSON:
        raise ValueError(f"{field.name} was of another type")
    try:
        return _READERS[field.kind](value)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"{field.name} was of another type") from error


_WHOLE = re.compile(r"-?\d{1,19}\Z", re.ASCII)
_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z", re.ASCII)


def convert_value(then: FieldThen, field: FieldMeta, value: Any) -> Any:
    """A value of a history in the form that the field has now; `ValueError` where that is not certain."""
    if not then.is_certain:
        raise ValueError(f"a migration has changed the values of {field.name}")
    if value is None or then.kind is field.kind:
        return value
    match then.kind, field.kind:
        case (Kind.INT, Kind.FLOAT) | (Kind.DECIMAL, Kind.FLOAT):
            return float(value)
        case (Kind.INT, Kind.DECIMAL) | (Kind.INT, Kind.TEXT) | (Kind.DECIMAL, Kind.TEXT):
            return str(value)
        case (Kind.INT, Kind.BOOL):
            return value != 0
        case (Kind.BOOL, Kind.INT):
            return int(value)
        case (Kind.TEXT, Kind.INT) if _WHOLE.match(value) and -(2**63) <= int(value) < 2**63:
            return int(value)
        case (Kind.TEXT, Kind.FLOAT) if _NUMBER.match(value):
            return float(value)
        case (Kind.TEXT, Kind.DECIMAL) if _NUMBER.match(value):
            return value
        case (Kind.FLOAT, Kind.INT) | (Kind.DECIMAL, Kind.INT) if Decimal(value) == int(Decimal(value)):
            return int(Decimal(value))
        case (Kind.FLOAT, Kind.DECIMAL):
            return str(Decimal(repr(value)))
    raise ValueError(f"{field.name} was {then.kind} then, and {value!r} is no {field.kind} for certain")


class Layouts:
    """The layouts of one history, seen from the fields of now."""

    def __init__(
        self, meta: ModelMeta, entries: Sequence[SchemaEntry] = (), own: int | None = None, newest: int = 0
    ) -> None:
        """`own` is the layout that this process writes, `newest` that of all histories of the database."""
        self._meta = meta
        self._entries = entries
        self.own = own
        self.newest = newest
        layouts = [entry for entry in entries if entry.what == "layout"]
        self.numbers = tuple(entry.number for entry in layouts)
        # Versions that were there before layouts were kept have none.
        self.has_older = bool(layouts and layouts[0].content.get("older"))
        own_columns = self._columns_of(next((e for e in layouts if e.number == own), None))
        by_name = {told_column.name: column for column, told_column in own_columns.items()}
        self._columns = {f.name: by_name.get(f.api, f.column) for f in meta.fields}
        self._then: dict[int | None, Mapping[str, FieldThen]] = {}
        for entry in layouts:
            columns = self._columns_of(entry)
            self._then[entry.number] = {n: columns[c] for n, c in self._columns.items() if c in columns}
        first = self.numbers[0] if self.numbers else None
        identity = {f.name: FieldThen(f.api, f.kind, f.secret) for f in meta.fields}
        self._then[None] = identity if first is None else self._then[first]
        self._added = tuple(entry for entry in entries if entry.what == "add")
        self._names = {number: self._names_then(number) for number in self._then}
        # Layouts whose versions need no translation, and the names that these have.
        self.plain: dict[int | None, frozenset[str]] = {
            number: frozenset(self._names[number])
            for number in self._then
            if number is not None and self._then[number] == identity
        }

    def _columns_of(self, layout: SchemaEntry | None) -> dict[str, FieldThen]:
        """The fields of a layout by the columns they have now, after all changes since."""
        if layout is None:
            return {}
        columns = {
            column: FieldThen(name, Kind(kind), is_secret)
            for name, column, kind, is_secret in layout.content["fields"]
        }
        for entry in self._entries:
            if entry.number <= layout.number:
                continue
            column = entry.content.get("column", "")
            if entry.what == "rename":
                moved_column = columns.pop(column, None)
                columns.pop(entry.content["new"], None)  # that name was free then
                if moved_column is not None:
                    columns[entry.content["new"]] = moved_column
            elif entry.what in ("drop", "add"):
                columns.pop(column, None)
            elif entry.what == "retype" and column in columns and not entry.content["certain"]:
                columns[column] = replace(columns[column], is_certain=False)
        return columns

    def knows(self, number: int | None) -> bool:
        """Whether a version with this number can be read here; a newer release may have written it."""
        return number in self._then

    def fields_then(self, number: int | None) -> Mapping[str, FieldThen]:
        """The fields of now as the versions with this number have them, by attribute."""
        return self._then[number]

    def fill(self, field: FieldMeta, number: int | None, moment: datetime | None) -> FilledField | None:
        """The value that a field which came after a layout had at a moment in all records of then."""
        after = (self.numbers[0] if self.numbers else 0) if number is None else number
        filled_field: FilledField | None = None
        for entry in self._entries if moment is not None else ():
            if entry.number <= after or entry.what in ("layout", "rename"):
                continue
            if self._column_now(entry) == self._columns[field.name]:
                is_told = entry.what == "add" and entry.noted_at <= moment  # type: ignore[operator]
                filled_field = self._first_value(entry, field) if is_told else None
        return filled_field

    def _first_value(self, added: SchemaEntry, field: FieldMeta) -> FilledField | None:
        """What the records that were there got in a column, if that can be told."""
        if "value" not in added.content:
            return None
        value = added.content["value"]
        if value is not None and field.kind in (Kind.JSON, Kind.BYTES):
            return None
        try:
            return FilledField(typed_value(field, value), added.noted_at)
        except ValueError:
            return None

    def _column_now(self, entry: SchemaEntry) -> str | None:
        """The name that the column of an entry has after all changes since; None if it is gone."""
        column: str | None = entry.content.get("column")
        for later in self._entries:
            if later.number > entry.number and column is not None and later.content.get("column") == column:
                if later.what == "rename":
                    column = later.content["new"]
                elif later.what in ("drop", "add"):
                    column = None
        return column

    def added_until(self, moment: datetime) -> tuple[int, ...]:
        """The additions of columns until a moment, which decide what earlier versions tell of them."""
        return tuple(e.number for e in self._added if e.noted_at <= moment) if self._added else ()

    def reading(self, field: FieldMeta, number: int | None, moment: datetime | None) -> Reading:
        """How a version with this number tells a field of now."""
        told_column = self._then[number].get(field.name)
        if told_column is None or told_column.is_secret:
            return self.fill(field, number, moment) if told_column is None else None
        return told_column

    def groups(self, field: FieldMeta, moment: datetime | None) -> list[tuple[tuple[int, ...], Reading]]:
        """The numbers of all layouts, by how their versions tell the field."""
        groups: list[tuple[tuple[int, ...], Reading]] = []
        for number in self.numbers:
            reading = self.reading(field, number, moment)
            place = next((n for n, (_, known_reading) in enumerate(groups) if known_reading == reading), None)
            if place is None:
                groups.append(((number,), reading))
            else:
                groups[place] = ((*groups[place][0], number), reading)
        return groups

    def is_plain(self, field: FieldMeta, moment: datetime | None = None) -> bool:
        """Whether all versions tell the field as they would be written now."""
        if self.has_older:
            return False
        now = FieldThen(field.api, field.kind)
        return all(reading == now for _, reading in self.groups(field, moment)) or not self.numbers

    def changes_of(self, field: FieldMeta, moment: datetime | None) -> Iterator[str]:
        """What stands between a field and versions that do not tell it, one sentence each."""
        for numbers, reading in self.groups(field, moment):
            if isinstance(reading, FilledField) or (
                isinstance(reading, FieldThen) and _is_sure(reading, field)
            ):
                continue
            at = self._next_layout(numbers[-1])
            day = "" if at is None else f" on {at:%Y-%m-%d}"
            if reading is None:
                yield f"{field.api} was added{day}"
            elif reading.kind is field.kind:
                yield f"the values of {field.api} were changed by a migration{day}"
            else:
                yield f"{field.api} was changed from {reading.kind} to {field.kind}{day}"
        if self.has_older:
            yield f"versions from before their names and types were kept may not tell {field.api}"

    def additions_of(self, field: FieldMeta, moment: datetime | None) -> Iterator[str]:
        """When a field came while an older release, whose versions do not tell it, may have written on."""
        for _, reading in self.groups(field, moment):
            if isinstance(reading, FilledField):
                day = f"{reading.added_at:%Y-%m-%d}"
                yield f"{field.api} was added on {day}, and an older release wrote versions after that"

    def _next_layout(self, number: int) -> datetime | None:
        return next((e.noted_at for e in self._entries if e.what == "layout" and e.number > number), None)

    def names_then(self, number: int | None) -> Mapping[str, tuple[FieldMeta, FieldThen]]:
        """The fields of now, by the names that versions with this number have for them."""
        return self._names[number]

    def _names_then(self, number: int | None) -> dict[str, tuple[FieldMeta, FieldThen]]:
        then = self._then[number]
        pairs = [(f, then[f.name]) for f in self._meta.fields if f.name in then]
        return {told_column.name: (f, told_column) for f, told_column in pairs if not told_column.is_secret}


def _is_sure(then: FieldThen, field: FieldMeta) -> bool:
    return then.is_certain and (then.kind is field.kind or (then.kind, field.kind) in TOTAL)


# -- values and conditions in SQL

HISTORY_SCHEMA = "maniflex_history_schema"  # the table of layouts; `schema/history.py` keeps it


def newest_layout() -> str:
    """The number of the last layout or change of all histories, as SQL."""
    return f"(SELECT max(number) FROM {HISTORY_SCHEMA})"


def value_then(
    layouts: Layouts,
    field: FieldMeta,
    content: Any,
    number: Any,
    dialect: Dialect,
    *below: str,
    moment: datetime | None = None,
    written_at: Any = None,
) -> Any:
    """The value of a field in an object that a version keeps; null where the version does not tell it.

    With a moment, `written_at` is the time of the version.
    """
    if layouts.is_plain(field, moment):
        return value_at(field, content, dialect, field.api, *below)
    branches: list[tuple[Any, Any]] = []
    for numbers, reading in layouts.groups(field, moment):
        value = _branch_value(field, reading, content, dialect, below)
        if value is not None:
            of_these = number.in_(_numbers(numbers))
            if isinstance(reading, FilledField):
                of_these = sa.and_(of_these, _is_before(written_at, reading.added_at, dialect))
            branches.append((of_these, value))
    older = layouts.fields_then(None).get(field.name)
    if older is not None and not older.is_secret and _is_sure(older, field):
        value = _told_value(field, older, content, dialect, below)
        branches.append((sa.and_(number.is_(None), _is_of_kind(older, content, dialect, below)), value))
    kind = column_type(field.kind, dialect)
    nothing = sa.cast(sa.null(), kind) if by_dialect(dialect, sqlite=False, postgres=True) else sa.null()
    if not branches:
        return sa.type_coerce(nothing, kind)
    return sa.type_coerce(sa.case(*branches, else_=nothing), kind)


def is_unknown(
    layouts: Layouts,
    field: FieldMeta,
    content: Any,
    number: Any,
    dialect: Dialect,
    *below: str,
    moment: datetime | None = None,
    written_at: Any = None,
) -> Condition:
    """That a version does not tell a field, where not all of them do (`Layouts.is_plain`)."""
    unknown: list[Any] = []
    for numbers, reading in layouts.groups(field, moment):
        of_these = number.in_(_numbers(numbers))
        if reading is None:
            unknown.append(of_these)
        elif isinstance(reading, FilledField):
            is_before = _is_before(written_at, reading.added_at, dialect)
            unknown.append(sa.and_(of_these, sa.not_(is_before)))
        elif not _is_sure(reading, field):
            is_null = _is_null(reading.name, content, dialect, below)
            unknown.append(sa.and_(of_these, sa.not_(is_null)) if reading.is_certain else of_these)
    older = layouts.fields_then(None).get(field.name)
    if older is None or older.is_secret or not _is_sure(older, field):
        unknown.append(number.is_(None))
    else:
        unknown.append(sa.and_(number.is_(None), sa.not_(_is_of_kind(older, content, dialect, below))))
    return sa.or_(*unknown)


def has_member_then(
    layouts: Layouts, field: FieldMeta, content: Any, number: Any, dialect: Dialect
) -> Condition:
    """Whether an object that a version keeps has something for a field, be it null."""
    if layouts.is_plain(field):
        return cast(Condition, has_name(field.api, content, dialect))
    members = [
        sa.and_(number.in_(_numbers(numbers)), has_name(reading.name, content, dialect))
        for numbers, reading in layouts.groups(field, None)
        if isinstance(reading, FieldThen)
    ]
    older = layouts.fields_then(None).get(field.name)
    if older is not None:
        members.append(sa.and_(number.is_(None), has_name(older.name, content, dialect)))
    return sa.or_(sa.false(), *members)


def _is_before(written_at: Any, moment: datetime, dialect: Dialect) -> Any:
    return written_at < sa.literal_column(literal(moment, Kind.DATETIME, dialect))


def _numbers(numbers: Sequence[int]) -> list[Any]:
    return [sa.literal_column(str(number)) for number in numbers]


def _branch_value(
    field: FieldMeta, reading: Reading, content: Any, dialect: Dialect, below: tuple[str, ...]
) -> Any:
    if isinstance(reading, FilledField):
        return _literal(field, reading.value, dialect)
    if reading is None or not _is_sure(reading, field):
        return None
    return _told_value(field, reading, content, dialect, below)


def _literal(field: FieldMeta, value: Any, dialect: Dialect) -> Any:
    kind = column_type(field.kind, dialect)
    if value is None:
        return sa.cast(sa.null(), kind) if by_dialect(dialect, sqlite=False, postgres=True) else sa.null()
    expression: Any = sa.literal_column(literal(value, field.kind, dialect))
    return sa.cast(expression, kind) if by_dialect(dialect, sqlite=False, postgres=True) else expression


def _told_value(
    field: FieldMeta, then: FieldThen, content: Any, dialect: Dialect, below: tuple[str, ...]
) -> Any:
    """The value as the field has it now; of a kind that becomes the kind of now for every value."""
    names = (then.name, *below)
    if then.kind is field.kind:
        return value_at(field, content, dialect, *names)
    return by_dialect(dialect, sqlite=_convert_on_sqlite, postgres=_convert_on_postgres)(
        field, then, content, names
    )


_AFFINITY: PartialTable[Kind, Any] = PartialTable(
    {
        Kind.FLOAT: sa.REAL(),
        Kind.DECIMAL: sa.Text(),
        Kind.TEXT: sa.Text(),
        Kind.INT: sa.Integer(),
    },
    others="no conversion to them succeeds for every value",
)


def _convert_on_sqlite(field: FieldMeta, then: FieldThen, content: Any, names: tuple[str, ...]) -> Any:
    path = "".join(f'."{name}"' for name in names)
    value: Any = sa.func.json_extract(content, sa.literal_column(f"'${path}'"))
    if field.kind is Kind.BOOL:
        return value != sa.literal_column("0")
    return sa.cast(value, _AFFINITY[field.kind])


def _convert_on_postgres(field: FieldMeta, then: FieldThen, content: Any, names: tuple[str, ...]) -> Any:
    if (then.kind, field.kind) not in ((Kind.INT, Kind.BOOL), (Kind.BOOL, Kind.INT)):
        return value_at(field, content, Dialect.POSTGRES, *names)
    for name in names[:-1]:
        content = content.op("->")(sa.literal_column(f"'{name}'"))
    text: Any = sa.type_coerce(content.op("->>")(sa.literal_column(f"'{names[-1]}'")), sa.Text())
    if field.kind is Kind.BOOL:
        return sa.cast(text, column_type(Kind.INT, Dialect.POSTGRES)) != sa.literal_column("0")
    whole = column_type(Kind.INT, Dialect.POSTGRES)
    return sa.cast(sa.cast(sa.cast(text, sa.Boolean()), sa.Integer()), whole)


# -- versions from before layouts were kept: their values are looked at before they are believed

_SQLITE_TYPES: PartialTable[Kind, tuple[str, ...]] = PartialTable(
    {
        Kind.INT: ("integer",),
        Kind.FLOAT: ("integer", "real"),
        Kind.BOOL: ("true", "false"),
    },
    others="they are texts",
)
_POSTGRES_TYPES: PartialTable[Kind, tuple[str, ...]] = PartialTable(
    {
        Kind.INT: ("number",),
        Kind.FLOAT: ("number",),
        Kind.BOOL: ("boolean",),
    },
    others="they are texts",
)
_D = "[0-9]"
_DAY = f"{_D * 4}-{_D * 2}-{_D * 2}"
_GLOBS: PartialTable[Kind, str] = PartialTable(
    {
        Kind.DATE: _DAY,
        Kind.DATETIME: f"{_DAY}T{_D * 2}:{_D * 2}:*",
        Kind.TIME: f"{_D * 2}:{_D * 2}:*",
        Kind.UUID: "????????-????-????-????-????????????",
    },
    others="their texts need no look",
)
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|3[01])"
_PATTERNS: PartialTable[Kind, str] = PartialTable(
    {
        Kind.INT: r"^-?[0-9]{1,19}$",
        Kind.DECIMAL: r"^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]{1,5})?$",
        Kind.DATE: rf"^{_DATE}$",
        Kind.DATETIME: rf"^{_DATE}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]+)?Z$",
        Kind.TIME: r"^[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?$",
        Kind.UUID: r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        Kind.BYTES: r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    },
    others="a cast of them cannot fail",
)


def _is_of_kind(then: FieldThen, content: Any, dialect: Dialect, below: tuple[str, ...]) -> Any:
    """That an object has a value of that kind, or null, under the name of a field."""
    names = (then.name, *below)
    check = by_dialect(dialect, sqlite=_is_of_kind_on_sqlite, postgres=_is_of_kind_on_postgres)
    return sa.or_(
        sa.and_(has_name(then.name, content, dialect), _is_null(then.name, content, dialect, below)),
        check(then.kind, content, names),
    )


def _quote_texts(texts: Sequence[str]) -> list[Any]:
    return [sa.literal_column(f"'{text}'") for text in texts]


def _is_of_kind_on_sqlite(kind: Kind, content: Any, names: tuple[str, ...]) -> Any:
    path: Any = sa.literal_column("'$" + "".join(f'."{name}"' for name in names) + "'")
    type_: Any = sa.func.coalesce(sa.func.json_type(content, path), sa.literal_column("''"))
    if kind is Kind.JSON:
        return type_ != sa.literal_column("''")
    is_type = type_.in_(_quote_texts(_SQLITE_TYPES.get(kind, ("text",))))
    value: Any = sa.func.json_extract(content, path)
    if kind in _GLOBS:
        return sa.and_(is_type, value.op("GLOB")(_quote_texts([_GLOBS[kind]])[0]))
    if kind is Kind.DECIMAL:
        return sa.and_(is_type, value.op("NOT GLOB")(sa.literal_column("'*[^-+.eE0-9]*'")))
    return is_type


def _is_of_kind_on_postgres(kind: Kind, content: Any, names: tuple[str, ...]) -> Any:
    for name in names[:-1]:
        content = content.op("->")(sa.literal_column(f"'{name}'"))
    last: Any = sa.literal_column(f"'{names[-1]}'")
    member = content.op("->")(last)
    type_: Any = sa.func.coalesce(sa.func.json_typeof(member), sa.literal_column("''"))
    if kind is Kind.JSON:
        return type_ != sa.literal_column("''")
    is_type = type_.in_(_quote_texts(_POSTGRES_TYPES.get(kind, ("string",))))
    if kind not in _PATTERNS:
        return is_type
    text: Any = sa.type_coerce(content.op("->>")(last), sa.Text())
    return sa.and_(is_type, text.op("~")(_quote_texts([_PATTERNS[kind]])[0]))


def _is_null(name: str, content: Any, dialect: Dialect, below: tuple[str, ...]) -> Any:
    names = (name, *below)
    path = "".join(f'."{one}"' for one in names)
    if by_dialect(dialect, sqlite=True, postgres=False):
        return sa.func.json_extract(content, sa.literal_column(f"'${path}'")).is_(None)
    for one in names[:-1]:
        content = content.op("->")(sa.literal_column(f"'{one}'"))
    return sa.type_coerce(content.op("->>")(sa.literal_column(f"'{names[-1]}'")), sa.Text()).is_(None)


# Values out of the JSON of histories, in the types of the columns they came from.


def value_at(field: FieldMeta, content: Any, dialect: Dialect, *names: str) -> Any:
    """The value of a field that stands in an object below these names."""
    write = by_dialect(dialect, sqlite=_sqlite_value, postgres=_postgres_value)
    return sa.type_coerce(write(field, content, names), column_type(field.kind, dialect))


def has_name(name: str, content: Any, dialect: Dialect) -> Any:
    """Whether an object has something under a name, be it null."""
    return by_dialect(
        dialect,
        sqlite=sa.func.json_type(content, _sqlite_path((name,))).is_not(None),
        postgres=sa.type_coerce(content.op("->")(_name(name)), sa.Text()).is_not(None),
    )


def _sqlite_path(names: tuple[str, ...]) -> Any:
    path = "".join(f'."{name}"' for name in names)
    return sa.literal_column(f"'${path}'")


def _name(name: str) -> Any:
    return sa.literal_column(f"'{name}'")


def _sqlite_value(field: FieldMeta, snapshot: Any, names: tuple[str, ...]) -> Any:
    value: Any = sa.func.json_extract(snapshot, _sqlite_path(names))
    if field.kind in (Kind.DATETIME, Kind.TIME):  # stored with all digits, shown without those that are 0
        whole, end = ("19", "'.000000Z'") if field.kind is Kind.DATETIME else ("8", "'.000000'")
        bare = sa.func.substr(value, sa.literal_column("1"), sa.literal_column(whole))
        has_fraction = sa.func.instr(value, sa.literal_column("'.'")) > sa.literal_column("0")
        return sa.case((has_fraction, value), else_=bare.op("||")(sa.literal_column(end)))
    if field.kind is Kind.JSON:
        return sa.func.nullif(sa.func.json_quote(value), sa.literal_column("'null'"))
    return value


def _postgres_value(field: FieldMeta, snapshot: Any, names: tuple[str, ...]) -> Any:
    for name in names[:-1]:
        snapshot = snapshot.op("->")(_name(name))
    value: Any = sa.type_coerce(snapshot.op("->>")(_name(names[-1])), sa.Text())
    if field.kind is Kind.TEXT:
        return value.collate("C")
    if field.kind is Kind.BYTES:
        return sa.func.decode(value, sa.literal_column("'base64'"))
    return sa.cast(value, column_type(field.kind, Dialect.POSTGRES))
