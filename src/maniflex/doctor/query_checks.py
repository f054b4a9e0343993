"""Queries that grow slow: indexes that are missing, unused or there twice, wide includes (T121 to T128)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from maniflex.db.port import Adapter, Executor
from maniflex.db.store import Store
from maniflex.doctor.check import (
    LARGE,
    Coded,
    DatabaseCheck,
    OpenDatabase,
    Problem,
    Severity,
    Subject,
    tables_over,
    where_of,
)
from maniflex.middleware.auth.guards import RoleGuard
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.scopes import ScopeRule
from maniflex.schema.derived import use_order_keys_if_there
from maniflex.schema.read import ExistingIndex, read_indexes
from maniflex.sql.decimal_order import has_order_key, order_column
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote

MANY_CHILDREN = 1_000
_UNINDEXED = frozenset({Kind.BOOL, Kind.JSON, Kind.BYTES})  # an index on them finds next to nothing
_INHERITED = ("id", "created_at", "updated_at", "deleted_at")  # every model has them; T128 speaks of pages
_READS = 1_000  # of a table, before an index without any is called unused
_PARENTS = 1_000  # that are looked at for many children


async def unindexed_filters(database: OpenDatabase) -> AsyncIterator[Problem]:
    async for model, field, indexes in _queried_fields(database, lambda field: field.filterable):
        if not _leads(indexes, model, field):
            column = quote(_column(model, field), model.dialect)
            table = quote(model.table.name, model.dialect)
            text = f"SELECT 1 FROM {table} WHERE {column} = (SELECT {column} FROM {table} LIMIT 1)"
            plan = await _plan(database.run, text)
            if _scans(plan, model):
                yield _missing_index(model, field, "a filter on it reads", plan)


async def unindexed_sorts(database: OpenDatabase) -> AsyncIterator[Problem]:
    async for model, field, indexes in _queried_fields(database, lambda f: f.sortable and not f.filterable):
        if not _leads(indexes, model, field):
            yield await _sort_problem(database.run, model, field)


async def unindexed_cursors(database: OpenDatabase) -> AsyncIterator[Problem]:
    for model in await _large(database):
        name = model.meta.options.cursor_field
        field = None if name is None else model.meta.field(name)
        if field is None or field.name == "id":
            continue
        if not _leads((await read_indexes(database.run, model)).values(), model, field):
            yield await _sort_problem(database.run, model, field)


async def _sort_problem(run: Executor, model: ModelSql, field: FieldMeta) -> Problem:
    column, table = quote(_column(model, field), model.dialect), quote(model.table.name, model.dialect)
    plan = await _plan(run, f"SELECT {column} FROM {table} ORDER BY {column} LIMIT 20")
    return _missing_index(model, field, "a page in its order reads and sorts", plan)


def _missing_index(model: ModelSql, field: FieldMeta, what: str, plan: str) -> Problem:
    meta = model.meta
    is_cursor = meta.field(meta.options.cursor_field or "") is field
    make = "maniflex migrate make app:server -m index, or start once with auto_migrate=True"
    return Problem(
        where=where_of(meta.cls, field.name),
        why=f"it has no index, and {what} the whole table of more than {LARGE:,} rows: {plan}",
        fix=make if is_cursor or field.index else f"{field.name}: ... = field(index=True, ...), then {make}",
        about=(meta.name, f"{meta.name}.{field.name}"),
    )


async def _queried_fields(
    database: OpenDatabase, is_meant: Callable[[FieldMeta], bool]
) -> AsyncIterator[tuple[ModelSql, FieldMeta, list[ExistingIndex]]]:
    """Such fields of large tables that clients may name, with the indexes of their tables."""
    for model in await _large(database):
        indexes = list((await read_indexes(database.run, model)).values())
        others = (*_INHERITED, model.meta.options.cursor_field)
        for field in model.meta.fields:
            is_other = field.name not in others and field.kind not in _UNINDEXED
            if is_other and is_meant(field):
                yield model, field, indexes


async def _large(database: OpenDatabase) -> list[ModelSql]:
    """The application's own tables that are large; those of the framework have the indexes they need."""
    own = [model for model in database.models if not model.meta.is_internal]
    return await tables_over(database.run, own)


def _column(model: ModelSql, field: FieldMeta) -> str:
    return order_column(field.column) if has_order_key(field, model.dialect) else field.column


