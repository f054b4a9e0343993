"""Claims keys for requests: of twins one gets the key, the others wait for what comes of it."""

from __future__ import annotations

import asyncio

from maniflex.errors import Abort
from maniflex.middleware.idempotency.held_claim import HeldClaim
from maniflex.middleware.idempotency.options import Options
from maniflex.middleware.idempotency.settled_keys import SettledKeys
from maniflex.middleware.stores.port import ClaimState, IdempotencyStore, KeyClaim
from maniflex.pipeline.context import Context

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at a key that another process has
_FREE = KeyClaim(ClaimState.FREE)


class Claimer:
    """The keys that requests of one entry hold in this process, and the way to get one."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._held: dict[tuple[int, str], HeldClaim] = {}
        self._settled = SettledKeys()

    async def claim(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str
    ) -> HeldClaim | KeyClaim:
        """The claim, or the settled key of a twin; refuses a running twin and another fingerprint."""
        place, now = (id(store), name), ctx.now()
        found = self._settled.find(place, fingerprint, now)
        if found is None and place not in self._held:
            found = await store.claim(name, fingerprint, lease=self._options.lease, now=now)
        if found is None or found.state is ClaimState.RUNNING:
            found = await self._wait(ctx, store, name, fingerprint, claims=True)
        if found.state is ClaimState.REUSED:
            raise _reused()
        if found.state is ClaimState.SETTLED:
            return found
        held = HeldClaim(store, name, fingerprint, found.token, self._options, ctx)
        self._held[place] = held
        return held

    async def look(self, ctx: Context, held: HeldClaim) -> KeyClaim:
        """The settled key, for a request that has lost it to another."""
        found = await self._wait(ctx, held.store, held.name, held.fingerprint, claims=False)
        if found.state is ClaimState.REUSED:
            raise _reused()
        if found.state is not ClaimState.SETTLED:
            raise _in_progress()
        return found

    def end(self, held: HeldClaim) -> None:
        """The request is over; its twins may go on."""
        place = id(held.store), held.name
        del self._held[place]
        if held.is_settled:
            self._settled.note(place, held.fingerprint, held.answer, held.until)
        held.end()

    async def _wait(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str, *, claims: bool
    ) -> KeyClaim:
        """What comes of a key that another request has, without holding a connection meanwhile."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._options.wait, 0.0
        while True:
            left = end - loop.time()
            twin = self._held.get((id(store), name))
            if twin is not None:
                if twin.fingerprint != fingerprint:
                    return KeyClaim(ClaimState.REUSED)
                found = await twin.wait(max(left, 0)) or _FREE
            else:
                await asyncio.sleep(min(pause, max(left, 0)))
                pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
                found = await store.look(name, fingerprint, now=ctx.now())
            if found.state is ClaimState.FREE and claims and (id(store), name) not in self._held:
                found = await store.claim(name, fingerprint, lease=self._options.lease, now=ctx.now())
            if found.state not in (ClaimState.RUNNING, ClaimState.FREE):
                return found
            if left <= 0:
                raise _in_progress()


def _in_progress() -> Abort:
    refusal = Abort(
        409,
        "IDEMPOTENCY_IN_PROGRESS",
        "a request with this Idempotency-Key is still running",
        headers={"retry-after": "1"},
    )
    refusal.retryable = True
    return refusal


def _reused() -> Abort:
    return Abort(
        422,
        "IDEMPOTENCY_KEY_REUSED",
        "this Idempotency-Key belongs to a request that asks for something else",
    )
