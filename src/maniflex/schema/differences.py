"""How a database differs from the models of an application: the one comparison.

`migrate make` writes files from it, `migrate check` reports it, and the start of a database that migrations
keep refuses or warns by it. It reads and changes nothing. Pieces that hold nothing of their own (order keys
of decimals, full text search) are in no file: they are brought up to date wherever migrations run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from maniflex.db.port import Adapter, Executor
from maniflex.errors import DeclarationError, RequestError, Timeout, Unavailable
from maniflex.model.meta import FieldMeta, Kind
from maniflex.schema.derived import order_key_difference, search_difference
from maniflex.schema.indexes import index_difference, is_old_index
from maniflex.schema.read import (
    Column,
    Columns,
    ExistingIndex,
    has_type,
    is_derived,
    read_columns,
    read_indexes,
    read_object_names,
)
from maniflex.schema.renames import columns_when_renamed, index_renames, renamed_columns
from maniflex.sql.model import ModelSql, gives, runs
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import COLUMN_TYPES, constant_default, quote

_COLLATION = "C"


class What(StrEnum):
    """What differs."""

    TABLE = "table"  # is missing
    RENAMED_TABLE = "renamed table"
    COLUMN = "column"  # is missing
    RENAMED_COLUMN = "renamed column"
    EXTRA_COLUMN = "extra column"
    TYPE = "type"
    NULL = "null"
    DEFAULT = "default"
    COLLATION = "collation"
    INDEX = "index"  # is missing
    CHANGED_INDEX = "changed index"
    EXTRA_INDEX = "extra index"
    DERIVED = "derived"  # a piece of search or of the order of decimals: `up` makes it
    ENGINE = "engine"  # a piece of durable work that is missing, or one that should be gone


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, in one sentence; a harmless one breaks nothing."""

    what: What
    text: str
    model: ModelSql | None = None
    field: FieldMeta | None = None
    column: Column | None = None
    index: sa.Index | None = None
    old_index: ExistingIndex | None = None  # of the database, where it is to go, by new names of columns
    name: str = ""  # of the old table, column or index
    object: EngineObject | None = None
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as the database has it."""

    model: ModelSql
    columns: Columns
    indexes: Mapping[str, ExistingIndex]


async def find_differences(
    run: Executor, models: Sequence[ModelSql], statements: Iterable[Sql] = ()
) -> list[Difference]:
    """All differences, in the order in which a migration would remove them."""
    own_models = [model for model in models if not model.readonly]
    names = await read_object_names(run)
    differences: list[Difference] = []
    for model in own_models:
        columns, old = await read_columns(run, model), None
        if not columns:
            difference = _missing_table(model, names)
            differences.append(difference)
            if difference.what is What.TABLE:
                continue
            old = difference.name
            columns = await read_columns(run, model, old)
        state = TableState(model, columns, await _read_indexes(run, model, old, columns))
        differences += [*_column_differences(state), *await _default_differences(run, state)]
        differences += _index_differences(state)
        if old is None and all(f.column in columns for f in model.meta.fields):
            differences += await _derived_differences(run, model)
    differences += _engine_differences(statements, run.dialect, names)
    return differences


async def _read_indexes(
    run: Executor, model: ModelSql, old: str | None, columns: Columns
) -> dict[str, ExistingIndex]:
    """The indexes of a table, as they will be when it and its columns have been renamed."""
    indexes = await read_indexes(run, model, old)
    renames = renamed_columns(model, columns)
    if old is None and not renames:
        return indexes
    new_names = index_renames(model, indexes, renames)
    new_columns = {old_name: new for new, old_name in renames.items()}
    return {new_names.get(name, name): index.with_columns(new_columns) for name, index in indexes.items()}


def _missing_table(model: ModelSql, names: frozenset[str]) -> Difference:
    table, old = model.table.name, model.meta.options.renamed_from
    if old is not None and old in names:
        return Difference(
            What.RENAMED_TABLE, f"the table {old!r} is to be renamed to {table!r}", model, name=old
        )
    return Difference(What.TABLE, f"{model.meta.name}: there is no table {table!r}", model)


def _column_differences(state: TableState) -> Iterator[Difference]:
    model, columns = state.model, columns_when_renamed(state.model, state.columns)
    fields = {field.column: field for field in model.meta.fields}
    for new, old in renamed_columns(model, state.columns).items():
        text = f"{model.table.name}.{old} is to be renamed to {new!r}"
        yield Difference(What.RENAMED_COLUMN, text, model, fields[new], columns[new], name=old)
    for field in model.meta.fields:
        if field.column in columns:
            yield from _kept_column(model, field, columns[field.column])
        else:
            text = f"{model.meta.name}.{field.name}: {model.table.name!r} has no column {field.column!r}"
            yield Difference(What.COLUMN, text, model, field)
    for name, column in columns.items():
        if name not in fields and not is_derived(column, state.columns):
            yield _extra_column(model, column)


def _extra_column(model: ModelSql, column: Column) -> Difference:
    place = f"{model.table.name}.{column.name}"
    if column.required:
        text = f"{place} has no field on {model.meta.name} and must have a value, so every create would fail"
    else:
        text = f"{place} has no field on {model.meta.name}"
    return Difference(
        What.EXTRA_COLUMN, text, model, column=column, name=column.name, harmless=not column.required
    )


def _kept_column(model: ModelSql, field: FieldMeta, column: Column) -> Iterator[Difference]:
    place, name = f"{model.table.name}.{column.name}", model.meta.name
    if not has_type(model, column, field.kind):
        expected = COLUMN_TYPES[model.dialect][field.kind][0]
        text = f"{place} is {column.type or 'of no type'} in the database and {expected} on {name}"
        yield Difference(What.TYPE, text, model, field, column)
    if column.not_null == field.nullable and field.name != "id":
        words = ("may not", "may") if field.nullable else ("may", "may not")
        text = f"{place} {words[0]} be null in the database and {words[1]} on {name}"
        yield Difference(What.NULL, text, model, field, column)
    if field.kind is Kind.TEXT and column.type == "text" and column.collation not in (None, _COLLATION):
        text = f"{place} sorts by the collation {column.collation!r} in the database, not by {_COLLATION!r}"
        yield Difference(What.COLLATION, text, model, field, column)


async def _default_differences(run: Executor, state: TableState) -> list[Difference]:
    """Constant defaults that differ; tables of earlier releases have none, and code does without."""
    columns = columns_when_renamed(state.model, state.columns)
    pairs = [
        (field, column, declared_default)
        for field in state.model.meta.fields
        if (column := columns.get(field.column)) is not None
        and column.default is not None
        and (declared_default := constant_default(field, run.dialect)) is not None
        and _bare(column.default) != declared_default
    ]
    if not pairs:
        return []
    values = await run.fetch_one(Sql(f"SELECT {', '.join(_as_texts(state, pairs))}"))
    assert values is not None
    return [
        Difference(
            What.DEFAULT,
            f"the default of {state.model.table.name}.{column.name} is {column.default} in the database and"
            f" {declared_default} on {state.model.meta.name}",
            *(state.model, field, column),
        )
        for number, (field, column, declared_default) in enumerate(pairs)
        if values[2 * number] != values[2 * number + 1]
    ]


def _bare(default: str) -> str:
    """A default without the cast that PostgreSQL writes behind a constant."""
    head, cast, kind = default.rpartition("::")
    return head if cast and "'" not in kind else default


def _as_texts(state: TableState, pairs: Sequence[tuple[FieldMeta, Column, str]]) -> Iterator[str]:
    """Both defaults of each column as texts of the database, which alone knows when two are equal."""
    for field, column, declared_default in pairs:
        type_ = COLUMN_TYPES[state.model.dialect][field.kind][0]
        cast = by_dialect(
            state.model.dialect,
            sqlite=declared_default,
            postgres=f"CAST({declared_default} AS {type_})",
        )
        yield f"CAST(({column.default}) AS text)"
        yield f"CAST({cast} AS text)"


def _index_differences(state: TableState) -> Iterator[Difference]:
    model, table = state.model, state.model.table.name
    for index in sorted(model.table.indexes, key=lambda index: str(index.name)):
        existing_index = state.indexes.get(str(index.name))
        if existing_index is None:
            columns = ", ".join(column.name for column in index.columns)
            text = f"{table} has no index {index.name} on {columns}"
            yield Difference(What.INDEX, text, model, index=index, name=str(index.name))
        elif not existing_index.valid:
            text = f"the index {index.name} of {table} was never finished"
            yield _changed_index(text, model, index, existing_index)
        elif difference := index_difference(model, index, existing_index):
            text = f"the index {index.name} of {table} {difference}"
            yield _changed_index(text, model, index, existing_index)
    for name, existing_index in state.indexes.items():
        if is_old_index(model, name, existing_index):
            text = f"the index {name} of {table} is declared no longer"
            yield Difference(
                *(What.EXTRA_INDEX, text, model),
                old_index=existing_index,
                name=name,
                harmless=not existing_index.unique,
            )


async def _derived_differences(run: Executor, model: ModelSql) -> list[Difference]:
    """What `up` and a start with auto_migrate make by themselves, of a table that has all its columns."""
    looks = (("search", search_difference), ("the order of decimals", order_key_difference))
    return [
        Difference(
            What.DERIVED,
            f"{model.table.name}: {name} is not as {model.meta.name} declares it, {problem};"
            " `maniflex migrate up` makes it anew, and so does a start with auto_migrate",
            model,
            name=name,
        )
        for name, look in looks
        if (problem := await look(run, model)) is not None
    ]


def _changed_index(text: str, model: ModelSql, index: sa.Index, old: ExistingIndex) -> Difference:
    return Difference(What.CHANGED_INDEX, text, model, index=index, old_index=old, name=str(index.name))


def _engine_differences(
    statements: Iterable[Sql], dialect: Dialect, names: frozenset[str]
) -> Iterator[Difference]:
    for object_ in engine_objects(statements):
        if object_.wanted and object_.name not in names:
            text = f"durable work needs {object_.kind} {object_.name}, which is not there"
            yield Difference(What.ENGINE, text, name=object_.name, object=object_)
        elif not object_.wanted and object_.name in names:
            text = f"{object_.kind} {object_.name} of durable work is used no longer"
            yield Difference(What.ENGINE, text, name=object_.name, object=object_, harmless=True)


async def count_outside_enum(run: Executor, model: ModelSql, field: FieldMeta) -> int:
    """How many rows hold a value that the enum of the field does not have."""
    assert field.enum is not None
    marks = [by_dialect(run.dialect, sqlite="?", postgres=f"${n}") for n, _ in enumerate(field.enum, 1)]
    column, table = quote(field.column, run.dialect), quote(model.table.name, run.dialect)
    values = tuple(model.encode(field, value) for value in field.enum)
    row = await run.fetch_one(
        Sql(f"SELECT count(*) FROM {table} WHERE {column} NOT IN ({', '.join(marks)})", values)
    )
    return 0 if row is None else int(row[0])


# What durable work keeps beside its models: indexes, tables and checks, told from their statements.
#
# Each of these statements does no harm when it is repeated, so its name is all that a comparison needs.


_FORMS = (
    (re.compile(r"\s*CREATE\s+(?:UNIQUE\s+)?INDEX\s+IF\s+NOT\s+EXISTS\s+(\w+)", re.IGNORECASE), "the index"),
    (re.compile(r"\s*CREATE\s+TABLE\s+IF\s+NOT\s+EXISTS\s+(\w+)", re.IGNORECASE), "the table"),
    (re.compile(r"\s*CREATE\s+SEQUENCE\s+IF\s+NOT\s+EXISTS\s+(\w+)", re.IGNORECASE), "the sequence"),
    (re.compile(r"\s*DO\b.*?\bconname\s*=\s*'(\w+)'", re.IGNORECASE | re.DOTALL), "the check"),
)
_DROPS = re.compile(r"\s*DROP\s+INDEX\s+IF\s+EXISTS\s+(\w+)", re.IGNORECASE)
_TABLE = re.compile(r"\bON\s+(\w+)\s*(?:USING\s+\w+\s*)?\(|\bALTER\s+TABLE\s+(\w+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EngineObject:
    """One piece beside the models, and the statement that makes it or removes it."""

    name: str
    kind: str  # in words
    text: str
    wanted: bool
    table: str | None  # it stands on

    @property
    def is_index(self) -> bool:
        return self.kind == "the index"


def engine_objects(statements: Iterable[Sql]) -> Iterator[EngineObject]:
    """The pieces that these statements make, in their order."""
    for statement in statements:
        text, match = statement.text, _DROPS.match(statement.text)
        if match is not None:
            yield EngineObject(match[1], "the index", text, False, None)
            continue
        yield _wanted_object(text)


def _wanted_object(text: str) -> EngineObject:
    for form, kind in _FORMS:
        if (match := form.match(text)) is not None:
            table = _TABLE.search(text, match.end() if kind != "the check" else 0)
            return EngineObject(match[1], kind, text, True, (table[1] or table[2]) if table else None)
    raise ValueError(f"no name can be read from the statement {text.strip()[:60]!r}")


# Query models at start: their SELECT must run, and give every declared column.


async def check_queries(adapter: Adapter, models: Sequence[ModelSql]) -> None:
    """Ask every query model of this database for nothing; `DeclarationError` with all that is wrong."""
    problems = [problem for model in models if model.readonly for problem in await _problems(adapter, model)]
    if problems:
        raise DeclarationError(*problems)


async def _problems(adapter: Adapter, model: ModelSql) -> list[str]:
    meta = model.meta
    trouble = await _trouble(adapter, runs(meta, model.dialect))
    if trouble:
        return [f"{meta.name}: the query does not run: {trouble}"]
    missing = [
        f.column for f in meta.fields if await _trouble(adapter, gives(meta, model.dialect, f, typed=False))
    ]
    if missing:
        return [f"{meta.name}: the query gives no column {', '.join(missing)}"]
    problems = []
    for field in meta.fields:
        trouble = await _trouble(adapter, gives(meta, model.dialect, field, typed=True))
        if trouble:
            problems.append(f"{meta.name}.{field.name}: the query's column cannot be {field.kind}: {trouble}")
    return problems


async def _trouble(adapter: Adapter, sql: Sql) -> str | None:
    """What the database says against a statement."""
    try:
        await adapter.fetch(sql)
    except (Unavailable, Timeout):
        raise
    except RequestError as error:
        return str(error.__cause__ or error)
    return None
