"""`db.rate_limit` and `db.rate_limit_field`: budgets of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar

from maniflex.errors import EmptyBody, InvalidJson
from maniflex.middleware.db.callers import caller_of
from maniflex.middleware.db.limiter import Limiter
from maniflex.middleware.stores.port import Duration, RateLimitBackend
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Seat, ask, require_field
from maniflex.pipeline.entry_docs import BODY_REFUSALS, EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next

_FIRST = -100  # before whatever else stands there
_LAST = 1000  # behind everything that says who is asking
Key = Callable[[Context], Any]


class RateLimit(Entry):
    """A bucket for each caller, model and operation; in actions for each caller and route."""

    name = "db.rate_limit"
    homes: ClassVar = {"db": ANYWHERE, "auth": ANYWHERE}
    in_actions = True
    guards_files = True
    skips_reached = True

    def __init__(self, limiter: Limiter, key: Any) -> None:
        super().__init__()
        self._limiter = limiter
        self._key: Key | None = key
        self.stores = (limiter.backend,)
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
    homes: ClassVar = {"deserialize": (At.AFTER,), "validate": ANYWHERE, "db": ANYWHERE}
    in_actions = True
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE})

    def __init__(self, field: str, limiter: Limiter) -> None:
        super().__init__()
        self._field = field
        self._limiter = limiter
        self.fields = (field,)
        self.stores = (limiter.backend,)
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
