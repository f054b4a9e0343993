"""Revoked tokens and users: in the server's database, in Redis, or in this process."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from maniflex._callables import explain_class
from maniflex._clock import Clock, SystemClock
from maniflex.middleware.stores.form import (
    MemoryForm,
    OwnKey,
    RedisForm,
    RevokedTokenRow,
    RevokedUserRow,
    SqlForm,
)
from maniflex.middleware.stores.port import Revocation, hash_key, moment_of, nanoseconds

_MOST = 100_000  # of one process, before those whose time is over are dropped


@explain_class
class SqlRevoker(SqlForm):
    """Revocations in the tables `revoked_token` and `revoked_user` of the server's database."""

    tables = (RevokedTokenRow, RevokedUserRow)
    statements = "revoked"

    async def revoke_token(self, jti: str, expires_at: datetime) -> None:
        await self._write("revoke_token", id=hash_key(jti), until=nanoseconds(expires_at))

    async def is_revoked(self, jti: str) -> bool:
        return (await self.look_up(jti, "")).token

    async def revoke_user(self, user_id: str, cutoff: datetime, keep_until: datetime) -> None:
        times = {"cutoff": nanoseconds(cutoff), "until": nanoseconds(keep_until)}
        await self._write("revoke_user", id=hash_key(user_id), **times)

    async def user_cutoff(self, user_id: str) -> datetime | None:
        return (await self.look_up("", user_id)).cutoff

    async def look_up(self, jti: str, user_id: str, member: str = "") -> Revocation:
        """All questions in one statement, each by its primary key."""
        users = {"owner": hash_key(user_id), "member": hash_key(member)}
        row = await self._read("look_up", token=hash_key(jti), now=self._now(), **users)
        assert row is not None, "a SELECT without FROM gives one row"
        return Revocation(row[0] is not None, None if row[1] is None else moment_of(row[1]))


@explain_class
class RedisRevoker(RedisForm):
    """Revocations in Redis."""

    def __init__(
        self,
        client: Any = "redis://127.0.0.1:6379",
        prefix: str = "maniflex:revoked",
        *,
        shared: bool = False,
    ) -> None:
        super().__init__(client, prefix, shared=shared)
        self._default_clock: Clock = SystemClock()

    @property
    def _clock(self) -> Clock:
        home = self._home()
        return self._default_clock if home is None else home.clock

    def _name(self, key: str) -> bytes:
        # In one slot of a cluster, because both are asked for at once.
        return f"{{{self._start}}}:{key}".encode()

    async def revoke_token(self, jti: str, expires_at: datetime) -> None:
        await self._keep(f"token:{hash_key(jti)}", 0, expires_at)

    async def is_revoked(self, jti: str) -> bool:
        return (await self.look_up(jti, "")).token

    async def revoke_user(self, user_id: str, cutoff: datetime, keep_until: datetime) -> None:
        await self._keep(f"user:{hash_key(user_id)}", nanoseconds(cutoff) // 1000, keep_until)

    async def user_cutoff(self, user_id: str) -> datetime | None:
        return (await self.look_up("", user_id)).cutoff

    async def look_up(self, jti: str, user_id: str, member: str = "") -> Revocation:
        """All questions in one command."""
        keys = (f"token:{hash_key(jti)}", f"user:{hash_key(user_id)}", f"user:{hash_key(member)}")
        values = await self._await((await self._ready()).mget([self._name(key) for key in keys]))
        token, *users = [self._live(value) for value in values]
        cutoff = max((user for user in users if user is not None), default=None)
        return Revocation(token is not None, None if cutoff is None else moment_of(cutoff * 1000))

    async def _keep(self, key: str, cutoff: int, until: datetime) -> None:
        now = nanoseconds(self._clock.now()) // 1000
        await self._run("forward", key, cutoff, nanoseconds(until) // 1000, now)

    def _live(self, value: bytes | None) -> int | None:
        """The moment of a record that still counts."""
        if value is None:
            return None
        moment, until = map(int, value.split())
        return moment if until * 1000 > nanoseconds(self._clock.now()) else None


@explain_class
class MemoryRevoker(MemoryForm):
    """Revocations of this process alone; a restart forgets them."""

    warnings = ("MemoryRevoker: other processes do not see what is revoked here, and a restart forgets it",)

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._tokens: dict[OwnKey, datetime] = {}
        self._users: dict[OwnKey, tuple[datetime, datetime]] = {}

    async def revoke_token(self, jti: str, expires_at: datetime) -> None:
        nanoseconds(expires_at)  # refuses a moment without a time zone
        key = self._key(jti)
        self._tokens[key] = max(expires_at, self._tokens.get(key, expires_at))
        if len(self._tokens) >= _MOST:
            now = self._clock.now()
            self._tokens = {name: until for name, until in self._tokens.items() if until > now}

    async def is_revoked(self, jti: str) -> bool:
        until = self._tokens.get(self._key(jti))
        return until is not None and until > self._clock.now()

    async def revoke_user(self, user_id: str, cutoff: datetime, keep_until: datetime) -> None:
        nanoseconds(cutoff), nanoseconds(keep_until)
        key = self._key(user_id)
        earlier_cutoff, earlier_until = self._users.get(key, (cutoff, keep_until))
        self._users[key] = max(cutoff, earlier_cutoff), max(keep_until, earlier_until)
        if len(self._users) >= _MOST:
            now = self._clock.now()
            self._users = {name: user for name, user in self._users.items() if user[1] > now}

    async def user_cutoff(self, user_id: str) -> datetime | None:
        user = self._users.get(self._key(user_id))
        return None if user is None or user[1] <= self._clock.now() else user[0]

    async def look_up(self, jti: str, user_id: str, member: str = "") -> Revocation:
        cutoffs = [await self.user_cutoff(user_id), await self.user_cutoff(member)]
        cutoff = max((one for one in cutoffs if one is not None), default=None)
        return Revocation(await self.is_revoked(jti), cutoff)
