"""Headers of answers: `response.add_header`, `response.security_headers`, and those of `response.cache`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from maniflex.middleware.arguments import as_timedelta
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.answer import change_headers, merge_vary
from maniflex.pipeline.context import AnswerHeaders, Context, Header
from maniflex.pipeline.entry import (
    ANYWHERE,
    Entry,
    EntryDocs,
    LayerEntry,
    Piece,
    Placement,
    Seat,
    Trait,
    answer_header,
    ask,
    describe_nothing,
    header_parameter,
)
from maniflex.pipeline.exchange import App, AsgiScope, Receive, Send
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import ACTION, Middleware, Next, Registration, is_exemption
from maniflex.pipeline.response import Response, digest_of, names_tag
from maniflex.pipeline.rules.redactions import write_for_caller
from maniflex.pipeline.runtime import Runtime
from maniflex.query.query import reachable_models

HeaderValue = str | Callable[[Context], str | Awaitable[str | None] | None]


def add_header(name: str, value: HeaderValue) -> AddHeader:
    """Send a header with every answer of the routes, also with refusals; a function may say None for none."""
    return AddHeader(name, value)


class AddHeader(LayerEntry):
    """Adds a header: as middleware to the answers of its routes, as a layer to all."""

    name = "response.add_header"
    homes: ClassVar = {"response": ANYWHERE, ACTION: ANYWHERE}
    is_lifted = False

    def __init__(self, name: str, value: HeaderValue) -> None:
        super().__init__()
        self._header = name
        self._value = value
        self.mistakes += header_mistakes(name, "" if callable(value) else value)

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece(seat.step, self.make, rank=HEADERS),)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(answer_headers={self._header: answer_header("Added by the application.")})

    def problems(self, seat: Seat) -> Iterable[str]:
        return Entry.problems(self, seat)

    async def __call__(self, ctx: Context, next: Next) -> None:
        value = self._value
        if not callable(value):
            ctx.add_header(self._header, value)
            await next()
            return
        try:
            await next()
        finally:  # a failed answer has it too
            text = await ask(ctx, value, ctx)
            if text is not None:
                ctx.add_header(self._header, text)

    def server_problems(self) -> Iterable[str]:
        if callable(self._value):
            yield "a function is asked about a request that has a route; register it on pipeline.response"

    def layer(self, app: App, runtime: Runtime) -> App:
        name, value = self._header.lower().encode("ascii"), str(self._value).encode("latin-1")

        def change(headers: list[Header]) -> list[Header]:
            if name == b"vary":
                return merge_vary(headers, value)
            if name == b"cache-control":
                headers = [header for header in headers if header[0].lower() != name]
            return [*headers, (name, value)]

        async def layer(scope: AsgiScope, receive: Receive, send: Send) -> None:
            await app(scope, receive, change_headers(send, change))

        return layer


def header_mistakes(name: str, value: str) -> list[str]:
    """Why no answer can have this header; empty when it can."""
    try:
        AnswerHeaders().add_header(name, value)
    except (ValueError, TypeError, AttributeError) as error:
        return [
            str(error) if type(error) is ValueError else f"{name!r}: {value!r} cannot be sent as a header"
        ]
    return []


# The order in which the entries of this package act on an answer; that of registration has no part in it.
#
# Each acts when the rest of the step is through, so the one with the lowest rank is outermost and acts
# last.


CACHE = -50
HEADERS = -40
ENVELOPE = -30
REDACT = -20


# `response.security_headers`: what browsers are told about every answer.


_FRAMES = ("DENY", "SAMEORIGIN")


def security_headers(
    hsts: timedelta | float | str | None = None,
    frame: str | None = "DENY",
    referrer: str | None = "no-referrer",
    csp: str | None = None,
) -> SecurityHeaders:
    """Send `nosniff` and the named headers with every answer that does not set them itself.

    `hsts` is how long browsers use https only, or the whole text of the header.
    """
    return SecurityHeaders(hsts, frame, referrer, csp)


class SecurityHeaders(LayerEntry):
    """Adds its headers to answers that have none of that name; so `/docs` keeps its own policy."""

    name = "response.security_headers"
    docs = describe_nothing

    def __init__(
        self, hsts: timedelta | float | str | None, frame: str | None, referrer: str | None, csp: str | None
    ) -> None:
        super().__init__()
        if frame is not None and frame not in _FRAMES:
            self.mistakes.append(f"frame={frame!r} is none of {', '.join(map(repr, _FRAMES))} and None")
        values = {
            "x-content-type-options": "nosniff",
            "x-frame-options": frame,
            "referrer-policy": referrer,
            "content-security-policy": csp,
            "strict-transport-security": self._transport_policy(hsts),
        }
        self._headers: list[Header] = []
        for name, value in values.items():
            if value is not None:
                problems = header_mistakes(name, value)
                self.mistakes += problems or ([f"{name} is empty"] if not value else [])
                if not problems:
                    self._headers.append((name.encode(), value.encode("latin-1")))

    def _transport_policy(self, hsts: timedelta | float | str | None) -> str | None:
        if hsts is None or isinstance(hsts, str):
            return hsts
        seconds = as_timedelta(hsts).total_seconds()
        if not 0 <= seconds < 2**31:
            self.mistakes.append(f"hsts={hsts!r} is no duration")
            return None
        return f"max-age={int(seconds)}"

    def layer(self, app: App, runtime: Runtime) -> App:
        def change(headers: list[Header]) -> list[Header]:
            names = {name.lower() for name, _ in headers}
            return [*headers, *(header for header in self._headers if header[0] not in names)]

        async def layer(scope: AsgiScope, receive: Receive, send: Send) -> None:
            await app(scope, receive, change_headers(send, change))

        return layer


# `response.cache`: how long clients may keep the answers to reads, and how they ask whether one has
# changed.
#
# The tag is made of the bytes of the answer, as this caller would get them; a caller whose tag is still the
# answer's gets 304 and no body. That saves the way, not the work: the rows are read all the same.


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
