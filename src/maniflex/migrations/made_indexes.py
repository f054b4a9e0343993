"""Indexes as the migration files made them: their names on both databases, and how to make them again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from alembic.operations import ops

from maniflex.migrations.files import MigrationFile
from maniflex.migrations.operations import IndexByDatabase
from maniflex.migrations.source import TableSource, call_source, keyword_source
from maniflex.sql.statement import Dialect, by_dialect
from maniflex.sql.tables import sa_dialect

_NAME = re.compile(r'\bINDEX "?(\w+)"? ON\b')


@dataclass(frozen=True, slots=True)
class MadeIndex:
    """One index that a file made."""

    names: Mapping[Dialect, str]
    source: str  # makes it again


def find_made_index(
    files: Iterable[MigrationFile], dialect: Dialect, table: TableSource, name: str
) -> MadeIndex | None:
    """The index of this name on this database, as the last file that made it says."""
    for file in reversed(list(files)):
        for operation in file.operations(dialect):
            if isinstance(operation, IndexByDatabase):
                names = _names(operation)
                if names.get(dialect) == name:
                    return MadeIndex(names, _index_by_database(operation))
            elif isinstance(operation, ops.CreateIndexOp) and operation.index_name == name:
                return MadeIndex(dict.fromkeys(Dialect, name), _plain_index(operation, table))
    return None


def _texts(operation: IndexByDatabase) -> dict[Dialect, str]:
    texts = {
        dialect: by_dialect(dialect, sqlite=operation.sqlite, postgres=operation.postgresql)
        for dialect in Dialect
    }
    return {dialect: text for dialect, text in texts.items() if text is not None}


def _names(operation: IndexByDatabase) -> dict[Dialect, str]:
    matches = {dialect: _NAME.search(text) for dialect, text in _texts(operation).items()}
    return {dialect: match[1] for dialect, match in matches.items() if match is not None}


def _index_by_database(operation: IndexByDatabase) -> str:
    texts = [
        keyword_source(by_dialect(dialect, sqlite="sqlite", postgres="postgresql"), text)
        for dialect, text in _texts(operation).items()
    ]
    return call_source("op.create_index_by_database", [operation.table, *texts])


def _plain_index(operation: ops.CreateIndexOp, table: TableSource) -> str:
    conditions = {
        dialect: str(condition.compile(dialect=sa_dialect(dialect)))
        for dialect in Dialect
        if (
            condition := operation.kw.get(
                by_dialect(dialect, sqlite="sqlite_where", postgres="postgresql_where")
            )
        )
        is not None
    }
    columns = [str(column) for column in operation.columns]
    return table.write_index(str(operation.index_name), columns, bool(operation.unique), conditions)
