"""Tables that are not what the models say, and migrations that are not applied (T151 to T159)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from maniflex._names import did_you_mean
from maniflex.db.rotation import begins_with, count_keys
from maniflex.doctor.check import (
    DatabaseCheck,
    OpenDatabase,
    Problem,
    Severity,
    read_living,
    tables_over,
    where_of,
)
from maniflex.encryption.envelope import PREFIX, VERSIONS, head_of
from maniflex.encryption.local import EnvKeyProvider
from maniflex.model.meta import FieldMeta
from maniflex.schema.differences import Difference, What, find_differences
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect, statement_of
from maniflex.sql.tables import find_table, quote

_VALUES_AT_ONCE = 1000

if TYPE_CHECKING:
    from maniflex.schema.check import MigrationStatus
    from maniflex.schema.target import MigrationTarget


def _target(database: OpenDatabase) -> MigrationTarget:
    targets = database.subject.migration_targets()
    return next(target for target in targets if target.adapter is database.adapter)


async def _status(database: OpenDatabase) -> MigrationStatus:
    from maniflex.schema.check import read_status

    return await read_status(_target(database))


async def drift(database: OpenDatabase) -> AsyncIterator[Problem]:
    target = _target(database)
    if target.files.exist and (await _status(database)).pending:
        return  # what they change would be told twice
    differences = await find_differences(database.run, target.models, target.statements(target.dialect))
    models = [model for model in target.models if not model.readonly]
    tables = [one for one in differences if one.what is What.TABLE]
    if models and len(tables) == len(models):
        yield Problem(
            where=database.label,
            why="the database has none of the tables yet",
            fix=f"start the server once, or {target.command('up @')}",
            severity=Severity.NOTE,
        )
        return
    large = {model.meta.name for model in await tables_over(database.run, models)}
    for one in differences:
        if one.what not in (What.EXTRA_INDEX, What.NO_DEFAULT) and not _is_told_elsewhere(one, large):
            yield _problem(database, target, one)


def _is_told_elsewhere(one: Difference, large: set[str]) -> bool:
    """Whether it is the index of a cursor on a large table, which T123 is about."""
    meta = None if one.model is None else one.model.meta
    cursor = (
        None if meta is None or meta.options.cursor_field is None else meta.field(meta.options.cursor_field)
    )
    if meta is None or cursor is None or one.index is None or meta.name not in large:
        return False
    return bool(next(iter(one.index.columns)).name == cursor.column)


def _problem(database: OpenDatabase, target: MigrationTarget, one: Difference) -> Problem:
    model = one.model
    is_own = model is not None and not model.meta.is_internal
    by_start = database.subject.config.auto_migrate and not target.files.exist
    start = "start the server once, which adds what is missing, or "
    steps = f"{target.command('make @ -m TEXT')} and {target.command('up @')}"
    return Problem(
        where=where_of(model.meta.cls, None if one.field is None else one.field.name)
        if model is not None and is_own
        else database.label,
        why=f"the database is not what the models say: {one.text}",
        fix=f"{start if by_start else ''}{steps}",
        about=() if model is None else (model.meta.name, model.table.name),
        severity=Severity.WARNING if one.harmless else None,
    )


async def pending_migrations(database: OpenDatabase) -> AsyncIterator[Problem]:
    status = await _status(database)
    for one in status.pending:
        yield Problem(
            where=f"{one.file.title} on {database.label}",
            why=f"the migration is {one.state}, so the server does not start, or runs on an old schema",
            fix=status.target.command("up @"),
            about=(one.file.revision, one.file.title),
        )


async def changed_migrations(database: OpenDatabase) -> AsyncIterator[Problem]:
    status = await _status(database)
    for one in status.files:
        if one.is_changed:
            yield Problem(
                where=f"{one.file.title} on {database.label}",
                why="the file was changed after it was applied, so other databases get another schema",
                fix="git checkout of the file as it was, and a new file for the change",
                about=(one.file.revision, one.file.title),
            )
    for revision in status.missing if status.target.files.exist else ():
        yield Problem(
            where=f"{revision} on {database.label}",
            why="the database is at a revision that no file here has",
            fix="the files of the release that applied it",
            about=(revision,),
        )


async def several_heads(database: OpenDatabase) -> AsyncIterator[Problem]:
    from maniflex.schema.files import several_ends

    status = await _status(database)
    if len(status.ends) > 1:
        yield Problem(
            where=database.label,
            why=f"{several_ends(status.ends)}, so nobody knows which is last",
            fix=status.target.command("merge @"),
            about=status.ends,
        )


async def many_who_alter(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Several processes whose start may alter tables; one that files keep is never altered by a start."""
    count = len((await read_living(database)).alive)
    if count > 1 and database.subject.config.auto_migrate and not _target(database).files.exist:
        yield Problem(
            where="auto_migrate=True",
            why=f"{count} living processes alter the tables of {database.label} whenever one of them starts,"
            " while the others read and write them with the code of the release before",
            fix=f"{_target(database).command('make @ -m first --baseline')}, and from then on"
            f" {_target(database).command('up @')} before a release; or Server(auto_migrate=False)",
            about=("auto_migrate", database.label),
        )


