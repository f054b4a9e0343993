"""URLs that others name: which of them lead out of our own network, and a small client that posts to them.

A name is looked up for each attempt, every address it has is judged, and the connection goes to one of
those addresses: a name that points elsewhere a moment later reaches nothing. Redirects are not followed,
proxies of the environment are not asked, and the certificate of the other side is always verified.

`url_problem` and `address_problem` judge a URL where it is declared, `allowed_addresses` a host for one
attempt; `post` is for schedules, and `_outbound_http` does the same for clients on the event loop.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from maniflex._json import clean, encode
from maniflex._threads import DaemonThreads

LONGEST_URL = 2048
MOST_BYTES = 64 * 1024  # of an answer; what comes after is not read
MOST_LOOKUPS = 128  # at once, because the names of others may take as long as they like
_lookups = DaemonThreads(MOST_LOOKUPS, "maniflex-lookup")


class AddressRefused(Exception):
    """The URL leads to an address that is not allowed; the text names no address that was looked up."""


# What can be said of a URL before anything is looked up.

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,254}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]+)?")
_LOCAL_NAMES = re.compile(r"(?:.+\.)?localhost(?:\.localdomain)?\.?", re.IGNORECASE)


def url_problem(url: str) -> str | None:
    """Why nothing can be posted to the URL, in one sentence; None for one that is sound."""
    if len(url) > LONGEST_URL:
        return f"a URL has at most {LONGEST_URL} characters"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"{url!r} is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "a URL begins with http:// or https:// and names a host"
    if parts.username is not None or parts.password is not None:
        return "a URL carries no user and no password; they would be stored and shown"
    if "#" in url:
        return "a URL that is posted to has no fragment, which nobody would receive"
    if port == 0 or not url.isascii() or not url.isprintable() or any(c in url for c in ' \\<>"'):
        return f"{url!r} is not a URL; write other characters as %.."
    if not _is_host(parts.netloc, parts.hostname):
        return f"{parts.hostname!r} is not the name of a host"
    return None


def _is_host(netloc: str, host: str) -> bool:
    if not netloc.startswith("["):
        return _HOST_NAME.fullmatch(host) is not None
    if not _BRACKETED.fullmatch(netloc):  # nor an interface of this machine, `[fe80::1%eth0]`
        return False
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def address_problem(url: str) -> str | None:
    """Why a sound URL leads into our own network; a name is judged when it is looked up, an address now."""
    host = urlsplit(url).hostname or ""
    if _LOCAL_NAMES.fullmatch(host):
        return f"{host} is not a public address"
    try:
        entries = socket.getaddrinfo(host.rstrip("."), None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):  # a name, or nothing that can be reached at all
        return None
    if all(is_public(str(entry[4][0])) for entry in entries):
        return None
    return f"{host} is not a public address"


# Which addresses are public.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Global by the registry, or unknown to the `ipaddress` of some version of Python.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # assignments of the protocol itself
        "192.88.99.0/24",  # relays of 6to4, which lead anywhere
        "168.63.129.16/32",  # what a machine of Azure asks for its own secrets
        "2001::/23",
        "3fff::/20",  # for documentation
    )
)


def is_public(text: str) -> bool:
    """Whether an address belongs to the internet and to no private network."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or _nat64(address)
        if inner is not None:
            address = inner
        elif address not in _GLOBAL_UNICAST or address.teredo is not None:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


# The addresses of a host, looked up and judged for one attempt.


async def find_allowed_addresses(host: str, port: int, *, allow_private: bool = False) -> list[str]:
    """The addresses of a host; `AddressRefused` unless all of them may be connected to."""
    entries = await asyncio.wrap_future(_begin_lookup(host, port))
    return _check_addresses(host, entries, allow_private)


def _allowed_addresses(host: str, port: int, deadline: _Deadline, allow_private: bool) -> list[str]:
    """The same, on a thread that blocks."""
    lookup = _begin_lookup(host, port)
    try:
        return _check_addresses(host, lookup.result(deadline.seconds_left()), allow_private)
    except TimeoutError:
        lookup.cancel()
        raise TimeoutError(f"the time was up before {host} was looked up") from None


def _begin_lookup(host: str, port: int) -> Future[list[str]]:
    # On another thread, because a resolver takes the time it takes.
    return _lookups.submit(_look_up, host, port)


