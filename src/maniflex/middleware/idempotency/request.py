"""Requests with a key: the claim before them, and the write that settles it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar

import msgspec

from maniflex.db.current import SharedTransaction, shared_transaction, transaction
from maniflex.db.port import Adapter, CommitRefused, Row, Tx
from maniflex.errors import Abort, Unavailable
from maniflex.files.owner import owner_of
from maniflex.middleware.db.query_text import caller_of, scope_text, scopes_of_caller
from maniflex.middleware.idempotency.claims import (
    NAME,
    OUTSIDE,
    ClaimLost,
    HeldClaim,
    KeyClaimer,
    KeyOptions,
    replay_answer,
)
from maniflex.middleware.stores.form import place_of
from maniflex.middleware.stores.idempotency import SqlIdempotency
from maniflex.middleware.stores.port import ClaimState, IdempotencyStore
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.body import JSON_TYPE, check_type_of_kept, read_body
from maniflex.pipeline.chain import AnswerOfRow, AnswersEarly, EarlyAnswer
from maniflex.pipeline.context import AsgiScope, Context
from maniflex.pipeline.entry import ask
from maniflex.pipeline.registration import Next, callback_failure
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.threads import LARGE
from maniflex.sql.statement import Sql

_SETTLED = ClaimState.SETTLED  # to look a member up takes longer than all that is done with it


class IdempotencyUnavailable(Unavailable):
    """The store of the keys failed, so whether the request has run before is not known."""

    code, message = "IDEMPOTENCY_UNAVAILABLE", "the Idempotency-Key cannot be checked right now"


@dataclass(frozen=True, slots=True)
class KeyParts:
    """Options, claimer and store of one registration."""

    options: KeyOptions
    claimer: KeyClaimer
    store: IdempotencyStore
    settles_in_transaction: bool


class KeyedRequest(AnswersEarly):
    """Claims the key of a request to a model, and sees to it that it is settled or released."""

    __name__ = NAME
    reads_bytes = True
    reads_body: ClassVar[bool] = False  # where no step has read it

    def __init__(self, parts: KeyParts, route: str = "", *, is_of_files: bool = False) -> None:
        self._is_of_files = is_of_files
        self._parts = parts
        self._options = parts.options
        self._claimer = parts.claimer
        self._route = route  # empty: as the request says

    def __call__(self, ctx: Context, next: Next) -> Awaitable[None]:
        by_name = dict(ctx.scope["headers"])
        if KEY_HEADER in by_name or (self._options.is_required and ctx.nested_place is None):
            return self._answer_once(ctx, next, by_name)
        return next()

    async def _answer_once(self, ctx: Context, next: Next, by_name: Mapping[bytes, bytes]) -> None:
        """Claim the key and go on, or answer as the request was answered that has it."""
        body = ctx.raw_body
        if self.parse is not None:
            if body is None:
                body = await read_body(ctx, by_name=by_name)
            elif ctx.is_type_unchecked:
                check_type_of_kept(ctx)
        headers = read_headers(ctx.scope["headers"], by_name)
        if ctx.runtime.config.locale.from_header and self._has_texts(ctx):
            headers = msgspec.structs.replace(headers, language=ctx.locale)
        own = self._options.caller
        caller = caller_of(ctx, exact=True) if own is None else await _ask_for_caller(ctx, own)
        is_plain = ctx._query is None and not self._is_of_files and ctx.form is None
        if not is_plain or ctx.runtime.rules.scoped_models:  # a query may be bound
            caller = await self._caller_in_scope(ctx, caller)
        name = f"{len(caller)} {caller} {ctx.scope['method']} {self._route or _route_of(ctx)} {headers.key}"
        if body is None:
            body = await ctx.read_body() if self.reads_body else body_that_was_read(ctx)
        write = partial(fingerprint, ctx.scope, headers, body)
        wish = write() if len(body) <= LARGE else await ctx.runtime.offload.run(len(body), write)
        try:
            store = self._parts.store.on(ctx.adapter)
            sql_store = store if isinstance(store, SqlIdempotency) else None
            number = 0 if sql_store is None else sql_store.only_place
            place = (number or place_of(store) or id(store), name)
            claimer = self._claimer
            known_key = claimer.recall(place, wish, ctx)
            if known_key is None:
                if sql_store is not None and sql_store.expects_answers and place not in claimer.held:
                    known_key = sql_store.find_in(await sql_store.read_first(name), wish)
                    if known_key is not None:
                        claimer.note(place, wish, known_key)
                if known_key is None or known_key.state is not _SETTLED:
                    known_key = await claimer.find(ctx, store, place, wish, known_key=known_key)
        except Abort:
            raise
        except Exception as error:
            await self._run_without_key(ctx, error, next)
            return
        if known_key.state is not _SETTLED:
            await self._run(ctx, claimer.hold(ctx, store, place, wish, known_key.token), next)
            return
        if self.parse is not None and ctx._body is None and len(body) <= LARGE:
            ctx.unparsed = self.parse  # it was accepted before, so it can wait until code looks at it
        elif self.parse is not None and (work := self.parse(ctx)) is not None:
            await work
        outcome = replay_answer(ctx, name, known_key.answer)
        if outcome is not None:
            await outcome

    async def _run_without_key(self, ctx: Context, error: Exception, next: Next) -> None:
        """Go on although the store failed, where that is wanted."""
        if not self._options.runs_on_error:
            raise IdempotencyUnavailable(str(error)) from error
        ctx.logger.warning("a request runs without its Idempotency-Key: %s", error)
        await next()

    def _has_texts(self, ctx: Context) -> bool:
        """Whether the language of the request decides what its texts mean."""
        model: ModelMeta | None = ctx.model
        return model is not None and ctx.runtime.stores[model.cls].listings.own.locales is not None

    async def _caller_in_scope(self, ctx: Context, caller: str) -> str:
        """The caller within the rows that its request may touch, and within its files."""
        if ctx.forced:
            caller = f"{caller} in {scope_text(ctx.forced)}"
        if ctx.runtime.rules.scoped_models and (not ctx.forced or ctx.model is None):
            caller = f"{caller} bound to {await scopes_of_caller(ctx)}"
        if (self._is_of_files or ctx.form is not None) and ctx.runtime.config.file_scope is not None:
            # Files of another scope are not its caller's to name.
            owner = await owner_of(ctx, ctx.runtime.config.file_scope)
            caller = f"{caller} with files of {owner.scope}"
        return caller

    async def _run(self, ctx: Context, claim: HeldClaim, next: Next) -> None:
        ctx.key_claim = claim
        try:
            try:
                if ctx.tx is not None and shared_transaction() is None:
                    # It would settle the key after this, and keep twins waiting.
                    raise RuntimeError(f"{NAME}: {OUTSIDE}; open it on the service step")
                await next()
                if not claim.is_settled:
                    await self._finish(ctx, claim)
            except Exception as error:
                if not await self._is_taken(ctx, claim):
                    if not claim.is_settled:  # else the write is done, and code outside it failed
                        await self._release(ctx, claim)
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
            outcome = replay_answer(ctx, claim.name, successor.answer)
            if outcome is not None:
                await outcome

    async def _finish(self, ctx: Context, claim: HeldClaim) -> None:
        """Settle a key that was not settled with the write: nothing was written, or not in a transaction."""
        if ctx.response is None or status_of(ctx.response) < 400:
            await _answer_early(self, ctx)
        if status_of(ctx.response) >= 400:
            await self._release(ctx, claim)
            return
        share = shared_transaction()
        if share is not None and ctx.tx is not None:
            await self._finish_with_others(ctx, claim, share, ctx.tx)
            return
        try:
            await claim.settle(ctx)
        except ClaimLost:
            raise
        except Exception as error:  # what was done is done, and the client is told so
            ctx.logger.error("an idempotency key could not be settled: %s", error)
        else:
            claim.note_commit()

    async def _release(self, ctx: Context, claim: HeldClaim) -> None:
        """Let others have the key; a claim of the transaction that the request shares goes with that."""
        is_in_transaction = shared_transaction() is not None and ctx.tx is not None
        if not (is_in_transaction and self._parts.settles_in_transaction):
            await claim.release(ctx)

    async def _finish_with_others(
        self, ctx: Context, claim: HeldClaim, shared: SharedTransaction, tx: Tx
    ) -> None:
        """Settle the key when the transaction commits that the request shares with others."""
        if claim.until:  # settled along with what was written
            return
        if self._parts.settles_in_transaction:
            await claim.settle(ctx, tx)
        else:
            tx.after_commit(partial(claim.settle, ctx))
            shared.undo.append(partial(claim.release, ctx))

    async def _is_taken(self, ctx: Context, claim: HeldClaim) -> bool:
        """Whether an error comes of this: another request has taken the key and finished."""
        if claim.is_unsure and not claim.is_lost:  # a strict transaction fails where others see no row
            with suppress(Exception):  # then it stays the error that it is
                key = await claim.store.look(claim.name, claim.fingerprint, now=ctx.now())
                claim.is_lost = key.state is ClaimState.SETTLED
        return claim.is_lost


def _route_of(ctx: Context) -> str:
    """The route that a request was sent to."""
    return ctx.route or str(ctx.scope["path"])


async def _ask_for_caller(ctx: Context, own: Callable[[Context], Any]) -> str:
    caller = await ask(ctx, own, ctx)
    if caller is None or caller == "":  # callers without a name would see each other's answers
        raise callback_failure(own) from ValueError(f"caller= gave {caller!r}, which names no caller")
    return f"own {caller}"


class KeyedWrite(AnswersEarly):
    """Opens the transaction in which the rows are written, the answer is made and the key is settled.

    Of a create that has nothing else in its way, answer and key follow from the row alone: the write seam
    stores the settled key along with it.
    """

    _of_row: AnswerOfRow | None = None

    def take_place(self, early_answer: EarlyAnswer, *, before_row: bool) -> None:
        super().take_place(early_answer, before_row=before_row)
        self._of_row = early_answer.of_row if before_row else None

    def __call__(self, ctx: Context, next: Next) -> Awaitable[None]:
        return next() if ctx.key_claim is None else self._write(ctx, ctx.key_claim, next)

    async def _write(self, ctx: Context, claim: HeldClaim, next: Next) -> None:
        selects = ctx._query is not None and ctx._query.select is not None
        is_answered = ctx.response is not None or ctx._result is not None
        if self._of_row is None or is_answered or selects or ctx.tx is not None:
            await _write_and_settle(self, ctx, claim, next)
            return
        ctx.write_guard = settlement = KeySettlement(ctx, claim, self._of_row)
        try:
            await next()
        except CommitRefused as error:
            claim.is_lost = True
            raise ClaimLost(claim.name) from error
        finally:
            ctx.write_guard = None
        claim.note_commit()
        ctx.response = ctx.early_response = settlement.answer


class KeySettlement:
    """The guard of a create: settles a key with the answer that the new row makes."""

    __slots__ = ("_answer_of_row", "_claim", "_ctx", "answer")

    def __init__(self, ctx: Context, claim: HeldClaim, answer_of_row: AnswerOfRow) -> None:
        self._ctx = ctx
        self._claim = claim
        self._answer_of_row = answer_of_row
        self.answer: Response | None = None

    def __call__(self, row: Row) -> Sql:
        self.answer = self._answer_of_row(row)
        return self._claim.settlement(self._ctx, self.answer)


class KeyedAction(KeyedRequest):
    """Claims the key of a request to an action, and settles it in the transaction around the handler."""

    reads_body = True

    async def enclose(self, ctx: Context, call: Callable[[], Awaitable[None]]) -> None:
        if ctx.key_claim is None or not self._options.in_transaction:
            await call()
        elif self._parts.settles_in_transaction:
            await _write_and_settle(self, ctx, ctx.key_claim, call)
        else:
            async with ctx.transaction():
                await call()


# Gives the database of the transaction that an action wants around it; None where it wants none.
Surround = Callable[[Context], AbstractAsyncContextManager[Adapter | None]]


class KeyedBatch(KeyedAction):
    """Claims the key of a batch, and settles it in the transaction of that, if it is one of this database."""

    def __init__(self, parts: KeyParts, surround: Surround) -> None:
        super().__init__(parts)
        self._surround = surround

    async def enclose(self, ctx: Context, call: Callable[[], Awaitable[None]]) -> None:
        async with self._surround(ctx) as adapter:
            if ctx.key_claim is None or adapter is not ctx.adapter:
                await call()
            else:
                await _write_and_settle(self, ctx, ctx.key_claim, call)


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


# What a request says of itself: its key, who sent it, and what it asks for.


KEY_HEADER = b"idempotency-key"
_BOUNDARY = re.compile(rb'multipart/[^;]*;(?:.*;)?\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")


class KeyHeaders(msgspec.Struct, frozen=True, gc=False):
    """The headers of a request that say which it is."""

    key: str
    if_match: bytes = b""
    content_type: bytes = b""
    language: str = ""  # that the header chooses, where a text without one is written in it


def read_headers(headers: Sequence[tuple[bytes, bytes]], by_name: Mapping[bytes, bytes]) -> KeyHeaders:
    """The key of a request; 400 where none was sent, or several, or one that is none."""
    key = by_name.get(KEY_HEADER)
    if key is None:
        raise Abort(400, "IDEMPOTENCY_KEY_REQUIRED", "this route needs an Idempotency-Key")
    if len(by_name) == len(headers) and _KEY.fullmatch(key):  # as good as every request
        if_match = by_name[b"if-match"] + b"," if b"if-match" in by_name else b""
        return KeyHeaders(key.decode("ascii"), if_match, by_name.get(b"content-type", b""))
    keys = [value for name, value in headers if name == KEY_HEADER]
    if len(keys) > 1 or not _KEY.fullmatch(key):
        raise Abort(
            400,
            "IDEMPOTENCY_KEY_INVALID",
            "Idempotency-Key takes 1 to 255 visible ASCII characters and is sent once",
        )
    if_match = b"".join(value + b"," for name, value in headers if name == b"if-match")
    return KeyHeaders(key.decode("ascii"), if_match, by_name.get(b"content-type", b""))


def fingerprint(scope: AsgiScope, headers: KeyHeaders, body: bytes) -> str:
    """What the request asks for: two that differ in it cannot be the same request sent twice."""
    path, query, if_match = scope["path"], scope["query_string"], headers.if_match
    if not query and not if_match and path.isascii():  # the usual case of what stands below
        head = f"{len(path)} 0 0 {path}".encode()
    else:
        path = path.encode("utf-8", "surrogatepass")
        head = b"%d %d %d %b%b%b" % (len(path), len(query), len(if_match), path, query, if_match)
    if headers.language:
        head = b"%d %b %b" % (len(headers.language), headers.language.encode(), head)
    if headers.content_type == JSON_TYPE and len(body) <= LARGE:
        return sha256(head + body).hexdigest()
    boundary = _BOUNDARY.match(headers.content_type)
    if boundary is None:
        digest = sha256(head)
        digest.update(body)
        return digest.hexdigest()
    digest = sha256(head)  # the boundary a client makes up anew for each attempt; no part has it within
    for part in body.split(b"--" + (boundary[1] or boundary[2])):
        digest.update(b"%d " % len(part))
        digest.update(part)
    return digest.hexdigest()


def body_that_was_read(ctx: Context) -> bytes:
    """What a step has read in place of a body of JSON; a delete and a restore read nothing."""
    if ctx.form is not None:  # which is sent twice with two boundaries
        digest: bytes = ctx.form.digest
        return digest
    body: bytes = getattr(ctx._request, "_body", b"")
    return body
