"""Keys of fixed length, and moments and durations as numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

from maniflex.middleware.stores.port import Duration

SECOND = 1_000_000_000  # in nanoseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 24 * 60 * 60


def hash_key(key: str) -> str:
    """The key as 64 characters, for keys of any length."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970; a moment without a time zone is refused."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    age = moment - _EPOCH
    return (age.days * _DAY + age.seconds) * SECOND + age.microseconds * 1000


def nanoseconds_after(moment: datetime, duration: Duration) -> int:
    """The nanoseconds since 1970 at which a duration that begins then is over."""
    return nanoseconds(moment) + length_of(duration)


def moment_of(nanoseconds: int) -> datetime:
    """The moment so many nanoseconds after 1970."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def seconds_of(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def length_of(duration: Duration) -> int:
    """A duration in nanoseconds."""
    return round(seconds_of(duration) * SECOND)