def _look_up(host: str, port: int) -> list[str]:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise AddressRefused(f"{host!r} is not the name of a host") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _check_addresses(host: str, addresses: list[str], allow_private: bool) -> list[str]:
    if not allow_private and not all(is_public(address) for address in addresses):
        raise AddressRefused(f"{host} has an address that is not public")
    return addresses


# The client of schedules: one POST, which blocks.


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer, as far as it was read."""

    status: int
    text: str
    truncated: bool
    headers: Mapping[str, str] = field(default_factory=dict)  # by names in small letters


def post(
    url: str, body: Any, headers: Mapping[str, str], *, timeout: float, allow_private: bool = False
) -> Answer:
    """Send the body; blocks for `timeout` seconds at most, also when the receiver stalls."""
    if problem := url_problem(url):
        raise AddressRefused(problem)
    parts = urlsplit(url)
    assert parts.hostname is not None
    deadline = _Deadline(timeout)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = _allowed_addresses(parts.hostname, port, deadline, allow_private)
    connection = _Connection(parts.hostname, port, addresses, deadline, secure=parts.scheme == "https")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("POST", path, encode(body, "payload").encode(), {**_OURS, **headers})
        return _read(connection.getresponse(), deadline)
    except http.client.HTTPException as error:
        deadline.seconds_left()  # an answer that we cut off looks like one that ended
        early = isinstance(error, http.client.IncompleteRead)
        reason = _EARLY if early else f"the answer is not HTTP: {clean(str(error), 200)}"
        raise OSError(reason) from None
    except OSError:
        deadline.seconds_left()
        raise
    finally:
        connection.end()


_OURS = {"Content-Type": "application/json", "User-Agent": "maniflex", "Accept": "*/*", "Connection": "close"}
_EARLY = "the answer broke off"


class _Deadline:
    """The moment at which the whole request is over."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    def seconds_left(self) -> float:
        """Seconds left; `TimeoutError` when there are none."""
        seconds = self._end - monotonic()
        if seconds <= 0:
            raise TimeoutError("the time was up before the URL had answered")
        return seconds


def _read(response: http.client.HTTPResponse, deadline: _Deadline) -> Answer:
    content, length = b"", response.length
    most = MOST_BYTES + 1 if length is None else min(length, MOST_BYTES + 1)
    while len(content) < most and (more := response.read1(most - len(content))):
        content += more
        deadline.seconds_left()
    deadline.seconds_left()
    if length is not None and len(content) < most:
        raise OSError(_EARLY)
    text = clean(content[:MOST_BYTES].decode(errors="replace"), MOST_BYTES)
    return Answer(response.status, text, len(content) > MOST_BYTES)


class _Connection(http.client.HTTPConnection):
    """A connection to judged addresses only, cut off at the deadline."""

    def __init__(
        self, host: str, port: int, addresses: Sequence[str], deadline: _Deadline, *, secure: bool
    ) -> None:
        super().__init__(host, port)
        self._addresses = addresses
        self._deadline = deadline
        self._context = ssl.create_default_context() if secure else None
        self._watch: threading.Timer | None = None
        self._line: socket.socket | None = None  # http.client forgets it while it still reads from it
        if secure:
            self.default_port = 443  # otherwise the Host header would name it

    def connect(self) -> None:
        self.sock = self._line = line = self._connect_any()
        # A timeout of the socket begins anew with every byte; this one does not.
        self._watch = threading.Timer(self._deadline.seconds_left(), self._cut)
        self._watch.daemon = True
        self._watch.start()
        if self._context is not None:
            tls = self._context.wrap_socket(line, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock = self._line = tls
            tls.do_handshake()

    def _connect_any(self) -> socket.socket:
        last: OSError | None = None
        for address in self._addresses:
            try:
                return socket.create_connection((address, self.port), timeout=self._deadline.seconds_left())
            except OSError as error:
                last = error
        raise last or OSError("the host has no address")

    def _cut(self) -> None:
        if self._line is not None:
            with suppress(OSError):  # it is closed already
                # Not that of a TLS socket, which would go on with what it has, unencrypted.
                socket.socket.shutdown(self._line, socket.SHUT_RDWR)

    def end(self) -> None:
        """Close it; not `close`, which http.client calls when the last answer begins."""
        if self._watch is not None:
            self._watch.cancel()
        self._cut()  # an answer we stopped reading keeps the line open
        self.close()
