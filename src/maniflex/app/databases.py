"""The databases of a server: adapters from addresses, a store for every model, tables made and checked."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from maniflex._clock import Clock
from maniflex.app.durable import Durable
from maniflex.app.lifecycle import stop_collecting
from maniflex.config import DEFAULT, Config, database_address, sqlite_path
from maniflex.db.backed_store import BackedStore, backed_relation_problems, backend_problems
from maniflex.db.cascade import junction_problems, unenforceable
from maniflex.db.current import reading
from maniflex.db.port import Adapter
from maniflex.db.records import Records
from maniflex.db.statements import OnStatement, SlowStatements, StatementDurations, StatementObservers
from maniflex.db.store import Store
from maniflex.encryption.keyring import Keyring
from maniflex.errors import DeclarationError, ManiflexError
from maniflex.model.base import Model
from maniflex.model.history_row import history_model, is_versioned
from maniflex.model.meta import Kind, ModelMeta
from maniflex.pipeline.chain import add_to_request
from maniflex.pipeline.observation import Tracing
from maniflex.schema.derived import use_order_keys_if_there
from maniflex.schema.differences import check_queries
from maniflex.schema.history import note_layouts
from maniflex.schema.read import read_heads
from maniflex.schema.start import check_tables, make_tables, start_on_migrated
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql

if TYPE_CHECKING:
    from maniflex.app.assembly import Assembly
    from maniflex.db.short_locks import LockLimits
    from maniflex.schema.target import MigrationTarget


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


# The tables of a server: made and checked at its start, and handed to the commands that migrate them.


MAIN = "default"
VERSIONS = "versions"
_LOOK_AGAIN = 5.0  # seconds between two looks at a database that is behind


class SchemaTables:
    """The tables of all databases of one server."""

    def __init__(
        self,
        assembly: Assembly,
        durable: Durable,
        config: Config,
        *,
        home: Path,
        application: str,
        makes_tables: bool = False,
    ) -> None:
        """With `makes_tables` the tables are made, whatever the settings say, unless migrations keep them."""
        self._makes_tables = makes_tables or config.auto_migrate
        self._behind: list[MigrationTarget] = []  # databases that lack what the models have
        self._looked_at = 0.0
        self._assembly = assembly
        self._durable = durable
        self._config = config
        self._home = home
        self._application = application

    async def prepare(self) -> None:
        """Make or check the tables, as the settings ask for it; a migrated database is not altered."""
        for name, adapter, models in self._databases():
            directory = self._directory(name)
            is_migrated = await read_heads(reading(adapter)) is not None
            has_files = any((directory / VERSIONS).glob("*.py"))
            if is_migrated or (self._config.migrate_on_start and has_files):
                await self._start_on_migrated(name, adapter, models)
            elif self._makes_tables:
                await make_tables(
                    *(adapter, models, self._statements(adapter, adapter.dialect)),
                    application=self._application,
                    has_files=has_files,
                )
            else:
                await use_order_keys_if_there(adapter, models)
                await check_tables(adapter, models, application=self._application, has_files=has_files)
            await check_queries(adapter, models)
            makes_table = self._makes_tables or self._config.migrate_on_start
            now = self._assembly.runtime.clock.now()
            await note_layouts(adapter, self._histories(adapter), now, makes_table=makes_table)

    def _histories(self, adapter: Adapter) -> list[tuple[ModelSql, ModelSql]]:
        """The versioned models of a database, each with its history."""
        stores = self._assembly.runtime.stores
        return [
            (store.sql, stores[history_model(store.meta.cls)].sql)
            for store in self._assembly.stores_of(adapter)
            if is_versioned(store.meta.options) and history_model(store.meta.cls) in stores
        ]

    async def make(self) -> None:
        """Make the tables of the default database, unless migrations keep it."""
        [(adapter, models)] = [(a, m) for name, a, m in self._databases() if name == MAIN]
        if await read_heads(reading(adapter)) is None:
            await make_tables(adapter, models, self._statements(adapter, adapter.dialect))

    async def _start_on_migrated(self, name: str, adapter: Adapter, models: Sequence[ModelSql]) -> None:
        config = self._config
        if not config.auto_migrate:
            await use_order_keys_if_there(adapter, models)
        target = self._target(name, adapter, models, None)
        agrees = await start_on_migrated(
            target,
            migrate=config.migrate_on_start,
            strict=not config.auto_migrate or config.is_strict,
            refresh=config.auto_migrate or config.migrate_on_start,
        )
        if not agrees:
            self._behind.append(target)

    async def find_missing_migration(self) -> str:
        """What to do where the models are ahead of a database that migrations keep; nothing where none is.

        A database that was behind at the start is looked at again, so that `migrate up` is noticed; one that
        gives no answer in time is still behind.
        """
        if not self._behind:
            return ""
        from maniflex.schema.check import advise_next_file

        if time.monotonic() - self._looked_at > _LOOK_AGAIN:
            self._looked_at = time.monotonic()
            self._behind = [target for target in self._behind if await self._is_behind(target)]
        advice = dict.fromkeys(advise_next_file(target) for target in self._behind)
        return f"the models are ahead of the migrations; {'; '.join(advice)}" if advice else ""

    async def _is_behind(self, target: MigrationTarget) -> bool:
        try:
            async with asyncio.timeout(self._config.health_timeout.total_seconds()):
                return any(not difference.harmless for difference in await target.differences())
        except (ManiflexError, OSError):  # a timeout is an OSError
            return True

    def file_problems(self) -> list[str]:
        """What the models have and no migration file makes; asks no database."""
        from maniflex.schema.check import unmade_by_files

        return [problem for target in self.targets() for problem in unmade_by_files(target)]

    def targets(self, lock_limits: LockLimits | None = None) -> list[MigrationTarget]:
        """Every database with what migrating it needs."""
        return [self._target(*database, lock_limits) for database in self._databases()]

    def _databases(self) -> Iterator[tuple[str, Adapter, list[ModelSql]]]:
        """The name, the adapter and the models of each database."""
        names: set[str] = set()
        for adapter, own_models in self._assembly.schemas():
            is_default = adapter is self._assembly.runtime.adapter
            name = MAIN if is_default else _database_name(adapter.label)
            while name in names:
                name += "_2"
            names.add(name)
            yield name, adapter, [*own_models, *self._durable.entry_tables.beside_rows(adapter)]

    def _directory(self, name: str) -> Path:
        root = self._home / self._config.migrations_dir
        is_alone = len(self._assembly.adapters) == 1 or (name == MAIN and (root / VERSIONS).is_dir())
        return root if is_alone else root / name

    def _statements(self, adapter: Adapter, dialect: Dialect) -> Sequence[Sql]:
        return self._durable.schema(dialect) if adapter is self._assembly.runtime.adapter else ()

    def _target(
        self, name: str, adapter: Adapter, models: Sequence[ModelSql], lock_limits: LockLimits | None
    ) -> MigrationTarget:
        from maniflex.schema.files import MigrationFiles
        from maniflex.schema.target import LOCK_LIMITS, MigrationTarget

        runtime = self._assembly.runtime

        def records(model: str) -> Records[Any]:
            return Records(runtime.store(model))

        return MigrationTarget(
            name=name,
            adapter=adapter,
            models=models,
            statements=lambda dialect: self._statements(adapter, dialect),
            files=MigrationFiles(self._directory(name), self._application),
            records=records,
            lock_limits=lock_limits or LOCK_LIMITS,
        )


def _database_name(label: str) -> str:
    """The name of a database's directory: that of its file, or of the database on its server."""
    last = re.split(r"[/:]", label)[-1].removesuffix(".db")
    return re.sub(r"\W+", "_", last).strip("_") or "other"


