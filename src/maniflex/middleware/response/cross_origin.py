"""`response.cors`: which pages of other origins may call the API from a browser.

A layer around the whole server, so that a preflight needs no credentials and no route, and so that refusals
can be read by the page too. An origin that is not listed is never repeated in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.response.header import header_mistakes
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.answer import change_headers, merge_vary, send_answer
from maniflex.pipeline.context import Header
from maniflex.pipeline.entry import EntryDocs, LayerEntry, answer_header, header_parameter
from maniflex.pipeline.exchange import OWN_ORIGINS, App, AsgiScope, Receive, Send
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.runtime import Runtime

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
HEADERS = (
    "Authorization", "Content-Type", "Accept", "If-Match", "If-None-Match", "X-Request-Id", "X-API-Key",
    "X-CSRF-Token", "Idempotency-Key", "X-Database-Position",
)  # fmt: skip
EXPOSED = (
    "ETag", "X-Request-Id", "Retry-After", "Idempotent-Replayed", "RateLimit-Limit", "RateLimit-Remaining",
    "RateLimit-Reset", "X-Database-Position",
)  # fmt: skip
_SAFE_HEADERS = frozenset({"accept", "accept-language", "content-language", "content-type", "range"})


def cors(
    origins: str | Sequence[str],
    *,
    headers: Sequence[str] = HEADERS,
    methods: Sequence[str] = METHODS,
    expose: Sequence[str] = EXPOSED,
    max_age: timedelta | float = 86400,
    credentials: bool = False,
) -> Cors:
    """Let pages of these origins call the server: `https://app.example.com`, `https://*.example.com`, `*`."""
    return Cors(origins, headers, methods, expose, max_age, credentials)


class Cors(LayerEntry):
    """Answers preflights, and adds to other answers what a listed origin needs to read them."""

    name = "response.cors"

    def __init__(
        self,
        origins: str | Sequence[str],
        headers: Sequence[str],
        methods: Sequence[str],
        expose: Sequence[str],
        max_age: timedelta | float,
        credentials: bool,
    ) -> None:
        super().__init__()
        origin_list = [origins] if isinstance(origins, str) else list(origins)
        seconds = as_timedelta(max_age).total_seconds()
        self.mistakes += _mistakes(origin_list, credentials=credentials, seconds=seconds)
        for name in (*headers, *expose, *methods):
            if name != "*":
                self.mistakes += header_mistakes(f"x-{name}", "")
        self.origins = Origins([] if self.mistakes else origin_list)
        self._methods = tuple(method.upper() for method in methods)
        self._headers = frozenset(name.lower() for name in headers) | _SAFE_HEADERS
        self._credentials: list[Header] = (
            [(b"access-control-allow-credentials", b"true")] if credentials else []
        )
        self._preflight: list[Header] = [
            (b"access-control-allow-methods", ", ".join(self._methods).encode()),
            (b"access-control-allow-headers", ", ".join(headers).encode()),
            (b"access-control-max-age", b"%d" % int(seconds)),
        ]
        self._exposed: list[Header] = [(b"access-control-expose-headers", ", ".join(expose).encode())]
        if not expose:
            self._exposed = []

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        if operation is not Operation.OPTIONS:
            return None
        return EntryDocs(
            parameters=[
                header_parameter("Origin", "Where the page is from that a browser asks for."),
                header_parameter("Access-Control-Request-Method", "The method it wants to use."),
                header_parameter("Access-Control-Request-Headers", "The headers it wants to send."),
            ],
            refusals={403: ["CORS_ORIGIN_DENIED", "CORS_HEADER_DENIED"], 405: ["CORS_METHOD_DENIED"]},
            answer_headers={
                "Access-Control-Allow-Origin": answer_header("The origin, when the page may call the server.")
            },
        )

    def layer(self, app: App, runtime: Runtime) -> App:
        async def layer(scope: AsgiScope, receive: Receive, send: Send) -> None:
            request = {name: value for name, value in scope["headers"] if name in _ASKED}
            origin = request.get(b"origin", b"").decode("latin-1")
            if scope["method"] == "OPTIONS" and origin and b"access-control-request-method" in request:
                response = self._judge(origin, request)
                allow = self._allow(origin) if response.status == 204 else []
                own = self._answer_preflight(request) if response.status == 204 else []
                await send_answer(response, scope, send, runtime, self._vary([*allow, *own]))
                return
            extra = [*self._allow(origin), *self._exposed] if origin and self.origins.allows(origin) else []

            def change(headers: list[Header]) -> list[Header]:
                if OWN_ORIGINS in scope:
                    return headers
                others = [h for h in headers if not h[0].lower().startswith(b"access-control-")]
                return self._vary([*others, *extra])

            await app(scope, receive, change_headers(send, change))

        return layer

    def _judge(self, origin: str, request: dict[bytes, bytes]) -> Response:
        """The answer to a preflight."""
        method = request[b"access-control-request-method"].decode("latin-1")
        asked_headers = _names(request.get(b"access-control-request-headers", b""))
        if not self.origins.allows(origin):
            return _refusal(403, "CORS_ORIGIN_DENIED", "this origin may not call the server")
        if method not in self._methods:
            allow = {"allow": ", ".join(self._methods)}
            return _refusal(405, "CORS_METHOD_DENIED", "other origins may not use this method", allow)
        if "*" not in self._headers and not self._headers.issuperset(asked_headers):
            return _refusal(403, "CORS_HEADER_DENIED", "other origins may not send one of these headers")
        return Response(204)

    def _allow(self, origin: str) -> list[Header]:
        value = "*" if self.origins.allows_all else origin
        return [(b"access-control-allow-origin", value.encode("latin-1")), *self._credentials]

    def _answer_preflight(self, request: dict[bytes, bytes]) -> list[Header]:
        if "*" not in self._headers:
            return self._preflight
        # With credentials a browser takes "*" for the name of a header, so those it asked for are named.
        names = b", ".join(name.encode("latin-1") for name in _names(request.get(_REQUEST_HEADERS, b"")))
        return [
            (b"access-control-allow-headers", names) if h[0] == _ALLOW_HEADERS else h for h in self._preflight
        ]

    def _vary(self, headers: list[Header]) -> list[Header]:
        return headers if self.origins.allows_all else merge_vary(headers, b"Origin")


_REQUEST_HEADERS, _ALLOW_HEADERS = b"access-control-request-headers", b"access-control-allow-headers"
_ASKED = frozenset({b"origin", b"access-control-request-method", _REQUEST_HEADERS})


def _mistakes(origins: Sequence[str], *, credentials: bool, seconds: float) -> list[str]:
    mistakes = list(origin_mistakes(origins))
    if not origins:
        mistakes.append("no origin is named, so no page could call the server")
    if "*" in origins and credentials:
        mistakes.append("'*' with credentials would let every page act for its visitors; name the origins")
    if not 0 <= seconds < 2**31:
        mistakes.append("max_age= is no duration that is not negative")
    return mistakes


def _names(header: bytes) -> list[str]:
    return [name.strip().lower() for name in header.decode("latin-1").split(",") if name.strip()]


def _refusal(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return Response(status, error={"code": code, "message": message}, headers=headers)


# Which origins a list of them allows: exact ones, subdomains of a domain, all.


_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://(\*\.)?(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?)(:\d{1,5})?"
)
_LABELS = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


class Origins:
    """The origins whose pages may read answers.

    >>> Origins(["https://*.example.com"]).allows("https://shop.example.com")
    True
    """

    def __init__(self, origins: Iterable[str]) -> None:
        texts = [origin if origin == "null" else origin.lower() for origin in origins]
        self.allows_all = "*" in texts
        self._exact = frozenset(text for text in texts if "*" not in text)
        self._below = tuple(
            (scheme + "://", "." + domain)
            for scheme, _, domain in (text.partition("://*.") for text in texts)
            if domain
        )

    def allows(self, origin: str) -> bool:
        return self.allows_all or origin in self._exact or self._is_below(origin)

    def _is_below(self, origin: str) -> bool:
        return any(
            origin.startswith(start)
            and origin.endswith(end)
            and _LABELS.fullmatch(origin[len(start) : -len(end)]) is not None
            for start, end in self._below
        )


def origin_mistakes(origins: Iterable[object]) -> Iterator[str]:
    """The mistakes in a list of origins, one sentence each."""
    for origin in origins:
        if origin in ("*", "null"):
            continue
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin.lower()):
            yield f"{origin!r} is no origin such as 'https://app.example.com' or 'https://*.example.com'"
