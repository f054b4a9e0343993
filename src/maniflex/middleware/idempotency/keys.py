"""`idempotency.keys`: one registration, two parts.

The first part stands where the body has been read. It claims the key by a statement of its own, so that of
any number of twins one goes on, and answers the others. The second goes around the database step: there
the rows, the answer and the settled key are committed together, or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, cast

from maniflex.db.current import transaction
from maniflex.db.port import CommitRefused
from maniflex.errors import Abort, Unavailable
from maniflex.files.owner import owner_of
from maniflex.middleware.db.callers import caller_of
from maniflex.middleware.db.query_text import scope_text
from maniflex.middleware.idempotency.claimer import KeyClaimer
from maniflex.middleware.idempotency.fingerprint import (
    body_that_was_read,
    fingerprint,
    read_any_body,
    read_headers,
)
from maniflex.middleware.idempotency.held_claim import ClaimLost, HeldClaim
from maniflex.middleware.idempotency.kept_answer import replay_answer
from maniflex.middleware.idempotency.key_docs import key_docs
from maniflex.middleware.idempotency.keyed_create import KeyedCreate, keyed_create
from maniflex.middleware.idempotency.options import KeyOptions, option_mistakes
from maniflex.middleware.stores.idempotency import SqlIdempotency
from maniflex.middleware.stores.port import ClaimState, Duration, IdempotencyStore
from maniflex.middleware.stores.units import seconds_of
from maniflex.model.file_field import size_in_bytes
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.callbacks import callback_failure
from maniflex.pipeline.context import Context
from maniflex.pipeline.early_answer import AnswersEarly, EarlyAnswer, Step
from maniflex.pipeline.entry import Entry, Piece, Placement, Seat, ask
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.offload import LARGE
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.read_body import read_body
from maniflex.pipeline.registration import At, Middleware, Next, Registration
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.steps.deserialize import Deserialize

_OF_FILES = frozenset({Operation.UPLOAD_FILE, Operation.DELETE_FILE})
_SETTLED = ClaimState.SETTLED  # to look a member up takes longer than all that is done with it
_ASKED_FIRST = {"auth", "deserialize"}  # homes of what refuses a request, or says in whose name it is
_OUTSIDE = "it claims its key outside any transaction"
_LAST, _OUTERMOST = 1000, -1000  # ranks: after limits and scopes; around everything of the database step


class IdempotencyUnavailable(Unavailable):
    """The store of the keys failed, so whether the request has run before is not known."""

    code, message = "IDEMPOTENCY_UNAVAILABLE", "the Idempotency-Key cannot be checked right now"


class Keys(Entry):
    """Requests with an `Idempotency-Key` have their effect once."""

    name = "idempotency.keys"
    homes: ClassVar = {"deserialize": (At.AFTER,)}
    in_actions = True
    in_files = True
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
        """The whole of it, in an action and on the routes of files."""
        if self.mistakes or operation is Operation.READ_FILE:
            return None
        if operation in _OF_FILES:
            return _KeyedRequest(self, str(operation), is_of_files=True)
        return _KeyedAction(self)

    def _make_claim(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if model is None or operation not in self.acts_for:
            return None
        return _KeyedRequest(self, f"{model.table} {operation}")

    def _make_write(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return _KeyedWrite() if model is not None and operation in self.acts_for else None

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        is_action = model is None and operation is Operation.ACTION
        if not is_action and operation not in self.acts_for | _OF_FILES:
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
        place = seat.registrations.index(seat.registration)
        if any(_opens_transaction(r) for r in seat.registrations[:place]):
            yield f"{_OUTSIDE}; put it before with_transaction()"
        for registration in seat.registrations[place + 1 :]:
            entry = registration.fn
            if isinstance(entry, Entry) and not isinstance(entry, Keys) and entry.homes.keys() & _ASKED_FIRST:
                yield f"a replay would pass {entry.name}, which stands behind it; put it behind {entry.name}"

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        steps = placement.pipeline.auth, placement.pipeline.deserialize
        before = [r for step in steps for r in step.registrations if _opens_transaction(r)]
        if any(_overlap(r, seat.registration) for r in before):
            yield f"{_OUTSIDE}; register with_transaction() on the service step"


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


def _opens_transaction(registration: Registration) -> bool:
    return getattr(registration.fn, "opens_transaction", False)


def _overlap(one: Registration, other: Registration) -> bool:
    """Whether some request passes both."""
    models = one.models is None or other.models is None or one.models & other.models
    sets = [Keys.acts_for if r.operations is None else r.operations for r in (one, other)]
    return bool(models and sets[0] & sets[1])


class _KeyedRequest(AnswersEarly):
    """Claims the key of a request to a model, and sees to it that it is settled or released."""

    __name__ = Keys.name
    reads_body: ClassVar[bool] = False  # where no step has read it
    _deserialize: Deserialize | None = None  # whose step it runs itself, once it knows that it has to
    _parse: Callable[[Context], Awaitable[None]]

    def __init__(self, entry: Keys, route: str, *, is_of_files: bool = False) -> None:
        self._is_of_files = is_of_files
        self._entry = entry
        self._options = entry.options
        self._claimer = entry.claimer
        self._route = route

    def take_over(self, step: Step, run: Step) -> bool:
        """Whether the body is parsed behind it: what is asked for is known by its bytes."""
        if getattr(step, "__func__", None) is not Deserialize.body:
            return False
        self._deserialize, self._parse = cast(Any, step).__self__, cast(Any, run)
        return True

    async def __call__(self, ctx: Context, next: Next) -> None:
        headers = read_headers(ctx.scope["headers"])
        if headers.key is None:
            if self._options.is_required:
                raise Abort(400, "IDEMPOTENCY_KEY_REQUIRED", "this route needs an Idempotency-Key")
            await self._go_on(ctx, next)
            return
        own = self._options.caller
        caller = caller_of(ctx, exact=True) if own is None else await _ask_for_caller(ctx, own)
        if ctx.forced or self._is_of_files or ctx.form is not None:
            caller = await self._caller_in_scope(ctx, caller)
        name = f"{len(caller)} {caller} {ctx.scope['method']} {self._route_of(ctx)} {headers.key}"
        if self._deserialize is None:
            body = await read_any_body(ctx) if self.reads_body else body_that_was_read(ctx)
        elif ctx.raw_body is None:
            body = ctx.raw_body = await read_body(ctx, headers.by_name)
        else:
            body = ctx.raw_body
        wish = (
            fingerprint(ctx.scope, headers, body)
            if len(body) <= LARGE
            else await ctx.runtime.offload.run(len(body), partial(fingerprint, ctx.scope, headers, body))
        )
        try:
            store = self._entry.store.on(ctx.adapter)
            place = (store.place if isinstance(store, SqlIdempotency) else id(store), name)
            known_key = self._claimer.recall(place, wish, ctx)
            if known_key is None and isinstance(store, SqlIdempotency) and store.expects_answers:
                if not self._claimer.has_twin(place):
                    known_key = await store.look_first(name, wish)
                if known_key is not None:
                    self._claimer.note(place, wish, known_key)
            if known_key is None or known_key.state is not _SETTLED:
                known_key = await self._claimer.find(ctx, store, place, wish, known_key=known_key)
        except Abort:
            raise
        except Exception as error:
            if not self._options.runs_on_error:
                raise IdempotencyUnavailable(str(error)) from error
            ctx.logger.warning("a request runs without its Idempotency-Key: %s", error)
            await self._go_on(ctx, next)
            return
        if known_key.state is _SETTLED:
            if self._deserialize is not None and not self._deserialize.postpone(ctx):
                await self._parse(ctx)
            replay_answer(ctx, known_key.answer)
        else:
            await self._run(ctx, self._claimer.hold(ctx, store, place, wish, known_key.token), next)

    async def _caller_in_scope(self, ctx: Context, caller: str) -> str:
        """The caller within the rows that its request may touch, and within its files."""
        if ctx.forced:
            caller = f"{caller} in {scope_text(ctx.forced)}"
        if (self._is_of_files or ctx.form is not None) and ctx.runtime.config.file_scope is not None:
            # Files of another scope are not its caller's to name.
            owner = await owner_of(ctx, ctx.runtime.config.file_scope)
            caller = f"{caller} with files of {owner.scope}"
        return caller

    async def _go_on(self, ctx: Context, next: Next) -> None:
        if self._deserialize is not None:
            await self._parse(ctx)
        await next()

    def _route_of(self, ctx: Context) -> str:
        return self._route

    async def _run(self, ctx: Context, claim: HeldClaim, next: Next) -> None:
        ctx.key_claim = claim
        try:
            try:
                if ctx.tx is not None:  # which would settle the key after this, and keep twins waiting
                    raise RuntimeError(f"{Keys.name}: {_OUTSIDE}; open it on the service step")
                if self._deserialize is not None:
                    await self._parse(ctx)
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
            find = self._claimer.find
            successor = await find(ctx, claim.store, claim.place, claim.fingerprint, claims=False)
            replay_answer(ctx, successor.answer)

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


async def _ask_for_caller(ctx: Context, own: Callable[[Context], Any]) -> str:
    caller = await ask(ctx, own, ctx)
    if caller is None or caller == "":  # callers without a name would see each other's answers
        raise callback_failure(own) from ValueError(f"caller= gave {caller!r}, which names no caller")
    return f"own {caller}"


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
