"""Refresh tokens at rest: SHA-256 of each, in families that end together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from maniflex.middleware.auth.host import Host
from maniflex.model.base import Model
from maniflex.model.field import field

_USE = """UPDATE refresh_token SET used_at = ?
 WHERE digest = ? AND used_at IS NULL AND ended_at IS NULL AND expires_at > ?"""
_END_FAMILY = "UPDATE refresh_token SET ended_at = ? WHERE family = ? AND actor = ? AND ended_at IS NULL"
_END_ALL = "UPDATE refresh_token SET ended_at = ? WHERE actor = ? AND tenant = ? AND ended_at IS NULL"


class RefreshToken(Model, table="refresh_token", headless=True):
    """A refresh token that was given out; the text itself is nowhere."""

    digest: str = field(default="", unique=True, hidden=True)
    family: str = field(index=True, filterable=True)
    actor: str = field(index=True, filterable=True)
    tenant: str = field(default="", filterable=True)
    issued_at: datetime
    expires_at: datetime = field(index=True)
    used_at: datetime | None = field(default=None)
    ended_at: datetime | None = field(default=None)
    claims: dict[str, Any] = field(default_factory=dict, hidden=True)
    access_jti: str = field(default="")
    access_expires_at: datetime = field(filterable=True)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """An access token that came with a refresh token."""

    jti: str
    expires_at: datetime


def digest_of(token: str) -> str:
    """The text that the table has instead of a token."""
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


class RefreshStore:
    """The rows of refresh tokens in the database of a server."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def add(self, row: RefreshToken) -> None:
        """Store a token that is about to be given out."""
        await self._host.db(RefreshToken).create(row)

    async def use(self, token: str, now: datetime) -> RefreshToken | None:
        """End a token that is still good, in the open transaction; None when it is not good any more."""
        digest = digest_of(token)
        if await self._host.raw_exec(_USE, now, digest, now) == 0:
            return None
        return await self._find(digest)

    async def find(self, token: str) -> RefreshToken | None:
        """The row of a token, also of one that has ended."""
        async with self._host.transaction():
            return await self._find(digest_of(token))

    async def _find(self, digest: str) -> RefreshToken | None:
        rows: list[RefreshToken] = await self._host.db(RefreshToken).list({"digest": digest})
        return rows[0] if rows else None

    async def end_family(self, family: str, actor: str, now: datetime) -> list[AccessToken]:
        """End all tokens of a family; the access tokens it was given that have not expired."""
        return await self._end(_END_FAMILY, (family, actor), {"family": family, "actor": actor}, now)

    async def end_all(self, actor: str, tenant: str, now: datetime) -> None:
        """End every family of an actor."""
        await self._end(_END_ALL, (actor, tenant), {"actor": actor, "tenant": tenant}, now)

    async def _end(
        self, statement: str, args: tuple[str, str], filters: dict[str, Any], now: datetime
    ) -> list[AccessToken]:
        async with self._host.transaction():
            # A use that was under way adds a row this statement could not see. It waits for the lock of such
            # a use, so once it has found nothing more to end, no use is under way.
            while await self._host.raw_exec(statement, now, *args):
                pass
            conditions = [(name, "eq", value) for name, value in filters.items()]
            conditions.append(("access_expires_at", "gt", now))
            rows: list[RefreshToken] = await self._host.db(RefreshToken).list(conditions)
        return [AccessToken(row.access_jti, row.access_expires_at) for row in rows if row.access_jti]
