"""How often a login may be tried, by address and by account."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from maniflex.errors import Abort
from maniflex.middleware.auth.request import client_address
from maniflex.pipeline.context import Context

MOST_BUCKETS = 20_000
_LIMIT = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class LoginLimits:
    """Attempts in a number of seconds: `"20/60"` is twenty in a minute."""

    per_address: str = "20/60"
    per_account: str = "10/900"
    _buckets: Buckets = field(default_factory=lambda: Buckets(), init=False, repr=False, compare=False)

    def problems(self) -> Iterator[str]:
        for name in ("per_address", "per_account"):
            if not _LIMIT.fullmatch(str(getattr(self, name))):
                yield f'limits: {name} is written "attempts/seconds", such as "20/60"'


async def limit_login(ctx: Context, limits: LoginLimits, account: str) -> None:
    """Count an attempt to sign in; 429 when its address or its account has had too many."""
    now = ctx.runtime.clock.monotonic()
    attempts = (
        (f"address {client_address(ctx)}", limits.per_address),
        (f"account {' '.join(account.casefold().split())}", limits.per_account),
    )
    waits = [limits._buckets.take(subject, *_parse(limit), now) for subject, limit in attempts]
    wait = max(waits)
    if wait > 0:
        headers = {"retry-after": str(max(1, math.ceil(wait)))}
        refusal = Abort(429, "RATE_LIMITED", "too many attempts; try again later", headers=headers)
        refusal.retryable = True
        raise refusal


def _parse(limit: str) -> tuple[int, int]:
    attempts, _, seconds = limit.partition("/")
    return int(attempts), int(seconds)


class Buckets:
    """A bucket of attempts for each subject, which fills again with time."""

    def __init__(self) -> None:
        self._levels: dict[bytes, tuple[float, float]] = {}  # what is left, and when that was

    def take(self, subject: str, attempts: int, seconds: int, now: float) -> float:
        """Take one attempt: 0, or the seconds until there is one to take."""
        key = blake2b(subject.encode(errors="surrogatepass"), digest_size=16).digest()
        level, since = self._levels.pop(key, (float(attempts), now))
        level = min(float(attempts), level + (now - since) * attempts / seconds)
        wait = 0.0 if level >= 1 else (1 - level) * seconds / attempts
        self._levels[key] = (level if wait else level - 1, now)
        if len(self._levels) > MOST_BUCKETS:
            del self._levels[next(iter(self._levels))]
        return wait
