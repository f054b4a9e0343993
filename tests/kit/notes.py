"""The least model a test can have, and a server that serves it."""

from __future__ import annotations

from typing import Any

from maniflex import Model, Server


class Note(Model):
    text: str


def note_server(**settings: Any) -> Server:
    server = Server(**settings)
    server.register(Note)
    return server