def _leads(indexes: Any, model: ModelSql, field: FieldMeta) -> bool:
    """Whether an index begins with the field."""
    names = {field.column, _column(model, field)}
    return any(index.columns[0] in names for index in indexes)


async def _plan(run: Executor, text: str) -> str:
    """How the database would go about a statement, in a line; it is not run."""
    explain = by_dialect(run.dialect, sqlite="EXPLAIN QUERY PLAN ", postgres="EXPLAIN (FORMAT JSON) ")
    rows = await run.fetch(Sql(explain + text))
    return by_dialect(run.dialect, sqlite=_sqlite_plan, postgres=_postgres_plan)(rows)


def _sqlite_plan(rows: Any) -> str:
    whole = [row[3] for row in rows if row[1] == 0]  # without the steps of subqueries
    return "; ".join(step for step in whole if not step.startswith("SCALAR SUBQUERY"))


def _postgres_plan(rows: Any) -> str:
    tree = rows[0][0]
    return "; ".join(_nodes((json.loads(tree) if isinstance(tree, str | bytes) else tree)[0]["Plan"]))


def _nodes(node: dict[str, Any]) -> Iterator[str]:
    relation = f" on {node['Relation Name']}" if "Relation Name" in node else ""
    yield f"{node['Node Type']}{relation} (cost {node['Total Cost']:g})"
    for child in node.get("Plans", ()):
        if child.get("Parent Relationship") != "InitPlan":
            yield from _nodes(child)


def _scans(plan: str, model: ModelSql) -> bool:
    """Whether a plan reads every row of the table."""
    table = model.table.name
    return f"SCAN {table}" in plan or f"Seq Scan on {table}" in plan


# -- indexes nobody needs


_USAGE = """
SELECT i.relname::text, i.indexrelname::text, pg_relation_size(i.indexrelid)
  FROM pg_stat_user_indexes i
  JOIN pg_stat_user_tables t ON t.relid = i.relid JOIN pg_index x ON x.indexrelid = i.indexrelid
 WHERE i.idx_scan = 0 AND NOT x.indisunique
   AND i.relid = ANY (SELECT to_regclass(n) FROM unnest($1::text[]) AS n)
   AND coalesce(t.seq_scan, 0) + coalesce(t.idx_scan, 0) >= $2
 ORDER BY 3 DESC
"""


