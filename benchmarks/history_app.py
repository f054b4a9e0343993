"""The application of `history.py`: the model of `http_app` six times, with and without history and events."""

from __future__ import annotations

from typing import Literal

from http_app import database

from maniflex import Model, Server, field


class Article(Model, abstract=True):
    """The fields that all of them have."""

    title: str = field(min_length=1, filterable=True, sortable=True)
    body: str
    status: Literal["draft", "published", "archived"] = field(filterable=True)
    views: int = field(default=0, min=0, filterable=True, sortable=True)
    user_id: str = field(default="", filterable=True)


class Plain(Article, table="plain"):
    pass


class Versioned(Article, table="versioned", versioned=True):
    pass


class Marked(Article, table="marked", soft_delete=True):
    pass


class MarkedVersioned(Article, table="marked_versioned", soft_delete=True, versioned=True):
    pass


class Emitting(Article, table="emitting", events=True):
    pass


class VersionedEmitting(Article, table="versioned_emitting", versioned=True, events=True):
    pass


server = Server(database=database(), path_prefix="/api")
server.register(Plain, Versioned, Marked, MarkedVersioned, Emitting, VersionedEmitting)
