"""Takes tokens for requests and refuses those for which there is none."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from maniflex.errors import Abort, RequestError, Unavailable
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.stores.form import place_of
from maniflex.middleware.stores.port import Duration, RateLimitBackend, Taken, mistakes_of
from maniflex.middleware.stores.rate_limits import SqlRateLimit
from maniflex.middleware.stores.units import seconds_of
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry_docs import EntryDocs, answer_header
from maniflex.pipeline.registration import Next

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
