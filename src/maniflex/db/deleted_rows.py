"""Rows that a soft delete marked in a column which the model no longer declares.

Nothing would leave them out any more, so they would come back as records: the start stops instead.
Only columns as `WithDeletedAt` and `WithIsDeleted` make them count as marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from maniflex.db.advice import advised_table
from maniflex.db.columns import Column, Columns, has_type, type_ddl
from maniflex.db.discard import discard_statements
from maniflex.db.port import Executor
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.codec import literal
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql
from maniflex.sql.tables import quote


@dataclass(frozen=True, slots=True)
class Mark:
    """How a mixin marks a row as deleted."""

    mixin: str
    column: str
    kind: Kind
    not_null: bool
    condition: str  # of a deleted row, behind the column


@dataclass(frozen=True, slots=True)
class LostMark:
    """A mark that the model no longer declares, and how many rows bear it."""

    mark: Mark
    rows: int

    def __str__(self) -> str:
        return "1 row" if self.rows == 1 else f"{self.rows} rows"


_MARKS = (
    Mark("WithDeletedAt", "deleted_at", Kind.DATETIME, not_null=False, condition="IS NOT NULL"),
    Mark("WithIsDeleted", "is_deleted", Kind.BOOL, not_null=True, condition="IS TRUE"),
)


async def find_lost_marks(run: Executor, model: ModelSql, columns: Columns) -> Mapping[str, LostMark]:
    """The marks without a field that rows of the table bear, by their columns."""
    field_columns = {field.column for field in model.meta.fields}
    lost_marks: dict[str, LostMark] = {}
    for mark in _MARKS:
        column = columns.get(mark.column)
        if column is None or mark.column in field_columns or not _is_mark(model, column, mark):
            continue
        table = quote(model.table.name, model.dialect)
        condition = _deleted_condition(model, mark)
        row = await run.fetch_one(Sql(f"SELECT count(*) FROM {table} WHERE {condition}"))
        if row is not None and row[0]:
            lost_marks[mark.column] = LostMark(mark, row[0])
    return lost_marks


def _is_mark(model: ModelSql, column: Column, mark: Mark) -> bool:
    return has_type(model, column, mark.kind) and column.not_null is mark.not_null


def _deleted_condition(model: ModelSql, mark: Mark) -> str:
    return f"{quote(mark.column, model.dialect)} {mark.condition}"


async def removal_statements(run: Executor, model: ModelSql, mark: Mark) -> list[str]:
    """The statements that delete the marked rows for good, and the column with them."""
    delete = f"DELETE FROM {advised_table(model)} WHERE {_deleted_condition(model, mark)}"
    return [delete, *await discard_statements(run, model, mark.column)]


async def remark_statements(run: Executor, model: ModelSql, columns: Columns, mark: Mark) -> list[str]:
    """The statements that mark the same rows by the field that marks deleted rows of the model now."""
    assert model.meta.soft_delete is not None
    field, table = model.meta.by_name[model.meta.soft_delete.field], advised_table(model)
    column = quote(field.column, model.dialect)
    if model.meta.soft_delete.timestamp:  # when they were deleted is not known; nothing changed them since
        value = quote(model.meta.by_name["updated_at"].column, model.dialect)
    else:
        value = "TRUE"
    return [
        *(
            []
            if field.column in columns
            else [f"ALTER TABLE {table} ADD COLUMN {column} {_type(model, field)}"]
        ),
        f"UPDATE {table} SET {column} = {value} WHERE {_deleted_condition(model, mark)}",
        *await discard_statements(run, model, mark.column),
    ]


def _type(model: ModelSql, field: FieldMeta) -> str:
    live = "" if field.nullable else f" NOT NULL DEFAULT {literal(False, field.kind, model.dialect)}"
    return f"{type_ddl(model, field)}{live}"
