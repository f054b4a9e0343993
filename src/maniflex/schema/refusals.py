"""What stops a start, said with what helps: where every create would fail, or stored values would be misread.

The first happens when a field is renamed or dropped, the second when its type is changed. Nothing is dropped,
renamed or converted by a start: the message names the ways to do it, with the statements that the database
takes. Where there are migration files, it names the commands instead. What only differs is a warning.

SQLite checks types only by affinity: a column declared as a number keeps the text "seven" as it is, and a
number written into a text column comes back as text. So a changed type is no safer there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from maniflex.db.port import Executor
from maniflex.errors import DeclarationError
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.texts import LOCALE, locale_rules
from maniflex.schema.alterations import column_statements, drop_statements, place_of
from maniflex.schema.differences import (
    Difference,
    What,
    declared_index,
    find_old_tables,
    has_rows,
    index_predicates,
)
from maniflex.schema.read import Column, has_type, read_indexes, type_ddl
from maniflex.sql.codec import literal
from maniflex.sql.decimal_order import decimal_column, has_order_key
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect, sa_dialect
from maniflex.sql.tables import COLUMN_TYPES, quote

log = logging.getLogger("maniflex.migrate")

# What is said first and alone: tables, indexes and values for new columns often follow from it.
_CONTRADICTIONS = {What.EXTRA_COLUMN, What.LOST_MARK, What.TYPE, What.NULL}
_EXAMPLES = 3  # of rows that are not told apart, in a message
_ANEW = (
    ", and start once with auto_migrate=True afterwards: only that makes the triggers, search tables and"
    " indexes anew that other fields still need. The migration"
)
# Types of tables made by hand on SQLite that keep the texts we write; worth a warning, no more.
_TOLERATED: dict[Kind, tuple[str, ...]] = {
    Kind.TEXT: (),
    Kind.INT: (),
    Kind.FLOAT: (),
    Kind.BOOL: ("bool", "tinyint"),
    Kind.DECIMAL: (),
    Kind.DATETIME: ("datetime", "timestamp"),
    Kind.DATE: ("date",),
    Kind.TIME: ("time",),
    Kind.UUID: ("uuid", "char", "varchar"),
    Kind.BYTES: (),
    Kind.JSON: ("json",),
}


class Refusals:
    """The differences of one database, judged for a start."""

    def __init__(
        self,
        run: Executor,
        models: Sequence[ModelSql],
        differences: Sequence[Difference],
        *,
        application: str = "app:server",
        has_files: bool = False,
        adds: bool,
    ) -> None:
        """A start that `adds` what is missing is not stopped by it.

        `application` is as it is typed for commands. With `has_files` there are migration files, of which the
        database has seen none.
        """
        self._run = run
        self._models = models
        self._differences = differences
        self._up, self._make = (f"`maniflex migrate {word} {application}`" for word in ("up", "make"))
        self._has_files = has_files
        self._adds = adds
        self._old_tables: Mapping[str, list[str]] = {}

    async def judge(self) -> None:
        """`DeclarationError` with everything that stops the start; warn of the rest."""
        self._old_tables = await find_old_tables(self._run, self._models, self._differences)
        first = _CONTRADICTIONS if self._adds else _CONTRADICTIONS | {What.COLUMN, What.RENAMED_COLUMN}
        await self._judge([d for d in self._differences if d.what in first])
        await self._judge([d for d in self._differences if d.what not in first])

    async def _judge(self, differences: Sequence[Difference]) -> None:
        problems: list[str] = []
        for difference in differences:
            problem = await self._problem(difference)
            if problem is not None:
                problems.append(difference.text if self._has_files else problem)
        if problems and self._has_files:
            problems.append(
                f"there are migration files, and the database is at none of them: apply them with {self._up},"
                f" and write what they lack with {self._make}"
            )
        if problems:
            raise DeclarationError(*problems)

    async def _problem(self, difference: Difference) -> str | None:
        """Why the difference stops this start; None where it does not."""
        match difference:
            case Difference(what=What.TABLE | What.RENAMED_TABLE, model=ModelSql() as model):
                return self._missing_table(difference, model)
            case Difference(what=What.COLUMN, model=ModelSql() as model, field=FieldMeta() as field):
                return await self._missing_column(model, field)
            case Difference(what=What.RENAMED_COLUMN, model=ModelSql() as model, field=FieldMeta() as field):
                return None if self._adds else await self._old_name(difference, model, field)
            case Difference(what=What.EXTRA_COLUMN, model=ModelSql() as model, column=Column() as column):
                return await self._unknown_column(model, column)
            case Difference(what=What.LOST_MARK, model=ModelSql() as model):
                return await self._deleted_rows(difference, model)
            case Difference(
                what=What.TYPE,
                model=ModelSql() as model,
                field=FieldMeta() as field,
                column=Column() as column,
            ):
                return _other_type(model, field, column)
            case Difference(
                what=What.NULL,
                model=ModelSql() as model,
                field=FieldMeta() as field,
                column=Column() as column,
            ):
                return await self._other_nullability(model, field, column)
            case Difference(
                what=What.INDEX | What.CHANGED_INDEX, model=ModelSql() as model, index=sa.Index() as index
            ):
                return await self._other_index(difference, model, index)
            case Difference(what=What.EXTRA_INDEX, model=ModelSql() as model):
                return await self._old_promise(difference, model)
            case Difference(what=What.DERIVED, model=ModelSql() as model, name="search") if not self._adds:
                log.warning(
                    "%s; until then %s cannot be searched as it is declared", difference.text, model.meta.name
                )
        return None

    def _fields_without_column(self, model: ModelSql) -> list[FieldMeta]:
        return [
            d.field
            for d in self._differences
            if d.model is model and d.what in (What.COLUMN, What.RENAMED_COLUMN) and d.field is not None
        ]

    def _unknown_columns(self, model: ModelSql) -> list[Column]:
        return [
            d.column
            for d in self._differences
            if d.model is model and d.what is What.EXTRA_COLUMN and d.column is not None
        ]

    def _has_lost_mark(self, model: ModelSql) -> bool:
        return any(d.what is What.LOST_MARK and d.model is model for d in self._differences)

    # -- what is missing

    def _missing_table(self, difference: Difference, model: ModelSql) -> str | None:
        name, keep = model.meta.name, self._keeping_advice(model)
        if self._adds:
            if keep:
                log.warning("%s gets the new table %r, and %s", name, model.table.name, keep)
            return None
        ways = [keep] if keep else []
        ways.append("start once with auto_migrate=True")
        if {d.model for d in self._differences if d.what is What.TABLE} == set(self._models):
            ways[-1] += f", or write migration files with {self._make} and apply them with {self._up}"
        return f"{difference.text}, so every request for it would fail; {'; otherwise '.join(ways)}"

    def _keeping_advice(self, model: ModelSql) -> str:
        """How the model keeps the records of a table that may have been its own; empty without such one."""
        name, old_tables = model.meta.name, self._old_tables.get(model.meta.name, ())
        if not old_tables:
            return ""
        tables = " or ".join(f"{table!r}" for table in old_tables)
        ways = " or ".join(f'class {name}(Model, table="{table}")' for table in old_tables)
        return (
            f"the database has {tables} with the same columns, with rows and without a model; if {name} is a"
            f" new name for that model, keep its table: {ways}"
        )

    async def _missing_column(self, model: ModelSql, field: FieldMeta) -> str | None:
        table, place = model.table.name, f"{model.meta.name}.{field.name}"
        if self._adds:
            is_filled = field.has_default or field.default_factory is not None
            if field.nullable or (is_filled and not field.has_digest):
                return None
            if not await has_rows(self._run, self._table_of_now(model)):
                return None
            return (
                f"{place}: the table {table!r} has rows and the new column {field.column!r} has no value for"
                f" them; {self._old_names(model, field)}give the field a default, make it `| None`, or add"
                " and fill the column in a migration"
            )
        marker = model.meta.soft_delete
        if marker is not None and field.name == marker.field and self._has_lost_mark(model):
            return None  # the advice for the rows that were marked otherwise makes its column
        problem = (
            f"{place}: the table {table!r} has no column {field.column!r}, so every request for"
            f" {model.meta.name} would fail; {self._old_names(model, field)}start once with auto_migrate=True"
        )
        if has_order_key(field, model.dialect):  # more than a column, and nothing to write by hand
            return problem
        return (
            f"{problem}, or add the column and fill it for the rows there are in a migration: ALTER TABLE"
            f" {_place(model)} ADD COLUMN {quote(field.column, model.dialect)} {type_ddl(model, field)}"
        )

    def _table_of_now(self, model: ModelSql) -> str:
        renames = (d.name for d in self._differences if d.model is model and d.what is What.RENAMED_TABLE)
        return next(renames, model.table.name)

    def _old_names(self, model: ModelSql, field: FieldMeta) -> str:
        """The advice to keep a column under its old name, where there is one a new field may stand for."""
        names = [c.name for c in self._unknown_columns(model) if has_type(model, c, field.kind)]
        if not names:
            return ""
        ways = " or ".join(f'field(column="{name}")' for name in names)
        return (
            f"if it is an old field under a new name, declare it with {ways} and its values stay; otherwise "
        )

    async def _old_name(self, difference: Difference, model: ModelSql, field: FieldMeta) -> str:
        names = model.table.name, difference.name, field.column
        statements = await column_statements(self._run, *names, schema=model.schema)
        return (
            f"{model.meta.name}.{field.name}: {difference.text}, and until then every request for"
            f" {model.meta.name} would fail; start once with auto_migrate=True, or rename it in a migration:"
            f" {'; '.join(statements)}"
        )

    # -- columns that contradict

    async def _unknown_column(self, model: ModelSql, column: Column) -> str | None:
        """Why a column without a field (it was renamed or dropped) stops the start."""
        name, table = model.meta.name, model.table.name
        if any(
            d.what is What.LOST_MARK and d.name == column.name and d.model is model for d in self._differences
        ):
            return None  # it is said of the rows that were marked in it
        old = f'field(column="{column.name}")'
        new = [f for f in self._fields_without_column(model) if has_type(model, column, f.kind)]
        ways = [f"if {name}.{f.name} is its new name, declare it with {old}" for f in new]
        if not column.required:
            log.warning(
                "%s", "; ".join([f"{table}.{column.name} is in the database but not on {name}", *ways])
            )
            return None
        if not ways:
            ways = [f"if a field of {name} has taken its place, give that field {old}"]
        return (
            f"{name}: the table {table!r} has a column {column.name!r} that {name} does not know. It may not"
            " be null and has no default, so every create would fail. To keep its values:"
            f" {'; '.join(ways)}. If they are not needed any more, remove it in a migration"
            f"{self._in_migration(await self._drop(model, column.name), column.name)}"
        )

    async def _drop(self, model: ModelSql, column: str) -> list[str]:
        return await drop_statements(self._run, model.table.name, column, schema=model.schema)

    def _in_migration(self, statements: Sequence[str], own: str) -> str:
        """The statements, after what has to be done when they drop more than their `own` column."""
        drop = f" DROP COLUMN {quote(own, self._run.dialect)}"
        others = [s for s in statements if s.startswith("DROP") or (" DROP COLUMN " in s and drop not in s)]
        return f"{_ANEW if others and not self._adds else ''}: {'; '.join(statements)}"

    async def _other_nullability(self, model: ModelSql, field: FieldMeta, column: Column) -> str | None:
        name, place = model.meta.name, f"{model.table.name}.{column.name}"
        if not column.not_null:
            log.warning(
                "%s may be null in the database, on %s it may not: rows without a value are shown with null;"
                " fill them in a migration, or declare the field `| None`",
                *(place, name),
            )
            return None
        if not (field.has_default and field.default is None and field.default_factory is None):
            log.warning(
                "%s may not be null in the database, on %s it may: null is refused;"
                " let the column be null in a migration, or the field not",
                *(place, name),
            )
            return None
        return (
            f"{name}.{field.name}: {place} may not be null in the database, and on {name} it is null by"
            " default, so a create without it would fail. Give the field another default or none, or let the"
            " column be null in a migration"
            f"{self._in_migration(await self._let_be_null(model, field), field.column)}"
        )

    async def _let_be_null(self, model: ModelSql, field: FieldMeta) -> list[str]:
        """The statements that let the column of the field be null; SQLite does that only to a new column."""
        table, column = _place(model), quote(field.column, model.dialect)
        if by_dialect(model.dialect, sqlite=False, postgres=True):
            return [f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"]
        new = quote(f"{field.column}$null", model.dialect)
        # The shell of SQLite does not know our collation, and the next start makes order keys instead.
        type_ = type_ddl(model, field).partition(" COLLATE ")[0]
        return [
            f"ALTER TABLE {table} ADD COLUMN {new} {type_}",
            f"UPDATE {table} SET {new} = {column}",
            *await self._drop(model, field.column),
            f"ALTER TABLE {table} RENAME COLUMN {new} TO {column}",
        ]

    # -- rows that were deleted under a mark which is no longer declared

    async def _deleted_rows(self, difference: Difference, model: ModelSql) -> str:
        assert difference.lost_mark is not None
        name, mark, marker = model.meta.name, difference.lost_mark.mark, model.meta.soft_delete
        condition = mark.condition(model.dialect)
        drop = await self._drop(model, mark.column)
        anew = ""
        if marker is not None and marker.timestamp is (mark.kind is Kind.DATETIME):
            anew = f', or declare {marker.field} with field(column="{mark.column}")'
        elif marker is not None:
            statements = [*self._mark_again(model, condition), *drop]
            advice = self._in_migration(statements, mark.column)
            anew = f", or mark them by {marker.field} in a migration{advice}"
        removal = [f"DELETE FROM {_place(model)} WHERE {condition}", *drop]
        return (
            f"{name}: {difference.text}, because {name} no longer has that field. To keep them deleted,"
            f" declare {mark.mixin} again (class {name}(Model, {mark.mixin})){anew}. If they are not needed"
            " any more, delete them for good and remove the column in a migration"
            f"{self._in_migration(removal, mark.column)}"
        )

    def _mark_again(self, model: ModelSql, condition: str) -> Iterator[str]:
        """The statements that mark the same rows by the field that marks deleted rows of the model now."""
        assert model.meta.soft_delete is not None
        field, table = model.meta.by_name[model.meta.soft_delete.field], _place(model)
        column = quote(field.column, model.dialect)
        if field in self._fields_without_column(model):
            live = "" if field.nullable else f" NOT NULL DEFAULT {literal(False, field.kind, model.dialect)}"
            yield f"ALTER TABLE {table} ADD COLUMN {column} {type_ddl(model, field)}{live}"
        value = "TRUE"
        if (
            model.meta.soft_delete.timestamp
        ):  # when they were deleted is not known; nothing changed them since
            value = quote(model.meta.by_name["updated_at"].column, model.dialect)
        yield f"UPDATE {table} SET {column} = {value} WHERE {condition}"

    # -- indexes: promises of uniqueness that would not be kept, or that nobody gives any more

    async def _other_index(self, difference: Difference, model: ModelSql, index: sa.Index) -> str | None:
        existing = difference.old_index
        if not self._adds:
            await self._warn_of_missing_promise(model, index)
            return None
        if existing is None or not existing.valid:
            return None
        declared = declared_index(model, index, existing)
        text = (
            f"{model.meta.name}: the index {index.name!r} of {model.table.name!r} should be {declared},"
            f" and the one in the database is {existing}"
        )
        if declared.unique and existing.promise != declared.promise:
            drop = f"DROP INDEX {place_of(str(index.name), model.dialect, model.schema)}"
            return f"{text}; drop it in a migration and the next start builds it anew: {drop}"
        log.warning("%s", text)
        return None

    async def _warn_of_missing_promise(self, model: ModelSql, index: sa.Index) -> None:
        """Warn of uniqueness that the model declares and no index of the database keeps."""
        columns = frozenset(column.name for column in index.columns)
        existing = await read_indexes(self._run, model)
        if not index.unique or any(one.promise[:2] == (True, columns) for one in existing.values()):
            return
        log.warning(
            "%s: %s is unique on %s and not in the database, so equal values would be stored;"
            " start once with auto_migrate=True, or build the index in a migration: %s",
            *(model.meta.name, _names(index), model.meta.name, _create_index(model, index)),
        )

    async def _old_promise(self, difference: Difference, model: ModelSql) -> str | None:
        existing, name = difference.old_index, difference.name
        assert existing is not None
        # No two envelopes are equal: it stands for texts from before, until the rotation that seals them.
        encrypted = {field.column for field in model.meta.fields if field.has_digest}
        if not existing.unique or encrypted & set(existing.columns) or await self._is_constraint(name):
            return None
        columns = ", ".join(decimal_column(column) for column in existing.columns)
        return (
            f"{model.meta.name}: {columns} of {model.table.name!r} is unique in the database and no longer on"
            f" {model.meta.name}, so equal values would be refused. Declare it unique again, or drop the"
            f" index in a migration: DROP INDEX {place_of(name, model.dialect, model.schema)}"
        )

    async def _is_constraint(self, index: str) -> bool:
        """Whether a constraint stands on the index, which then is none of ours."""
        if by_dialect(self._run.dialect, sqlite=True, postgres=False):
            return False
        text = "SELECT 1 FROM pg_constraint WHERE conindid = to_regclass($1)"
        return await self._run.fetch_one(Sql(text, (quote(index, self._run.dialect),))) is not None


def _other_type(model: ModelSql, field: FieldMeta, column: Column) -> str | None:
    name, expected = model.meta.name, COLUMN_TYPES[model.dialect][field.kind][0]
    difference = (
        f"{model.table.name}.{column.name} is {column.type or 'of no type'} in the database, {name} expects"
        f" {expected}"
    )
    if _is_tolerated(model, field, column):
        log.warning("%s", difference)
        return None
    if locale_rules(field) is not None and column.type == "text":
        return (
            f"{name}.{field.name}: {difference}; `maniflex migrate make --allow-rewrite` writes the"
            f" conversion, in which every text is the one in {field.extra[LOCALE].locale_of_bare_text('')}"
        )
    return (
        f"{name}.{field.name}: {difference}; stored values would be read as what they are not. Give the field"
        f" its old type back, or convert the column in a migration, or {_beside(field, column)}"
    )


def _is_tolerated(model: ModelSql, field: FieldMeta, column: Column) -> bool:
    if not by_dialect(model.dialect, sqlite=True, postgres=False):
        return False
    if field.name in ("created_at", "updated_at") and column.type == "text":
        return True  # nobody but the framework writes them, so what a text column holds of them are times
    return not column.type or column.type.split("(")[0].strip() in _TOLERATED[field.kind]


def _beside(field: FieldMeta, column: Column) -> str:
    """The advice to keep a column of the old type under another field, in words that need no second start."""
    if column.not_null:
        old = f'with a default of the old type, field(column="{column.name}", default=...)'
    else:
        old = f'that is `| None`, field(column="{column.name}", default=None)'
    return (
        f"declare the old column as another field {old}, and give {field.name} a new column,"
        f' field(column="{column.name}_new"), with a default or `| None` for the rows there are'
    )


async def duplicates(run: Executor, model: ModelSql, index: sa.Index) -> str:
    """The advice to follow before a unique index can be built; nothing when no values are equal."""
    examples = await _equal_rows(run, model, index)
    if not examples:
        return ""
    columns = ", ".join(quote(column.name, model.dialect) for column in index.columns)
    where = " AND ".join([f"{quote(c.name, model.dialect)} IS NOT NULL" for c in index.columns])
    live = "".join(f" AND {condition}" for condition in index_predicates(model)[:1] if condition)
    return (
        f"{model.meta.name}: {model.table.name!r} has rows with equal values in {_names(index)}, which is"
        f" unique on {model.meta.name}. Change or delete all but one row of each group and start again; equal"
        f" are for example the rows with the ids {'; '.join(examples)}. All groups:"
        f" SELECT {columns}, count(*) FROM {_place(model)}"
        f" WHERE {where}{live} GROUP BY {columns} HAVING count(*) > 1"
    )


async def _equal_rows(run: Executor, model: ModelSql, index: sa.Index) -> list[str]:
    """A few groups of rows with equal values, by their ids: the values themselves may be secrets."""
    columns, rows = list(index.columns), sa.func.count()
    query: sa.Select[Any] = sa.select(sa.func.min(model.id), sa.func.max(model.id), rows)
    query = query.select_from(model.table).where(*(c.is_not(None) for c in columns), *model.live())
    query = query.group_by(*columns).having(rows > sa.literal_column("1"))
    query = query.order_by(sa.func.min(model.id)).limit(sa.literal_column(str(_EXAMPLES)))
    text = query.offset(sa.literal_column("0")).compile(dialect=sa_dialect(model.dialect))
    groups = await run.fetch(Sql(str(text)))
    return [
        f"{first!r} and {last!r}" + (f" ({count} rows)" if count > 2 else "") for first, last, count in groups
    ]


def _names(index: sa.Index) -> str:
    return ", ".join(decimal_column(column.name) for column in index.columns)


def _place(model: ModelSql) -> str:
    return place_of(model.table.name, model.dialect, model.schema)


def _create_index(model: ModelSql, index: sa.Index) -> str:
    """The statement that builds an index, on one line."""
    schema = {} if model.schema in (None, "public") else {None: model.schema}
    options: dict[str, Any] = (
        {"schema_translate_map": schema, "render_schema_translate": True} if schema else {}
    )
    text = CreateIndex(index).compile(dialect=sa_dialect(model.dialect), **options)
    return " ".join(str(text).split())
