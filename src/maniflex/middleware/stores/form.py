"""Which server a call of a store is for.

Servers of one process may share a store object, and what each of them keeps in it is its own. A call of a
request, a run or a service is for the server that these belong to. A call outside of them is for the only
server that has the store; where several have it, the call is refused.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Generic, TypeVar

from maniflex._caller import current_database
from maniflex._clock import Clock
from maniflex.db.port import Adapter
from maniflex.middleware.stores.port import StoreUnavailable

_places = count(1)


class Home:
    """What a store knows of one server."""

    def __init__(self, adapter: Adapter, clock: Clock) -> None:
        self.adapter, self.clock = adapter, clock
        self.place = next(_places)
        self.has_ended = False  # the server has stopped


H = TypeVar("H", bound=Home)


class StoreForm(Generic[H]):
    """A store that knows which servers have it."""

    def __init__(self) -> None:
        self._homes: dict[int, H] = {}  # by database
        self._only: H | None = None  # where there is one alone

    def _make_home(self, adapter: Adapter, clock: Clock) -> H:
        raise NotImplementedError

    def attach(self, adapter: Adapter, clock: Clock) -> None:
        """A server that has this database and clock is sealed."""
        self._homes = {key: home for key, home in self._homes.items() if not home.has_ended}
        self._homes[id(adapter)] = self._make_home(adapter, clock)
        self._note_homes()

    def detach(self, adapter: Adapter) -> bool:
        """The server with this database has stopped; returns whether all servers of the store have."""
        home = self._homes.get(id(adapter))
        if home is not None:
            home.has_ended = True
        return all(home.has_ended for home in self._homes.values())

    def _note_homes(self) -> None:
        self._only = next(iter(self._homes.values())) if len(self._homes) == 1 else None

    @property
    def place(self) -> int:
        """A number for what a process remembers: no other store has it, nor this one for another server.

        It is another one after a new start; 0 before the first.
        """
        home = self._home()
        return 0 if home is None else home.place

    def _home(self) -> H | None:
        """The `Home` of the server that the call is for; None while no server has the store."""
        if self._only is not None or not self._homes:
            return self._only
        home = self._homes.get(id(current_database()))
        if home is not None:
            return home
        living = [home for home in self._homes.values() if not home.has_ended]
        if len(living) != 1:
            raise StoreUnavailable(
                f"{type(self).__name__}: several servers share it, and this call is in a request, a run or a"
                ' service of none; make it in a block of one, as `with server.acting_as("ann"):` is, or give'
                " each server a store of its own"
            )
        return living[0]


def place_of(store: Any) -> int:
    """The number of a store and of the server that asks, as far as the store tells servers apart."""
    place: int = getattr(store, "place", 0)
    return place
