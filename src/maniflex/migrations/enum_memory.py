"""The values that enums had, as the migration files remember them."""

from __future__ import annotations

from collections.abc import Sequence

from alembic.operations import ops

from maniflex.db.schema_differences import Difference, What
from maniflex.migrations.files import MigrationFile
from maniflex.sql.statement import Dialect

Enums = dict[str, list[object]]


def remembered_enums(
    files: Sequence[MigrationFile], dialect: Dialect, differences: Sequence[Difference]
) -> Enums:
    """The last known values by the `table.column` of today: through renames of files and of `differences`."""
    memory: Enums = {}
    for file in files:
        for operation in file.operations(dialect):
            if isinstance(operation, ops.RenameTableOp):
                memory = _table_renamed(memory, operation.table_name, operation.new_table_name)
            elif isinstance(operation, ops.AlterColumnOp) and operation.modify_name is not None:
                table = operation.table_name
                memory = _column_renamed(memory, table, operation.column_name, operation.modify_name)
        memory.update(file.enums)
    for difference in differences:
        if difference.what is What.RENAMED_TABLE and difference.model is not None:
            memory = _table_renamed(memory, difference.name, difference.model.table.name)
    for difference in differences:
        if difference.what is What.RENAMED_COLUMN and difference.model is not None and difference.field:
            table = difference.model.table.name
            memory = _column_renamed(memory, table, difference.name, difference.field.column)
    return memory


def _table_renamed(memory: Enums, old: str, new: str) -> Enums:
    renamed: Enums = {}
    for place, values in memory.items():
        table, _, column = place.rpartition(".")
        renamed[f"{new}.{column}" if table == old else place] = values
    return renamed


def _column_renamed(memory: Enums, table: str, old: str, new: str) -> Enums:
    return {
        f"{table}.{new}" if place == f"{table}.{old}" else place: values for place, values in memory.items()
    }
