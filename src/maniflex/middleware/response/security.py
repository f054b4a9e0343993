"""`response.security_headers`: what browsers are told about every answer."""

from __future__ import annotations

from datetime import timedelta

from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.response.header import header_mistakes
from maniflex.pipeline.answer_headers import Header
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.exchange import App, AsgiScope, Receive, Send
from maniflex.pipeline.layer_answer import change_headers
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.server_entries import LayerEntry

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
