"""Refresh tokens at rest: SHA-256 of each, in families that end together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from maniflex._clock import Clock
from maniflex.db.port import Adapter, Tx
from maniflex.db.raw import execute_raw
from maniflex.middleware.auth.host import Host
from maniflex.model.base import Model
from maniflex.model.field import field

_USE = """UPDATE refresh_token SET used_at = ?
 WHERE digest = ? AND used_at IS NULL AND ended_at IS NULL AND expires_at > ?"""
_END_FAMILY = "UPDATE refresh_token SET ended_at = ? WHERE family = ? AND actor = ? AND ended_at IS NULL"
_END_ALL = "UPDATE refresh_token SET ended_at = ? WHERE actor = ? AND ended_at IS NULL"


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
    place: str | None = field(default=None, index=True, hidden=True)  # an account and a network


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
        self._adapter: Adapter | None = None

    def attach(self, adapter: Adapter, clock: Clock) -> None:
        """Use this database for statements in transactions that others have opened."""
        self._adapter = adapter

    @property
    def adapter(self) -> Adapter:
        assert self._adapter is not None, "the server hands its database over when it is sealed"
        return self._adapter

    async def add(self, row: RefreshToken) -> None:
        """Store a token that is about to be given out."""
        await self._host.db(RefreshToken).create(row)

    async def use(self, token: str, now: datetime) -> RefreshToken | None:
        """End a token that is still good, in the open transaction; None when it is not good any more."""
        digest = digest_of(token)
        if await self._host.raw_exec(_USE, now, digest, now) == 0:
            return None
        return await self._find(digest)

    async def is_known(self, place: str) -> bool:
        """Whether somebody has signed in to an account from this network, as far as rows are still there."""
        rows: list[RefreshToken] = await self._host.db(RefreshToken).list({"place": place}, limit=1)
        return bool(rows)

    async def find(self, token: str) -> RefreshToken | None:
        """The row of a token, also of one that has ended."""
        async with self._host.transaction():
            return await self._find(digest_of(token))

    async def _find(self, digest: str) -> RefreshToken | None:
        rows: list[RefreshToken] = await self._host.db(RefreshToken).list({"digest": digest})
        return rows[0] if rows else None

    async def end_family(self, family: str, actor: str, now: datetime) -> list[AccessToken]:
        """End all tokens of a family; the access tokens it was given that have not expired."""
        async with self._host.transaction() as tx:
            await self._end(_END_FAMILY, (now, family, actor), tx)
            conditions = [("family", "eq", family), ("actor", "eq", actor), ("access_expires_at", "gt", now)]
            rows: list[RefreshToken] = await self._host.db(RefreshToken).list(conditions)
        return [AccessToken(row.access_jti, row.access_expires_at) for row in rows if row.access_jti]

    async def end_all(self, actor: str, tenant: str | None, now: datetime, tx: Tx) -> None:
        """End every family of an actor; without a tenant, those of all tenants."""
        text, args = (_END_ALL, ()) if tenant is None else (f"{_END_ALL} AND tenant = ?", (tenant,))
        await self._end(text, (now, actor, *args), tx)

    async def _end(self, statement: str, args: tuple[Any, ...], tx: Tx) -> None:
        # A use that was under way adds a row this statement could not see. It waits for the lock of such
        # a use, so once it has found nothing more to end, no use is under way.
        while await execute_raw(self.adapter, statement, args, tx):
            pass
