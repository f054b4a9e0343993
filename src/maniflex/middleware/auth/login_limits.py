"""How often a login may be tried, by address and by account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from maniflex.middleware.db.callers import network_of
from maniflex.middleware.db.limiter import Limiter
from maniflex.middleware.stores.port import RateLimitBackend
from maniflex.middleware.stores.rate_limits import SqlRateLimit
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry_docs import EntryDocs

_LIMIT = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
_MESSAGE = "too many attempts; try again later"


@dataclass(frozen=True, slots=True)
class LoginLimits:
    """Attempts in a number of seconds: `"20/60"` is twenty in a minute.

    They are counted in the server's database, for all its processes, unless `backend` is another place.
    """

    per_address: str = "20/60"
    per_account: str = "10/900"
    backend: RateLimitBackend | None = None

    def problems(self) -> Iterator[str]:
        for name in ("per_address", "per_account"):
            if not _LIMIT.fullmatch(str(getattr(self, name))):
                yield f'limits: {name} is written "attempts/seconds", such as "20/60"'


class LoginLimiter:
    """Counts the attempts on one login route."""

    def __init__(self, limits: LoginLimits, route: str) -> None:
        backend = SqlRateLimit() if limits.backend is None else limits.backend
        self.backend = backend
        self._per_address = _limiter(f"{route} by address", limits.per_address, backend)
        self._per_account = _limiter(f"{route} by account", limits.per_account, backend)
        self.mistakes = [*limits.problems(), *self._per_address.mistakes]

    def docs(self) -> EntryDocs:
        """What the API description says of the route."""
        return self._per_address.docs()

    async def limit_login(self, ctx: Context, account: str) -> None:
        """Count an attempt to sign in; 429 when its address or its account has had too many."""
        name = " ".join(account.casefold().split())
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        count_account = partial(self._per_account, f"{self._per_account.label} {digest}", ctx, _pass)
        await self._per_address(f"{self._per_address.label} {network_of(ctx)}", ctx, count_account)


async def _pass() -> None:
    """Nothing stands after the last limit; the login goes on by itself."""


def _limiter(name: str, limit: str, backend: RateLimitBackend) -> Limiter:
    attempts, seconds = limit.split("/") if _LIMIT.fullmatch(str(limit)) else ("1", "1")
    return Limiter(name, int(attempts), int(seconds), backend=backend, message=_MESSAGE)