_INVALID = """
SELECT c.relname::text, t.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_class t ON t.oid = i.indrelid
 WHERE NOT i.indisvalid AND i.indrelid = ANY (SELECT to_regclass(n) FROM unnest($1::text[]) AS n) ORDER BY 1
"""


async def invalid_indexes(database: OpenDatabase) -> AsyncIterator[Problem]:
    names = [quote(model.table.name, model.dialect) for model in database.models]
    for index, table in await database.run.fetch(Sql(_INVALID, (names,))):
        yield Problem(
            where=f"{index} on {table}",
            why="a concurrent build of it was interrupted: every write keeps it up to date, no read uses it,"
            " and a unique one does not keep values apart",
            fix=f'REINDEX INDEX CONCURRENTLY "{index}"',
            about=(index, table),
        )


async def _models_with_tables(database: OpenDatabase) -> list[ModelSql]:
    """The models whose values can be looked at; that a table is not there, T151 and T152 tell."""
    return [
        model
        for model in database.models
        if await database.run.fetch_one(find_table(model.table.name, model.dialect)) is not None
    ]


async def capitals_that_count(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Values from before `ignore_case`: they are not found, and others that differ by case are stored."""
    for model in await _models_with_tables(database):
        for field in () if model.readonly else model.meta.fields:
            if not field.ignore_case:
                continue
            column, table = (quote(name, model.dialect) for name in (field.column, model.table.name))
            text = f"SELECT 1 FROM {table} WHERE {column} <> lower({column}) LIMIT 1"
            if await database.run.fetch_one(Sql(text)) is not None:
                fix = f"UPDATE {table} SET {column} = lower({column}) WHERE {column} <> lower({column}), in"
                fix += " a migration"
            else:
                if not await _has_other_capitals(database, table, column, model.dialect):
                    continue
                fix = f"store the values of {column} with letters beyond A to Z again by code, as with"
                fix += " server.db(…).update(…): lower() of this database leaves them"
            yield Problem(
                where=where_of(model.meta.cls, field.name),
                why="it ignores case, and rows from before have capital letters: no filter finds them,"
                " and a value that differs by case alone is stored beside them",
                fix=fix,
                about=(model.meta.name, field.name),
            )


async def _has_other_capitals(database: OpenDatabase, table: str, column: str, dialect: Dialect) -> bool:
    """Whether a value has a capital letter that lower() of the database leaves: on SQLite all but A to Z."""
    is_beyond_ascii = by_dialect(dialect, sqlite="GLOB '*[^ -~]*'", postgres="~ '[^ -~]'")
    text = (
        f"SELECT DISTINCT {column} FROM {table} WHERE {column} {is_beyond_ascii} AND {column} > :last"
        f" ORDER BY {column} LIMIT {_VALUES_AT_ONCE}"
    )
    statement, last = statement_of(text, dialect), ""
    while values := [row[0] for row in await database.run.fetch(statement.bind(last=last))]:
        if any(value != value.lower() for value in values):
            return True
        last = values[-1]
    return False


_FEW_VALUES = 100  # of a field that is matched, which so few cannot hide


async def stored_keys(database: OpenDatabase) -> AsyncIterator[Problem]:
    """What encrypted fields hold that should be written anew, or that nobody can open."""
    for model in await _models_with_tables(database):
        for cipher in () if model.cipher is None else model.cipher.fields.values():
            item, name = cipher.field, f"{model.meta.name}.{cipher.field.name}"
            about = (model.meta.name, name)
            command = f"maniflex keys rotate MODULE:SERVER --model {model.meta.name}"
            for one in await count_keys(database.run, model.meta, item, model.keys):
                if one.is_current:
                    continue
                problems = await model.keys.problems_of_exactly(one.key_id) if one.key_id else []
                what = f"of the key {one.key_id!r}, version {one.version}" if one.key_id else "plain text"
                yield Problem(
                    where=where_of(model.meta.cls, item.name),
                    why=f"{one.count} stored values are {what}" + "".join(f"; {text}" for text in problems),
                    fix="give that key back to the key provider"
                    if problems
                    else command + ("" if one.key_id else " --plaintext"),
                    about=about,
                    severity=Severity.ERROR if problems else None,
                )
            if item.blind_index and await _has_few_digests(database, model, item):
                yield Problem(
                    where=where_of(model.meta.cls, item.name),
                    why=f"it has under {_FEW_VALUES} different values, so its digests tell who shares one",
                    fix="leave blind_index out",
                    about=about,
                )


async def unused_keys(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Keys that no field, no handler and no stored value names: mistyped, or left behind."""
    subject = database.subject
    keys, provider = subject.runtime.keys, subject.runtime.keys.local
    if provider is None or not database.is_default:
        return
    declared_ids = {f.encrypted for meta in subject.models for f in meta.fields if f.encrypted is not None}
    declared_ids |= set(subject.work_keys.values())
    for key_id in sorted(set(provider.replaced_ids) - declared_ids):
        yield Problem(
            where=f"current={{{key_id!r}: …}} of the key provider",
            why="no field and no handler declares that key id, so nothing is written under the other key",
            fix="name the key id that a field declares" + did_you_mean(key_id, sorted(declared_ids)),
            about=(key_id,),
        )
    if not isinstance(provider, EnvKeyProvider):
        return
    names = {*declared_ids, *map(keys.current_key, declared_ids), *filter(None, [provider.index_key])}
    is_elsewhere = any(
        store.sql.cipher is not None and store.adapter is not database.adapter
        for store in subject.stores.values()
    )
    other_variables = set(provider.variables()) - set(map(provider.variable_of, names))
    for variable in () if is_elsewhere else sorted(other_variables):
        if not await _is_stored(database, variable, provider):
            yield Problem(
                where=f"the variable {variable}",
                why="it holds a key that no field, no handler and no stored value uses",
                fix="remove it, or declare its key id: " + ", ".join(sorted(declared_ids) or ["encrypted="]),
                about=(variable,),
            )


async def _is_stored(database: OpenDatabase, variable: str, provider: EnvKeyProvider) -> bool:
    """Whether a stored value names a key that this variable may hold."""
    word = variable.removeprefix(f"{provider.prefix}_")
    heads = [
        head_of(key_id, version)
        for key_id in dict.fromkeys((word.lower(), word.lower().replace("_", "-"), word))
        for version in VERSIONS
        if key_id
    ]
    for model in database.models:
        fields = [] if model.cipher is None else [cipher.field for cipher in model.cipher.fields.values()]
        work_fields = [model.meta.by_name[name] for name in getattr(model.meta.cls, "__sealed__", ())]
        for item in (*fields, *work_fields):
            text = f"CAST({quote(item.column, database.run.dialect)} AS text)"
            if item in work_fields:  # JSON of durable work, in which the envelope stands somewhere
                start = by_dialect(database.run.dialect, sqlite="instr", postgres="strpos")
                text = f"substr({text}, {start}({text}, '{PREFIX}'))"
            condition = " OR ".join(begins_with(text, head) for head in heads)
            query = f"SELECT 1 FROM {quote(model.meta.table, database.run.dialect)} WHERE {condition} LIMIT 1"
            if heads and await database.run.fetch_one(Sql(query)) is not None:
                return True
    return False


async def _has_few_digests(database: OpenDatabase, model: ModelSql, item: FieldMeta) -> bool:
    """Whether many rows share few digests."""
    digest = quote(item.digest_column, database.run.dialect)
    table = quote(model.meta.table, database.run.dialect)
    text = f"SELECT count({digest}), count(DISTINCT {digest}) FROM {table}"
    row = await database.run.fetch_one(Sql(text))
    return row is not None and row[0] >= 10 * _FEW_VALUES and row[1] < _FEW_VALUES


CHECKS = (
    DatabaseCheck("T151", Severity.ERROR, "a database that is not what the models say", drift),
    DatabaseCheck("T152", Severity.ERROR, "migrations that are not applied", pending_migrations),
    DatabaseCheck(
        "T153",
        Severity.ERROR,
        "migrations that were changed after they were applied, or are gone",
        changed_migrations,
    ),
    DatabaseCheck("T154", Severity.ERROR, "migrations with several ends", several_heads),
    DatabaseCheck(
        "T155", Severity.WARNING, "`auto_migrate` with more than one living process", many_who_alter
    ),
    DatabaseCheck(
        "T157",
        Severity.ERROR,
        "values with capital letters in a field that ignores case",
        capitals_that_count,
    ),
    DatabaseCheck(
        "T158",
        Severity.WARNING,
        "encrypted values under old keys, under keys that nobody has, or in plain text; a blind index of few",
        stored_keys,
    ),
    DatabaseCheck("T159", Severity.WARNING, "a key of encrypted values that nothing uses", unused_keys),
)
POSTGRES_CHECKS = (
    DatabaseCheck("T156", Severity.ERROR, "an index that is not valid (PostgreSQL)", invalid_indexes),
)
