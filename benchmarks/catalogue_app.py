"""The application of `http_app` with entries of the catalogue; BENCH_ENTRIES names which.

A new row of the table needs a function here that registers its entries and a line in `catalogue.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from http_app import Post, database

from maniflex import Model, Server
from maniflex.middleware import auth, db, idempotency, response

SECRET = "a secret of the benchmark, which is no secret"
TENANT = "user-1"
HOUR = 3600


class Note(Model):
    """For entries that posts do not have."""

    title: str


def bare(server: Server) -> None:
    """Nothing is registered."""


def elsewhere(server: Server) -> None:
    """The entries of all rows below, none of which acts for a post."""
    server.register(Note)
    server.pipeline.auth.register(db.rate_limit(10**9, HOUR), models=[Note])
    server.pipeline.auth.register(auth.jwt(SECRET), models=[Note])
    server.pipeline.auth.register(auth.require_role("editor"), models=[Note])
    server.pipeline.deserialize.register(idempotency.keys(), models=[Note], at="after")


def access(server: Server) -> None:
    server.pipeline.auth.register(auth.jwt(SECRET))
    server.pipeline.auth.register(auth.require_role("editor"))
    server.pipeline.auth.register(db.tenancy("user_id", lambda ctx: ctx.require_auth().claims["org"]))


def keys(server: Server) -> None:
    server.pipeline.deserialize.register(idempotency.keys(), at="after")


def limits(server: Server) -> None:
    server.pipeline.auth.register(db.rate_limit(10**9, HOUR))


def flood(server: Server) -> None:
    server.pipeline.auth.register(db.rate_limit(1, HOUR))


def redaction(server: Server) -> None:
    server.pipeline.response.register(response.redact_field("body", lambda ctx: False))


ENTRIES: dict[str, Callable[[Server], None]] = {
    f.__name__: f for f in (bare, elsewhere, access, keys, limits, flood, redaction)
}

server = Server(database=database(), path_prefix="/api")
server.register(Post)
ENTRIES[os.environ.get("BENCH_ENTRIES", "bare")](server)
