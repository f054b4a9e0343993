"""The tables of a server: made and checked at its start, and handed to the commands that migrate them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maniflex.app.durable import Durable
from maniflex.app.lifecycle import stop_collecting
from maniflex.config import Config
from maniflex.db.current import reading
from maniflex.db.port import Adapter
from maniflex.db.records import Records
from maniflex.errors import DeclarationError, ManiflexError
from maniflex.model.history_row import history_model, is_versioned
from maniflex.model.meta import Kind, ModelMeta
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


DEFAULT = "default"
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
        [(adapter, models)] = [(a, m) for name, a, m in self._databases() if name == DEFAULT]
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
            name = DEFAULT if is_default else _database_name(adapter.label)
            while name in names:
                name += "_2"
            names.add(name)
            yield name, adapter, [*own_models, *self._durable.entry_tables.beside_rows(adapter)]

    def _directory(self, name: str) -> Path:
        root = self._home / self._config.migrations_dir
        is_alone = len(self._assembly.adapters) == 1 or (name == DEFAULT and (root / VERSIONS).is_dir())
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
