"""API keys at rest: the SHA-256 of each secret, who has it and until when it counts."""

from __future__ import annotations

import hmac
import secrets
import string
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from maniflex._clock import Clock
from maniflex.db.port import Adapter, Tx
from maniflex.db.raw import execute_raw
from maniflex.model.base import Model
from maniflex.model.field import field

if TYPE_CHECKING:
    from maniflex.background.feed.api import Events

# The server as parts of auth see it: they mount routes on it and keep rows in its database.


class Host(Protocol):
    """The parts of a server that are needed here."""

    @property
    def config(self) -> Any: ...
    @config.setter
    def config(self, value: Any) -> None: ...

    @property
    def events(self) -> Events: ...

    def register(self, *models: Any) -> None: ...
    def has_model(self, model: Any) -> bool: ...
    def action(self, *args: Any, **options: Any) -> Any: ...
    def db(self, *args: Any, **options: Any) -> Any: ...
    def now(self) -> datetime: ...
    def transaction(self) -> AbstractAsyncContextManager[Any]: ...
    async def raw_exec(self, sql: str, *args: Any) -> int: ...


LETTERS = string.ascii_letters + string.digits
SECRET_LETTERS = 43  # 256 bits
TOUCH_EVERY = timedelta(minutes=1)

_TOUCH = """UPDATE api_key SET last_used_at = ?
 WHERE id = ? AND (last_used_at IS NULL OR last_used_at <= ?)"""
_REVOKE = "UPDATE api_key SET revoked_at = ?, updated_at = ? WHERE id = ? AND revoked_at IS NULL"
_REVOKE_ALL = "UPDATE api_key SET revoked_at = ?, updated_at = ? WHERE actor = ? AND revoked_at IS NULL"
_ROTATE = """UPDATE api_key SET digest = ?, old_digest = ?, old_until = ?, updated_at = ?
 WHERE id = ? AND digest = ? AND revoked_at IS NULL"""


class ApiKey(Model, table="api_key", headless=True):
    """A key that was given out; its secret is nowhere."""

    name: str = field(max_length=200)
    digest: str = field(default="", hidden=True)
    old_digest: str | None = field(default=None, hidden=True)
    old_until: datetime | None = field(default=None, hidden=True)
    actor: str = field(index=True, filterable=True)
    tenant: str = field(default="", filterable=True)
    roles: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    expires_at: datetime | None = field(default=None)
    last_used_at: datetime | None = field(default=None)
    revoked_at: datetime | None = field(default=None)

    def accepts(self, secret: str, now: datetime) -> bool:
        """Whether this is a secret of the key, which counts at this time."""
        if self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now):
            return False
        digest = digest_of(secret)
        is_current = hmac.compare_digest(digest, self.digest)
        is_old = hmac.compare_digest(digest, self.old_digest or "")
        return is_current or (is_old and self.old_until is not None and now < self.old_until)

    def end_of(self, secret: str) -> datetime | None:
        """When this secret of the key stops to count; None for one that counts for good."""
        ends = [self.expires_at]
        if not hmac.compare_digest(digest_of(secret), self.digest):
            ends.append(self.old_until)
        return min((end for end in ends if end is not None), default=None)


def new_secret() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(SECRET_LETTERS))


def digest_of(secret: str) -> str:
    """The text that the table has instead of a secret."""
    return sha256(secret.encode()).hexdigest()


async def touch(host: Host, key: ApiKey, now: datetime) -> None:
    """Note that the key was used, at most once a minute."""
    if key.last_used_at is None or key.last_used_at <= now - TOUCH_EVERY:
        await host.raw_exec(_TOUCH, now, key.id, now - TOUCH_EVERY)


async def revoke(host: Host, key: ApiKey, now: datetime) -> None:
    """Let the key be refused from now on."""
    await host.raw_exec(_REVOKE, now, now, key.id)


async def revoke_all(adapter: Adapter, actor: str, tenant: str | None, now: datetime, tx: Tx) -> None:
    """Let every key of an actor be refused from now on; without a tenant, the keys of all tenants."""
    text, args = (_REVOKE_ALL, ()) if tenant is None else (f"{_REVOKE_ALL} AND tenant = ?", (tenant,))
    await execute_raw(adapter, text, (now, now, actor, *args), tx)


async def rotate(host: Host, key: ApiKey, now: datetime, overlap: timedelta) -> str | None:
    """Give the key a new secret, the old one counts for `overlap` more; None when another was quicker."""
    secret = new_secret()
    old = (key.digest, now + overlap) if overlap > timedelta(0) else (None, None)
    rows = await host.raw_exec(_ROTATE, digest_of(secret), *old, now, key.id, key.digest)
    return secret if rows else None


# Refresh tokens at rest: SHA-256 of each, in families that end together.


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


def token_digest(token: str) -> str:
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
        digest = token_digest(token)
        if await self._host.raw_exec(_USE, now, digest, now) == 0:
            return None
        return await self._find(digest)

    async def is_known(self, place: str) -> bool:
        """Whether a row that is still kept tells of a sign-in to this account from this network."""
        rows: list[RefreshToken] = await self._host.db(RefreshToken).list({"place": place}, limit=1)
        return bool(rows)

    async def find(self, token: str) -> RefreshToken | None:
        """The row of a token, also of one that has ended."""
        async with self._host.transaction():
            return await self._find(token_digest(token))

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
