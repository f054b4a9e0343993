"""Differences between a database and the models as the Python of a migration file, and of its way back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from alembic.operations import ops

from maniflex._tables import PartialTable
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.texts import LocaleRules, locale_rules
from maniflex.schema.differences import Difference, EngineObject, What, engine_objects, index_renames
from maniflex.schema.files import MigrationFile
from maniflex.schema.operations import IndexByDatabase, backfill_advice
from maniflex.schema.read import Column, ExistingIndex
from maniflex.schema.target import MigrationError, MigrationTarget
from maniflex.sql.decimal_order import decimal_column
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, by_dialect, sa_dialect
from maniflex.sql.tables import (
    COLUMN_TYPES,
    NAMED_BY_CONDITION,
    NEW_ID,
    NOW,
    build_table,
    column_default,
    constant_default,
    quote,
    table_rules,
)

_IN_PLACE = (What.TYPE, What.NULL, What.DEFAULT, What.COLLATION)


@dataclass
class FileChange:
    """Lines of a file for one table."""

    up: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)  # in the order of `up`; the file turns them round
    words: list[str] = field(default_factory=list)  # for the title
    notes: list[str] = field(default_factory=list)  # to print
    lost: list[str] = field(default_factory=list)  # what a drop loses
    enums: dict[str, list[object]] = field(default_factory=dict)

    def add(self, up: str, down: str, words: str = "") -> None:
        self.up.append(up)
        self.down.append(down)
        if words:
            self.words.append(words)


class Changes:
    """Turns differences into the lines of a file."""

    def __init__(
        self, target: MigrationTarget, differences: Sequence[Difference], names: frozenset[str]
    ) -> None:
        self._target = target
        self._differences = differences
        self._sources = table_sources(target.models)
        self._objects: Mapping[Dialect, dict[str, EngineObject]] = {
            dialect: {one.name: one for one in engine_objects(target.statements(dialect))}
            for dialect in Dialect
        }
        self._names = names
        self._renamed: dict[str, str] = {}  # indexes, new name → old
        self._dropped: set[str] = set()  # indexes that a changed table is made anew without

    def additions(self) -> FileChange:
        """Everything that loses nothing."""
        change = FileChange()
        for difference in self._of(What.RENAMED_TABLE):
            self._rename_table(change, difference)
        for difference in self._of(What.RENAMED_COLUMN):
            self._rename_column(change, difference)
        for difference in self._of(What.TABLE):
            self._create_table(change, difference)
        for difference in self._of(What.COLUMN):
            self._add_column(change, difference)
        self._alter_tables(change)
        self._change_indexes(change)
        for difference in self._of(What.ENGINE):
            assert difference.object is not None
            self.add_piece(change, difference.object)
        return change

    def _of(self, *what: What) -> list[Difference]:
        return [difference for difference in self._differences if difference.what in what]

    def _source(self, model: ModelSql | None) -> TableSource:
        assert model is not None
        return self._sources[model.table.name]

    # -- tables and columns

    def _create_table(self, change: FileChange, difference: Difference) -> None:
        source = self._source(difference.model)
        drop = call_source("op.drop_table", [source.name])
        change.add(source.create(), drop, f"create {source.name}")
        for index in source.indexes():
            change.add(source.create_index(index), source.drop_index(index))
        change.enums.update(enums_of(source))

    def _rename_table(self, change: FileChange, difference: Difference) -> None:
        source = self._source(difference.model)
        change.add(
            call_source("op.rename_table", [difference.name, source.name]),
            call_source("op.rename_table", [source.name, difference.name]),
            f"rename {difference.name} to {source.name}",
        )
        self._rename_indexes(change, difference.model)

    def _rename_column(self, change: FileChange, difference: Difference) -> None:
        source, new = self._source(difference.model), difference.field
        assert new is not None
        change.add(
            call_source("op.rename_column", [source.name, difference.name, new.column]),
            call_source("op.rename_column", [source.name, new.column, difference.name]),
            f"rename {difference.name} to {new.column}",
        )
        self._rename_indexes(change, difference.model)

    def _rename_indexes(self, change: FileChange, model: ModelSql | None) -> None:
        """Indexes that the database has under the names of the old table or column."""
        assert model is not None
        renames = {
            d.field.column: d.name for d in self._of(What.RENAMED_COLUMN) if d.field and d.model is model
        }
        for old, new in index_renames(model, self._names, renames).items():
            if new not in self._renamed:
                self._renamed[new] = old
                back = call_source("op.rename_index", [new, old])
                change.add(call_source("op.rename_index", [old, new]), back)

    def _add_column(self, change: FileChange, difference: Difference) -> None:
        source, new = self._source(difference.model), difference.field
        assert new is not None
        table, words = source.name, f"add {new.column} to {source.name}"
        drop = call_source("op.drop_column", [table, new.column])
        if new.nullable or constant_default(new, Dialect.SQLITE) is not None:
            change.add(call_source("op.add_column", [table, source.column(new)]), drop, words)
            self._fill_with_factory(change, source, new)
        else:
            column = source.column(new, nullable=True)
            change.add(call_source("op.add_column", [table, column]), drop, words)
            if new.default_factory is not None:
                self._fill_with_factory(change, source, new)
            else:
                change.up.append(
                    f"# {table}.{new.column} has no default: give the rows there are a value here, in SQL,"
                    f" such as\n    # {backfill_advice(table, new.column)}"
                )
                change.notes.append(
                    f"{table}.{new.column} is required and has no default: the file needs an op.backfill for"
                    " the rows there are"
                )
            change.up.append(call_source("op.set_not_null", [table, new.column]))
        change.enums.update({k: v for k, v in enums_of(source).items() if k == f"{table}.{new.column}"})

    def _fill_with_factory(self, change: FileChange, source: TableSource, new: FieldMeta) -> None:
        if new.default_factory is None or constant_default(new, Dialect.SQLITE) is not None:
            return
        value = call_source("op.factory", [f"{source.meta.name}.{new.name}"])
        change.up.append(_backfill(source, new, value))

    # -- columns that change in place

    def _alter_tables(self, change: FileChange) -> None:
        """One `op.rebuild_table` for each table whose columns differ."""
        by_table: dict[str, list[Difference]] = {}
        for difference in self._of(*_IN_PLACE, What.EXTRA_COLUMN):
            assert difference.model is not None
            if difference.what is not What.EXTRA_COLUMN or not difference.harmless:
                by_table.setdefault(difference.model.table.name, []).append(difference)
        for table, differences in by_table.items():
            self._alter_table(change, self._sources[table], differences)

    def _alter_table(
        self, change: FileChange, source: TableSource, differences: Sequence[Difference]
    ) -> None:
        dialect = self._target.dialect
        old = {
            name: replace(d.column, name=name)  # a rename comes before
            for d in differences
            if d.column is not None
            for name in [d.column.name if d.field is None else d.field.column]
        }
        types = [
            (d.field, d.column)
            for d in differences
            if d.what is What.TYPE and d.field and d.column is not None
        ]
        using = {new.column: conversion_source(new, column, dialect) for new, column in types}
        using_back = {
            new.column: text
            for new, column in types
            if (text := conversion_back_source(new, column, dialect)) is not None
        }
        retyped_indexes = self._drop_retyped(change, source, using)
        self._fill_nulls(change, source, differences)
        new_columns = {
            d.field.column
            for d in self._of(What.COLUMN)
            if d.field and d.model and d.model.meta is source.meta
        }
        up = [source.column(f) for f in source.meta.stored]
        down = [
            (existing_column_source(old[f.column], dialect) or source.column(f))
            if f.column in old
            else source.column(f)
            for f in source.meta.stored
            if f.column not in new_columns
        ]
        up += [
            _nullable_column_source(difference.column, dialect)
            for difference in differences
            if difference.what is What.EXTRA_COLUMN and difference.column is not None
        ]
        change.add(
            call_source("op.rebuild_table", [source.name, *up, *_using_arguments(using)]),
            call_source("op.rebuild_table", [source.name, *down, *_using_arguments(using_back)]),
            f"change {', '.join(dict.fromkeys(old))} of {source.name}",
        )
        for index in retyped_indexes:
            change.add(source.create_index(index), source.drop_index(index))

    def _drop_retyped(
        self, change: FileChange, source: TableSource, using: Mapping[str, SourceText]
    ) -> list[sa.Index]:
        """Drop the indexes over columns of another type; returns those to make again as they were."""
        same: list[sa.Index] = []
        differences = {d.name: d for d in self._of(What.INDEX, What.CHANGED_INDEX)}
        for index in source.indexes():
            difference = differences.get(str(source.twins(index)[self._target.dialect].name))
            if not using.keys() & {_bare(column.name) for column in index.columns}:
                continue
            if difference is None:
                change.add(source.drop_index(index), source.create_index(index))
                same.append(index)
            elif difference.what is What.CHANGED_INDEX:
                change.add(source.drop_index(index), self._old_index(source, difference))
                self._dropped.add(difference.name)
        return same

    def _fill_nulls(self, change: FileChange, source: TableSource, differences: Sequence[Difference]) -> None:
        """Give rows without a value the default of a field that may no longer be null."""
        for difference in differences:
            new = difference.field
            if difference.what is not What.NULL or new is None or new.nullable:
                continue
            defaults = [constant_default(new, dialect) for dialect in Dialect]
            if defaults[0] is None:
                self._fill_with_factory(change, source, new)
                continue
            value = literal_source(defaults[0])
            if defaults[0] != defaults[1]:
                texts = [keyword_source("sqlite", defaults[0]), keyword_source("postgresql", defaults[1])]
                value = call_source("by_database", texts, 2)
            change.up.append(_backfill(source, new, value))

    # -- indexes

    def _change_indexes(self, change: FileChange) -> None:
        for difference in self._of(What.EXTRA_INDEX, What.CHANGED_INDEX, What.INDEX):
            source = self._source(difference.model)
            if difference.index is None:
                self._drop_index(change, source, difference)
                continue
            if difference.what is What.CHANGED_INDEX and difference.name not in self._dropped:
                change.add(source.drop_index(difference.index), self._old_index(source, difference))
            words = f"index {source.name}"
            change.add(source.create_index(difference.index), source.drop_index(difference.index), words)

    def _drop_index(self, change: FileChange, source: TableSource, difference: Difference) -> None:
        """Drop an index by the names it has on the two databases, which tell its condition."""
        name, words = difference.name, f"drop index {difference.name}"
        made_index = find_made_index(self._target.files.all(), self._target.dialect, source, name)
        if made_index is None or len(set(made_index.names.values())) < 2:
            change.add(drop_index_source(source.name, name, name), self._old_index(source, difference), words)
        else:
            names = made_index.names[Dialect.SQLITE], made_index.names[Dialect.POSTGRES]
            change.add(drop_index_source(source.name, *names), made_index.source, words)

    def _old_index(self, source: TableSource, difference: Difference) -> str:
        """The index that a file drops, for its way back."""
        old = difference.old_index
        if old is None or not old.valid:
            return ""
        if (text := source.create_existing_index(difference.name, old)) is not None:
            return text
        made_index = find_made_index(self._target.files.all(), self._target.dialect, source, difference.name)
        if made_index is not None:
            return made_index.source
        words = f"the condition of the index {difference.name} is not known here; build it, then stamp"
        return call_source("raise Irreversible", [words]) if old.unique else ""

    # -- durable work

    def add_piece(self, change: FileChange, piece: EngineObject) -> None:
        """Make a piece of durable work, or remove one."""
        texts = [
            keyword_source(_keyword(dialect), _sql_source(self._objects[dialect][piece.name].text))
            for dialect in Dialect
            if piece.name in self._objects[dialect]
        ]
        is_index = piece.is_index and piece.wanted and piece.table is not None
        name = "op.create_index_by_database" if is_index else "op.execute_by_database"
        up = call_source(name, [*([piece.table] if is_index else []), *texts])
        if up in change.up:
            return
        change.add(up, _undo(piece), "" if change.words else "durable work")


_DROPS = {"the index": "DROP INDEX", "the table": "DROP TABLE", "the sequence": "DROP SEQUENCE"}


def _undo(piece: EngineObject) -> str:
    drop = _DROPS.get(piece.kind)
    if drop is None or not piece.wanted:
        return ""
    text = f"{drop} IF EXISTS {piece.name}"
    databases = ["postgresql"] if piece.kind == "the sequence" else ["sqlite", "postgresql"]
    return call_source("op.execute_by_database", [keyword_source(database, text) for database in databases])


def _backfill(source: TableSource, new: FieldMeta, value: SourceText) -> SourceText:
    values = SourceText(f"{{{literal_source(new.column)}: {value}}}")
    where = f"{new.column} IS NULL"
    return call_source(
        "op.backfill", [source.name, keyword_source("set", values), keyword_source("where", where)]
    )


def _using_arguments(using: Mapping[str, SourceText]) -> list[SourceText]:
    pairs = ", ".join(f"{literal_source(column)}: {text}" for column, text in using.items())
    return [keyword_source("using", SourceText(f"{{{pairs}}}"))] if using else []


def _sql_source(text: str) -> SourceText:
    """A statement as it stands in a file, over several lines where it is long."""
    line = " ".join(text.split())
    if len(line) < 60 and "--" not in text:
        return literal_source(line)
    return SourceText(f'"""\n{text.strip()}\n"""')


def _bare(column: str) -> str:
    return column.removesuffix("$order")


def _keyword(dialect: Dialect) -> str:
    return by_dialect(dialect, sqlite="sqlite", postgres="postgresql")


def _nullable_column_source(column: Column, dialect: Dialect) -> SourceText:
    kind = existing_kind(column, dialect)
    if kind is None:
        raise MigrationError(
            f"the column {column.name!r} has the type {column.type!r}, which no migration file can name; let"
            " it be null with a statement of your own"
        )
    return column_source(column.name, kind, nullable=True)


def enums_of(source: TableSource) -> dict[str, list[object]]:
    """The values of the enums of a table, by `table.column`."""
    return {
        f"{source.name}.{f.column}": [getattr(v, "value", v) for v in f.enum]
        for f in source.meta.fields
        if f.enum is not None
    }


# How the values of a column become values of another type, where that is not a guess.


_PLAIN = {Kind.TEXT, Kind.INT, Kind.FLOAT, Kind.DECIMAL}
_SQLITE = PartialTable(
    {Kind.TEXT: "TEXT", Kind.INT: "INTEGER", Kind.FLOAT: "REAL", Kind.DECIMAL: "TEXT"},
    others="no conversion to them is certain",
)
_POSTGRES = PartialTable(
    {Kind.TEXT: "text", Kind.INT: "bigint", Kind.FLOAT: "double precision", Kind.DECIMAL: "numeric"},
    others="no conversion to them is certain",
)


def conversion_source(field: FieldMeta, column: Column, dialect: Dialect) -> SourceText:
    """The SQL that converts a column, for both databases; refused where values would have to be guessed.

    It names the column as the field does, because a rename comes before the conversion.
    """
    old_kind = existing_kind(column, dialect)
    text = _conversion(field.column, old_kind, field.kind, dialect)
    rules = locale_rules(field)
    if rules is not None and old_kind is Kind.TEXT:
        text = _as_translations(field.column, rules, dialect)
    if text is None:
        raise MigrationError(
            f"{column.name} is {column.type} in the database; no conversion to {field.kind} is certain; keep"
            f' the old column, field(column="{column.name}"), declare another and fill it with op.backfill'
        )
    return text


def conversion_back_source(field: FieldMeta, column: Column, dialect: Dialect) -> SourceText | None:
    """The SQL of the way back; None where values would have to be guessed."""
    old_kind = existing_kind(column, dialect)
    rules = locale_rules(field)
    if rules is not None and old_kind is Kind.TEXT:
        return _as_shown_text(field.column, rules, dialect)
    return _conversion(field.column, field.kind, old_kind, dialect)


def _conversion(column: str, old: Kind | None, new: Kind | None, dialect: Dialect) -> SourceText | None:
    name = quote(column, dialect)
    if old in _PLAIN and new in _PLAIN:
        sqlite, postgres = f"CAST({name} AS {_SQLITE[new]})", f"CAST({name} AS {_POSTGRES[new]})"
    elif (old, new) == (Kind.BOOL, Kind.INT):
        sqlite, postgres = name, f"CAST({name} AS int)"
    elif (old, new) == (Kind.INT, Kind.BOOL):
        sqlite, postgres = f"{name} <> 0", f"{name} <> 0"
    else:
        return None
    return _for_both(sqlite, postgres)


# A text that becomes one in several languages: it is the one in the usual language, and an empty one is none.
# On the way back it is the text that is shown to who asks for no language.


def _as_translations(column: str, rules: LocaleRules, dialect: Dialect) -> SourceText:
    name, locale = quote(column, dialect), rules.locale_of_bare_text("")
    whole = f"""'{{"{locale}":' || CAST(to_json({name}) AS text) || '}}'"""
    sqlite = f"json_object('{locale}', {name})"
    return _for_both(
        f"CASE WHEN {name} = '' THEN '{{}}' WHEN {name} IS NOT NULL THEN {sqlite} END",
        f"CAST(CASE WHEN {name} = '' THEN '{{}}' WHEN {name} IS NOT NULL THEN {whole} END AS json)",
    )


def _as_shown_text(column: str, rules: LocaleRules, dialect: Dialect) -> SourceText:
    name, codes = quote(column, dialect), rules.chain("")
    in_sqlite = [f"NULLIF(json_extract({name}, '$.\"{code}\"'), '')" for code in codes]
    in_postgres = [f"NULLIF({name} ->> '{code}', '')" for code in codes]
    in_sqlite.append(f"(SELECT value FROM json_each({name}) WHERE value <> '' ORDER BY key LIMIT 1)")
    first = """jsonb_path_query_first(CAST({} AS jsonb), '$.* ? (@ <> "")') #>> '{{}}'"""
    in_postgres.append(first.format(name))
    start = f"CASE WHEN {name} IS NOT NULL THEN COALESCE("
    return _for_both(*(f"{start}{', '.join(texts)}, '') END" for texts in (in_sqlite, in_postgres)))


def _for_both(sqlite: str, postgres: str) -> SourceText:
    parts = [keyword_source("sqlite", sqlite), keyword_source("postgresql", postgres)]
    return call_source("by_database", parts, 2)


# Indexes as the migration files made them: their names on both databases, and how to make them again.


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


# Tables, columns and indexes as Python, right for both databases.


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
    text = repr(value)
    if text.startswith("'") and '"' not in value:
        text = f'"{text[1:-1]}"'
    return SourceText(text)


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
        columns = [self.column(field) for field in self.meta.stored]
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
