"""Live streams: a hub serves WebSocket and SSE clients from the feed of events, or from a bus."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maniflex.realtime.handshake import AnonymousOnly, BearerToken, Composite
    from maniflex.realtime.hub import Hub, ResumeStore

_HOMES = {
    "AnonymousOnly": "handshake",
    "BearerToken": "handshake",
    "Composite": "handshake",
    "Hub": "hub",
    "ResumeStore": "hub",
}
__all__ = ["AnonymousOnly", "BearerToken", "Composite", "Hub", "ResumeStore"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
