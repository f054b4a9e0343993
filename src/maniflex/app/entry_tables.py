"""The tables and stores of catalogue entries: made where an entry needs them, and swept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from maniflex._caller import act_on
from maniflex._service import Service, call
from maniflex.audit.tables import AuditRow
from maniflex.background.environment import Environment
from maniflex.background.expired_rows import ExpiredRows, HistoryPruner, KeptHistory
from maniflex.db.port import Adapter, Tx
from maniflex.db.write_seam import Change
from maniflex.features.actions import Action
from maniflex.features.history_options import how_long_kept
from maniflex.model.base import Model
from maniflex.model.history_row import history_model, is_versioned
from maniflex.model.meta import ModelMeta
from maniflex.model.registry import Registry
from maniflex.pipeline.entry import Entry, ListeningEntry, Trait
from maniflex.pipeline.registration import Pipeline, middleware_of_model
from maniflex.query.query import reachable_models
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql
from maniflex.sql.write import EXPIRY

Use = tuple[Entry, frozenset[str] | None]  # an entry and the models it is registered for; None: all


class EntryTables:
    """What the entries of one server need of its databases; a part of durable work to the server."""

    def __init__(self) -> None:
        self._uses: list[Use] = []
        self._attached: list[tuple[Any, Adapter]] = []  # stores, and the database that they were given
        self._beside_rows: dict[int, list[ModelSql]] = {}
        self._sweeper: ExpiredRows | None = None
        self._pruner: HistoryPruner | None = None

    def collect(
        self,
        pipeline: Pipeline,
        registry: Registry,
        actions: Sequence[Action],
        files_middleware: Sequence[Any] = (),
    ) -> None:
        """Find the entries of a server that is about to be sealed, and number those that are alike."""
        self._uses = list(_uses(pipeline, registry, actions))
        self._uses += [(fn, frozenset[str]()) for fn in files_middleware if isinstance(fn, Entry)]
        numbers: Counter[str] = Counter()
        for entry in {id(entry): entry for entry, _ in self._uses}.values():
            entry.number = numbers[entry.label]
            numbers[entry.label] += 1

    @property
    def uses(self) -> Sequence[Use]:
        """Every entry and the models it is registered for."""
        return self._uses

    def models(self) -> Sequence[type[Model]]:
        """The tables of all entries, each once."""
        return list(dict.fromkeys(table for entry, _ in self._uses for table in entry.keeps.tables))

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        """The models declare all there is."""
        return ()

    def problems(self) -> list[str]:
        """Entries are judged where they are placed."""
        return []

    def attach(self, environment: Environment) -> None:
        """Hand the database and the clock to the stores, in place of those they had before."""
        for store, adapter in self._attached:
            _detach(store, adapter)
        self._attached = [(store, environment.adapter) for store in self._stores()]
        for store, adapter in self._attached:
            attach = getattr(store, "attach", None)
            if attach is not None:
                attach(adapter, environment.clock)
        self._listen(environment)
        others = self._other_databases(environment)
        self._beside_rows = {
            id(adapter): [
                ModelSql(environment.stores[table].meta, adapter.dialect, sa.MetaData()) for table in tables
            ]
            for adapter, tables in others
        }
        swept = [(environment.adapter, table) for table in self.models()]
        swept += [(adapter, table) for adapter, tables in others for table in tables]
        places = [(adapter, environment.stores[table].meta) for adapter, table in swept if _expires(table)]
        logs = [(a, environment.stores[t].meta) for a, t in swept if issubclass(t, AuditRow)]
        keep_logs = environment.config.audit_retention
        if places or (logs and keep_logs):
            self._sweeper = ExpiredRows(
                places, environment.clock, environment.logger, logs=logs, keep_logs=keep_logs
            )
        else:
            self._sweeper = None
        histories = list(_limited_histories(environment))
        self._pruner = HistoryPruner(histories, environment.clock, environment.logger) if histories else None

    def _listen(self, environment: Environment) -> None:
        """Let entries be told of writes to the models they are registered for, some also to those reached."""
        metas = {store.meta.name: store.meta for store in environment.stores.values()}
        stores = {store.meta.name: store for store in environment.stores.values()}
        for entry, names in self._uses:
            if not isinstance(entry, ListeningEntry):
                continue
            roots = [meta for meta in metas.values() if names is None or meta.name in names]
            models = [one for root in roots for one in reachable_models(root, metas)]
            listened_metas = (*roots, *(models if entry.hears_reached else ()))
            for name in dict.fromkeys(meta.name for meta in listened_metas if not meta.is_internal):
                is_told = entry.hears_backends or metas[name].options.backend is None
                listener = entry.listener(stores[name])
                if entry.keeps.stores:
                    listener = _EntryListener(entry, environment.adapter)
                if is_told and listener not in stores[name].seam.listeners:
                    stores[name].seam.listen(listener)

    def services(self) -> Sequence[Service]:
        """The sweepers, where there is anything to sweep."""
        return [service for service in (self._sweeper, self._pruner) if service is not None]

    def revokers(self) -> Sequence[Callable[[str, datetime], Awaitable[None]]]:
        """What refuses the access tokens that a person was given until now."""
        return [partial(_revoke_user, store) for store in self._stores() if hasattr(store, "revoke_user")]

    def forget_answers(self) -> None:
        """Forget the answers that this process keeps for repetitions, and its caches."""
        for keeper in (*(entry for entry, _ in self._uses), *self._stores()):
            forget = getattr(keeper, "forget_answers", None)
            if forget is not None:
                forget()

    async def prune(self, until: Callable[[], bool]) -> dict[str, int]:
        """Remove all versions and records of audit trails that are too old; what went, by model."""
        counts = {} if self._pruner is None else await self._pruner.prune_all(until)
        return counts if self._sweeper is None else counts | await self._sweeper.prune_logs(until)

    def beside_rows(self, adapter: Adapter) -> Sequence[ModelSql]:
        """The tables that entries need in a database besides the server's own."""
        return self._beside_rows.get(id(adapter), ())

    async def close(self) -> None:
        """Close the connections of stores outside the database, unless another server uses them."""
        for store, adapter in self._attached:
            is_over, close = _detach(store, adapter), getattr(store, "close", None)
            if is_over and close is not None:
                await call(close)

    def _stores(self) -> Iterator[Any]:
        yield from {id(store): store for entry, _ in self._uses for store in entry.keeps.stores}.values()

    def _other_databases(self, environment: Environment) -> list[tuple[Adapter, list[type[Model]]]]:
        """Databases of models whose entries keep their tables beside the rows, and these tables."""
        databases: dict[int, tuple[Adapter, dict[type[Model], None]]] = {}
        internal = set(self.models())
        for entry, names in self._uses:
            for cls, store in environment.stores.items() if entry.keeps.beside_rows else ():
                if store.meta.options.backend is not None:
                    continue
                is_named = names is None or store.meta.name in names
                if is_named and cls not in internal and store.adapter is not environment.adapter:
                    _, tables = databases.setdefault(id(store.adapter), (store.adapter, {}))
                    tables.update(dict.fromkeys(entry.keeps.tables))
        return [(adapter, list(tables)) for adapter, tables in databases.values()]


