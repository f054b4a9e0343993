"""Lists that take a statement for each record, found by asking for two and for twenty (T119, T126, T129).

Requests are made in this process, with databases that are open for reading alone, by a caller who has every
role that the application names and owns the first row. Functions of computed fields are called for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from maniflex.db.port import Adapter
from maniflex.db.store import Store
from maniflex.doctor.check import Coded, Problem, Severity
from maniflex.doctor.sources import where_of
from maniflex.doctor.subject import Subject
from maniflex.middleware.auth.guards import RoleGuard
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.scopes import ScopeRule
from maniflex.schema.derived import use_order_keys_if_there
from maniflex.sql.statement import Sql
from maniflex.sql.tables import quote

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
