"""Who may connect: origins, credentials, and authenticators that an application can name.

Credentials come once, with the handshake: `Authorization`, else `?access_token=`, else the subprotocol
`access_token.<token>`, because browsers can set no header there. Whoever authenticates sees the header.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import HTTPConnection

from maniflex._callables import is_async
from maniflex._json import text_trouble
from maniflex._threads import on_thread
from maniflex.errors import Abort, RequestError
from maniflex.pipeline.context import AsgiScope, AuthInfo, Header
from maniflex.realtime.options import HubSettings

Authenticate = Callable[[Any], Any]  # of the request: an `AuthInfo`, or an awaitable of one
TOKEN = "access_token"
_TOKEN_PROTOCOL = "access_token."
PROTOCOL = "maniflex.v1"
# What tells nothing of a caller, and differs between two connections of one.
_VOLATILE = frozenset(
    {
        *(b"sec-websocket-key", b"sec-websocket-extensions", b"sec-websocket-version", b"connection"),
        *(b"last-event-id", b"traceparent", b"tracestate", b"x-request-id", b"upgrade", b"accept"),
        *(b"sec-websocket-protocol", b"cache-control", b"pragma", b"content-length"),
    }
)


def unauthorized(message: str = "sign in first") -> Abort:
    """The refusal of a caller whom nobody knows."""
    return Abort(401, "UNAUTHORIZED", message, headers={"www-authenticate": "Bearer"})


# -- what a handshake brings


def header_of(scope: AsgiScope, name: bytes) -> str | None:
    """A header of the handshake."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def query_pairs(scope: AsgiScope) -> list[tuple[str, str]]:
    """The parameters of the query string; what is no text is left out."""
    text = bytes(scope.get("query_string", b"")).decode("latin-1")
    pairs = parse_qsl(text, keep_blank_values=True, errors="replace")
    return [(name, value) for name, value in pairs if not text_trouble(name + value)]


def chosen_protocol(scope: AsgiScope) -> str | None:
    """The subprotocol to answer with: ours, or the one that carries a token."""
    protocols: Iterable[str] = scope.get("subprotocols", ())
    if PROTOCOL in protocols:
        return PROTOCOL
    return next((one for one in protocols if one.startswith(_TOKEN_PROTOCOL)), None)


def with_credentials(scope: AsgiScope, token: str | None = None) -> AsgiScope:
    """The handshake as a request of HTTP whose token is a header and stands nowhere else."""
    pairs = query_pairs(scope)
    headers: list[Header] = [h for h in scope["headers"] if h[0] != b"sec-websocket-protocol"]
    if token is not None:
        headers = [h for h in headers if h[0] != b"authorization"]
    elif not any(name == b"authorization" for name, _ in headers):
        token = next((value for name, value in pairs if name == TOKEN), None) or _offered_token(scope)
    if token is not None:
        headers.append((b"authorization", b"Bearer " + token.encode("latin-1", "replace")))
    others = [pair for pair in pairs if pair[0] != TOKEN]
    query = urlencode(others).encode() if len(others) < len(pairs) else scope.get("query_string", b"")
    return {**scope, "type": "http", "method": "GET", "headers": headers, "query_string": query}


def _offered_token(scope: AsgiScope) -> str | None:
    protocols: Iterable[str] = scope.get("subprotocols", ())
    return next(
        (one.removeprefix(_TOKEN_PROTOCOL) for one in protocols if one.startswith(_TOKEN_PROTOCOL)), None
    )


def caller_key(scope: AsgiScope) -> bytes:
    """Equal for connections whose rules are shown the same: one caller with the same headers."""
    digest = blake2b(digest_size=16)
    client = scope.get("client")
    digest.update(repr((client[0] if client else "", scope.get("scheme"))).encode())
    for name, value in scope["headers"]:
        if name not in _VOLATILE:
            digest.update(name + b"\0" + value + b"\n")
    names = ("subscribe", "lastEventId", "live")
    digest.update(repr([pair for pair in query_pairs(scope) if pair[0] not in names]).encode())
    return digest.digest()


# -- origins


