"""`auth.jwks`: tokens of an issuer that publishes its keys."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Unpack

from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.auth.authenticator import Authenticator
from maniflex.middleware.auth.bearer import Bearer, TokenOptions, verify_aside
from maniflex.middleware.auth.key_options import library_mistake
from maniflex.middleware.auth.key_set import KeySet, address_problem
from maniflex.middleware.auth.keys import ALGORITHMS, HMAC, VerifyingKey, missing_library
from maniflex.middleware.stores.port import Duration
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import Seat


def jwks(
    url: str,
    *,
    cache_ttl: Duration = 3600,
    refetch_interval: Duration = 300,
    timeout: Duration = 10,
    **options: Unpack[TokenOptions],
) -> Authenticator:
    """Authenticate by tokens whose keys the issuer publishes at `url`; takes the options of `auth.jwt` too.

    Keys are kept for `cache_ttl`; a token with an unknown key id fetches them again, at most once per
    `refetch_interval`.
    """
    return PublishedKeys(url, cache_ttl, refetch_interval, timeout, **options)


class PublishedKeys(Bearer):
    """Checks tokens with keys that are fetched."""

    name = "auth.jwks"

    def __init__(
        self,
        url: str,
        cache_ttl: Duration,
        refetch_interval: Duration,
        timeout: Duration,
        **options: Unpack[TokenOptions],
    ) -> None:
        super().__init__(**options)
        ttl, interval, patience = (
            as_timedelta(d).total_seconds() for d in (cache_ttl, refetch_interval, timeout)
        )
        problem = address_problem(url)
        if problem is not None:
            self.mistakes.append(problem)
        if ttl <= 0 or interval <= 0 or patience <= 0:
            self.mistakes.append("cache_ttl, refetch_interval and timeout are durations above zero")
        self._key_set = KeySet(url, ttl, interval, patience)
        self._key_set.on_change = self._memory.clear  # tokens of a key that is gone are no longer good

    def _read_keys(
        self, secret: Any, public_key: Any, algorithms: Iterable[str] | None
    ) -> tuple[VerifyingKey, ...]:
        """Its keys are not known yet; only the algorithms can be judged."""
        missing = missing_library(asymmetric=True)
        if missing is not None:
            self.mistakes.append(library_mistake(self.name, missing))
        names = [algorithms] if isinstance(algorithms, str) else list(algorithms or ())
        for name in names:
            if name not in ALGORITHMS or name in HMAC:
                self.mistakes.append(f"{name!r} is no algorithm of a published key")
        self._algorithms = frozenset(names) or None
        return ()

    def warnings(self, seat: Seat) -> Iterable[str]:
        if self._issuers is None and self._audiences is None:
            yield "neither issuer nor audience is given, so tokens for other applications pass too"
        yield from super().warnings(seat)

    def codes(self) -> dict[int, tuple[str, ...]]:
        codes = super().codes()
        return {**codes, 503: (*codes.get(503, ()), "JWKS_UNAVAILABLE")}

    def recall(self, ctx: Context, credential: bytes) -> AuthInfo | None:
        return None if self._key_set.is_old(ctx.runtime.clock) else super().recall(ctx, credential)

    async def authenticate(self, ctx: Context, credential: bytes) -> AuthInfo:
        # Before a remembered token counts: its key may have been taken back since.
        await self._key_set.replace_old_keys(ctx)
        return await super().authenticate(ctx, credential)

    async def _claims(self, ctx: Context, token: bytes) -> dict[str, Any] | None:
        try:
            key_id = import_module("jwt").get_unverified_header(token).get("kid")
        except Exception:  # whatever a text does to the parser, it is no token of ours
            return None
        if key_id is not None and not isinstance(key_id, str):
            return None
        key = await self._key_set.find(ctx, key_id)
        if key is not None and self._algorithms is not None:
            key = key.narrow_to(self._algorithms)
        return None if key is None or not key.algorithms else await verify_aside(ctx, token, [key])
