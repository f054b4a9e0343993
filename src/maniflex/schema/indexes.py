"""The promises of uniqueness that indexes stand for, compared with those that models declare."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from maniflex.db.port import Executor
from maniflex.errors import DeclarationError
from maniflex.schema.read import ExistingIndex, ddl, read_indexes
from maniflex.sql.decimal_order import decimal_column
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import NAMED_BY_CONDITION, index_name, quote, sa_dialect, table_rules

log = logging.getLogger("maniflex.migrate")
_EXAMPLES = 3  # of rows that are not told apart, in a message


def _predicates(model: ModelSql) -> tuple[str, ...]:
    """How the condition "not deleted" may be written; the first is how we write it."""
    marker = model.meta.soft_delete
    if marker is None:
        return ("",)
    name = model.meta.by_name[marker.field].column.lower()
    if marker.timestamp:
        return (f"{name} is null",)
    forms = ("{} is false", "{} is 0", "{} = false", "{} = 0", "not {}", "{} is not true")
    return tuple(form.format(name) for form in forms)


def _declared_index(model: ModelSql, index: sa.Index, existing: ExistingIndex) -> ExistingIndex:
    """The index as the model declares it, with the condition written as the existing one has it."""
    predicates = _predicates(model) if index.unique else ("",)
    if index.info.get(NAMED_BY_CONDITION):  # another condition would be another index
        predicates = (existing.predicate,)
    columns = tuple(column.name for column in index.columns)
    predicate = existing.predicate if existing.predicate in predicates else predicates[0]
    return ExistingIndex(columns, bool(index.unique), predicate)


def index_difference(model: ModelSql, index: sa.Index, existing: ExistingIndex) -> str:
    """How an index differs from its declaration; empty when it does not."""
    declared_index = _declared_index(model, index, existing)
    return (
        "" if existing == declared_index else f"is {existing} in the database and {declared_index} declared"
    )


def compare_index(model: ModelSql, index: sa.Index, existing: ExistingIndex) -> None:
    """Stop where a promise of uniqueness would not be kept; warn about any other difference."""
    declared_index = _declared_index(model, index, existing)
    if existing == declared_index:
        return
    text = (
        f"{model.meta.name}: the index {index.name!r} of {model.table.name!r} should be {declared_index},"
        f" and the one in the database is {existing}"
    )
    if declared_index.unique and existing.promise != declared_index.promise:
        drop = f"DROP INDEX {advised_name(model, str(index.name))}"
        raise DeclarationError(f"{text}; drop it in a migration and the next start builds it anew: {drop}")
    log.warning("%s", text)


def is_old_index(model: ModelSql, name: str, existing: ExistingIndex) -> bool:
    """Whether it is an index that we made for fields of the model and that is declared no longer."""
    if name in {str(index.name) for index in model.table.indexes}:
        return False
    if name in table_rules(model.meta).old_indexes:
        return False
    columns = [decimal_column(column) for column in existing.columns]
    if not {field.column for field in model.meta.fields}.issuperset(columns):
        return False
    made_for = index_name("due", model.table.name, *columns[:-1])
    prefix = "uq" if existing.unique else "idx"
    tables = (model.table.name, model.meta.options.renamed_from)
    old_names = {field.column: field.renamed_from for field in model.meta.fields}
    candidates = (columns, [old_names[column] or column for column in columns])
    names = {index_name(prefix, table, *one) for table in tables if table for one in candidates}
    return name in names or (
        bool(existing.predicate) and re.fullmatch(rf"{re.escape(made_for)}_[0-9a-f]{{8}}", name) is not None
    )


async def refuse_old_promises(run: Executor, model: ModelSql, existing: Mapping[str, ExistingIndex]) -> None:
    """Stop at a unique index that we made and the model no longer declares: it would refuse equal values."""
    for name, existing_index in existing.items():
        if not existing_index.unique or not is_old_index(model, name, existing_index):
            continue
        if await _is_constraint(run, model, name):
            continue
        columns = [decimal_column(column) for column in existing_index.columns]
        raise DeclarationError(
            f"{model.meta.name}: {', '.join(columns)} of {model.table.name!r} is unique in the database and"
            f" no longer on {model.meta.name}, so equal values would be refused. Declare it unique again, or"
            f" drop the index in a migration: DROP INDEX {advised_name(model, name)}"
        )


async def warn_of_missing_promises(run: Executor, model: ModelSql) -> None:
    """Warn of uniqueness that the model declares and no index of the database keeps."""
    existing = await read_indexes(run, model)
    await refuse_old_promises(run, model, existing)
    promises = {existing_index.promise[:2] for existing_index in existing.values() if existing_index.unique}
    for index in sorted(model.table.indexes, key=lambda index: str(index.name)):
        if index.unique and (True, frozenset(column.name for column in index.columns)) not in promises:
            names = ", ".join(decimal_column(column.name) for column in index.columns)
            log.warning(
                "%s: %s is unique on %s and not in the database, so equal values would be stored;"
                " start once with auto_migrate=True, or build the index in a migration: %s",
                *(model.meta.name, names, model.meta.name, advised_ddl(model, CreateIndex(index))),
            )


async def _is_constraint(run: Executor, model: ModelSql, index: str) -> bool:
    """Whether a constraint stands on the index, which then is none of ours."""
    if not by_dialect(model.dialect, sqlite=False, postgres=True):
        return False
    text = "SELECT 1 FROM pg_constraint WHERE conindid = to_regclass($1)"
    return await run.fetch_one(Sql(text, (quote(index, model.dialect),))) is not None


async def duplicates(run: Executor, model: ModelSql, index: sa.Index) -> str:
    """The advice to follow before a unique index can be built; nothing when no values are equal."""
    examples = await _equal_rows(run, model, index)
    if not examples:
        return ""
    columns = ", ".join(quote(column.name, model.dialect) for column in index.columns)
    names = ", ".join(decimal_column(column.name) for column in index.columns)
    where = " AND ".join([f"{quote(c.name, model.dialect)} IS NOT NULL" for c in index.columns])
    live = "".join(f" AND {condition}" for condition in _predicates(model)[:1] if condition)
    return (
        f"{model.meta.name}: {model.table.name!r} has rows with equal values in {names}, which is unique on"
        f" {model.meta.name}. Change or delete all but one row of each group and start again; equal are for"
        f" example the rows with the ids {'; '.join(examples)}. All groups:"
        f" SELECT {columns}, count(*) FROM {advised_table(model)}"
        f" WHERE {where}{live} GROUP BY {columns} HAVING count(*) > 1"
    )


async def _equal_rows(run: Executor, model: ModelSql, index: sa.Index) -> list[str]:
    """A few groups of rows with equal values, by their ids: the values themselves may be secrets."""
    columns, rows = list(index.columns), sa.func.count()
    query: sa.Select[Any] = sa.select(sa.func.min(model.id), sa.func.max(model.id), rows)
    query = query.select_from(model.table).where(*(c.is_not(None) for c in columns), *model.live())
    query = query.group_by(*columns).having(rows > sa.literal_column("1"))
    query = query.order_by(sa.func.min(model.id)).limit(sa.literal_column(str(_EXAMPLES)))
    groups = await run.fetch(Sql(ddl(query.offset(sa.literal_column("0")), model)))
    return [
        f"{first!r} and {last!r}" + (f" ({count} rows)" if count > 2 else "") for first, last, count in groups
    ]


# How tables and indexes are named in statements that a message advises.
#
# People run them in a session of their own, which looks for tables in "public": a statement for a table
# elsewhere names its schema, or it would change a table of the same name in another one.


_DEFAULT = "public"


def advised_table(model: ModelSql) -> str:
    """The table of the model as it stands in advised statements."""
    return advised_name(model, model.table.name)


def advised_name(model: ModelSql, name: str) -> str:
    """A table or an index beside the model's table as it stands in advised statements."""
    schema = _schema(model)
    return quote(name, model.dialect) if schema is None else f'"{schema}".{quote(name, model.dialect)}'


def advised_ddl(model: ModelSql, element: Any) -> str:
    """A statement of SQLAlchemy as advised, on one line."""
    schema = _schema(model)
    where: dict[str, Any] = (
        {} if schema is None else {"schema_translate_map": {None: schema}, "render_schema_translate": True}
    )
    return " ".join(str(element.compile(dialect=sa_dialect(model.dialect), **where)).split())


def _schema(model: ModelSql) -> str | None:
    return None if model.schema == _DEFAULT else model.schema
