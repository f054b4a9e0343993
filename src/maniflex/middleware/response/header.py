"""`response.add_header`: one header more, on the answers of some routes or on all answers of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar

from maniflex.middleware.response.ranks import HEADERS
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.answer_headers import AnswerHeaders, Header
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Seat, ask
from maniflex.pipeline.entry_docs import EntryDocs, answer_header
from maniflex.pipeline.exchange import App, AsgiScope, Receive, Send
from maniflex.pipeline.layer_answer import change_headers, merge_vary
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.server_entries import LayerEntry

HeaderValue = str | Callable[[Context], str | Awaitable[str | None] | None]


def add_header(name: str, value: HeaderValue) -> AddHeader:
    """Send a header with every answer of the routes, also with refusals; a function may say None for none."""
    return AddHeader(name, value)


class AddHeader(LayerEntry):
    """Adds a header: as middleware to the answers of its routes, as a layer to all."""

    name = "response.add_header"
    homes: ClassVar = {"response": ANYWHERE}
    in_actions = True
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
