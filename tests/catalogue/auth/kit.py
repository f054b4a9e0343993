"""A small application for the tests of auth entries, and the tokens its clients send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import jwt as pyjwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from maniflex import Context, Model, Next, Server, field
from maniflex.pipeline.entry import Entry
from maniflex.testing import FakeClock, client
from tests.kit.notes import Note

SECRET = "a secret of at least thirty-two bytes"
OTHER_SECRET = "another secret of at least 32 bytes"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


class Post(Model):
    title: str
    author: str = field(default="")


def pem(key: Any) -> str:
    """The public half of a key as text."""
    text: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token that is good for an hour unless its claims say otherwise; None leaves a claim out."""
    usual = {"sub": "ada", "exp": NOW.timestamp() + HOUR, "iat": NOW.timestamp()}
    kept = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return pyjwt.encode(kept, key, algorithm, sort_headers=True)


def bearer(text: str | None = None, /, **claims: Any) -> dict[str, str]:
    """The headers of a request with a token."""
    return {"Authorization": f"Bearer {token(**claims) if text is None else text}"}


def app(*entries: Entry, **settings: Any) -> Server:
    """A server of posts and notes with these entries on its auth step, and a route that tells who asks."""
    server = Server(**settings)
    server.register(Post, Note)
    for entry in entries:
        server.pipeline.auth.register(entry)

    @server.action("GET", "/me")
    async def me(ctx: Context) -> Any:
        return None if ctx.auth is None else vars_of(ctx.auth)

    return server


def vars_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


@asynccontextmanager
async def serving(
    server: Server, database: str, clock: FakeClock | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    async with client(server, database=database, clock=clock or FakeClock(NOW)) as http:
        yield http


def later(**delay: float) -> float:
    """A moment after the beginning, as a time claim."""
    return (NOW + timedelta(**delay)).timestamp()


async def stamp_author(ctx: Context, next: Next) -> None:
    """Middleware of an application that writes down who made a post."""
    ctx.set_field("author", "" if ctx.auth is None else ctx.auth.user_id)
    await next()
