"""`response.cache`: how long clients may keep the answers to reads, and how they ask whether one has changed.

The tag is made of the bytes of the answer, as this caller would get them; a caller whose tag is still the
answer's gets 304 and no body. That saves the way, not the work: the rows are read all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.response.header import CACHE, header_mistakes
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    Entry,
    EntryDocs,
    Piece,
    Placement,
    Seat,
    Trait,
    answer_header,
    header_parameter,
)
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import Middleware, Next, Registration, is_exemption
from maniflex.pipeline.response import Response, digest_of, names_tag
from maniflex.pipeline.rules.redactions import write_for_caller
from maniflex.query.query import reachable_models

_READS = frozenset(Operation(name) for name in Operation.READS)


def cache(
    max_age: timedelta | float = 0,
    *,
    public: bool = False,
    no_store: bool = False,
    vary: Sequence[str] = (),
    etag: bool = True,
    shared: bool = False,
) -> Cache:
    """Let clients keep answers to reads for `max_age`, and ask with `If-None-Match` whether they changed.

    Without `public`, only the caller's own cache may; `shared` says that `vary` covers how answers differ.
    """
    return Cache(max_age, public=public, no_store=no_store, vary=vary, etag=etag, shared=shared)


class Cache(Entry):
    """Adds `Cache-Control`, `Vary` and `ETag` to successful reads; answers 304 to a caller that has them."""

    name = "response.cache"
    homes: ClassVar = {"response": ANYWHERE}
    acts_for = _READS

    def __init__(
        self,
        max_age: timedelta | float,
        *,
        public: bool,
        no_store: bool,
        vary: Sequence[str],
        etag: bool,
        shared: bool,
    ) -> None:
        super().__init__()
        seconds = as_timedelta(max_age).total_seconds()
        self._public, self._shared = public, shared
        self.has_tags = etag and not no_store
        self._vary = ", ".join([vary] if isinstance(vary, str) else vary)
        if not 0 <= seconds < 2**31:
            self.mistakes.append(f"max_age={max_age!r} is no duration")
        if no_store and public:
            self.mistakes.append("public= lets caches keep answers and no_store= forbids it")
        if no_store and seconds:
            self.mistakes.append("no_store= keeps nothing, so max_age= has no meaning")
        self.mistakes += header_mistakes("vary", self._vary)
        scope = "public" if public else "private"
        self._control = "no-store" if no_store else f"{scope}, max-age={int(seconds)}"
        self._keeps_nothing = no_store

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in _READS else None

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece(seat.step, self.make, rank=CACHE),)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        if operation not in _READS:
            return None
        headers = {"Cache-Control": answer_header("How long the answer may be kept, and by whom.")}
        if not self.has_tags or operation is Operation.EXPORT:
            return EntryDocs(answer_headers=headers)
        return EntryDocs(
            parameters=[header_parameter("If-None-Match", "The `ETag` of an answer that the caller has.")],
            answer_headers={**headers, "ETag": answer_header("The version of the answer.")},
            answers={304: "The caller has this answer already: `If-None-Match` names its `ETag`."},
        )

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        if not self._public or self._shared:
            return
        for registration in _differing(placement):
            models = [
                meta
                for meta in seat.models
                if any(
                    _meets(registration, shown, seat.operations)
                    for shown in (meta, *reachable_models(meta, seat.registered))
                )
            ]
            if models:
                yield (
                    f"public=True would show answers for one caller to others: {registration.step} has "
                    f"{registration.name} on {models[0].name}; with shared=True, vary= covers that"
                )
                return

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        response: Any = ctx.response
        if type(response) is not Response:
            return
        if response.status >= 400:
            if response.headers is not None:
                response.headers.pop("etag", None)
            return  # such an answer is kept by nobody
        response.set_header("cache-control", self._control)
        if self._vary:
            before = (response.headers or {}).get("vary")
            response.set_header("vary", f"{before}, {self._vary}" if before else self._vary)
        if self.has_tags and response.status == 200 and response.stream is None and ctx.aggregation is None:
            await self._tag(ctx, response)

    async def _tag(self, ctx: Context, response: Response) -> None:
        if response.body is None:
            response.body = await write_for_caller(ctx, response)
        tag = self._tag_of(ctx, response)
        response.set_header("etag", f'"{tag}"')
        if_none_match = ctx.header("if-none-match")
        if if_none_match is not None and names_tag(if_none_match, tag):
            ctx.response = Response(304, headers=response.headers)

    def _tag_of(self, ctx: Context, response: Response) -> str:
        """The tag without quotes: set by the application, or of the bytes, behind the tag of a locked row."""
        existing = (response.headers or {}).get("etag", "").removeprefix("W/").strip('"')
        model: ModelMeta | None = ctx.model
        has_row = model is not None and model.options.optimistic_lock and ctx.row is not None
        if existing and not has_row:
            return existing
        digest = digest_of(response.body or b"")
        return f"{existing}.{digest}" if existing else digest


def _differing(placement: Placement) -> Iterable[Registration]:
    """The registrations that make answers differ by caller: scopes, redaction, auth but for exemptions."""
    for step in placement.pipeline.steps:
        for registration in step.registrations:
            entry = registration.fn
            varies = isinstance(entry, Entry) and Trait.VARIES_BY_CALLER in entry.traits
            if varies or (step.name == "auth" and not is_exemption(entry)):
                yield registration


def _meets(registration: Registration, meta: ModelMeta, operations: frozenset[Operation] | None) -> bool:
    """Whether the registration acts on a read of the model that these operations cover."""
    return any(
        registration.matches(meta, operation, item=item)
        for operation in (Operation.LIST, Operation.READ)
        for item in (True, False)
        if operations is None or covered(operations, operation, item=item)
    )