_LONGEST_TOKEN = timedelta(days=366)  # of access tokens, which expire long before


async def _revoke_user(store: Any, user_id: str, now: datetime) -> None:
    await store.revoke_user(user_id, now, now + _LONGEST_TOKEN)


@dataclass(frozen=True, slots=True)
class _EntryListener:
    """An entry as one server tells it of writes; code of another may write, and both may have its stores."""

    entry: ListeningEntry
    database: Adapter

    @property
    def needs_rows(self) -> bool:
        return self.entry.needs_rows

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        with act_on(self.database):
            await self.entry.note_changes(changes, tx)


def _detach(store: Any, adapter: Adapter) -> bool:
    """Tell a store that a server is over; whether no other uses it, as far as the store knows."""
    detach = getattr(store, "detach", None)
    return True if detach is None else bool(detach(adapter))


def _uses(pipeline: Pipeline, registry: Registry, actions: Sequence[Action]) -> Iterator[Use]:
    """Every entry, in the order of registration: of the pipeline, of the models, of the actions."""
    registrations = [registration for step in pipeline.steps for registration in step.registrations]
    registrations += pipeline.openapi.auth.registrations
    yield from ((r.fn, r.models) for r in registrations if isinstance(r.fn, Entry))
    for cls, options in registry.options():
        for _, fn, _ in middleware_of_model(options.middleware):
            if isinstance(fn, Entry):
                yield fn, frozenset({cls.__name__})
    for action in actions:
        yield from ((fn, frozenset[str]()) for fn in action.middleware if isinstance(fn, Entry))


def computed_problems(
    pipeline: Pipeline, models: Sequence[ModelMeta], computed: Collection[type[Model]]
) -> Iterator[str]:
    """Models whose computed fields would be made from records without their secrets."""
    for r in pipeline.db.registrations:
        for meta in models if isinstance(r.fn, Entry) and Trait.HIDES_SECRETS in r.fn.traits else ():
            is_for = r.models is None or meta.name in r.models
            if is_for and meta.cls in computed and any(field.secret for field in meta.fields):
                yield (
                    f"pipeline.db: {r.name}: {meta.name} has secret fields, which are not kept, and computed"
                    " ones, which may need them; register it for other models"
                )


def _expires(table: type[Model]) -> bool:
    return EXPIRY in table.model_fields  # type: ignore[attr-defined]  # of pydantic, at run time


def _limited_histories(environment: Environment) -> Iterator[KeptHistory]:
    """The histories that do not keep their versions for good."""
    for store in environment.stores.values():
        options = store.meta.options
        history = environment.stores.get(history_model(store.meta.cls)) if is_versioned(options) else None
        keep = how_long_kept(options, environment.config.history_retention)
        if history is not None and keep:
            yield KeptHistory(adapter=history.adapter, history=history.sql, records=store.sql, keep=keep)
