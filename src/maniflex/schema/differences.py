"""How a database differs from the models of an application: the one comparison.

The start adds what is missing and refuses what contradicts by it, `migrate make` writes files from it, and
`migrate check` reports it. It reads and changes nothing. Pieces that hold nothing of their own (order keys
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
from maniflex.sql.decimal_order import decimal_column, is_order_column
from maniflex.sql.model import ModelSql, gives, runs
from maniflex.sql.search import VECTOR
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import (
    COLUMN_TYPES,
    NAMED_BY_CONDITION,
    constant_default,
    index_name,
    quote,
    table_rules,
)

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
    LOST_MARK = "lost mark"  # rows were marked as deleted in a column that has no field any more
    NO_DEFAULT = "no default"  # of a column of PostgreSQL: code does without, and only the start adds it
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
    lost_mark: LostMark | None = None
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
        differences += await _lost_marks(run, state, old or model.table.name)
        differences += _index_differences(state)
        if old is None and all(f.column in columns for f in model.meta.stored):
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
    fields = {field.column: field for field in model.meta.stored}
    for new, old in renamed_columns(model, state.columns).items():
        text = f"{model.table.name}.{old} is to be renamed to {new!r}"
        yield Difference(What.RENAMED_COLUMN, text, model, fields[new], columns[new], name=old)
    for field in model.meta.stored:
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
    without = [
        Difference(
            *(What.NO_DEFAULT, f"{state.model.table.name}.{field.column} has no default", state.model, field),
            column=column,
            harmless=True,
        )
        for field in state.model.meta.fields
        if (column := columns.get(field.column)) is not None
        and not column.has_default
        and state.model.table.c[field.column].server_default is not None
        and by_dialect(run.dialect, sqlite=False, postgres=True)  # SQLite sets them only with the table
    ]
    pairs = [
        (field, column, declared_default)
        for field in state.model.meta.fields
        if (column := columns.get(field.column)) is not None
        and column.default is not None
        and (declared_default := constant_default(field, run.dialect)) is not None
        and _bare(column.default) != declared_default
    ]
    if not pairs:
        return without
    values = await run.fetch_one(Sql(f"SELECT {', '.join(_as_texts(state, pairs))}"))
    assert values is not None
    return without + [
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
        elif is_on_texts(index, existing_index):
            continue  # of decimals: `derived.py` builds it anew on their order keys
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


# What `renamed_from` of models and fields comes to.


def renamed_columns(model: ModelSql, columns: Columns) -> dict[str, str]:
    """New column → old, where the table has the old and not the new, in the order to rename them.

    The old name is free again after that, for a new column or for the next that is renamed.
    """
    renames: dict[str, str] = {}
    old_names = set(columns)
    waiting = [field for field in model.meta.stored if field.renamed_from is not None]
    while field := next(
        (f for f in waiting if f.column not in old_names and f.renamed_from in old_names), None
    ):
        waiting.remove(field)
        assert field.renamed_from is not None
        renames[field.column] = field.renamed_from
        old_names.remove(field.renamed_from)
    return renames


def columns_when_renamed(model: ModelSql, columns: Columns) -> Columns:
    """The columns of a table by the names they have once `renamed_columns` are renamed."""
    new_names = {old: new for new, old in renamed_columns(model, columns).items()}
    return {new_names.get(name, name): column for name, column in columns.items()}


def index_renames(model: ModelSql, existing: Iterable[str], renames: Mapping[str, str]) -> dict[str, str]:
    """Old name → new, of the indexes of a table that was renamed or whose columns were, in their order.

    `renames` are new columns → old.
    """
    waiting: list[tuple[str, str]] = []
    tables = [name for name in (model.table.name, model.meta.options.renamed_from) if name is not None]
    for index in model.table.indexes:
        columns = [decimal_column(column.name) for column in index.columns]
        old_columns = [renames.get(column, column) for column in columns]
        prefix, new = "uq" if index.unique else "idx", str(index.name)
        if new == index_name(prefix, model.table.name, *columns):
            waiting += [(index_name(prefix, table, *old_columns), new) for table in tables]
    pairs: dict[str, str] = {}
    old_names, new_names = set(existing), set[str]()
    while pair := next((p for p in waiting if p[0] in old_names and p[1] not in old_names | new_names), None):
        old, new = pair
        pairs[old] = new
        old_names.remove(old)  # free for the next
        new_names.add(new)
    return pairs


# Indexes: how one differs from its declaration, and which were made for fields that declare none now.


def index_predicates(model: ModelSql) -> tuple[str, ...]:
    """How the condition "not deleted" may be written; the first is how we write it."""
    marker = model.meta.soft_delete
    if marker is None:
        return ("",)
    name = model.meta.by_name[marker.field].column.lower()
    if marker.timestamp:
        return (f"{name} is null",)
    forms = ("{} is false", "{} is 0", "{} = false", "{} = 0", "not {}", "{} is not true")
    return tuple(form.format(name) for form in forms)


def declared_index(model: ModelSql, index: sa.Index, existing: ExistingIndex) -> ExistingIndex:
    """The index as the model declares it, with the condition written as the existing one has it."""
    predicates = index_predicates(model) if index.unique else ("",)
    if index.info.get(NAMED_BY_CONDITION):  # another condition would be another index
        predicates = (existing.predicate,)
    columns = tuple(column.name for column in index.columns)
    predicate = existing.predicate if existing.predicate in predicates else predicates[0]
    return ExistingIndex(columns, bool(index.unique), predicate)


def index_difference(model: ModelSql, index: sa.Index, existing: ExistingIndex) -> str:
    """How an index differs from its declaration; empty when it does not."""
    declared = declared_index(model, index, existing)
    return "" if existing == declared else f"is {existing} in the database and {declared} declared"


def is_on_texts(index: sa.Index, existing: ExistingIndex) -> bool:
    """Whether it compares the stored texts of decimals, as before there were order keys."""
    columns = tuple(column.name for column in index.columns)
    return existing.columns == tuple(map(decimal_column, columns)) != columns


def is_old_index(model: ModelSql, name: str, existing: ExistingIndex) -> bool:
    """Whether it is an index that we made for fields of the model and that is declared no longer."""
    if name in {str(index.name) for index in model.table.indexes}:
        return False
    if name in table_rules(model.meta).old_indexes:
        return False
    columns = [decimal_column(column) for column in existing.columns]
    if not {field.column for field in model.meta.stored}.issuperset(columns):
        return False
    made_for = index_name("due", model.table.name, *columns[:-1])
    prefix = "uq" if existing.unique else "idx"
    tables = (model.table.name, model.meta.options.renamed_from)
    old_names = {field.column: field.renamed_from for field in model.meta.stored}
    candidates = (columns, [old_names[column] or column for column in columns])
    names = {index_name(prefix, table, *one) for table in tables if table for one in candidates}
    return name in names or (
        bool(existing.predicate) and re.fullmatch(rf"{re.escape(made_for)}_[0-9a-f]{{8}}", name) is not None
    )


# Rows that a soft delete marked in a column which the model no longer declares.
#
# Nothing would leave them out any more, so they would come back as records: the start stops instead. Only
# columns as `WithDeletedAt` and `WithIsDeleted` make them count as marks.


@dataclass(frozen=True, slots=True)
class Mark:
    """How a mixin marks a row as deleted."""

    mixin: str
    column: str
    kind: Kind
    not_null: bool
    test: str  # of a deleted row, behind the column

    def condition(self, dialect: Dialect) -> str:
        """The condition of deleted rows."""
        return f"{quote(self.column, dialect)} {self.test}"


@dataclass(frozen=True, slots=True)
class LostMark:
    """A mark that the model no longer declares, and how many rows bear it."""

    mark: Mark
    rows: int


_MARKS = (
    Mark("WithDeletedAt", "deleted_at", Kind.DATETIME, not_null=False, test="IS NOT NULL"),
    Mark("WithIsDeleted", "is_deleted", Kind.BOOL, not_null=True, test="IS TRUE"),
)


async def _lost_marks(run: Executor, state: TableState, table: str) -> list[Difference]:
    """The marks without a field that rows of the table bear."""
    model, differences = state.model, list[Difference]()
    field_columns = {name for f in model.meta.fields for name in (f.column, f.renamed_from)}
    for mark in _MARKS:
        column = state.columns.get(mark.column)
        if column is None or mark.column in field_columns or not has_type(model, column, mark.kind):
            continue
        if column.not_null is not mark.not_null:
            continue
        count = f"SELECT count(*) FROM {quote(table, run.dialect)} WHERE {mark.condition(run.dialect)}"
        row = await run.fetch_one(Sql(count))
        if row is not None and row[0]:
            rows = "1 row" if row[0] == 1 else f"{row[0]} rows"
            text = f"{rows} of {model.table.name!r} marked as deleted by {mark.column!r} would be shown again"
            lost_mark = LostMark(mark, row[0])
            differences.append(
                Difference(
                    *(What.LOST_MARK, text, model), column=column, name=mark.column, lost_mark=lost_mark
                )
            )
    return differences


# Tables that have no model and may be the old table of a model whose class was renamed.
#
# The new class gets a table of its own, empty, while the records stay in the old one: worth a word.


_COLUMNS = {
    # A virtual table may need a module that is not there.
    Dialect.SQLITE: """
SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c
 WHERE m.type = 'table' AND m.sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY m.name
""",
    Dialect.POSTGRES: """
SELECT c.relname::text, a.attname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind IN ('r', 'p')
   AND a.attnum > 0 AND NOT a.attisdropped AND has_table_privilege(c.oid, 'SELECT') ORDER BY c.relname
""",
}
_OF_EVERY_MODEL = frozenset({"id", "created_at", "updated_at"})


async def find_old_tables(
    run: Executor, models: Sequence[ModelSql], differences: Iterable[Difference]
) -> Mapping[str, list[str]]:
    """For each model without a table, by its name: tables without a model that have its columns, and rows."""
    new = [
        d.model
        for d in differences
        if d.what is What.TABLE and d.model is not None and _columns(d.model) - _OF_EVERY_MODEL
    ]
    if not new:
        return {}
    others = await _tables_without_model(run, models)
    old = {
        model.meta.name: [t for t, columns in others.items() if columns == _columns(model)] for model in new
    }
    tables_with_rows = {table for names in old.values() for table in names if await has_rows(run, table)}
    return {name: [table for table in names if table in tables_with_rows] for name, names in old.items()}


def _columns(model: ModelSql) -> frozenset[str]:
    return frozenset(field.column for field in model.meta.stored)


async def _tables_without_model(run: Executor, models: Sequence[ModelSql]) -> dict[str, set[str]]:
    columns: dict[str, set[str]] = {}
    for table, column in await run.fetch(Sql(_COLUMNS[run.dialect])):
        columns.setdefault(table, set()).add(column)
    model_tables = {model.table.name.lower() for model in models}
    return {
        table: {name for name in names if not is_order_column(name, names) and name != VECTOR}
        for table, names in columns.items()
        if table.lower() not in model_tables
    }


async def has_rows(run: Executor, table: str) -> bool:
    """Whether there is any row."""
    text = f"SELECT 1 FROM {quote(table, run.dialect)} LIMIT 1"
    return await run.fetch_one(Sql(text)) is not None


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
