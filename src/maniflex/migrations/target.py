"""One database and what migrating it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from maniflex.db.current import reading
from maniflex.db.port import Adapter
from maniflex.db.schema_differences import Difference, find_differences
from maniflex.db.short_locks import LockLimits
from maniflex.errors import DeclarationError
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql

if TYPE_CHECKING:
    from maniflex.migrations.files import MigrationFiles

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
        """How the database differs from the models."""
        return await find_differences(reading(self.adapter), self.models, self.statements(self.dialect))


# What can go wrong with migrations, each said in one sentence with what to type.


class MigrationError(DeclarationError):
    """A migration cannot be written or applied; the message says why and what to do."""


class Irreversible(MigrationError):
    """Raised by the `downgrade` of a file that cannot go back."""
