"""Tables, columns and indexes of models as the Python of a migration file, right for both databases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from maniflex.db.columns import COLUMN_TYPES, Column
from maniflex.db.indexes import ExistingIndex
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.sql.decimal_order import decimal_column
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect
from maniflex.sql.tables import (
    NAMED_BY_CONDITION,
    NEW_ID,
    NOW,
    build_table,
    column_default,
    quote,
    sa_dialect,
    table_rules,
)

_WIDTH = 88
_NOW = tuple(NOW[dialect] for dialect in Dialect)
_NEW_ID = tuple(NEW_ID[dialect] for dialect in Dialect)
_KEYS = {Dialect.POSTGRES: "postgresql", Dialect.SQLITE: "sqlite"}
_LIVE_ROWS = re.compile(r'\(*"?(\w+)"? IS (NULL|FALSE|0)\)*', re.IGNORECASE)
_TABLE_PREFIX = re.compile(r'"(?:[^"]|"")+"\.(?=")')


class SourceText(str):
    """Python as it stands in a file; any other text becomes a literal."""

    __slots__ = ()


def literal_source(value: Any) -> SourceText:
    """A text, or a list of such, with the quotes that formatters prefer."""
    if isinstance(value, list):
        return SourceText(f"[{', '.join(literal_source(one) for one in value)}]")
    if not isinstance(value, str):
        return SourceText(repr(value))
    quoted = repr(value)
    if quoted.startswith("'") and '"' not in value:
        quoted = f'"{quoted[1:-1]}"'
    return SourceText(quoted)


def keyword_source(name: str, value: Any) -> SourceText:
    """An argument by its name."""
    return SourceText(f"{name}={value if isinstance(value, SourceText) else literal_source(value)}")


def by_database_source(sqlite: str, postgresql: str) -> SourceText:
    """SQL as it stands in a file: once where both databases write it alike."""
    if (sqlite, postgresql) == _NOW:
        return SourceText("now()")
    if (sqlite, postgresql) == _NEW_ID:
        return SourceText("new_id()")
    if sqlite == postgresql:
        return SourceText(f"sa.text({literal_source(_escape_colons(sqlite))})")
    return SourceText(
        call_source(
            "by_database", [keyword_source("sqlite", sqlite), keyword_source("postgresql", postgresql)], 2
        )
    )


def _escape_colons(text: str) -> str:
    return text.replace(":", r"\:")  # a colon would begin a parameter


def call_source(name: str, arguments: Sequence[Any], depth: int = 1) -> SourceText:
    """A call, on one line where it fits."""
    texts = [
        argument if isinstance(argument, SourceText) else literal_source(argument) for argument in arguments
    ]
    line = f"{name}({', '.join(texts)})"
    indent = " " * 4 * depth
    if len(line) + len(indent) <= _WIDTH and "\n" not in line:
        return SourceText(line)
    return SourceText(f"{name}(\n" + "".join(f"{indent}    {text},\n" for text in texts) + f"{indent})")


def table_sources(models: Sequence[ModelSql]) -> dict[str, TableSource]:
    """The tables of the models of one database, by name."""
    metas = [model.meta for model in models if not model.readonly]
    # Together, because an index whose name another table has is called otherwise.
    metadata = {dialect: sa.MetaData(info={"dialect": dialect}) for dialect in Dialect}
    return {
        meta.table: TableSource(
            meta, {dialect: build_table(meta, dialect, metadata[dialect]) for dialect in Dialect}
        )
        for meta in metas
    }


@dataclass(frozen=True)
class TableSource:
    """The table of one model, in both dialects."""

    meta: ModelMeta
    tables: Mapping[Dialect, sa.Table]

    @property
    def name(self) -> str:
        return self.meta.table

    def column(self, field: FieldMeta, *, nullable: bool | None = None, default: bool = True) -> SourceText:
        """A column as `sa.Column(…)`."""
        rules = table_rules(self.meta)
        defaults = [column_default(field, dialect, rules) for dialect in Dialect] if default else [None]
        text = None if defaults[0] is None else by_database_source(str(defaults[0]), str(defaults[1]))
        return column_source(
            field.column,
            field.kind,
            nullable=field.nullable if nullable is None else nullable,
            default=text,
            primary_key=field.name == "id",
        )

    def create(self) -> str:
        """`op.create_table(…)`."""
        checks = [
            SourceText(f"{_check(condition, name)}.ddl_if({keyword_source('dialect', 'sqlite')})")
            for name, condition in table_rules(self.meta).checks.items()
        ]
        columns = [self.column(field) for field in self.meta.fields]
        return call_source("op.create_table", [self.name, *columns, *checks])

    def indexes(self) -> list[sa.Index]:
        """The indexes of the table as SQLite has them."""
        return sorted(self.tables[Dialect.SQLITE].indexes, key=lambda index: str(index.name))

    def twins(self, index: sa.Index) -> dict[Dialect, sa.Index]:
        """The index in both dialects; the names of some tell their condition, which differs."""
        return {
            dialect: next(other for other in table.indexes if _identity(other) == _identity(index))
            for dialect, table in self.tables.items()
        }

    def create_index(self, index: sa.Index) -> str:
        """`op.create_index(…)`, or both statements where the names differ."""
        twins = self.twins(index)
        sqlite, postgres = twins[Dialect.SQLITE], twins[Dialect.POSTGRES]
        if sqlite.name != postgres.name:
            texts = [keyword_source("sqlite", _ddl(sqlite)), keyword_source("postgresql", _ddl(postgres))]
            return call_source("op.create_index_by_database", [self.name, *texts])
        columns = [decimal_column(column.name) for column in postgres.columns]
        conditions = {
            dialect: _condition(condition, dialect)
            for dialect, key in _KEYS.items()
            if (condition := twins[dialect].dialect_options[key]["where"]) is not None
        }
        return self.write_index(str(index.name), columns, bool(index.unique), conditions)

    def create_existing_index(self, name: str, index: ExistingIndex) -> SourceText | None:
        """An index as the database has it; None where the condition is not ours."""
        conditions: dict[Dialect, str] = {}
        if index.condition:
            match = _LIVE_ROWS.fullmatch(index.condition.strip())
            if match is None:
                return None
            values = ("NULL", "NULL") if match[2].upper() == "NULL" else ("0", "false")
            conditions = {
                dialect: f"{quote(match[1], dialect)} IS {value}"
                for dialect, value in zip((Dialect.SQLITE, Dialect.POSTGRES), values, strict=True)
            }
        columns = [decimal_column(column) for column in index.columns]
        return self.write_index(name, columns, index.unique, conditions)

    def write_index(
        self, name: str, columns: Sequence[str], unique: bool, conditions: Mapping[Dialect, str]
    ) -> SourceText:
        """`op.create_index(…)` of an index of this name, with the same on both databases."""
        arguments: list[Any] = [name, self.name, list(columns)]
        if unique:
            arguments.append(keyword_source("unique", True))
        for dialect, key in _KEYS.items():
            condition = conditions.get(dialect)
            if condition is not None:
                text = literal_source(_escape_colons(condition))
                arguments.append(keyword_source(f"{key}_where", SourceText(f"sa.text({text})")))
        return call_source("op.create_index", arguments)

    def drop_index(self, index: sa.Index) -> str:
        """`op.drop_index(…)`, or both statements where the names differ."""
        twins = self.twins(index)
        return drop_index_source(
            self.name, str(twins[Dialect.SQLITE].name), str(twins[Dialect.POSTGRES].name)
        )


def drop_index_source(table: str, sqlite: str, postgresql: str) -> str:
    """An index is dropped, by the name it has on each database."""
    if sqlite == postgresql:
        return call_source("op.drop_index", [sqlite, table])
    texts = [
        keyword_source("sqlite", f'DROP INDEX "{sqlite}"'),
        keyword_source("postgresql", f'DROP INDEX IF EXISTS "{postgresql}"'),
    ]
    return call_source("op.execute_by_database", texts)


def column_source(
    name: str, kind: Kind, *, nullable: bool, default: SourceText | None = None, primary_key: bool = False
) -> SourceText:
    """`sa.Column(…)`."""
    parts: list[Any] = [name, SourceText(f"types.{kind.name}()")]
    if primary_key:
        parts.append(keyword_source("primary_key", True))
    parts.append(keyword_source("nullable", nullable))
    if default is not None:
        parts.append(keyword_source("server_default", default))
    return call_source("sa.Column", parts, 2)


def existing_column_source(column: Column, dialect: Dialect) -> SourceText | None:
    """A column as the database has it; None when its type is none of ours."""
    kind = existing_kind(column, dialect)
    if kind is None:
        return None
    default = None
    if column.default is not None and column.default.partition("::")[0].strip("'").isascii():
        text = column.default.partition("::")[0]
        default = by_database_source(text, text) if kind is not Kind.BOOL else _flag(text)
    return column_source(column.name, kind, nullable=not column.not_null, default=default)


def _flag(text: str) -> SourceText:
    truth = text.strip("'").lower() in ("1", "true", "t")
    return by_database_source(str(int(truth)), str(truth).upper())


def existing_kind(column: Column, dialect: Dialect) -> Kind | None:
    """The kind of value that a column of the database holds."""
    type_ = column.type.split("(")[0].strip()
    return next((kind for kind, types in COLUMN_TYPES[dialect].items() if type_ in types), None)


def _check(condition: str, name: str) -> SourceText:
    return call_source("sa.CheckConstraint", [condition, keyword_source("name", name)], 2)


def _identity(index: sa.Index) -> Any:
    return index.info.get(NAMED_BY_CONDITION) or str(index.name)


def _condition(condition: Any, dialect: Dialect) -> str:
    text = str(condition.compile(dialect=sa_dialect(dialect), compile_kwargs={"literal_binds": True}))
    return _TABLE_PREFIX.sub("", text)  # in an index the columns stand without their table


def _ddl(index: sa.Index) -> str:
    assert index.table is not None
    dialect = next(d for d in Dialect if index.table.metadata.info.get("dialect") is d)
    text = str(sa.schema.CreateIndex(index).compile(dialect=sa_dialect(dialect)))
    return " ".join(text.split())
