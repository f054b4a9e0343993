"""`db.rate_limit` and `db.rate_limit_field`: budgets of requests."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar

from maniflex.errors import Abort, EmptyBody, InvalidJson, RequestError, Unavailable
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.db.query_text import caller_of
from maniflex.middleware.stores.form import place_of
from maniflex.middleware.stores.port import Duration, RateLimitBackend, Taken, mistakes_of, seconds_of
from maniflex.middleware.stores.rate_limits import SqlRateLimit
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    BODY_REFUSALS,
    Entry,
    EntryDocs,
    Kept,
    Piece,
    Seat,
    Trait,
    answer_header,
    ask,
    require_field,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, FILES, At, Middleware, Next

_FIRST = -100  # before whatever else stands there
_LAST = 1000  # behind everything that says who is asking
Key = Callable[[Context], Any]


class RateLimit(Entry):
    """A bucket for each caller, model and operation; in actions for each caller and route."""

    name = "db.rate_limit"
    homes: ClassVar = {"db": ANYWHERE, "auth": ANYWHERE, ACTION: ANYWHERE, FILES: ANYWHERE}
    traits = Trait.SKIPS_REACHED

    def __init__(self, limiter: Limiter, key: Any) -> None:
        super().__init__()
        self._limiter = limiter
        self._key: Key | None = key
        self.keeps = Kept((limiter.backend,))
        self.mistakes += limiter.mistakes
        if key is not None and not callable(key):
            self.mistakes.append(f"key={key!r} is not a function of (ctx)")

    @property
    def label(self) -> str:
        return self._limiter.label

    @property
    def terms(self) -> str:
        return self._limiter.terms

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """On `db` it acts when the auth step is over, before anything is read; on `auth` where it stands."""
        if seat.step == "auth":
            return (Piece("auth", self.make, seat.at),)
        return (
            Piece("deserialize", self.make, At.BEFORE, _FIRST),
            Piece("auth", self._make_for_files, At.AFTER, _LAST),  # their routes have no other step
        )

    def _make_for_files(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        is_of_files = operation in Operation.FILES or operation is Operation.PRESIGN_UPLOAD
        return self.make(model, operation) if is_of_files else None

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if operation is Operation.OPTIONS:
            return None
        start = f"{self.label}#{self.number} "
        if operation in Operation.FILES:  # HEAD too, so that it is no way around the limit of reads
            return partial(self._limit, f"{start}files {operation} ")
        if model is None:
            return partial(self._limit_route, start)
        if operation is not Operation.HEAD:
            return partial(self._limit, f"{start}{model.name} {operation} ")
        if model.options.singleton:
            return partial(self._limit, f"{start}{model.name} {Operation.READ} ")
        return partial(self._limit_head, f"{start}{model.name} ")

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return None if operation is Operation.OPTIONS else self._limiter.docs()

    async def _limit(self, bucket: str, ctx: Context, next: Next) -> None:
        if ctx.parent is not None:  # a model that a request reaches: the request is counted where it goes
            await next()
            return
        caller = caller_of(ctx) if self._key is None else await self._own_key(ctx)
        if caller is None:
            await next()
        else:
            await self._limiter(bucket + caller, ctx, next)

    async def _limit_route(self, start: str, ctx: Context, next: Next) -> None:
        """In an action or search: the path as it was declared, so that ids in it make no new buckets."""
        await self._limit(f"{start}{ctx.scope['method']} {ctx.route or ctx.scope['path']} ", ctx, next)

    async def _limit_head(self, start: str, ctx: Context, next: Next) -> None:
        operation = Operation.READ if ctx.resource_id else Operation.LIST
        await self._limit(f"{start}{operation} ", ctx, next)

    async def _own_key(self, ctx: Context) -> str | None:
        assert self._key is not None
        key = await ask(ctx, self._key, ctx)
        return None if key is None else f"key {key}"


class RateLimitField(Entry):
    """A bucket for each value of a field of the body, for all callers together."""

    name = "db.rate_limit_field"
    homes: ClassVar = {"deserialize": (At.AFTER,), "validate": ANYWHERE, "db": ANYWHERE, ACTION: ANYWHERE}
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE})

    def __init__(self, field: str, limiter: Limiter) -> None:
        super().__init__()
        self._field = field
        self._limiter = limiter
        self.fields = (field,)
        self.keeps = Kept((limiter.backend,))
        self.mistakes += limiter.mistakes

    @property
    def label(self) -> str:
        return f"{self._limiter.label} {self._field}"

    @property
    def terms(self) -> str:
        return f"{self._field}: {self._limiter.terms}"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """Wherever it is registered, it acts as soon as the body is read, before it is validated."""
        return (Piece("deserialize", self.make, At.AFTER, _FIRST),)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        start = f"{self.label}#{self.number} "
        if model is None:
            return partial(self._limit_action, start) if operation is Operation.ACTION else None
        if operation not in self.acts_for:
            return None
        name = require_field(model, self._field).api
        return partial(self._limit_body, f"{start}{model.name} {operation} ", name)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        docs = self._limiter.docs()
        if model is None and operation is Operation.ACTION:
            return replace(docs, refusals={**docs.refusals, **BODY_REFUSALS, 415: ["UNSUPPORTED_MEDIA_TYPE"]})
        return docs if model is not None and operation in self.acts_for else None

    async def _limit_body(self, bucket: str, name: str, ctx: Context, next: Next) -> None:
        await self._limit(bucket, ctx.body.get(name), ctx, next)

    async def _limit_action(self, start: str, ctx: Context, next: Next) -> None:
        try:
            values = await ctx.bind_json()
        except (EmptyBody, InvalidJson):  # it has no such field; the handler says what it thinks of it
            values = None
        value = values.get(self._field) if isinstance(values, dict) else None
        bucket = f"{start}{ctx.scope['method']} {ctx.route or ctx.scope['path']} "
        await self._limit(bucket, value, ctx, next)

    async def _limit(self, bucket: str, value: Any, ctx: Context, next: Next) -> None:
        if value is None:
            await next()
        else:
            await self._limiter(bucket + _digest(value), ctx, next)


def _digest(value: Any) -> str:
    """The value as people take it for the same, trimmed and without case, hashed."""
    text = value.strip().casefold() if isinstance(value, str) else repr(value)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def rate_limit(
    limit: int = 60,
    window: Duration = 60,
    *,
    key: Key | None = None,
    cost: int = 1,
    backend: RateLimitBackend | None = None,
    message: str | None = None,
    on_error: str = "refuse",
) -> RateLimit:
    """Let each caller make `limit` requests at once, and as many over each `window`; then 429.

    `key(ctx)` names the caller instead; None is not limited. The buckets are in the server's database
    unless `backend` is another. When that fails requests are refused with 503, or pass with
    `on_error="allow"`.
    """
    options: dict[str, Any] = {"cost": cost, "backend": backend, "message": message, "on_error": on_error}
    return RateLimit(Limiter(RateLimit.name, limit, window, **options), key)


def rate_limit_field(
    field: str,
    limit: int,
    window: Duration,
    *,
    backend: RateLimitBackend | None = None,
    message: str | None = None,
) -> RateLimitField:
    """Limit the requests of all callers that carry one value of a field, such as an e-mail address."""
    limiter = Limiter(RateLimitField.name, limit, window, backend=backend, message=message)
    return RateLimitField(field, limiter)


# Takes tokens for requests and refuses those for which there is none.


MOST_REQUESTS = 1_000_000_000
ON_ERROR = ("refuse", "allow")
_MESSAGE = "too many requests; try again later"
_MOST_EMPTY = 10_000  # buckets that are remembered as empty
_LOG_EVERY = 60.0  # seconds


_HEADERS = {
    "RateLimit-Limit": answer_header("How many requests the caller may make at once.", "integer"),
    "RateLimit-Remaining": answer_header("How many are left.", "integer"),
    "RateLimit-Reset": answer_header("In how many seconds all are there again.", "integer"),
}


class RateLimitUnavailable(Unavailable):
    """The backend of a limit failed, so whether the request may pass is not known."""

    code, message = "RATE_LIMIT_UNAVAILABLE", "the limit of requests cannot be checked right now"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the answer says of a limit: the tightest of those that the request passed."""

    limit: int
    remaining: int
    reset: int  # seconds until the bucket is full

    def is_tighter_than(self, other: Allowance) -> bool:
        return (self.remaining, -self.reset) < (other.remaining, -other.reset)


