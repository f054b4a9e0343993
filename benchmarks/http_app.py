"""The application the HTTP benchmark measures: one model on an existing table, default settings."""

from __future__ import annotations

import os
from typing import Literal

from maniflex import Model, Server, field


class Post(Model):
    title: str = field(min_length=1, filterable=True, sortable=True)
    body: str
    status: Literal["draft", "published", "archived"] = field(filterable=True)
    views: int = field(default=0, min=0, filterable=True, sortable=True)
    user_id: str = field(default="", filterable=True)


def database() -> str:
    if os.environ.get("BENCH_DB", "pg") == "pg":
        return os.environ.get("PG_DSN", "postgresql://postgres@127.0.0.1:55432/bench")
    return "sqlite:///" + os.environ["SQLITE_PATH"]


server = Server(database=database(), path_prefix="/api", auto_migrate=False)
server.register(Post)
