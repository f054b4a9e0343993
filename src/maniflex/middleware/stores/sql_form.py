"""What the SQL forms share: the server's database, its clock, and errors as `StoreUnavailable`.

Every call is one statement, committed by itself: never in the caller's open transaction, unless the
method says so. So the forms hold no lock another request could wait for, and work behind poolers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar

from maniflex._clock import Clock, SystemClock
from maniflex.db.port import Adapter, Row
from maniflex.db.separate import read_current, write_separately
from maniflex.errors import RequestError
from maniflex.middleware.stores.port import StoreUnavailable
from maniflex.middleware.stores.units import SECOND, nanoseconds
from maniflex.model.base import Model
from maniflex.sql.statement import Sql
from maniflex.sql.statement_files import NamedStatement, load

_places = count(1)


class SqlForm:
    """A store in tables of the server's database, which the server hands over when it is sealed."""

    tables: ClassVar[Sequence[type[Model]]] = ()
    statements: ClassVar[str] = ""  # the name of their file
    place = 0  # a number for what a process remembers: no other store has it, nor this one after a new start

    def __init__(self) -> None:
        self._adapter: Adapter | None = None
        self._clock: Clock | None = None
        self._statements: Mapping[str, NamedStatement] = {}
        self._timestamp: Callable[[], float] | None = None

    def attach(self, adapter: Adapter, clock: Clock) -> None:
        """Use this database and clock."""
        self._adapter, self._clock = adapter, clock
        # Replays ask for the time; by way of a datetime it takes several times as long.
        self._timestamp = clock.timestamp if isinstance(clock, SystemClock) else None
        self.place = next(_places)
        self._statements = load("maniflex.middleware", self.statements, adapter.dialect)

    @property
    def adapter(self) -> Adapter:
        if self._adapter is None:
            raise StoreUnavailable(
                f"{type(self).__name__} has no database; it is used once the server is sealed"
            )
        return self._adapter

    def _now(self) -> int:
        if self._timestamp is not None:
            return int(self._timestamp() * SECOND)
        assert self._clock is not None, "attach gives a clock along with the database"
        return nanoseconds(self._clock.now())

    def _write(self, name: str, **values: Any) -> Awaitable[list[Row]]:
        adapter = self.adapter
        return self._write_sql(adapter, self._statements[name].bind_all(values))

    async def _write_sql(self, adapter: Adapter, sql: Sql) -> list[Row]:
        try:
            return await write_separately(adapter, sql)
        except RequestError as error:
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error

    async def _read(self, name: str, **values: Any) -> Row | None:
        adapter = self.adapter
        try:
            return await read_current(adapter, self._statements[name].bind_all(values))
        except RequestError as error:
            raise StoreUnavailable(f"{type(self).__name__}: {error}") from error
