"""Clients on the event loop for URLs that others name: httpx2 with the judgement of `_outbound`.

Only what sends requests imports this module, and only when it is used: it needs the extra `[http]`.

    client = public_client(timeout=15)
    answer = await send(client, "POST", url, content=body, headers=headers, timeout=15)

The judgement is the network backend of the connection pool: whoever uses the client connects to addresses
that were judged for this attempt, with the Host header and the certificate of the name.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from http.cookiejar import DefaultCookiePolicy
from typing import Any

from maniflex._json import clean
from maniflex._outbound import MOST_BYTES, AddressRefused, Answer, find_allowed_addresses, url_problem
from maniflex.errors import DeclarationError

try:
    import httpcore2
    import httpx2
except ImportError as missing:
    raise DeclarationError("requests to other servers need httpx2: pip install 'maniflex[http]'") from missing

MOST_CONNECTIONS = 200


class JudgedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were judged for this connection."""

    def __init__(self, *, allow_private: bool = False) -> None:
        self._allow_private = allow_private
        self._sockets = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await find_allowed_addresses(host, port, allow_private=self._allow_private)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"the time was up before {host} was looked up") from None
        except OSError as error:
            raise httpcore2.ConnectError(f"{host} was not found: {error.strerror or error}") from None
        return await self._connect_any(addresses, port, timeout, local_address, socket_options)

    async def _connect_any(
        self, addresses: list[str], port: int, timeout: float | None, *options: Any
    ) -> httpcore2.AsyncNetworkStream:
        last: Exception = httpcore2.ConnectError("the host has no address")
        for address in addresses:
            try:
                return await self._sockets.connect_tcp(address, port, timeout, *options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                last = error
        raise last

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore2.AsyncNetworkStream:
        raise AddressRefused("a socket of this machine is no public address")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class JudgedTransport(httpx2.AsyncBaseTransport):
    """Sends requests over connections of a `JudgedBackend`; every URL is judged before it is used."""

    def __init__(self, *, allow_private: bool = False, most: int = MOST_CONNECTIONS) -> None:
        # No connection waits for another request: the name is looked up and judged for each.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=most,
            max_keepalive_connections=0,
            network_backend=JudgedBackend(allow_private=allow_private),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if problem := url_problem(str(request.url)):
            raise AddressRefused(problem)
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        with _errors_of_httpx(request):
            response = await self._pool.handle_async_request(
                httpcore2.Request(
                    request.method,
                    target,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=_AnswerStream(response, request),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _AnswerStream(httpx2.AsyncByteStream):
    """The body of an answer, with errors as httpx2 has them."""

    def __init__(self, response: httpcore2.Response, request: httpx2.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx(self._request):
            async for part in self._response.aiter_stream():
                yield part

    async def aclose(self) -> None:
        with _errors_of_httpx(self._request):
            await self._response.aclose()


@contextmanager
def _errors_of_httpx(request: httpx2.Request) -> Iterator[None]:
    """Raise the errors of the pool as those of httpx2, which have the same names."""
    try:
        yield
    except _POOL_ERRORS as error:
        kind = getattr(httpx2, type(error).__name__, httpx2.TransportError)
        raise kind(str(error), request=request) from error


_POOL_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.UnsupportedProtocol,
)


def public_client(
    *, timeout: float, allow_private: bool = False, most: int = MOST_CONNECTIONS
) -> httpx2.AsyncClient:
    """A client whose connections are judged; it follows no redirect and asks no proxy."""
    client = httpx2.AsyncClient(
        transport=JudgedTransport(allow_private=allow_private, most=most),
        timeout=timeout,
        follow_redirects=False,
        trust_env=False,
    )
    return keep_no_cookies(client)


def keep_no_cookies(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """The client, which sends nobody the cookies that an answer to somebody else has set."""
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client


# httpx2 writes every URL to the log, with its query; those of others, and of calls, may hold secrets.
_is_ours: ContextVar[bool] = ContextVar("maniflex_outbound", default=False)
logging.getLogger("httpx2").addFilter(lambda record: not _is_ours.get())


@asynccontextmanager
async def open_stream(
    client: httpx2.AsyncClient, *request: Any, **options: Any
) -> AsyncIterator[httpx2.Response]:
    """`client.stream` without the line that httpx2 writes to the log."""
    token = _is_ours.set(True)
    try:
        async with client.stream(*request, **options) as response:
            yield response
    finally:
        _is_ours.reset(token)


async def send(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    content: bytes,
    headers: Mapping[str, str],
    timeout: float,
) -> Answer:
    """Send the bytes and read the beginning of the answer, all within `timeout` seconds.

    Raises `AddressRefused` where nothing may be sent, `TimeoutError` when the time is up, and
    `httpx2.HTTPError` when the other side could not be reached or did not answer with HTTP.
    """
    # What is unpacked can be a thousand times what was sent, so nothing is asked for that has to be.
    all_headers = {"Accept-Encoding": "identity", "User-Agent": "maniflex", **headers}
    try:
        async with asyncio.timeout(timeout):
            async with open_stream(client, method, url, content=content, headers=all_headers) as response:
                beginning, is_cut = await read_beginning(response, MOST_BYTES)
    except (TimeoutError, httpx2.TimeoutException):
        raise TimeoutError("the time was up before the URL had answered") from None
    text = clean(beginning.decode(errors="replace"), MOST_BYTES)
    return Answer(response.status_code, text, is_cut, dict(response.headers))


async def read_beginning(response: httpx2.Response, most: int) -> tuple[bytes, bool]:
    """The first bytes of an answer as they came, and whether there were more than `most`."""
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > most:
            return bytes(content[:most]), True
    return bytes(content), False