# What stops the start of a strict server: all that others are warned of, before a table is touched.


def unregistered_targets(models: Iterable[ModelMeta]) -> Iterator[str]:
    """Columns that are named like a reference to a model that is not registered."""
    for meta in models:
        keys = {relation.key for relation in meta.relations.values()}
        for field in meta.fields:
            stem = field.name.removesuffix("_id")
            is_reference = stem != field.name and field.kind in (Kind.TEXT, Kind.UUID)
            if is_reference and field.name not in keys and "relation" not in field.extra:
                model = "".join(word.capitalize() for word in stem.split("_"))
                yield (
                    f"{meta.name}.{field.name}: no model named {model!r} is registered; register it, or say"
                    " relation=None if it refers to none"
                )


async def refuse_table_warnings(
    schemas: Iterable[tuple[Adapter, Sequence[ModelSql]]],
    warnings: list[str],
    *,
    config: Config,
    application: str,
    makes_tables: bool,
) -> None:
    """Look at all tables without changing any; `DeclarationError` with everything there is to say of them.

    `warnings` are those of this start so far, which the looks add to. A database that migration files keep
    is checked against those.
    """
    problems: list[str] = []
    for adapter, models in schemas:
        if config.migrate_on_start or await read_heads(reading(adapter)) is not None:
            continue
        try:
            await check_tables(adapter, models, application=application, adds=makes_tables)
        except DeclarationError as error:
            problems += error.problems
    if problems or warnings:
        raise DeclarationError(*problems, *warnings)
    stop_collecting()
