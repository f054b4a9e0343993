"""`response.add_header`: one header more, on the answers of some routes or on all answers of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import ClassVar

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
    Seat,
    answer_header,
    ask,
    describe_nothing,
)
from maniflex.pipeline.exchange import App, AsgiScope, Receive, Send
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, Next
from maniflex.pipeline.runtime import Runtime

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
TRANSFORM = -10


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
