"""`idempotency.keys`: one registration, two parts.

The first part stands where the body has been read. It claims the key by a statement of its own, so that of
any number of twins one goes on, and answers the others. The second goes around the database step: there
the rows, the answer and the settled key are committed together, or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar

from maniflex.db.current import transaction
from maniflex.db.port import CommitRefused
from maniflex.errors import Abort, Unavailable
from maniflex.middleware.db.callers import caller_of
from maniflex.middleware.db.query_text import scope_text
from maniflex.middleware.idempotency.claimer import KeyClaimer
from maniflex.middleware.idempotency.fingerprint import (
    body_that_was_read,
    fingerprint,
    read_any_body,
    sent_key,
)
from maniflex.middleware.idempotency.held_claim import ClaimLost, HeldClaim
from maniflex.middleware.idempotency.kept_answer import replay_answer
from maniflex.middleware.idempotency.key_docs import key_docs
from maniflex.middleware.idempotency.keyed_create import KeyedCreate, keyed_create
from maniflex.middleware.idempotency.options import KeyOptions, option_mistakes
from maniflex.middleware.stores.idempotency import SqlIdempotency
from maniflex.middleware.stores.port import ClaimState, Duration, IdempotencyStore, KeyClaim
from maniflex.middleware.stores.units import seconds_of
from maniflex.model.file_field import size_in_bytes
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.early_answer import AnswersEarly, EarlyAnswer, Step
from maniflex.pipeline.entry import Entry, Piece, Seat, ask
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next, Registration
from maniflex.pipeline.response import Response, status_of

_LAST, _OUTERMOST = 1000, -1000  # ranks: after limits and scopes; around everything of the database step


class IdempotencyUnavailable(Unavailable):
    """The store of the keys failed, so whether the request has run before is not known."""

    code, message = "IDEMPOTENCY_UNAVAILABLE", "the Idempotency-Key cannot be checked right now"


class Keys(Entry):
    """Requests with an `Idempotency-Key` have their effect once."""

    name = "idempotency.keys"
    homes: ClassVar = {"deserialize": (At.AFTER,)}
    in_actions = True
    beside_rows = True
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})

    def __init__(self, store: Any, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.stores = (store,)
        self.mistakes += option_mistakes(arguments)
        self.store: IdempotencyStore = store
        self.settles_in_transaction = getattr(store, "settles_in_transaction", False)
        if not self.mistakes:
            self.options = _read_options(arguments)
            self.claimer = KeyClaimer(self.options)

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """The claim where the body has been read; the transaction as late as it can begin."""
        yield Piece("deserialize", self._make_claim, At.AFTER, _LAST)
        if self.options.in_transaction and self.settles_in_transaction:
            yield Piece("db", self._make_write, At.BEFORE, _OUTERMOST)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        """The whole of it, in an action."""
        return None if self.mistakes else _KeyedAction(self)

    def _make_claim(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if model is None or operation not in self.acts_for:
            return None
        return _KeyedRequest(self, f"{model.table} {operation}")

    def _make_write(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return _KeyedWrite() if model is not None and operation in self.acts_for else None

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        is_action = model is None and operation is Operation.ACTION
        if not is_action and operation not in self.acts_for:
            return None
        return key_docs(self.options, reads_body=is_action)

    def problems(self, seat: Seat) -> Iterable[str]:
        others = [r for r in seat.registrations if r is not seat.registration and isinstance(r.fn, Keys)]
        if any(_overlap(r, seat.registration) for r in others):
            yield "a request would pass it twice; register it once for each route"
        if not seat.is_action:
            return
        if seat.actions[0].method == "GET":
            yield "a GET changes nothing, so there is nothing to do twice"
        before = seat.registrations[: seat.registrations.index(seat.registration)]
        if any(getattr(r.fn, "opens_transaction", False) for r in before):
            yield "it claims its key outside any transaction; put it before with_transaction()"


def _read_options(arguments: dict[str, Any]) -> KeyOptions:
    return KeyOptions(
        ttl=seconds_of(arguments["ttl"]),
        wait=seconds_of(arguments["wait"]),
        lease=seconds_of(arguments["lease"]),
        max_answer=size_in_bytes(arguments["max_answer"]) or 0,
        is_required=arguments["required"],
        runs_on_error=arguments["on_error"] == "run",
        in_transaction=arguments["transaction"],
        caller=arguments["caller"],
    )


def _overlap(one: Registration, other: Registration) -> bool:
    """Whether some request passes both."""
    models = one.models is None or other.models is None or one.models & other.models
    sets = [Keys.acts_for if r.operations is None else r.operations for r in (one, other)]
    return bool(models and sets[0] & sets[1])


class _KeyedRequest(AnswersEarly):
    """Claims the key of a request to a model, and sees to it that it is settled or released."""

    __name__ = Keys.name
    reads_body: ClassVar[bool] = False  # where no step has read it

    def __init__(self, entry: Keys, route: str) -> None:
        self._entry = entry
        self._options = entry.options
        self._claimer = entry.claimer
        self._route = route

    async def __call__(self, ctx: Context, next: Next) -> None:
        key = sent_key(ctx.scope["headers"])
        if key is None:
            if self._options.is_required:
                raise Abort(400, "IDEMPOTENCY_KEY_REQUIRED", "this route needs an Idempotency-Key")
            await next()
            return
        claim = await self._claim(ctx, key)
        if claim is None:
            await next()
        elif isinstance(claim, KeyClaim):
            replay_answer(ctx, claim.answer)
        else:
            await self._run(ctx, claim, next)

    async def _claim(self, ctx: Context, key: str) -> HeldClaim | KeyClaim | None:
        """The claim, or the settled key of a twin; None to run without, because the store fails."""
        own = self._options.caller
        caller = caller_of(ctx, exact=True) if own is None else f"own {await ask(ctx, own, ctx)}"
        if ctx.forced:  # a key counts within the rows that its request may touch
            caller = f"{caller} in {scope_text(ctx.forced)}"
        name = f"{len(caller)} {caller} {ctx.scope['method']} {self._route_of(ctx)} {key}"
        wish = fingerprint(ctx, await read_any_body(ctx) if self.reads_body else body_that_was_read(ctx))
        try:
            return await self._claimer.claim(ctx, self._entry.store.on(ctx.adapter), name, wish)
        except Abort:
            raise
        except Exception as error:
            if not self._options.runs_on_error:
                raise IdempotencyUnavailable(str(error)) from error
            ctx.logger.warning("a request runs without its Idempotency-Key: %s", error)
            return None

    def _route_of(self, ctx: Context) -> str:
        return self._route

    async def _run(self, ctx: Context, claim: HeldClaim, next: Next) -> None:
        ctx.key_claim = claim
        try:
            try:
                await next()
                if not claim.is_settled:
                    await self._finish(ctx, claim)
            except Exception as error:
                if not await self._is_taken(ctx, claim):
                    if not claim.is_settled:  # else the write is done, and code outside it failed
                        await claim.release(ctx)
                    raise
                error.__traceback__ = None
        except BaseException as error:
            if not isinstance(error, Exception):  # told to end at once; somebody else has to clean up
                ctx.runtime.tasks.start(claim.release(ctx), "release of an idempotency key")
            raise
        finally:
            ctx.key_claim = None
            self._claimer.end(claim)
        if claim.is_lost:
            claim.undo_effects(ctx)
            replay_answer(ctx, (await self._claimer.look(ctx, claim)).answer)

    async def _finish(self, ctx: Context, claim: HeldClaim) -> None:
        """Settle a key that was not settled with the write: nothing was written, or not in a transaction."""
        if ctx.response is None or status_of(ctx.response) < 400:
            await _answer_early(self, ctx)
        if status_of(ctx.response) >= 400:
            await claim.release(ctx)
            return
        try:
            await claim.settle(ctx)
        except ClaimLost:
            raise
        except Exception as error:  # what was done is done, and the client is told so
            ctx.logger.error("an idempotency key could not be settled: %s", error)
        else:
            claim.note_commit()

    async def _is_taken(self, ctx: Context, claim: HeldClaim) -> bool:
        """Whether an error comes of this: another request has taken the key and finished."""
        if claim.is_unsure and not claim.is_lost:  # a strict transaction fails where others see no row
            with suppress(Exception):  # then it stays the error that it is
                key = await claim.store.look(claim.name, claim.fingerprint, now=ctx.now())
                claim.is_lost = key.state is ClaimState.SETTLED
        return claim.is_lost


class _KeyedWrite(AnswersEarly):
    """Opens the transaction in which the rows are written, the answer is made and the key is settled.

    A create that has nothing else in its way does all of it in one call of the database.
    """

    def __init__(self) -> None:
        self._create: KeyedCreate | None = None

    def take_place(self, early_answer: EarlyAnswer, next_step: Step | None) -> None:
        super().take_place(early_answer, next_step)
        self._create = keyed_create(next_step, early_answer.only_step)

    async def __call__(self, ctx: Context, next: Next) -> None:
        claim = ctx.key_claim
        if claim is None:
            await next()
            return
        create = self._create
        if create is None or not create.suits(ctx):
            await _write_and_settle(self, ctx, claim, next)
        elif not await create.run(ctx, claim):
            await _write_and_settle(self, ctx, claim, next)
            self._create = None  # how rows are stored cannot be known beforehand


class _KeyedAction(_KeyedRequest):
    """The whole of it around an action: the claim in its place, the transaction around the handler."""

    reads_body = True

    def __init__(self, entry: Keys) -> None:
        super().__init__(entry, "")

    def _route_of(self, ctx: Context) -> str:
        return ctx.route or str(ctx.scope["path"])

    async def enclose(self, ctx: Context, call: Callable[[], Awaitable[None]]) -> None:
        if ctx.key_claim is None or not self._options.in_transaction:
            await call()
        elif self._entry.settles_in_transaction:
            await _write_and_settle(self, ctx, ctx.key_claim, call)
        else:
            async with ctx.transaction():
                await call()


async def _write_and_settle(
    middleware: AnswersEarly, ctx: Context, claim: HeldClaim, write: Callable[[], Awaitable[None]]
) -> None:
    """Write, answer and settle in one transaction: one of its own, or the open one."""
    if ctx.tx is not None:
        await _write_and_answer(middleware, ctx, write)
        if status_of(ctx.response) < 400:
            await claim.settle(ctx, ctx.tx)
            ctx.tx.after_commit(claim.note_commit)
        return
    try:
        async with transaction(ctx.adapter, late=True) as tx:
            await _write_and_answer(middleware, ctx, write)
            if status_of(ctx.response) >= 400:
                raise _Rollback
            await claim.settle_with_commit(ctx, tx)
    except _Rollback:
        return
    except CommitRefused as error:
        claim.is_lost = True
        raise ClaimLost(claim.name) from error
    claim.note_commit()


class _Rollback(Exception):
    """An answer of 400 or more: the rows go, the answer stays."""


async def _write_and_answer(
    middleware: AnswersEarly, ctx: Context, write: Callable[[], Awaitable[None]]
) -> None:
    await write()
    if ctx.response is None or status_of(ctx.response) < 400:
        await _answer_early(middleware, ctx)


async def _answer_early(middleware: AnswersEarly, ctx: Context) -> None:
    """Run the response step, unless its answer stands already."""
    if ctx.response is None or ctx.response is not ctx.early_response:
        await middleware.early_answer.run(ctx)
    if ctx.response is None:
        ctx.response = ctx.early_response = Response(204)


def keys(
    *,
    ttl: Duration = 86400,
    required: bool = False,
    caller: Callable[[Context], Any] | None = None,
    wait: Duration = 5,
    lease: Duration = 30,
    store: IdempotencyStore | None = None,
    transaction: bool = True,
    max_answer: int | str = "1MB",
    on_error: str = "refuse",
) -> Keys:
    """Let requests that carry an `Idempotency-Key` have their effect once, however often they are sent.

    The first answer below 400 is kept for `ttl`, in the transaction of the write, and given again. A twin
    waits up to `wait` for it. A request that dies leaves its key free after `lease`.
    """
    arguments = {
        "ttl": ttl,
        "required": required,
        "caller": caller,
        "wait": wait,
        "lease": lease,
        "store": SqlIdempotency() if store is None else store,
        "transaction": transaction,
        "max_answer": max_answer,
        "on_error": on_error,
    }
    return Keys(arguments["store"], arguments)
