"""One database and what migrating it needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maniflex.db.current import reading
from maniflex.db.port import Adapter
from maniflex.db.short_locks import LockLimits
from maniflex.errors import DeclarationError
from maniflex.schema.differences import Difference, What, find_differences
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect

if TYPE_CHECKING:
    from maniflex.schema.files import MigrationFiles


LOCK_LIMITS = LockLimits(timedelta(milliseconds=500), tries=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationTarget:
    """One database of an application, with its models and its files."""

    name: str
    adapter: Adapter
    models: Sequence[ModelSql]
    statements: Callable[[Dialect], Sequence[Sql]]  # what durable work keeps beside its models
    files: MigrationFiles
    # The records of a model by its name. None where they are those of another database than `adapter`, as
    # beside a scratch database: functions of files are not called then.
    records: Callable[[str], Any] | None
    lock_limits: LockLimits = LOCK_LIMITS

    @property
    def dialect(self) -> Dialect:
        return self.adapter.dialect

    def command(self, words: str) -> str:
        """A command as it would be typed for this application."""
        return self.files.command(words)

    async def differences(self) -> list[Difference]:
        """How the database differs from the models, as files tell it."""
        statements = self.statements(self.dialect)
        differences = await find_differences(reading(self.adapter), self.models, statements)
        return [difference for difference in differences if difference.what is not What.NO_DEFAULT]

    @asynccontextmanager
    async def beside(self, name: str) -> AsyncIterator[MigrationTarget]:
        """The same on an empty database beside this one, which is gone afterwards."""
        make = by_dialect(self.dialect, sqlite=_scratch_file, postgres=_scratch_schema)
        async with make(self.adapter, name) as scratch:
            yield replace(self, adapter=scratch, records=None)


# What can go wrong with migrations, each said in one sentence with what to type.


class MigrationError(DeclarationError):
    """A migration cannot be written or applied; the message says why and what to do."""


class Irreversible(MigrationError):
    """Raised by the `downgrade` of a file that cannot go back."""


# Empty databases beside that of an application, to apply its files to.


@asynccontextmanager
async def _scratch_file(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    from maniflex.db.sqlite.adapter import SqliteAdapter

    with tempfile.TemporaryDirectory(prefix="maniflex-") as directory:
        scratch = SqliteAdapter(str(Path(directory) / f"{name}.db"), durable=False)
        await scratch.open()
        try:
            yield scratch
        finally:
            await scratch.close()


@asynccontextmanager
async def _scratch_schema(adapter: Adapter, name: str) -> AsyncIterator[Adapter]:
    schema = f"maniflex_{name}_{os.getpid()}"
    scratch = adapter.sibling(schema=schema)  # type: ignore[call-arg]  # of the adapter of PostgreSQL
    await scratch.open()
    try:
        yield scratch
    finally:
        await scratch.close()
        await adapter.execute(Sql(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'))
