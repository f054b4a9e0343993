"""The claim of a key that a running request holds: renewed while it runs, settled or released at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from maniflex._caller import act_on
from maniflex.db.current import detached_context
from maniflex.db.port import Tx
from maniflex.middleware.idempotency.kept_answer import keep_answer, keep_response
from maniflex.middleware.idempotency.options import KeyOptions
from maniflex.middleware.idempotency.settled_keys import Place
from maniflex.middleware.stores.idempotency import SqlIdempotency
from maniflex.middleware.stores.port import ClaimState, IdempotencyStore, KeyClaim
from maniflex.middleware.stores.units import nanoseconds_after
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import Response
from maniflex.sql.statement import Sql

Now = Callable[[], datetime]


class ClaimLost(Exception):
    """Another request has the key by now, so nothing of this one may be committed."""


class HeldClaim:
    """One key, claimed by one request."""

    def __init__(
        self,
        store: IdempotencyStore,
        place: Place,
        fingerprint: str,
        token: str,
        options: KeyOptions,
        ctx: Context,
    ) -> None:
        self.store = store
        self.place, self.name = place, place[1]
        self.fingerprint = fingerprint
        self._token = token
        self._options = options
        self._now: Now = ctx.now
        self._database = ctx.database()  # its server, for what is done of it outside the request
        self._headers_before = len(ctx.extra_headers or ())
        self._calls_before = len(ctx._after or ())
        self.answer: bytes | None = None
        self.until = 0  # of the settled key, in nanoseconds since 1970
        self._twins: asyncio.Future[KeyClaim | None] | None = None
        self.loop = asyncio.get_running_loop()
        self._renewing: asyncio.Task[None] | None = None
        self._is_old = False
        self.is_settled = False  # and committed
        self.is_lost = False
        self.is_unsure = False  # the statement that settles it has failed

    # -- its end

    async def settle(self, ctx: Context, tx: Tx | None = None) -> None:
        """Keep the answer, in the transaction if there is one; `ClaimLost` when the key is another's."""
        answer = await keep_answer(ctx, self._headers_before, self._options.max_answer)
        self.is_unsure, now = True, self._now()
        is_ours = await self.store.settle(
            self.name, self._token, answer, ttl=self._options.ttl, now=now, tx=tx
        )
        self.is_unsure = False
        if not is_ours:
            self.is_lost = True
            if tx is not None:
                tx.doom()  # code in between may swallow what is raised here
            raise ClaimLost(self.name)
        self.answer, self.until = answer, nanoseconds_after(now, self._options.ttl)

    async def settle_with_commit(self, ctx: Context, tx: Tx) -> None:
        """Keep the answer when the transaction commits; `CommitRefused` when the key is another's."""
        assert isinstance(self.store, SqlIdempotency)
        self.answer = await keep_answer(ctx, self._headers_before, self._options.max_answer)
        self.is_unsure, self.until = True, nanoseconds_after(self._now(), self._options.ttl)
        self.store.settle_with_commit(self.name, self._token, self.answer, self.until, tx)

    def settlement(self, ctx: Context, response: Response) -> Sql:
        """The statement that keeps this answer; until `note_commit`, whether it has run is not known."""
        assert isinstance(self.store, SqlIdempotency)
        self.answer = keep_response(ctx, response, self._headers_before, self._options.max_answer)
        self.is_unsure, self.until = True, nanoseconds_after(self._now(), self._options.ttl)
        return self.store.settlement(self.name, self._token, self.answer, self.until)

    def note_commit(self) -> None:
        """What settled the key is committed."""
        self.is_settled, self.is_unsure = True, False

    async def release(self, ctx: Context) -> None:
        """Give the key back; should that fail, its lease ends by itself."""
        try:
            with act_on(self._database):
                await self.store.release(self.name, self._token)
        except Exception as error:
            ctx.logger.warning("an idempotency key is taken until its lease ends: %s", error)

    def end(self) -> None:
        """Stop renewing it, and tell the twins that wait in this process what came of it."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._twins is not None and not self._twins.done():
            answer = KeyClaim(ClaimState.SETTLED, answer=self.answer) if self.is_settled else None
            self._twins.set_result(answer)

    def undo_effects(self, ctx: Context) -> None:
        """Forget the headers and calls that were added for an answer which is not given."""
        if ctx.extra_headers is not None:
            del ctx.extra_headers[self._headers_before :]
        if ctx._after is not None:
            del ctx._after[self._calls_before :]

    # -- meanwhile

    async def wait(self, seconds: float) -> KeyClaim | None:
        """For a twin: what came of the request, None when the key is free; RUNNING when it takes longer."""
        if self._twins is None:
            self._twins = self.loop.create_future()
        is_over = (await asyncio.wait((self._twins,), timeout=seconds))[0]
        return self._twins.result() if is_over else KeyClaim(ClaimState.RUNNING)

    def grow_older(self) -> None:
        """Begin to renew it when this is called for the second time, a sixth of the lease later."""
        if self._is_old and self._renewing is None:
            # Outside the request's transaction, which must not have a part in it.
            self._renewing = self.loop.create_task(self._renew(), context=detached_context())
        self._is_old = True

    async def _renew(self) -> None:
        is_ours = True
        while is_ours:
            # A store that fails now may answer the next time.
            with suppress(Exception), act_on(self._database):
                is_ours = await self.store.renew(
                    self.name, self._token, lease=self._options.lease, now=self._now()
                )
            await asyncio.sleep(self._options.lease / 3)
