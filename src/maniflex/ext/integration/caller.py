"""`Caller`: JSON over HTTP to one other service, tried again where that can help.

    billing = Caller("https://api.billing.example", headers={"Authorization": f"Bearer {token}"})
    invoice = await billing.post("/invoices", {"amount": 100}, into=Invoice)

Each attempt is bounded in time, every answer in size, and no header goes to another origin than the base URL.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from msgspec import MsgspecError
from pydantic import TypeAdapter, ValidationError

from maniflex import _caller
from maniflex._callables import explain_class
from maniflex._clock import Backoff
from maniflex._ids import new_id
from maniflex._json import decode, encode
from maniflex._outbound import AddressRefused, address_problem, url_problem
from maniflex.background.declaring import as_duration, duration_problems, switch_problems
from maniflex.background.metrics import Metrics
from maniflex.errors import DeclarationError, ManiflexError, ValidationFailed

if TYPE_CHECKING:
    import httpx2

Pause = Callable[[int], timedelta | float]

MEBIBYTE = 1024 * 1024
LONGEST_WAIT = timedelta(seconds=30)  # for which a server may put us off
MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BECOMES_GET = frozenset({301, 302, 303})
_KEYED = frozenset({"POST", "PATCH"})
_KEY = "idempotency-key"
_PAUSES = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))
_NOT_JSON = (MsgspecError, ValueError, RecursionError)
_NOT_IN_A_PATH = frozenset("\\#")


class CallFailed(ManiflexError):
    """A call came to nothing; the text names no header and nothing of the answer."""

    retryable: bool = False


class HttpStatusError(CallFailed):
    """The answer is no success; `body` is what it says, decoded where it is JSON, and `raw` its bytes."""

    def __init__(self, what: str, status: int, body: Any, raw: bytes) -> None:
        self.status, self.body, self.raw = status, body, raw
        self.retryable = status >= 500 or status == 429
        super().__init__(f"{what} was answered with {status}")


class ServiceUnreachable(CallFailed):
    """There was no answer, or none in time."""

    retryable = True


class ResponseTooLarge(CallFailed):
    """The answer has more than `max_response` bytes, and was not read to its end."""


class CrossOriginRedirect(CallFailed):
    """The answer leads to another origin, where nothing was sent."""


class UnreadableResponse(CallFailed):
    """The answer is a success, and not what `into` says or not JSON."""


@dataclass(frozen=True, slots=True)
class _HttpAnswer:
    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class _HttpCall:
    method: str
    url: str
    content: bytes | None
    headers: Mapping[str, str] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.method} {self.url.partition('?')[0]}"


@explain_class
class Caller:
    """Calls one service, by paths below its base URL.

    Network errors, 5xx and 429 are tried again, `max_retry` times; other refusals raise `HttpStatusError` at
    once. With `allow_private=False` the service must have a public address, and redirects are not followed.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: timedelta | float = 10,
        max_retry: int = 3,
        backoff: Pause | None = None,
        headers: Mapping[str, str] | None = None,
        max_response: int = 4 * MEBIBYTE,
        allow_private: bool = True,
        client: httpx2.AsyncClient | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        problems = [
            *_url_problems(base_url, allow_private),
            *duration_problems(timeout=timeout),
            *switch_problems(allow_private=allow_private),
            *_number_problems(max_retry=(max_retry, 0), max_response=(max_response, 1)),
        ]
        if client is not None and not allow_private:
            problems.append("with allow_private=False the connections are judged; client= would not be")
        if problems:
            raise DeclarationError("Caller: " + "; ".join(problems))
        self.base_url = base_url.rstrip("/")
        self._seconds = as_duration(timeout, "timeout").total_seconds()
        self._max_retry = max_retry
        self._backoff = backoff or _PAUSES
        self._headers = {name.lower(): value for name, value in (headers or {}).items()}
        self._max_response = max_response
        self._allow_private = allow_private
        self._metrics = metrics
        self._given_client = client
        self._own_client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        import_module("maniflex._outbound_http")  # a missing package stops the start, and no call

    def __repr__(self) -> str:
        return f"Caller({self.base_url!r})"

    # -- calling

    async def get(
        self,
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """GET; the decoded answer, an instance of `into`, or None when it is empty."""
        return await self.request("GET", path, params=params, into=into, headers=headers)

    async def post(
        self, path: str, body: Any = None, *, into: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """POST the body as JSON; bytes and text go as they are."""
        return await self.request("POST", path, body, into=into, headers=headers)

    async def put(
        self, path: str, body: Any = None, *, into: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """PUT the body as JSON; bytes and text go as they are."""
        return await self.request("PUT", path, body, into=into, headers=headers)

    async def patch(
        self, path: str, body: Any = None, *, into: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """PATCH with the body as JSON; bytes and text go as they are."""
        return await self.request("PATCH", path, body, into=into, headers=headers)

    async def delete(
        self, path: str, body: Any = None, *, into: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """DELETE, with a body where the service wants one."""
        return await self.request("DELETE", path, body, into=into, headers=headers)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, Any] | None = None,
        into: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Call with any method; all attempts have the same headers."""
        content, kind = _content(body)
        all_headers = {"accept": "application/json", "accept-encoding": "gzip", "user-agent": "maniflex"}
        all_headers |= {
            **kind,
            **self._headers,
            **{name.lower(): value for name, value in (headers or {}).items()},
        }
        if method in _KEYED:
            all_headers.setdefault(_KEY, new_id())
        if traceparent := _caller.caller().traceparent:
            all_headers.setdefault("traceparent", traceparent)
        call = _HttpCall(method, self._url(path, params), content, all_headers)
        answer = await self._retry(call)
        return _read(call, answer, into)

    def _url(self, path: str, params: Mapping[str, Any] | None) -> str:
        if problem := _path_problem(path):
            detail = {"field": "path", "code": "path", "message": problem}
            raise ValidationFailed(f"a path below the base URL is needed: {problem}", [detail])
        from httpx2 import QueryParams

        url = f"{self.base_url}/{path.lstrip('/')}" if path else self.base_url
        if params:
            url += ("&" if "?" in url else "?") + str(QueryParams(params))
        return url

    # -- attempts

    async def _retry(self, call: _HttpCall) -> _HttpAnswer:
        for attempt in range(1, self._max_retry + 2):
            answer: _HttpAnswer | None = None
            try:
                answer = await self._attempt(call)
                if 200 <= answer.status < 300:
                    self._count("ok")
                    return answer
                raise HttpStatusError(str(call), answer.status, _json_or_none(answer.content), answer.content)
            except CallFailed as error:
                if not error.retryable or attempt > self._max_retry:
                    self._count("failed")
                    raise
            self._count("retried")
            await asyncio.sleep(pause_before(attempt, self._backoff, answer, datetime.now(UTC)))
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, call: _HttpCall) -> _HttpAnswer:
        import httpx2

        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(call)
        except (TimeoutError, httpx2.TimeoutException):
            raise ServiceUnreachable(f"{call}: there was no answer within {self._seconds:g} s") from None
        except AddressRefused as error:
            raise CallFailed(f"{call}: {error}") from None
        except httpx2.HTTPError as error:
            raise ServiceUnreachable(f"{call}: {type(error).__name__}: {error}") from error

    async def _follow(self, call: _HttpCall) -> _HttpAnswer:
        for _ in range(MOST_REDIRECTS + 1):
            answer = await self._send(call)
            place = answer.headers.get("location")
            if answer.status not in _REDIRECTS or place is None or not self._allow_private:
                return answer
            call = self._build_redirect(call, answer.status, place)
        raise CallFailed(f"{call}: there are more than {MOST_REDIRECTS} redirects")

    def _build_redirect(self, call: _HttpCall, status: int, place: str) -> _HttpCall:
        import httpx2

        try:
            url = httpx2.URL(call.url).join(place)
        except httpx2.InvalidURL:
            raise CrossOriginRedirect(f"{call}: it leads to what is no URL") from None
        if _origin(url) != _origin(httpx2.URL(self.base_url)):
            raise CrossOriginRedirect(f"{call}: it leads to another origin, {url.scheme}://{url.host}")
        if status in _BECOMES_GET and call.method not in ("GET", "HEAD"):
            headers = {name: value for name, value in call.headers.items() if name != "content-type"}
            return _HttpCall("GET", str(url), None, headers)
        return _HttpCall(call.method, str(url), call.content, call.headers)

    async def _send(self, call: _HttpCall) -> _HttpAnswer:
        from maniflex._outbound_http import open_stream

        async with open_stream(
            self._client(),
            call.method,
            call.url,
            content=call.content,
            headers=dict(call.headers),
            follow_redirects=False,
            timeout=self._seconds,
        ) as response:
            length = response.headers.get("content-length", "")
            if length.isdigit() and int(length) > self._max_response:
                raise ResponseTooLarge(f"{call}: an answer of {length} bytes was announced")
            content = await self._read_content(call, response)
            return _HttpAnswer(response.status_code, dict(response.headers), content)

    async def _read_content(self, call: _HttpCall, response: httpx2.Response) -> bytes:
        from maniflex._outbound_http import read_beginning

        raw, is_cut = await read_beginning(response, self._max_response)
        encoding = response.headers.get("content-encoding", "identity").lower()
        if not is_cut and encoding in ("gzip", "x-gzip"):
            unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                raw = unpacking.decompress(raw, self._max_response + 1)
            except zlib.error:
                raise UnreadableResponse(f"{call}: the answer is not gzip, as it says") from None
            is_cut = len(raw) > self._max_response
        elif encoding != "identity":
            raise UnreadableResponse(f"{call}: the answer is packed as {encoding!r}, which was not asked for")
        if is_cut:
            raise ResponseTooLarge(f"{call}: the answer has more than {self._max_response} bytes")
        return raw

    # -- the client

    def _client(self) -> httpx2.AsyncClient:
        if self._given_client is not None:
            return self._given_client
        loop = asyncio.get_running_loop()
        if self._own_client is None or self._loop is not loop:  # connections belong to their event loop
            self._own_client, self._loop = self._make_client(), loop
        return self._own_client

    def _make_client(self) -> httpx2.AsyncClient:
        import httpx2

        from maniflex._outbound_http import keep_no_cookies, public_client

        if not self._allow_private:
            return public_client(timeout=self._seconds)
        return keep_no_cookies(httpx2.AsyncClient(follow_redirects=False))

    async def close(self) -> None:
        """Close its connections; the next call opens new ones."""
        client, self._own_client = self._own_client, None
        if client is not None:
            await client.aclose()

    def start(self) -> None:
        """Nothing to do: `server.add_service(caller)` closes its connections with the server."""

    async def stop(self) -> None:
        await self.close()

    def _count(self, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.add("caller_requests_total", base=self.base_url, outcome=outcome)


def pause_before(attempt: int, backoff: Pause, answer: _HttpAnswer | None, now: datetime) -> float:
    """Seconds to wait after the n-th attempt; what the server asks for wins, up to half a minute."""
    wish = None if answer is None else _retry_after(answer.headers.get("retry-after", ""), now)
    pause = as_duration(backoff(attempt), "backoff") if wish is None else min(wish, LONGEST_WAIT)
    return max(pause.total_seconds(), 0.0)


def _retry_after(text: str, now: datetime) -> timedelta | None:
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:9]), 10**8))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now


def _url_problems(base_url: Any, allow_private: Any) -> list[str]:
    if not isinstance(base_url, str) or not base_url:
        return ["base_url is the URL of a service, such as https://api.example.com/v1"]
    problem = url_problem(base_url)
    if problem is None and "?" in base_url:
        problem = "base_url has no query; give params= to a call"
    if problem is None and allow_private is False:
        problem = address_problem(base_url)
    return [] if problem is None else [problem]


def _number_problems(**numbers: tuple[Any, int]) -> list[str]:
    return [
        f"{name} is a whole number from {least}, not {value!r}"
        for name, (value, least) in numbers.items()
        if type(value) is not int or value < least
    ]


def _path_problem(path: str) -> str | None:
    """Why a path would lead away from the base URL, or to nothing."""
    if not path.isprintable() or any(c in _NOT_IN_A_PATH or c.isspace() for c in path):
        return r"it has no \, # or space; write other characters as %.."
    whole = path.partition("?")[0]
    if whole.startswith("//") or urlsplit(path).scheme or urlsplit(path).netloc:
        return "it is no address of its own"
    segments = unquote(unquote(whole)).replace("\\", "/").split("/")
    if any(segment in (".", "..") for segment in segments):
        return "it leads nowhere up, by . or .."
    return None


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host.lower(), url.port or (443 if url.scheme == "https" else 80)


def _content(body: Any) -> tuple[bytes | None, dict[str, str]]:
    if body is None:
        return None, {}
    if isinstance(body, bytes):
        return body, {"content-type": "application/octet-stream"}
    if isinstance(body, str):
        return body.encode(), {"content-type": "text/plain; charset=utf-8"}
    return encode(body, "body").encode(), {"content-type": "application/json"}


def _read(call: _HttpCall, answer: _HttpAnswer, into: Any) -> Any:
    if not answer.content:
        return None
    try:
        value = decode(answer.content)
    except _NOT_JSON:
        raise UnreadableResponse(f"{call}: the answer is not JSON") from None
    if into is None:
        return value
    try:
        return TypeAdapter(into).validate_json(answer.content)
    except ValidationError as error:
        places = [".".join(map(str, one["loc"])) or "it" for one in error.errors(include_url=False)[:5]]
        raise UnreadableResponse(f"{call}: the answer is no {_name(into)}: see {', '.join(places)}") from None


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _json_or_none(content: bytes) -> Any:
    try:
        return decode(content) if content else None
    except _NOT_JSON:
        return None