NO_ALLOWANCE = Allowance(0, sys.maxsize, 0)  # before the first bucket has answered


Bucket = tuple[int, str]  # the place of a backend, and a key in it


class EmptyBuckets:
    """Buckets that are known to be empty until a moment, so that a flood costs no statements."""

    def __init__(self, window: timedelta) -> None:
        self._window = window
        self._until: dict[Bucket, datetime] = {}

    def wait(self, key: Bucket, now: datetime) -> float:
        """Seconds until the bucket has a token again; 0 when it may have one."""
        until = self._until.get(key)
        if until is None:
            return 0.0
        wait = until - now
        if timedelta(0) < wait <= self._window:  # more would be from a clock that ran ahead
            return wait.total_seconds()
        del self._until[key]
        return 0.0

    def note(self, key: Bucket, now: datetime, wait: float) -> None:
        if len(self._until) >= _MOST_EMPTY:
            self._until = {name: until for name, until in self._until.items() if until > now}
            if len(self._until) >= _MOST_EMPTY:
                del self._until[next(iter(self._until))]
        self._until[key] = now + timedelta(seconds=wait)


class Limiter:
    """One limit: its size, its backend and what happens when that fails."""

    def __init__(
        self,
        name: str,
        limit: int,
        window: Duration,
        *,
        cost: int = 1,
        backend: RateLimitBackend | None = None,
        message: str | None = None,
        on_error: str = "refuse",
    ) -> None:
        self.backend: RateLimitBackend = SqlRateLimit() if backend is None else backend
        self.mistakes = list(_mistakes(limit, window, cost, self.backend, on_error))
        self.limit, self.window, self.cost = limit, window, cost
        self._seconds = 1.0 if self.mistakes else seconds_of(window)
        self.terms = f"{limit} in {self._seconds:g} s"
        self.label = f"{name} {self.terms} for {cost}"
        self.unlimited = 0  # requests that passed because the backend failed
        self._message = message or _MESSAGE
        self._allows_on_error = on_error == "allow"
        self._empty = EmptyBuckets(timedelta(seconds=self._seconds))
        self._logged_at = -math.inf

    def docs(self) -> EntryDocs:
        """What the API description says of a route that has this limit."""
        refusals = {429: ["RATE_LIMITED"], 503: ["RATE_LIMIT_UNAVAILABLE"]}
        if self._allows_on_error:
            del refusals[503]
        return EntryDocs(refusals=refusals, refusal_headers={429: _HEADERS}, answer_headers=_HEADERS)

    async def __call__(self, key: str, ctx: Context, next: Next) -> None:
        """Let the request pass if the bucket of that key has tokens for it."""
        is_outermost = ctx.allowance is None
        if is_outermost:
            ctx.allowance = NO_ALLOWANCE
        try:
            await self._take(key, ctx)
            await next()
        finally:
            if is_outermost and ctx.allowance is not NO_ALLOWANCE:
                _show(ctx, ctx.allowance)

    async def _take(self, key: str, ctx: Context) -> None:
        now = ctx.now()
        bucket = place_of(self.backend), key  # of this server alone, and of this start
        wait = self._empty.wait(bucket, now)
        if wait:
            answer = Taken(False, 0, wait)
        else:
            try:
                answer = await self.backend.take(key, self.limit, self.window, self.cost, now)
            except Exception as error:
                self._fail(ctx, error)
                return
        self._note(ctx, answer)
        if not answer.allowed:
            if not wait:
                self._empty.note(bucket, now, answer.retry_after)
            refusal = Abort(
                429, "RATE_LIMITED", self._message, headers={"retry-after": _whole(answer.retry_after)}
            )
            refusal.retryable = True
            raise refusal

    def _note(self, ctx: Context, answer: Taken) -> None:
        reset = math.ceil((self.limit - answer.remaining) * self._seconds / self.limit)
        allowance = Allowance(self.limit, answer.remaining, reset)
        if allowance.is_tighter_than(ctx.allowance):
            ctx.allowance = allowance

    def _fail(self, ctx: Context, error: Exception) -> None:
        """Refuse the request, or let it pass and say so once a minute."""
        if not self._allows_on_error:
            raise RateLimitUnavailable(str(error)) from error
        self.unlimited += 1
        if time.monotonic() - self._logged_at >= _LOG_EVERY:
            self._logged_at = time.monotonic()
            ctx.logger.warning(
                "%s: the backend failed, requests pass unlimited (%d so far): %s",
                self.label,
                self.unlimited,
                error,
                exc_info=None if isinstance(error, RequestError) else error,
            )


