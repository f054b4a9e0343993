"""How often a login may be tried: from one network, for one account from one network, and for one account.

Whoever knows the name of an account can use up what all networks together may try. Its owner comes in all the
same: a network from which the account has signed in before is not counted among them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from maniflex._arguments import explain_class
from maniflex.errors import Abort
from maniflex.middleware.db.callers import network_of
from maniflex.middleware.db.limiter import Limiter
from maniflex.middleware.stores.port import RateLimitBackend
from maniflex.middleware.stores.rate_limits import SqlRateLimit
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry_docs import EntryDocs

_LIMIT = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
_MESSAGE = "too many attempts; try again later"
IsKnown = Callable[[str], Awaitable[bool]]


@explain_class
@dataclass(frozen=True, slots=True)
class LoginLimits:
    """Attempts in a number of seconds: `"20/60"` is twenty in a minute.

    `per_address` is for one network, `per_pair` for one account from one network, `per_account` for one
    account from all networks where it has not signed in before. They are counted in the server's database,
    for all its processes, unless `backend` is another place.
    """

    per_address: str = "20/60"
    per_account: str = "100/3600"
    backend: RateLimitBackend | None = None
    per_pair: str = "10/900"

    def problems(self) -> Iterator[str]:
        for name in ("per_address", "per_account", "per_pair"):
            if not _LIMIT.fullmatch(str(getattr(self, name))):
                yield f'limits: {name} is written "attempts/seconds", such as "20/60"'


class LoginLimiter:
    """Counts the attempts on one login route."""

    def __init__(self, limits: LoginLimits, route: str) -> None:
        backend = SqlRateLimit() if limits.backend is None else limits.backend
        self.backend = backend
        self._per_address = _limiter(f"{route} by address", limits.per_address, backend)
        self._per_pair = _limiter(f"{route} by account and address", limits.per_pair, backend)
        self._per_account = _limiter(f"{route} by account", limits.per_account, backend)
        self.mistakes = [*limits.problems(), *self._per_address.mistakes]

    def docs(self) -> EntryDocs:
        """What the API description says of the route."""
        return self._per_address.docs()

    async def limit_login(self, ctx: Context, account: str, is_known: IsKnown) -> str:
        """Count an attempt to sign in; 429 when its network or its account has had too many.

        `is_known(place)` says whether the account has signed in from this place before. Gives the place.
        """
        name, network = " ".join(account.casefold().split()), network_of(ctx)
        digest = _digest(name)
        place = _digest(f"{digest} {network}")

        async def count_account() -> None:
            try:
                await self._per_account(f"{self._per_account.label} {digest}", ctx, _pass)
            except Abort as refusal:
                if refusal.status != 429 or not await is_known(place):
                    raise

        count_pair = partial(self._per_pair, f"{self._per_pair.label} {place}", ctx, count_account)
        await self._per_address(f"{self._per_address.label} {network}", ctx, count_pair)
        return place


async def _pass() -> None:
    """Nothing stands after the last limit; the login goes on by itself."""


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _limiter(name: str, limit: str, backend: RateLimitBackend) -> Limiter:
    attempts, seconds = limit.split("/") if _LIMIT.fullmatch(str(limit)) else ("1", "1")
    return Limiter(name, int(attempts), int(seconds), backend=backend, message=_MESSAGE)
