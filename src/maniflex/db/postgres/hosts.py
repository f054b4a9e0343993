"""Connect to one of the servers that an address names.

They are tried one by one, each with a time of its own, because one that hangs would else use up the time of
all; the server that was good last comes first. Several hosts of an address that is written to mean: the one
that takes writes (`target_session_attrs=read-write`), unless the address says otherwise.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from maniflex.db.postgres.address import Address
from maniflex.db.postgres.cancellation import ServerConnection
from maniflex.db.postgres.refusals import combine_failures, refusal

if TYPE_CHECKING:
    from maniflex.db.postgres.connection import Connection

HOST_WITHIN = 2.5  # seconds for each of several hosts

log = logging.getLogger("maniflex.db")


class Hosts:
    """The servers of one address."""

    def __init__(self, address: Address, *, within: float, takes_writes: bool) -> None:
        self.address = address
        self._each = address.each()
        self._within = min(within, HOST_WITHIN) if self.are_several else within
        self._target = "read-write" if self.are_several and takes_writes else None
        if "target_session_attrs" in dict(address.options):
            self._target = None
        self._best = 0

    @property
    def are_several(self) -> bool:
        return len(self._each) > 1

    async def connect(self, *, is_starting: bool, **options: Any) -> Connection:
        """A connection to the first server that will do; `Unavailable` when none does."""
        failures: list[tuple[Address, Exception]] = []
        for _ in self._each:
            index = self._best
            address = self._each[index]
            try:
                return await self._connect(address, **options)
            except Exception as error:
                failures.append((address, error))
                if self._best == index:  # unless another connection has found a better one meanwhile
                    self._best = (index + 1) % len(self._each)
        for address, failure in failures:
            if is_starting and (config_error := refusal(failure, address)) is not None:
                raise config_error from failure
        raise combine_failures(failures)

    async def answers(self) -> bool:
        """Whether the server that was good last takes connections; one that does not is tried last."""
        index = self._best
        try:
            connection = await self._connect(self._each[index])
        except (TimeoutError, OSError):
            if self._best == index:
                self._best = (index + 1) % len(self._each)
            return False
        except Exception:  # it says no, and so it is there
            return True
        connection.terminate()
        return True

    async def _connect(self, address: Address, **options: Any) -> Connection:
        arguments = address.arguments()
        if self._target is not None:
            arguments["target_session_attrs"] = self._target
        connect: Any = partial(
            asyncpg.connect, **arguments, timeout=self._within, connection_class=ServerConnection
        )
        connection: Connection = await connect(**options)
        if options.get("server_settings") is not None:  # no pooler
            connection.connect_again = connect
        return connection