async def unused_indexes(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Indexes that every write keeps up to date and no read has used; only PostgreSQL counts that."""
    models = {model.table.name: model for model in await _large(database)}
    names = [quote(name, database.run.dialect) for name in models]
    for table, index, size in await database.run.fetch(Sql(_USAGE, (names, _READS))) if names else ():
        model = models[table]
        keys = {r.key for r in model.meta.relations.values() if r.kind is RelationKind.BELONGS_TO}
        columns = (await read_indexes(database.run, model))[index].columns
        fields = [field.name for field in model.meta.fields if field.column in columns[:1]]
        if not keys.isdisjoint(fields):
            continue  # it is what deleting a parent looks its children up by
        yield Problem(
            where=f"{index} on {table}",
            why=f"no read of {table} has used it, and every write keeps its {size // 1024:,} KB up to date",
            fix=f'take index=True from {model.meta.name}, then DROP INDEX CONCURRENTLY "{index}"',
            about=(model.meta.name, index),
        )


async def duplicate_indexes(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Indexes that begin another one of the same rows, and that the model did not have to have."""
    for model in database.models:
        if model.meta.is_internal:
            continue
        indexes = await read_indexes(database.run, model)
        names_of_model = {str(index.name) for index in model.table.indexes} - _declared_names(
            model.meta, indexes
        )
        for name, index in indexes.items():
            other = _longer(name, index, indexes)
            if name not in names_of_model and other is not None and not name.startswith("sqlite_autoindex"):
                yield Problem(
                    where=f"{name} on {model.table.name}",
                    why=f"the index {other} begins with the same columns and finds the same rows, so this"
                    " one only costs every write",
                    fix=f'DROP INDEX "{name}", and take it from indices= of {model.meta.name}',
                    about=(model.meta.name, name),
                )


def _declared_names(meta: ModelMeta, indexes: dict[str, ExistingIndex]) -> set[str]:
    """The indexes that stand in `indices=`, which is the application's choice."""
    lists = [tuple(meta.by_name[name].column for name in index.columns) for index in meta.indices]
    return {name for name, index in indexes.items() if index.columns in lists}


def _longer(name: str, index: ExistingIndex, indexes: dict[str, ExistingIndex]) -> str | None:
    """Another index that does all that this one does."""
    for other_name, other in indexes.items():
        is_same = index.columns == other.columns and (not index.unique or other.unique)
        # Of two that are the same, the one with the later name goes.
        is_longer = not index.unique and len(other.columns) > len(index.columns)
        begins = other.columns[: len(index.columns)] == index.columns and other.predicate == index.predicate
        is_twin = is_same and (other.unique > index.unique or other_name < name)
        if other_name != name and begins and "an expression" not in index.columns and (is_longer or is_twin):
            return other_name
    return None


# -- pages and includes


async def many_children(database: OpenDatabase) -> AsyncIterator[Problem]:
    models = {model.meta.name: model for model in database.models}
    for meta in (model.meta for model in database.models if not model.meta.is_internal):
        for relation in meta.relations.values():
            child = models.get(relation.target)
            if relation.kind is not RelationKind.HAS_MANY or child is None or relation.key is None:
                continue
            if await tables_over(database.run, [child], MANY_CHILDREN):
                key = child.meta.by_name[relation.key]
                if await _has_many_of_one(database.run, child, key):
                    yield Problem(
                        where=where_of(meta.cls, relation.name),
                        why=f"a record has more than {MANY_CHILDREN:,} {relation.name}, and ?include="
                        f"{relation.name} reads all of them into one answer",
                        fix=f"page through them: GET /{child.meta.table}?filter={key.api}:eq:<id>",
                        about=(meta.name, f"{meta.name}.{relation.name}"),
                    )


_FREQUENT = """
SELECT 1 FROM pg_stats s JOIN pg_class c ON c.oid = to_regclass($1) AND c.relname = s.tablename
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = s.schemaname
 WHERE s.attname = $2 AND s.most_common_freqs[1] * c.reltuples > $3
"""


async def _has_many_of_one(run: Executor, child: ModelSql, key: FieldMeta) -> bool:
    """Whether some value of the key is in so many rows: by statistics, and by looking at some of them."""
    table, column = quote(child.table.name, child.dialect), quote(key.column, child.dialect)
    statistics_query = Sql(_FREQUENT, (table, key.column, MANY_CHILDREN))
    statistics = by_dialect(run.dialect, sqlite=None, postgres=statistics_query)
    if statistics is not None and await run.fetch_one(statistics):
        return True
    walk = f"""
    WITH RECURSIVE parents (key, seen) AS (
        SELECT (SELECT min({column}) FROM {table}), 1
        UNION ALL
        SELECT (SELECT min(c.{column}) FROM {table} c WHERE c.{column} > p.key), p.seen + 1
          FROM parents p WHERE p.key IS NOT NULL AND p.seen < {_PARENTS}
    )
    SELECT 1 FROM parents p WHERE p.key IS NOT NULL AND EXISTS (
        SELECT 1 FROM {table} c WHERE c.{column} = p.key LIMIT 1 OFFSET {MANY_CHILDREN}) LIMIT 1
    """
    if await run.fetch_one(Sql(walk)):
        return True
    sample = by_dialect(run.dialect, sqlite=_sample(table, column), postgres=None)
    return sample is not None and await run.fetch_one(Sql(sample)) is not None


def _sample(table: str, column: str) -> str:
    """Rows from all over the table: of a parent with many children, one is among them."""
    return f"""
    WITH RECURSIVE places (place, seen) AS (
        SELECT max(rowid), 1 FROM {table}
        UNION ALL
        SELECT abs(random() % (SELECT max(rowid) FROM {table})) + 1, seen + 1 FROM places WHERE seen < 500
    ), parents (key) AS (SELECT DISTINCT {column} FROM {table} WHERE rowid IN (SELECT place FROM places))
    SELECT 1 FROM parents p WHERE p.key IS NOT NULL AND EXISTS (
        SELECT 1 FROM {table} c WHERE c.{column} = p.key LIMIT 1 OFFSET {MANY_CHILDREN}) LIMIT 1
    """


async def offset_pages(database: OpenDatabase) -> AsyncIterator[Problem]:
    routes = database.subject.routes
    endpoints = [route.endpoint for route in routes if route.endpoint.operation is Operation.LIST]
    list_models = {endpoint.model.name for endpoint in endpoints if endpoint.model is not None}
    for model in await _large(database):
        meta = model.meta
        if meta.options.cursor_field is None and meta.name in list_models and not meta.options.singleton:
            yield Problem(
                where=where_of(meta.cls),
                why=f"its lists are paged by number, and a late page of more than {LARGE:,} rows reads all"
                " rows before it",
                fix=f'class {meta.name}(Model, cursor_field="created_at"), and ?cursor= instead of ?page=',
                about=(meta.name,),
            )


CHECKS = (
    DatabaseCheck(
        "T121",
        Severity.WARNING,
        "a filterable field without an index, on a table of more than 10,000 rows",
        unindexed_filters,
    ),
    DatabaseCheck(
        "T122",
        Severity.WARNING,
        "a sortable field without an index, on a table of more than 10,000 rows",
        unindexed_sorts,
    ),
    DatabaseCheck(
        "T123",
        Severity.WARNING,
        "a `cursor_field` without an index, on a table of more than 10,000 rows",
        unindexed_cursors,
    ),
    DatabaseCheck("T125", Severity.WARNING, "an index that another one makes superfluous", duplicate_indexes),
    DatabaseCheck(
        "T127",
        Severity.WARNING,
        "a has-many relation that includes more than 1,000 records of one parent",
        many_children,
    ),
    DatabaseCheck(
        "T128",
        Severity.WARNING,
        "lists of a table of more than 10,000 rows without a `cursor_field`",
        offset_pages,
    ),
)
POSTGRES_CHECKS = (
    DatabaseCheck("T124", Severity.WARNING, "an index that no read has used (PostgreSQL)", unused_indexes),
)


# Lists that take a statement for each record, found by asking for two and for twenty (T119, T126,
# T129).
#
# Requests are made in this process, with databases that are open for reading alone, by a caller who has
# every role that the application names and owns the first row. Functions of computed fields are called for
# them.


FEW, MANY = 2, 20
REPEATED_STATEMENTS = Coded(
    "T126",
    Severity.WARNING,
    "a list of 20 records that takes more statements than one of 2 (with `--probe`)",
)
REPEATED_IN_INCLUDES = Coded(
    "T129",
    Severity.WARNING,
    "the same with an include, where the list of the other model does not (with `--probe`)",
)
REFUSED_IDENTITY = Coded(
    "T119",
    Severity.WARNING,
    "an authenticator that refuses the identity of in-process calls (with `--probe`)",
)
PROBES = (REFUSED_IDENTITY, REPEATED_STATEMENTS, REPEATED_IN_INCLUDES)


class StatementCounter:
    """Counts the statements that adapters send."""

    after = 0.0  # seconds: all of them

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, text: str, began: float, ended: float, error: BaseException | None) -> None:
        self.count += 1

    def watch(self, adapter: Adapter) -> None:
        """Count those of an adapter that is not open yet."""
        observe: Any = getattr(adapter, "observe_statements", None)  # one of the application may have none
        if observe is not None:
            observe(self)


