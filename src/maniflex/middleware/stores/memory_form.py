"""What the forms in memory share: the time, and keys that have the database of their server in them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from maniflex._clock import Clock, SystemClock
from maniflex.db.port import Adapter
from maniflex.middleware.stores.form import Home, StoreForm

OwnKey = tuple[Hashable, str]  # the database of a server, and a key of it


class MemoryHome(Home):
    """A server whose things are kept in this process."""

    realm: Hashable = None


class MemoryForm(StoreForm[MemoryHome]):
    """A store in this process: servers of one database share it, others have their own things in it."""

    mistakes: Any = ()

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._own_clock = clock
        self._default_clock: Clock = clock or SystemClock()
        self._first: Hashable = None  # the database that has what was kept before there was a server

    def _make_home(self, adapter: Adapter, clock: Clock) -> MemoryHome:
        home = MemoryHome(adapter, self._own_clock or clock)
        identity: Any = getattr(adapter, "identity", adapter)
        if self._first is None:
            self._first = identity
        home.realm = None if identity == self._first else identity
        return home

    @property
    def _clock(self) -> Clock:
        home = self._home()
        return self._default_clock if home is None else home.clock

    def _key(self, key: str) -> OwnKey:
        home = self._home()
        return (None if home is None else home.realm), key
