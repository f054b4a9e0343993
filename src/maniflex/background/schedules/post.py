"""POST JSON to a URL that came from a table: bounded in time and size, and not into our own network.

The host is looked up once, every address it has is judged, and the connection goes to one of those
addresses: a name that points elsewhere a moment later reaches nothing. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from maniflex._json import clean, encode
from maniflex.background.loop import DaemonThreads

MOST_BYTES = 64 * 1024  # of an answer; what comes after is not read
_lookups = DaemonThreads(16, "maniflex-lookup")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(Exception):
    """The URL leads to an address that is not allowed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer, as far as it was read."""

    status: int
    text: str
    truncated: bool


def post(
    url: str, body: Any, headers: Mapping[str, str], *, timeout: float, allow_private: bool = False
) -> Answer:
    """Send the body; blocks for `timeout` seconds at most, also when the receiver stalls."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressRefused("a URL begins with http:// or https:// and names a host")
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


def _allowed_addresses(host: str, port: int, deadline: _Deadline, allow_private: bool) -> list[str]:
    """The addresses of a host; `AddressRefused` when one of them is not public and private is not allowed."""
    # On another thread, because a resolver takes the time it takes.
    lookup = _lookups.submit(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    try:
        entries = lookup.result(deadline.seconds_left())
    except UnicodeError:
        raise AddressRefused(f"{host!r} is not the name of a host") from None
    except TimeoutError:
        lookup.cancel()
        raise TimeoutError(f"the time was up before {host} was looked up") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    if not allow_private:
        for address in addresses:
            if not is_public(address):
                raise AddressRefused(f"{host} has the address {address}, which is not public")
    return addresses


def is_public(text: str) -> bool:
    """Whether an address belongs to the internet and to no private network."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or _nat64(address)
        if inner is not None:
            address = inner
        elif address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


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