@dataclass(frozen=True, slots=True)
class _ProbedList:
    status: int
    rows: int
    statements: int


async def probe_lists(subject: Subject, counter: StatementCounter) -> AsyncIterator[tuple[Coded, Problem]]:
    """Ask every list, as it is and with each of its relations; the databases are open."""
    subject.runtime.tasks.attach()
    subject.runtime.watch.attach()
    for adapter in subject.adapters:
        models = [store.sql for store in subject.stores.values() if store.adapter is adapter]
        await use_order_keys_if_there(adapter, models)
    prober = _Prober(subject, counter)
    metas = _listed_models(subject)
    faulty = set()
    for meta in metas:
        outcome = await prober.probe(meta)
        if outcome is not None:
            faulty.add(meta.name)
            yield outcome
    for meta in metas:
        for path, targets in _includes(subject, meta) if meta.name not in faulty else ():
            if faulty.isdisjoint(targets):  # it would say the same again
                outcome = await prober.probe(meta, path)
                if outcome is not None:
                    yield outcome
                    break


def _includes(subject: Subject, meta: ModelMeta) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The relations of a model and those of theirs, each with the models on its way."""
    by_name = {one.name: one for one in subject.models}
    for relation in meta.relations.values():
        yield relation.name, (relation.target,)
        target = by_name.get(relation.target)
        for deeper in () if target is None else target.relations.values():
            yield f"{relation.name}.{deeper.name}", (relation.target, deeper.target)


class _Prober:
    def __init__(self, subject: Subject, counter: StatementCounter) -> None:
        self._subject, self._counter = subject, counter

    async def probe(self, meta: ModelMeta, include: str = "") -> tuple[Coded, Problem] | None:
        """What is wrong with a list, if anything is."""
        caller = await _caller(self._subject, self._subject.stores[meta.cls])
        await self._ask(meta, include, caller, FEW)  # what is done once is done now
        few, many = [await self._ask(meta, include, caller, limit) for limit in (FEW, MANY)]
        path = f"/{meta.table}?limit={MANY}{f'&include={include}' if include else ''}"
        if many.status == 401 and not include:
            return REFUSED_IDENTITY, _refused_identity_problem(meta, path)
        if many.status != 200 and not include:
            return REPEATED_STATEMENTS, _untried_problem(meta, path, many.status)
        if many.status == 200 and many.rows > few.rows and many.statements > few.statements:
            check = REPEATED_IN_INCLUDES if include else REPEATED_STATEMENTS
            return check, self._repeated_statements_problem(meta, path, few, many)
        return None

    async def _ask(self, meta: ModelMeta, include: str, caller: AuthInfo, limit: int) -> _ProbedList:
        before = self._counter.count
        query = {"limit": limit, **({"include": include} if include else {})}
        response = await self._subject.in_process.execute(
            Operation.LIST, meta.cls, "", body=None, query=query, headers=None, auth=caller
        )
        rows = response.data if response.status == 200 else ()
        count = len(rows) if isinstance(rows, list) else 0
        return _ProbedList(response.status, count, self._counter.count - before)

    def _repeated_statements_problem(
        self, meta: ModelMeta, path: str, few: _ProbedList, many: _ProbedList
    ) -> Problem:
        fields = [one.name for one in self._subject.computed.get(meta.cls, ())]
        return Problem(
            where=where_of(meta.cls),
            why=f"GET {path} takes {many.statements} statements for {many.rows} records and {few.statements}"
            f" for {few.rows}: some are sent again for each record",
            fix=f'@server.computed({meta.name}, "{fields[0]}", batch=True), which is given all records'
            if fields and "include=" not in path
            else "look for computed fields of what is included, middleware or relations that read for each"
            " record, with trace and log_level=DEBUG",
            about=(meta.name,),
        )


def _refused_identity_problem(meta: ModelMeta, path: str) -> Problem:
    return Problem(
        where=where_of(meta.cls),
        why=f"GET {path} is 401 for a call in this process that brings its identity along: an authenticator"
        " looks at the request alone, so the panel, server.execute and runs in somebody's name are refused",
        fix="in the authenticator: if ctx.auth is not None: await next() and return",
        about=(meta.name,),
    )


def _untried_problem(meta: ModelMeta, path: str, status: int) -> Problem:
    return Problem(
        where=where_of(meta.cls),
        why=f"GET {path} could not be tried: the answer is {status} for a caller with every role",
        fix="--probe on a copy of the database with a server that answers it, or --ignore T126",
        about=(meta.name,),
        severity=Severity.NOTE,
    )


def _listed_models(subject: Subject) -> list[ModelMeta]:
    list_models = {r.endpoint.model for r in subject.routes if r.endpoint.operation is Operation.LIST}
    return [meta for meta in subject.own_models if meta in list_models and not meta.options.singleton]


async def _caller(subject: Subject, store: Store) -> AuthInfo:
    """Somebody with every role, to whom the first row of the model belongs."""
    roles: set[str] = {"admin"}
    values: dict[str, str] = {}
    for entry, seat in subject.seats:
        if isinstance(entry, RoleGuard):
            roles |= set(entry.terms.split(", "))
        elif isinstance(entry, ScopeRule) and store.meta in set(entry.bound_models(seat)):
            field = store.meta.by_name.get(entry.path)
            value = None if field is None else await _first_value(store, field.column)
            if value is not None:
                values["tenant" if "tenancy" in entry.name else "user"] = value
    tenant = values.get("tenant") or values.get("user", "doctor")
    return AuthInfo(user_id=values.get("user", "doctor"), tenant_id=tenant, roles=sorted(roles))


async def _first_value(store: Store, column: str) -> str | None:
    name, table = quote(column, store.sql.dialect), quote(store.sql.table.name, store.sql.dialect)
    row = await store.adapter.fetch_one(Sql(f"SELECT {name} FROM {table} ORDER BY 1 LIMIT 1"))
    return None if row is None or row[0] is None else str(row[0])
