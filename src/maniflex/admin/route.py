"""One route of the panel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniflex.pipeline.response import Response

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit

Handler = Callable[["Visit"], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class PanelRoute:
    """A method and a path below the panel's own, and the page that answers."""

    method: str
    path: str
    handler: Handler
    writes: bool = False  # it changes records or durable work, so a panel that only shows has none
    is_open: bool = False  # it needs no session
    needs_token: bool = False  # of an open one: its form carries a token all the same
    most_bytes: int = 0  # of its form with files; 0: as `max_upload_size` says


def show(path: str, handler: Handler) -> PanelRoute:
    """A page that is looked at."""
    return PanelRoute("GET", path, handler)


def act(path: str, handler: Handler) -> PanelRoute:
    """A form that changes records or durable work."""
    return PanelRoute("POST", path, handler, writes=True)


def own(path: str, handler: Handler) -> PanelRoute:
    """A form about the person itself, which every panel has."""
    return PanelRoute("POST", path, handler)
