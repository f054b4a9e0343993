"""Claims keys for requests: of twins one gets the key, the others wait for what comes of it."""

from __future__ import annotations

import asyncio

from maniflex.errors import Abort
from maniflex.middleware.idempotency.held_claim import HeldClaim
from maniflex.middleware.idempotency.options import KeyOptions
from maniflex.middleware.idempotency.settled_keys import SettledKeys
from maniflex.middleware.stores.port import ClaimState, IdempotencyStore, KeyClaim
from maniflex.pipeline.context import Context

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at a key that another process has
_FREE = KeyClaim(ClaimState.FREE)


class KeyClaimer:
    """The keys that requests of one entry hold in this process, and the way to get one."""

    def __init__(self, options: KeyOptions) -> None:
        self._options = options
        self._held: dict[tuple[int, str], HeldClaim] = {}
        self._settled = SettledKeys()

    async def claim(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str
    ) -> HeldClaim | KeyClaim:
        """The claim, or the settled key of a twin; refuses a running twin and another fingerprint."""
        place, now = (id(store), name), ctx.now()
        key = self._settled.find(place, fingerprint, now)
        if key is None and place not in self._held:
            key = await store.claim(name, fingerprint, lease=self._options.lease, now=now)
        if key is None or key.state is ClaimState.RUNNING:
            key = await self._wait(ctx, store, name, fingerprint, claims=True)
        if key.state is ClaimState.REUSED:
            raise _reuse_refusal()
        if key.state is ClaimState.SETTLED:
            return key
        claim = HeldClaim(store, name, fingerprint, key.token, self._options, ctx)
        self._held[place] = claim
        return claim

    async def look(self, ctx: Context, claim: HeldClaim) -> KeyClaim:
        """The settled key, for a request that has lost it to another."""
        key = await self._wait(ctx, claim.store, claim.name, claim.fingerprint, claims=False)
        if key.state is ClaimState.REUSED:
            raise _reuse_refusal()
        if key.state is not ClaimState.SETTLED:
            raise _progress_refusal()
        return key

    def end(self, claim: HeldClaim) -> None:
        """The request is over; its twins may go on."""
        place = id(claim.store), claim.name
        del self._held[place]
        if claim.is_settled:
            self._settled.note(place, claim.fingerprint, claim.answer, claim.until)
        claim.end()

    async def _wait(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str, *, claims: bool
    ) -> KeyClaim:
        """What comes of a key that another request has, without holding a connection meanwhile."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._options.wait, 0.0
        while True:
            seconds_left = end - loop.time()
            twin = self._held.get((id(store), name))
            if twin is not None:
                if twin.fingerprint != fingerprint:
                    return KeyClaim(ClaimState.REUSED)
                key = await twin.wait(max(seconds_left, 0)) or _FREE
            else:
                await asyncio.sleep(min(pause, max(seconds_left, 0)))
                pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
                key = await store.look(name, fingerprint, now=ctx.now())
            if key.state is ClaimState.FREE and claims and (id(store), name) not in self._held:
                key = await store.claim(name, fingerprint, lease=self._options.lease, now=ctx.now())
            if key.state not in (ClaimState.RUNNING, ClaimState.FREE):
                return key
            if seconds_left <= 0:
                raise _progress_refusal()


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
