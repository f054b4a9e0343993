"""Claims keys for requests: of twins one gets the key, the others wait for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from maniflex.errors import Abort
from maniflex.middleware.idempotency.held_claim import HeldClaim
from maniflex.middleware.idempotency.options import KeyOptions
from maniflex.middleware.idempotency.settled_keys import REUSED, Place, SettledKeys
from maniflex.middleware.stores.port import ClaimState, IdempotencyStore, KeyClaim
from maniflex.pipeline.context import Context

_SEATS = 256
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at a key that another process has


class Renewals:
    """Begins to renew claims that are held for long: one timer for all of them, while there are any."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, held: Mapping[Place, HeldClaim]
    ) -> None:
        self.loop = loop
        self._interval = interval
        self._held = held
        self._is_awake = False

    def wake(self) -> None:
        """A claim is held: look at those there are, in a while."""
        if not self._is_awake:
            self._is_awake = True
            self.loop.call_later(self._interval, self._look)

    def _look(self) -> None:
        self._is_awake = False
        for claim in self._held.values():
            if claim.loop is self.loop:
                claim.grow_older()
                self.wake()


class KeyClaimer:
    """The keys that requests of one entry hold in this process, and the way to get one."""

    def __init__(self, options: KeyOptions) -> None:
        self._options = options
        self._held: dict[Place, HeldClaim] = {}
        # Keys that the store is being asked for, by fingerprint too, and what their twins here wait for.
        self._asked: dict[tuple[Place, str], asyncio.Future[KeyClaim | None] | None] = {}
        self._settled = SettledKeys()
        self._looked_up: list[Place | None] = [None] * _SEATS  # by hash, the last of each seat
        self._renewals: Renewals | None = None

    def knows(self, place: Place) -> bool:
        """Whether this process has settled the key, or a request of it holds the key."""
        return place in self._settled.keys or place in self._held

    def recall(self, place: Place, fingerprint: str, ctx: Context) -> KeyClaim | None:
        """A key that this process has settled; refuses another fingerprint."""
        if place not in self._settled.keys:
            return None
        key = self._settled.find(place, fingerprint, ctx.now)
        if key is REUSED:
            raise _reuse_refusal()
        return key

    def note(self, place: Place, fingerprint: str, key: KeyClaim) -> None:
        """Remember a key that is looked up again before another of its seat, if the store says until when.

        To remember every key of a crowd costs more than it brings.
        """
        seat = hash(place) % _SEATS
        if self._looked_up[seat] == place and key.until:
            self._settled.note(place, fingerprint, key)
        else:
            self._looked_up[seat] = place

    async def find(
        self,
        ctx: Context,
        store: IdempotencyStore,
        place: Place,
        fingerprint: str,
        *,
        claims: bool = True,
        end: float = 0.0,
        known_key: KeyClaim | None = None,
    ) -> KeyClaim:
        """A claimed or a settled key; refuses a running twin and another fingerprint.

        Of twins in this process one asks the store, the others wait for it. `known_key` is what a look into
        the store has just found.
        """
        question = place, fingerprint
        if place in self._held or question in self._asked:
            return await self._find_among_twins(ctx, store, place, fingerprint, claims=claims)
        key = known_key
        self._asked[question] = None
        try:
            if key is None:
                key = await self._ask(ctx, store, place[1], fingerprint, claims=claims)
            if key.state is ClaimState.RUNNING or key.state is ClaimState.FREE:
                end = end or _time() + self._options.wait
                key = await self._ask_again(ctx, store, place[1], fingerprint, end, claims=claims)
        finally:
            if (twins := self._asked.pop(question)) is not None:
                # An answer that the store gave is theirs too; otherwise they look again.
                twins.set_result(key if key is not None and key.state is ClaimState.SETTLED else None)
        return _require_usable(key)

    async def _find_among_twins(
        self, ctx: Context, store: IdempotencyStore, place: Place, fingerprint: str, *, claims: bool
    ) -> KeyClaim:
        end = _time() + self._options.wait
        while True:
            is_alone, key = await self._wait_for_twin(place, fingerprint, end - _time())
            if is_alone:
                key = await self._ask(ctx, store, place[1], fingerprint, claims=claims)
            elif key is None:
                key = self.recall(place, fingerprint, ctx)
            if key is not None:
                return _require_usable(key)
            if place not in self._held and (place, fingerprint) not in self._asked:
                return await self.find(ctx, store, place, fingerprint, claims=claims, end=end)

    def hold(
        self, ctx: Context, store: IdempotencyStore, place: Place, fingerprint: str, token: str
    ) -> HeldClaim:
        """The claim of a key that was found free."""
        claim = HeldClaim(store, place, fingerprint, token, self._options, ctx)
        self._held[place] = claim
        if self._renewals is None or self._renewals.loop is not claim.loop:
            self._renewals = Renewals(claim.loop, self._options.lease / 6, self._held)
        self._renewals.wake()
        return claim

    def end(self, claim: HeldClaim) -> None:
        """The request is over; its twins may go on."""
        del self._held[claim.place]
        if claim.is_settled:
            key = KeyClaim(ClaimState.SETTLED, answer=claim.answer, until=claim.until)
            self._settled.note(claim.place, claim.fingerprint, key)
        claim.end()

    async def _wait_for_twin(
        self, place: Place, fingerprint: str, seconds: float
    ) -> tuple[bool, KeyClaim | None]:
        """Whether to ask the store after all, and what a twin in this process has left."""
        if (twin := self._held.get(place)) is not None:
            return False, REUSED if twin.fingerprint != fingerprint else await twin.wait(seconds)
        if seconds <= 0:
            return True, None
        answer = self._asked[place, fingerprint]
        if answer is None:
            answer = self._asked[place, fingerprint] = asyncio.get_running_loop().create_future()
        is_over = (await asyncio.wait((answer,), timeout=seconds))[0]
        return False, answer.result() if is_over else None

    async def _ask_again(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str, end: float, *, claims: bool
    ) -> KeyClaim:
        """The key that another process has, when that is done with it; RUNNING when it takes longer."""
        pause = _FIRST_PAUSE
        while (left := end - _time()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)
            key = await store.look(name, fingerprint, now=ctx.now())  # no write, which others would wait for
            if claims and key.state is ClaimState.FREE:
                key = await self._ask(ctx, store, name, fingerprint, claims=True)
            if key.state is not ClaimState.RUNNING and key.state is not ClaimState.FREE:
                return key
        return KeyClaim(ClaimState.RUNNING)

    def _ask(
        self, ctx: Context, store: IdempotencyStore, name: str, fingerprint: str, *, claims: bool
    ) -> Awaitable[KeyClaim]:
        """Ask the store once; nothing holds a connection between two questions."""
        if claims:
            return store.claim(name, fingerprint, lease=self._options.lease, now=ctx.now())
        return store.look(name, fingerprint, now=ctx.now())


def _time() -> float:
    return asyncio.get_running_loop().time()


def _require_usable(key: KeyClaim) -> KeyClaim:
    """The key, if it is claimed or settled."""
    if key.state is ClaimState.REUSED:
        raise _reuse_refusal()
    if key.state is ClaimState.RUNNING:
        raise _progress_refusal()
    return key


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
