"""The seams behind budgets, caches, idempotency and revocation, and the values they exchange.

Each has a SQL, a Redis and a memory form that pass one suite (`maniflex.testing.conformance`); an
application may bring its own. A form that cannot do its work raises `StoreUnavailable`; a caller decides
what that means for a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Protocol, runtime_checkable

import msgspec

from maniflex._clock import SECOND as SECOND
from maniflex._clock import nanoseconds as nanoseconds
from maniflex.db.port import Adapter, Tx
from maniflex.errors import ManiflexError

Duration = timedelta | float  # or seconds


class StoreUnavailable(ManiflexError):
    """A store could not answer; nothing is known of the key, which is not the same as a miss."""


class CacheStore(Protocol):
    """Bytes under keys, for a while."""

    async def get(self, key: str) -> bytes | None:
        """The value, or None when there is none or its time is over."""

    async def set(self, key: str, value: bytes, ttl: Duration | None) -> None:
        """Keep the value for `ttl`; without one, until it is deleted or makes room for others."""

    async def delete(self, *keys: str) -> None:
        """Forget the values of these keys."""

    async def increment(self, key: str, by: int = 1, ttl: Duration | None = None) -> int:
        """Add to a number that begins at 0, and return it; `ttl` counts from its first addition.

        `get` gives the number as its digits. A value that is no number raises `ValueError`.
        """


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer of a bucket."""

    allowed: bool
    remaining: int  # whole tokens that are left
    retry_after: float  # seconds until there are enough; 0 when it was allowed


class RateLimitBackend(Protocol):
    """Token buckets, each under a key."""

    async def take(self, key: str, limit: int, window: Duration, cost: int, now: datetime) -> Taken:
        """Take `cost` tokens from a bucket of `limit` that refills evenly over `window`, or take none."""


class ClaimState(StrEnum):
    """What a claim of a key came to."""

    FREE = "free"  # nobody has it; only `look` says so
    CLAIMED = "claimed"  # it is ours: run, then settle or release
    RUNNING = "running"  # another request has it
    SETTLED = "settled"  # another request has finished; `answer` is what it left
    REUSED = "reused"  # another request of another fingerprint has it


class KeyClaim(msgspec.Struct, frozen=True, gc=False):
    """The state of an idempotency key, as one request finds it."""

    state: ClaimState
    token: str = ""  # names this claim in `renew`, `settle` and `release`
    answer: bytes | None = None  # of a settled key; None when its answer could not be kept
    retry_after: float = 0.0  # seconds until a running claim ends by itself
    until: int = 0  # nanoseconds since 1970 at which a settled key is over, where the store says so


class IdempotencyStore(Protocol):
    """Keys that one request at a time may have, and what came of it."""

    def on(self, adapter: Adapter) -> IdempotencyStore:
        """The store beside the rows of that database; the same store where it has a place of its own."""

    async def claim(self, key: str, fingerprint: str, *, lease: Duration, now: datetime) -> KeyClaim:
        """Claim a free key for `lease`, with a fresh token; committed when this returns.

        A key is free when it is unknown, when its time is over, and when the lease of an unsettled
        claim has ended. Otherwise nothing changes and the answer says why.
        """

    async def look(self, key: str, fingerprint: str, *, now: datetime) -> KeyClaim:
        """What a claim would find, without claiming: for twins that wait."""

    async def renew(self, key: str, token: str, *, lease: Duration, now: datetime) -> bool:
        """Extend the claim; False when the key belongs to another by now."""

    async def settle(
        self,
        key: str,
        token: str,
        answer: bytes | None,
        *,
        ttl: Duration,
        now: datetime,
        tx: Tx | None = None,
    ) -> bool:
        """Keep the answer for `ttl`, in the transaction `tx` if one is given; False when the claim is lost.

        A request that has lost it rolls back, so that of two requests with one key one has an effect.
        """

    async def release(self, key: str, token: str) -> None:
        """Give an unsettled key back, so that it is free at once."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """Whether a token is revoked, and its user's cutoff."""

    token: bool
    cutoff: datetime | None  # tokens of the user that were issued before are revoked


@runtime_checkable
class Revoker(Protocol):
    """Tokens that are no longer valid although their time is not over. Moments are aware.

    A user is named by an id, or by a text for the user of that id in one tenant. One that answers all
    questions at once has `look_up(jti, user_id, member) -> Revocation` too, with the later cutoff.
    """

    async def revoke_token(self, jti: str, expires_at: datetime) -> None:
        """Revoke one token; remembered until it would have expired."""

    async def is_revoked(self, jti: str) -> bool:
        """Whether the token was revoked."""

    async def revoke_user(self, user_id: str, cutoff: datetime, keep_until: datetime) -> None:
        """Revoke the tokens of a user that were issued before `cutoff`, which only moves forward."""

    async def user_cutoff(self, user_id: str) -> datetime | None:
        """The moment before which the user's tokens are revoked, if there is one."""


def mistakes_of(stores: Sequence[object]) -> list[str]:
    """The wrong arguments that stores were made with; they stop the start."""
    return [mistake for store in stores for mistake in getattr(store, "mistakes", ())]


def warnings_of(stores: Sequence[object]) -> list[str]:
    """What the log says of stores at the start."""
    return [warning for store in stores for warning in getattr(store, "warnings", ())]


# Keys of fixed length, and moments and durations as numbers.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def hash_key(key: str) -> str:
    """The key as 64 characters, for keys of any length."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def nanoseconds_after(moment: datetime, duration: Duration) -> int:
    """The nanoseconds since 1970 at which a duration that begins then is over."""
    return nanoseconds(moment) + length_of(duration)


def moment_of(nanoseconds: int) -> datetime:
    """The moment so many nanoseconds after 1970."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def seconds_of(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


@lru_cache(256)  # of the few that options name
def length_of(duration: Duration) -> int:
    """A duration in nanoseconds."""
    return round(seconds_of(duration) * SECOND)
