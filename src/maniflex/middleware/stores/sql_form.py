"""What the SQL forms share: the server's database, its clock, and errors as `StoreUnavailable`.

Every call is one statement, committed by itself: never in the caller's open transaction, unless the
method says so. So the forms hold no lock another request could wait for, and work behind poolers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

from maniflex._clock import Clock, SystemClock
from maniflex.db.current import read_current, write_separately
from maniflex.db.port import Adapter, Row
from maniflex.errors import RequestError
from maniflex.middleware.stores.form import Home, StoreForm
from maniflex.middleware.stores.port import SECOND, StoreUnavailable, nanoseconds
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import TableRules
from maniflex.sql.statement import Sql
from maniflex.sql.statement_files import NamedStatement, load


class SqlHome(Home):
    """A server in whose database the rows are."""

    statements: Mapping[str, NamedStatement]
    timestamp: Callable[[], float] | None

    def now(self) -> int:
        """The time in nanoseconds."""
        return nanoseconds(self.clock.now()) if self.timestamp is None else int(self.timestamp() * SECOND)


class SqlForm(StoreForm[SqlHome]):
    """A store in tables of the server's database, which the server hands over when it is sealed."""

    tables: ClassVar[Sequence[type[Model]]] = ()
    statements: ClassVar[str] = ""  # the name of their file

    def _make_home(self, adapter: Adapter, clock: Clock) -> SqlHome:
        home = SqlHome(adapter, clock)
        # Replays ask for the time; by way of a datetime it takes several times as long.
        home.timestamp = clock.timestamp if isinstance(clock, SystemClock) else None
        home.statements = load("maniflex.middleware", self.statements, adapter.dialect)
        return home

    def _require_home(self) -> SqlHome:
        home = self._home()
        if home is None:
            raise StoreUnavailable(
                f"{type(self).__name__} has no database; it is used once the server is sealed"
            )
        return home

    @property
    def adapter(self) -> Adapter:
        return self._require_home().adapter

    def _now(self) -> int:
        return self._require_home().now()

    def _write(self, name: str, **values: Any) -> Awaitable[list[Row]]:
        home = self._require_home()
        return self._write_sql(home.adapter, home.statements[name].bind_all(values))

    async def _write_sql(self, adapter: Adapter, sql: Sql) -> list[Row]:
        try:
            return await write_separately(adapter, sql)
        except RequestError as error:
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error

    async def _read(self, name: str, **values: Any) -> Row | None:
        home = self._require_home()
        try:
            return await read_current(home.adapter, home.statements[name].bind_all(values))
        except RequestError as error:
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error


# The tables of the SQL forms, as internal models without routes.
#
# The id is the SHA-256 of a key, so that a row has the same size for every key and shows none. Moments
# are nanoseconds since 1970 in plain integers: both databases add and compare them in the same words, and
# a bucket of any size divides its window without rounding into another token. Rows whose `expires_at` has
# passed count as absent and are removed by `background/expired_rows.py`.

# The statements name only what they mean; these two are filled by the database.
_STAMPED = TableRules(defaults=("created_at", "updated_at"))


class RateLimitRow(Model, table="rate_limit", headless=True):
    """One bucket: the moment at which it is full again says how many tokens it has."""

    __table_rules__: ClassVar = _STAMPED

    full_at: int
    granted: bool  # whether the last request got its tokens
    expires_at: int = field(index=True)  # rounded up, so that most requests change no index


class IdempotencyKeyRow(Model, table="idempotency_key", headless=True):
    """One key: claimed until `expires_at`, or settled with an answer that is kept until then."""

    __table_rules__: ClassVar = _STAMPED

    fingerprint: str
    token: str
    settled: bool
    answer: bytes | None = field(default=None)
    expires_at: int = field(index=True)


class RevokedTokenRow(Model, table="revoked_token", headless=True):
    """A token that was revoked."""

    __table_rules__: ClassVar = _STAMPED

    expires_at: int = field(index=True)


class RevokedUserRow(Model, table="revoked_user", headless=True):
    """A user whose tokens from before the cutoff are revoked."""

    __table_rules__: ClassVar = _STAMPED

    cutoff: int
    expires_at: int = field(index=True)


class CacheEntryRow(Model, table="cache_entry", headless=True):
    """A value or a number of a cache."""

    __table_rules__: ClassVar = _STAMPED

    value: bytes | None = field(default=None)
    number: int | None = field(default=None)
    expires_at: int | None = field(default=None, index=True)


class StoreRealmRow(Model, table="store_realm", headless=True):
    """One row: what tells the names of this database's servers from those of others in a store outside it."""

    __table_rules__: ClassVar = _STAMPED

    realm: str
