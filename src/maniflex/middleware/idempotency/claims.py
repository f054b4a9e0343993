"""Claims keys for requests: of twins one gets the key, the others wait for what comes of it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from maniflex._caller import act_on
from maniflex.db.current import detached_context
from maniflex.db.port import Tx
from maniflex.encryption.keyring import SEALED_COPY
from maniflex.errors import Abort, EncryptionError
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.stores.idempotency import SqlIdempotency
from maniflex.middleware.stores.port import (
    ClaimState,
    IdempotencyStore,
    KeyClaim,
    length_of,
    mistakes_of,
    nanoseconds_after,
)
from maniflex.model.field import size_in_bytes
from maniflex.model.meta import ModelMeta
from maniflex.model.texts import localized_fields
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import JSON, Response
from maniflex.pipeline.rules.redactions import write_for_caller
from maniflex.sql.statement import Sql

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
        self.held: dict[Place, HeldClaim] = {}  # by requests of this process
        # Keys that the store is being asked for, by fingerprint too, and what their twins here wait for.
        self._asked: dict[tuple[Place, str], asyncio.Future[KeyClaim | None] | None] = {}
        self._settled = SettledKeys()
        self._looked_up: list[Place | None] = [None] * _SEATS  # by hash, the last of each seat
        self._renewals: Renewals | None = None

    def forget_answers(self) -> None:
        """Forget every key that this process has settled: the store alone knows what may be said again."""
        self._settled = SettledKeys()
        self._looked_up = [None] * _SEATS

    def recall(self, place: Place, fingerprint: str, ctx: Context) -> KeyClaim | None:
        """A key that this process has settled; refuses another fingerprint."""
        key = self._settled.keys.get(place)
        if key is None:
            return None
        if key.claim.until <= ctx.runtime.nanoseconds():
            self._settled.drop(place)
            return None
        self._settled.keys.move_to_end(place)
        if key.fingerprint != fingerprint:
            raise _reuse_refusal()
        return key.claim

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
        if place in self.held or question in self._asked:
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
            if place not in self.held and (place, fingerprint) not in self._asked:
                return await self.find(ctx, store, place, fingerprint, claims=claims, end=end)

    def hold(
        self, ctx: Context, store: IdempotencyStore, place: Place, fingerprint: str, token: str
    ) -> HeldClaim:
        """The claim of a key that was found free."""
        claim = HeldClaim(store, place, fingerprint, token, self._options, ctx)
        self.held[place] = claim
        if self._renewals is None or self._renewals.loop is not claim.loop:
            self._renewals = Renewals(claim.loop, self._options.lease / 6, self.held)
        self._renewals.wake()
        return claim

    def end(self, claim: HeldClaim) -> None:
        """The request is over; its twins may go on."""
        del self.held[claim.place]
        if claim.is_settled:
            key = KeyClaim(ClaimState.SETTLED, answer=claim.answer, until=claim.until)
            self._settled.note(claim.place, claim.fingerprint, key)
        claim.end()

    async def _wait_for_twin(
        self, place: Place, fingerprint: str, seconds: float
    ) -> tuple[bool, KeyClaim | None]:
        """Whether to ask the store after all, and what a twin in this process has left."""
        if (twin := self.held.get(place)) is not None:
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


# The arguments of `idempotency.keys`, checked.


NAME = "idempotency.keys"
OUTSIDE = "it claims its key outside any transaction"
ON_ERROR = ("refuse", "run")
_STORE = ("on", "claim", "look", "renew", "settle", "release")


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """How keys are taken and kept; durations in seconds."""

    ttl: float
    wait: float
    lease: float
    max_answer: int
    is_required: bool
    runs_on_error: bool
    in_transaction: bool
    caller: Callable[[Context], Any] | None


def option_mistakes(arguments: dict[str, Any]) -> Iterator[str]:
    """The mistakes in the arguments, one sentence each."""
    seconds = {}
    for name in ("ttl", "wait", "lease"):
        value = arguments[name]
        duration = as_timedelta(value)
        if duration < timedelta(0):
            yield f"{name}={value!r} is not a time: give seconds or a timedelta"
        else:
            seconds[name] = duration.total_seconds()
    if seconds.get("lease", 1) < 1:
        yield f"lease={arguments['lease']!r} is less than a second"
    elif "ttl" in seconds and "lease" in seconds and seconds["ttl"] <= seconds["lease"]:
        yield f"ttl={arguments['ttl']!r} is not more than the lease of {seconds['lease']:g} s"
    if size_in_bytes(arguments["max_answer"]) is None:
        yield f"max_answer={arguments['max_answer']!r} is not a size such as 1MB"
    if arguments["on_error"] not in ON_ERROR:
        yield f"on_error={arguments['on_error']!r} is neither 'refuse' nor 'run'"
    for name in ("required", "transaction"):
        if not isinstance(arguments[name], bool):
            yield f"{name}={arguments[name]!r} is neither True nor False"
    if arguments["caller"] is not None and not callable(arguments["caller"]):
        yield f"caller={arguments['caller']!r} is not a function of (ctx)"
    store = arguments["store"]
    missing = [name for name in _STORE if not callable(getattr(store, name, None))]
    if missing:
        yield f"store={store!r} has no {missing[0]}(); use one of maniflex.middleware.stores"
    yield from mistakes_of((store,))


# The claim of a key that a running request holds: renewed while it runs, settled or released at its end.


class ClaimLost(Exception):
    """Another request has the key by now, so nothing of this one may be committed."""


class HeldClaim:
    """One key, claimed by one request."""

    # On the class, so that a claim sets only what it has.
    answer: bytes | None = None
    until = 0  # of the settled key, in nanoseconds since 1970
    is_settled = False  # and committed
    is_lost = False
    is_unsure = False  # the statement that settles it has failed
    _twins: asyncio.Future[KeyClaim | None] | None = None
    _renewing: asyncio.Task[None] | None = None
    _is_old = False

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
        self._runtime = ctx.runtime
        self._headers_before = 0 if ctx.extra_headers is None else len(ctx.extra_headers)
        self._calls_before = 0 if ctx._after is None else len(ctx._after)
        self.loop = asyncio.get_running_loop()

    # -- its end

    async def settle(self, ctx: Context, tx: Tx | None = None) -> None:
        """Keep the answer, in the transaction if there is one; `ClaimLost` when the key is another's."""
        answer = self._seal(ctx, await keep_answer(ctx, self._headers_before, self._options.max_answer))
        self.is_unsure, now = True, self._runtime.clock.now()
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
        answer = await keep_answer(ctx, self._headers_before, self._options.max_answer)
        self.answer = self._seal(ctx, answer)
        self.is_unsure, self.until = True, self._runtime.nanoseconds() + length_of(self._options.ttl)
        self.store.settle_with_commit(self.name, self._token, self.answer, self.until, tx)

    def settlement(self, ctx: Context, response: Response) -> Sql:
        """The statement that keeps this answer; until `note_commit`, whether it has run is not known."""
        assert isinstance(self.store, SqlIdempotency)
        answer = keep_response(ctx, response, self._headers_before, self._options.max_answer)
        self.answer = self._seal(ctx, answer)
        self.is_unsure, self.until = True, self._runtime.nanoseconds() + length_of(self._options.ttl)
        return self.store.settlement(self.name, self._token, self.answer, self.until)

    def _seal(self, ctx: Context, answer: bytes | None) -> bytes | None:
        """The answer as it may be stored beside encrypted fields, whose values it may show."""
        return None if answer is None else ctx.runtime.keys.seal_copy(answer, _LABEL, self.name)

    def note_commit(self) -> None:
        """What settled the key is committed."""
        self.is_settled, self.is_unsure = True, False

    async def release(self, ctx: Context) -> None:
        """Give the key back; should that fail, its lease ends by itself."""
        try:
            with act_on(self._runtime.adapter):
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
            with suppress(Exception), act_on(self._runtime.adapter):
                now = self._runtime.clock.now()
                is_ours = await self.store.renew(self.name, self._token, lease=self._options.lease, now=now)
            await asyncio.sleep(self._options.lease / 3)


