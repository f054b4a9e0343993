"""Entries of the catalogue that act on every request of a server, on all routes and none.

A `LayerEntry` goes around the whole application, an `ObserverEntry` sees each request when it is over.
They are given to `server.use` and `server.observe`, or registered on a step, from where they are lifted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Seat
from maniflex.pipeline.exchange import App
from maniflex.pipeline.observation import Observation
from maniflex.pipeline.runtime import Runtime


class ServerEntry(Entry):
    """An entry that is registered once for the whole server."""

    homes: ClassVar = {"response": ANYWHERE}
    is_lifted = True

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return ()

    def problems(self, seat: Seat) -> Iterable[str]:
        if seat.is_named or seat.operations is not None:
            yield "it acts on every request; register it without models= and operations="

    def server_problems(self) -> Iterable[str]:
        """What stops the start when it is given to `server.use` or `server.observe`."""
        return ()


class LayerEntry(ServerEntry):
    """An entry that goes around the whole application."""

    def layer(self, app: App, runtime: Runtime) -> App:
        """The application with the entry around it."""
        raise NotImplementedError


class ObserverEntry(ServerEntry):
    """An entry that sees every request when it is over."""

    def observe(self, seen: Observation) -> None:
        """Take note of one request."""
        raise NotImplementedError
