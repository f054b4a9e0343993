"""API keys at rest: the SHA-256 of each secret, who has it and until when it counts."""

from __future__ import annotations

import hmac
import secrets
import string
from datetime import datetime, timedelta
from hashlib import sha256

from maniflex.db.port import Adapter, Tx
from maniflex.db.raw import execute_raw
from maniflex.middleware.auth.host import Host
from maniflex.model.base import Model
from maniflex.model.field import field

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