# Keys whose answer this process has given: final until their time is over, so nothing is asked.


Place = tuple[int, str]  # the number of a store, and the name of a key in it
_MOST_BYTES = 4 * 1024 * 1024
_ENTRY = 1000  # bytes that one takes besides its answer
REUSED = KeyClaim(ClaimState.REUSED)


class _SettledKey(msgspec.Struct, frozen=True, gc=False):
    fingerprint: str
    claim: KeyClaim
    size: int


class SettledKeys:
    """Those that were asked for last; the others make room."""

    def __init__(self) -> None:
        # Not a dict, which looks for its first key past all those that made room before.
        self.keys: OrderedDict[Place, _SettledKey] = OrderedDict()
        self._bytes = 0

    def note(self, place: Place, fingerprint: str, key: KeyClaim) -> None:
        """Remember a settled key that says how long it counts."""
        keys, answer = self.keys, key.answer
        if place in keys:
            self.drop(place)
        size = _ENTRY if answer is None else _ENTRY + len(answer)
        keys[place] = _SettledKey(fingerprint, key, size)
        self._bytes += size
        while self._bytes > _MOST_BYTES:
            self._bytes -= keys.popitem(last=False)[1].size

    def drop(self, place: Place) -> None:
        """Forget the key, whose time is over."""
        self._bytes -= self.keys.pop(place).size


# An answer as it is kept beside the rows it speaks of, and given again.