def check_origin(scope: AsgiScope, options: HubSettings, *, is_websocket: bool) -> None:
    """403 for a page of another origin than those that may connect."""
    origin = header_of(scope, b"origin")
    origins = options.origins
    if origins == ("*",):
        return
    if origin is None:
        if origins and is_websocket:
            raise _origin_denied()
        return
    if origins:
        is_fine = origin.lower().rstrip("/") in {one.lower() for one in origins}
    else:
        is_fine = _is_own(origin.lower(), (header_of(scope, b"host") or "").lower())
    if not is_fine:
        raise _origin_denied()


def _is_own(origin: str, host: str) -> bool:
    """Whether a page was served by the host that it asks."""
    scheme, _, place = origin.partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme)
    return usual is not None and bool(host) and place.removesuffix(usual) == host.removesuffix(usual)


def _origin_denied() -> Abort:
    return Abort(403, "ORIGIN_DENIED", "pages of this origin may not connect")


def origin_headers(scope: AsgiScope, options: HubSettings) -> list[Header]:
    """What lets a page of another origin read a stream."""
    origin = header_of(scope, b"origin")
    if origin is None or not options.origins:
        return []
    headers = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
    if options.origins != ("*",):
        headers.append((b"access-control-allow-credentials", b"true"))
    return headers


# -- authenticators that an application can name


class AnonymousOnly:
    """Takes everybody, as nobody."""

    def __call__(self, request: HTTPConnection) -> AuthInfo:
        return AuthInfo(identity_type="anonymous")


class BearerToken:
    """Asks `verify(token)`, plain or async, for the identity that a token stands for.

    It gives an `AuthInfo`; None, False or a `ValueError` refuse the token.
    """

    def __init__(self, verify: Callable[[str], Any]) -> None:
        self._verify = verify

    async def __call__(self, request: HTTPConnection) -> AuthInfo:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise unauthorized()
        info: AuthInfo = await ask(self._verify, token.strip())
        return info


class Composite:
    """Asks several authenticators in order; the first that knows the caller decides."""

    def __init__(self, *authenticators: Authenticate) -> None:
        self._authenticators = authenticators

    async def __call__(self, request: HTTPConnection) -> AuthInfo:
        refusal: RequestError = unauthorized()
        for authenticate in self._authenticators:
            try:
                info: AuthInfo = await ask(authenticate, request)
            except RequestError as error:
                if error.status not in (401, 403):
                    raise
                refusal = error
            else:
                return info
        raise refusal


async def ask(fn: Callable[[Any], Any], argument: Any) -> AuthInfo:
    """Whom an authenticator of the application finds; 401 where it finds nobody, 500 where it fails."""
    try:
        info = fn(argument) if is_async(fn) else await on_thread(lambda: fn(argument))
        if inspect.isawaitable(info):
            info = await info
    except RequestError:
        raise
    except ValueError as error:
        raise unauthorized(str(error) or "the credentials are not valid") from None
    except Exception as error:
        logging.getLogger("maniflex.realtime").error("an authenticator failed", exc_info=error)
        raise Abort(500, "INTERNAL", "the server failed") from error
    if info is None or info is False:
        raise unauthorized()
    if not isinstance(info, AuthInfo):
        logging.getLogger("maniflex.realtime").error("an authenticator gave %r, no AuthInfo", type(info))
        raise Abort(500, "INTERNAL", "the server failed")
    return info


# -- the log of other servers


class MaskTokens(logging.Filter):
    """Masks tokens of query strings in the lines of HTTP servers that are not ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if TOKEN + "=" in text:
            record.msg, record.args = _masked(text), ()
        return True


def _masked(text: str) -> str:
    head, mark, rest = text.partition(TOKEN + "=")
    if not mark:
        return text
    end = min((rest.find(c) for c in "& \"'" if c in rest), default=len(rest))
    return f"{head}{TOKEN}=***{_masked(rest[end:])}"


_FOREIGN_LOGGERS = (
    *("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"),
    *("hypercorn.access", "hypercorn.error"),
)


def mask_tokens() -> None:
    """Let no server of ours or others write a token into its log."""
    for name in _FOREIGN_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, MaskTokens) for one in logger.filters):
            logger.addFilter(MaskTokens())