def _show(ctx: Context, allowance: Allowance) -> None:
    ctx.add_header("ratelimit-limit", str(allowance.limit))
    ctx.add_header("ratelimit-remaining", str(allowance.remaining))
    ctx.add_header("ratelimit-reset", str(allowance.reset))


def _whole(seconds: float) -> str:
    """For `Retry-After`: whole seconds, at least one, and never too few."""
    return str(max(math.ceil(seconds), 1))


def _mistakes(limit: Any, window: Any, cost: Any, backend: Any, on_error: Any) -> Iterator[str]:
    if type(limit) is not int or not 1 <= limit <= MOST_REQUESTS:
        yield f"limit={limit!r} is not a number of requests, which is 1 to {MOST_REQUESTS}"
    elif type(cost) is not int or not 1 <= cost <= limit:
        yield f"cost={cost!r} is not a number of tokens from 1 to the limit, {limit}"
    if as_timedelta(window) <= timedelta(0):
        yield f"window={window!r} is not a time: give seconds or a timedelta"
    if on_error not in ON_ERROR:
        yield f"on_error={on_error!r} is neither 'refuse' nor 'allow'"
    if not callable(getattr(backend, "take", None)):
        yield f"backend={backend!r} has no take(); use one of maniflex.middleware.stores"
    yield from mistakes_of((backend,))
