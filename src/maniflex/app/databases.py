"""Each model on its database: adapters from addresses, and a store for every model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from maniflex._clock import Clock
from maniflex.config import DEFAULT, Config, database_address, sqlite_path
from maniflex.db.backed_store import BackedStore, backed_relation_problems, backend_problems
from maniflex.db.cascade import junction_problems, unenforceable
from maniflex.db.port import Adapter
from maniflex.db.statements import OnStatement, SlowStatements, StatementDurations, StatementObservers
from maniflex.db.store import Store
from maniflex.encryption.keyring import Keyring
from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import add_to_request
from maniflex.pipeline.observation import Tracing

Stores = Mapping[type[Model], Store]


class Databases:
    """The default database and those single models are routed to; one adapter for one URL.

    A default database that nobody named is opened only if a model is in it.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._by_address: dict[str, Adapter] = {}
        self.all: list[Adapter] = []  # those to open, the default one first
        self.is_named = config.origin("database") != DEFAULT
        self.default = self._adapter(config.database)
        if self.is_named:
            self._open_with_start(self.default)
        else:
            self.default.why_closed = (  # type: ignore[attr-defined]  # SQLite is what nobody named
                "the default database is not open: it has no name and no model; write"
                " Server('sqlite:///app.db') or set DB_WRITE_URL"
            )

    def of(self, meta: ModelMeta) -> Adapter:
        database = meta.options.database
        adapter = self.default if database is None else self._adapter(database)
        self._open_with_start(adapter)
        return adapter

    def _open_with_start(self, adapter: Adapter) -> None:
        if adapter is self.default and adapter not in self.all:
            self.all.insert(0, adapter)
        elif adapter not in self.all:
            self.all.append(adapter)

    def problems(self) -> Iterator[str]:
        """What a strict server and one in production are refused for."""
        if not self.is_named and self.default in self.all:
            yield (
                f"no database is named, so {self._config.database} would be used; write"
                " Server('sqlite:///app.db') or Server('postgresql://…'), or set DB_WRITE_URL"
            )

    def _adapter(self, database: Any) -> Adapter:
        if isinstance(database, str):
            address = database_address(database)
            key = _identify(address)
            if key not in self._by_address:
                self._by_address[key] = self._build(address)
            database = self._by_address[key]
        elif not hasattr(database, "transaction"):
            raise DeclarationError(f"a {type(database).__name__} is neither an address nor an adapter")
        adapter: Adapter = database
        return adapter

    def _build(self, url: str) -> Adapter:
        config = self._config
        if url.startswith(("postgresql://", "postgres://")):
            make = _postgres_factory(config, has_replica=url == config.database)
            return make(
                url,
                pool_size=config.pool_size,
                statement_timeout=config.statement_timeout,
                lock_timeout=config.lock_timeout,
                idle_in_transaction_timeout=config.idle_in_transaction_timeout,
                pool_timeout=config.pool_timeout,
                application_name=config.application_name,
                schema=config.schema,
                pooler=config.pooler,
            )
        if url.startswith("sqlite:") or url == ":memory:":
            from maniflex.db.sqlite.adapter import SqliteAdapter

            return SqliteAdapter(
                sqlite_path(url),
                readers=config.sqlite_readers,
                lock_timeout=config.lock_timeout,
                statement_timeout=config.statement_timeout,
                pool_timeout=config.pool_timeout,
            )
        raise DeclarationError("an address is written sqlite:///file or postgresql://…")


def _identify(address: str) -> str:
    """What two spellings of one database have in common: on two adapters no transaction would hold both."""
    if address.startswith("sqlite:") and (path := sqlite_path(address)) != ":memory:":
        return f"sqlite:{Path(path).resolve()}"
    return re.sub(r"^postgres://", "postgresql://", address)


def _postgres_factory(config: Config, *, has_replica: bool) -> Callable[..., Adapter]:
    if not has_replica or config.read_database is None:
        from maniflex.db.postgres.adapter import PostgresAdapter

        return PostgresAdapter
    from maniflex.db.postgres.replicated import ReplicatedAdapter

    return partial(
        ReplicatedAdapter,
        read_url=config.read_database,
        read_pool_size=config.read_pool_size,
        read_max_lag=config.read_max_lag,
    )


def describe_databases(
    config: Config, default: Adapter, adapters: Sequence[Adapter], stores: Stores
) -> Iterator[str]:
    """A sentence for each database that is open: which it is, what it is for, and who named it."""
    for adapter in adapters:
        path = getattr(adapter, "path", "")  # the file of SQLite
        address = f"sqlite:{path}" if path else adapter.label
        if adapter is default:
            origin = config.origin("database")
            source = "nobody named another" if origin == DEFAULT else f"from {origin}"
            yield f"the default database is {address} ({source})"
        else:
            names = sorted(store.meta.name for store in stores.values() if store.adapter is adapter)
            yield f"the database of {', '.join(names)} is {address}"
        if (replica := getattr(adapter, "replica", None)) is not None:
            yield f"reads of requests may go to {replica.label}"


def make_stores(
    models: Sequence[ModelMeta], databases: Databases, clock: Clock, keys: Keyring
) -> tuple[Stores, list[str]]:
    """A store for each model, and the problems of those whose database is none."""
    metadata: dict[int, sa.MetaData] = {}
    stores: dict[type[Model], Store] = {}
    problems: list[str] = []
    for meta in models:
        if meta.options.backend is not None:
            problems += backend_problems(meta)
            if not isinstance(meta.options.backend, type):
                stores[meta.cls] = BackedStore(meta, clock)
            continue
        try:
            adapter = databases.of(meta)
        except DeclarationError as error:
            problems += [f"{meta.name}: database: {problem}" for problem in error.problems]
            continue
        tables = metadata.setdefault(id(adapter), sa.MetaData())
        stores[meta.cls] = Store(meta, adapter, tables, clock, keys)
    for store in stores.values():
        if isinstance(store, BackedStore) and databases.default in databases.all:
            store.home = databases.default
    return stores, problems


def link_stores(config: Config, stores: Stores, internal_tables: Collection[type[Model]]) -> list[str]:
    """Tell every store of the others, and say which of their relations cannot be kept."""
    models = {store.meta.name: store.meta for store in stores.values()}
    stores_by_model = {store.meta.name: store for store in stores.values()}
    for store in stores.values():
        limits = store.meta.options.limits or config.limits
        store.link(models, stores_by_model, limits, must_bind=store.meta.cls in internal_tables)
    crossing = [problem for store in stores.values() for problem in unenforceable(store, stores_by_model)]
    of_backends = [text for meta in models.values() for text in backed_relation_problems(meta, models)]
    return [*crossing, *of_backends, *junction_problems(stores_by_model)]


def observe_statements(
    adapters: Sequence[Adapter], config: Config, tracing: Tracing | None
) -> dict[str, StatementDurations]:
    """Have slow statements logged and others counted, as settings say; the durations of each database."""
    durations: dict[str, StatementDurations] = {}
    for adapter in adapters:
        observers: list[OnStatement] = []
        slow = None
        if config.slow_after:
            slow = SlowStatements(adapter.label, config.slow_after.total_seconds())
        if config.metrics_enabled:
            observers.append(durations.setdefault(adapter.label, StatementDurations(slow)))
        elif slow is not None:
            observers.append(slow)
        if config.trace.on("timings"):
            observers.append(add_to_request)
        if tracing is not None:
            observers.append(tracing.statements(adapter.label, adapter.dialect))
        observe = getattr(adapter, "observe_statements", None)  # an adapter of the application may have none
        if observers and observe is not None:
            observe(StatementObservers.of(observers))
    return durations
