"""Each model on its database: adapters from addresses, and a store for every model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from maniflex._clock import Clock
from maniflex.config import Config, sqlite_path
from maniflex.db.cascade import junction_problems, unenforceable
from maniflex.db.port import Adapter
from maniflex.db.store import Store
from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta

Stores = Mapping[type[Model], Store]


class Databases:
    """The default database and those single models are routed to; one adapter for one URL."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._by_address: dict[str, Adapter] = {}
        self.all: list[Adapter] = []
        self.default = self._adapter(config.database)

    def of(self, meta: ModelMeta) -> Adapter:
        return self.default if meta.options.database is None else self._adapter(meta.options.database)

    def _adapter(self, database: Any) -> Adapter:
        if isinstance(database, str):
            if database not in self._by_address:
                self._by_address[database] = self._build(database)
            database = self._by_address[database]
        elif not hasattr(database, "transaction"):
            raise DeclarationError(f"a {type(database).__name__} is neither an address nor an adapter")
        if not any(database is other for other in self.all):
            self.all.append(database)
        adapter: Adapter = database
        return adapter

    def _build(self, url: str) -> Adapter:
        config = self._config
        if url.startswith(("postgresql://", "postgres://")):
            from maniflex.db.postgres.adapter import PostgresAdapter

            return PostgresAdapter(
                url,
                read_url=config.read_database if url == config.database else None,
                pool_size=config.pool_size,
                read_pool_size=config.read_pool_size,
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


def make_stores(models: Sequence[ModelMeta], databases: Databases, clock: Clock) -> tuple[Stores, list[str]]:
    """A store for each model, and the problems of those whose database is none."""
    metadata: dict[int, sa.MetaData] = {}
    stores: dict[type[Model], Store] = {}
    problems: list[str] = []
    for meta in models:
        try:
            adapter = databases.of(meta)
        except DeclarationError as error:
            problems += [f"{meta.name}: database: {problem}" for problem in error.problems]
            continue
        stores[meta.cls] = Store(meta, adapter, metadata.setdefault(id(adapter), sa.MetaData()), clock)
    return stores, problems


def link_stores(config: Config, stores: Stores, internal_tables: Collection[type[Model]]) -> list[str]:
    """Tell every store of the others, and say which of their relations cannot be kept."""
    models = {store.meta.name: store.meta for store in stores.values()}
    stores_by_model = {store.meta.name: store for store in stores.values()}
    for store in stores.values():
        limits = store.meta.options.limits or config.limits
        store.link(models, stores_by_model, limits, must_bind=store.meta.cls in internal_tables)
    crossing = [problem for store in stores.values() for problem in unenforceable(store, stores_by_model)]
    return [*crossing, *junction_problems(stores_by_model)]