_REPLAYED = ((b"idempotent-replayed", b"true"),)
# These belong to a request, not to what came of it.
_OF_REQUEST = ("x-request-id", "access-control-", "ratelimit-")


class _KeptAnswer(msgspec.Struct, array_like=True):
    status: int
    content_type: str
    headers: dict[str, str] | None
    added_headers: list[tuple[bytes, bytes]]  # by `ctx.add_header`
    body: bytes
    models: list[str] = []  # whose records an action showed, as far as they have fields to redact


_LABEL = "idempotency_key.answer"  # what a sealed answer is bound to, with the name of its key
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_KeptAnswer).decode


async def keep_answer(ctx: Context, headers_before: int, most: int) -> bytes | None:
    """The answer as bytes to store; None for one that cannot be given twice.

    `headers_before` counts the headers of the time before the claim: a repetition adds those itself.
    """
    response: Any = ctx.response
    if type(response) is not Response or response.stream is not None:
        return None
    if response.body is None:
        body = await write_for_caller(ctx, response)
        if body:
            response.body = body  # as it is sent, too
    return keep_response(ctx, response, headers_before, most)


def keep_response(ctx: Context, response: Response, headers_before: int, most: int) -> bytes | None:
    """The bytes to store of an answer whose body is written already."""
    if ctx.keeps_answer_secret:
        return None
    own_headers = ctx.extra_headers[headers_before:] if ctx.extra_headers is not None else []
    headers = response.headers
    if headers:  # code that sets the whole of them may write their names in any case
        headers = {name.lower(): value for name, value in headers.items()}
    if own_headers and any(name == b"set-cookie" for name, _ in own_headers):
        return None
    if headers and "set-cookie" in headers:
        return None
    body = response.body or b""
    if len(body) > most:
        return None
    if headers:
        headers = {name: value for name, value in headers.items() if not name.startswith(_OF_REQUEST)}
    if own_headers:
        own_headers = [
            (name, value) for name, value in own_headers if not name.decode().startswith(_OF_REQUEST)
        ]
    models = list(ctx.shown_models)
    return _encode(_KeptAnswer(response.status, response.content_type, headers, own_headers, body, models))


def replay_answer(ctx: Context, name: str, answer: bytes | None) -> Awaitable[None] | None:
    """Answer as the first request was answered; 409 when its answer was not kept.

    Fields that have been hidden from the caller since are left out, which is to be awaited.
    """
    if answer is not None and answer[: len(SEALED_COPY)] == SEALED_COPY:  # quicker than `startswith`
        answer = _open(ctx, name, answer)
    if answer is None:
        raise Abort(
            409,
            "IDEMPOTENCY_NOT_REPLAYABLE",
            "a request with this Idempotency-Key has succeeded, and its answer cannot be given again",
        )
    first = _decode(answer)
    response = Response(first.status, body=first.body or None, content_type=first.content_type)
    response.headers, response.marks = first.headers, _REPLAYED
    if first.added_headers:
        ctx.extra_headers = [*(ctx.extra_headers or ()), *first.added_headers]
    ctx.response = ctx.early_response = response
    return _hide_since(ctx, response, first.models) if ctx.runtime.rules.has_redactions else None


def _open(ctx: Context, name: str, answer: bytes) -> bytes | None:
    """The bytes of a kept answer; None where its key is gone."""
    try:
        return ctx.runtime.keys.open_copy(answer, _LABEL, name)
    except EncryptionError as error:
        ctx.logger.warning("a kept answer does not open: %s", error.problem)
        return None


async def _hide_since(ctx: Context, response: Response, models: Sequence[str]) -> None:
    """Leave out what the caller of today may not see."""
    names = await _hidden_names(ctx, models)
    if names and response.body and response.content_type == JSON:
        response.body = msgspec.json.encode(_without(msgspec.json.decode(response.body), names))
        if response.headers:
            response.headers.pop("etag", None)  # it was made of what the caller saw


async def _hidden_names(ctx: Context, models: Sequence[str]) -> frozenset[str]:
    """The keys that this caller may not see in the records of an answer."""
    stores = ctx.runtime.stores
    classes = [store.meta.cls for store in stores.values() if store.meta.name in models]
    about: ModelMeta | None = ctx.model
    names: frozenset[str] = frozenset()
    for model in dict.fromkeys(classes if about is None else [about.cls, *classes]):
        hidden_names = await ctx.redacted(model)
        texts = localized_fields(stores[model].meta)
        names |= {*hidden_names, *(rules.companion for field, rules in texts if field.api in hidden_names)}
    return names


def _without(value: Any, names: frozenset[str]) -> Any:
    """The JSON value without these keys: they are left out of records at any level."""
    if isinstance(value, dict):
        return {name: _without(part, names) for name, part in value.items() if name not in names}
    return [_without(part, names) for part in value] if isinstance(value, list) else value
