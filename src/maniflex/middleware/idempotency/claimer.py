"""Claims keys for requests: of twins one gets the key, the others wait for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from maniflex.errors import Abort
from maniflex.middleware.idempotency.held_claim import HeldClaim
from maniflex.middleware.idempotency.options import KeyOptions
from maniflex.middleware.idempotency.settled_keys import Place, SettledKeys
from maniflex.middleware.stores.port import ClaimState, IdempotencyStore, KeyClaim
from maniflex.pipeline.context import Context

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at a key that another process has
_REUSED = KeyClaim(ClaimState.REUSED)


class KeyClaimer:
    """The keys that requests of one entry hold in this process, and the way to get one."""

    def __init__(self, options: KeyOptions) -> None:
        self._options = options
        self._held: dict[Place, HeldClaim] = {}
        self._watched: dict[tuple[Place, str], asyncio.Future[None]] = {}  # by fingerprint, too
        self._settled = SettledKeys()

    async def claim(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str
    ) -> HeldClaim | KeyClaim:
        """The claim, or the settled key of a twin; refuses a running twin and another fingerprint."""
        key = await self._find(ctx, store, name, fingerprint, claims=True)
        if key.state is ClaimState.SETTLED:
            return key
        claim = HeldClaim(store, name, fingerprint, key.token, self._options, ctx)
        self._held[id(store), name] = claim
        return claim

    async def look(self, ctx: Context, claim: HeldClaim) -> KeyClaim:
        """The settled key, for a request that has lost it to another."""
        return await self._find(ctx, claim.store, claim.name, claim.fingerprint, claims=False)

    def end(self, claim: HeldClaim) -> None:
        """The request is over; its twins may go on."""
        place = id(claim.store), claim.name
        del self._held[place]
        if claim.is_settled:
            self._settled.note(place, claim.fingerprint, claim.answer, claim.until)
        claim.end()

    async def _find(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str, *, claims: bool
    ) -> KeyClaim:
        """A claimed or a settled key. Of twins in this process one asks the store, the others wait for it."""
        place, loop = (id(store), name), asyncio.get_running_loop()
        end = loop.time() + self._options.wait
        while True:
            key = self._settled.find(place, fingerprint, ctx.now())
            if key is not None:
                break
            if (twin := self._held.get(place)) is not None:
                key = _REUSED if twin.fingerprint != fingerprint else await twin.wait(end - loop.time())
            elif (watch := self._watched.get((place, fingerprint))) is not None and loop.time() < end:
                await asyncio.wait((watch,), timeout=end - loop.time())
            else:
                key = await self._watch(ctx, store, name, fingerprint, end, claims=claims)
            if key is not None:
                break
        if key.state is ClaimState.REUSED:
            raise _reuse_refusal()
        if key.state is ClaimState.RUNNING:
            raise _progress_refusal()
        return key

    async def _watch(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str, end: float, *, claims: bool
    ) -> KeyClaim:
        """Ask the store until the key is ours or settled, without holding a connection meanwhile."""
        place, loop, pause = (id(store), name), asyncio.get_running_loop(), _FIRST_PAUSE
        watch = self._watched[place, fingerprint] = loop.create_future()
        try:
            key = await self._ask(ctx, store, name, fingerprint, claims)
            while key.state in (ClaimState.RUNNING, ClaimState.FREE) and (left := end - loop.time()) > 0:
                await asyncio.sleep(min(pause, left))
                pause = min(pause * 2, _LONGEST_PAUSE)
                key = await self._ask(ctx, store, name, fingerprint, claims)
        finally:
            if self._watched.get((place, fingerprint)) is watch:
                del self._watched[place, fingerprint]
            watch.set_result(None)
        if key.state is ClaimState.SETTLED and key.expires_at is not None:
            self._settled.note(place, fingerprint, key.answer, key.expires_at)
        return KeyClaim(ClaimState.RUNNING) if key.state is ClaimState.FREE else key

    def _ask(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str, claims: bool
    ) -> Awaitable[KeyClaim]:
        if claims:
            return store.claim(name, fingerprint, lease=self._options.lease, now=ctx.now())
        return store.look(name, fingerprint, now=ctx.now())


def _progress_refusal() -> Abort:
    refusal = Abort(
        409,
        "IDEMPOTENCY_IN_PROGRESS",
        "a request with this Idempotency-Key is still running",
        headers={"retry-after": "1"},
    )
    refusal.retryable = True
    return refusal


def _reuse_refusal() -> Abort:
    return Abort(
        422,
        "IDEMPOTENCY_KEY_REUSED",
        "this Idempotency-Key belongs to a request that asks for something else",
    )
