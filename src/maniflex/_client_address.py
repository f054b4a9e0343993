"""Whose request it is, by address: the socket's, or what proxies that are trusted say of it.

A client can send `X-Forwarded-For` itself, so its entries count from the right: each trusted proxy has
appended the address it was called from. Trust is a number of proxies, or the networks they stand in.

>>> TrustedProxies(1).client("10.0.0.1", ["6.6.6.6, 192.0.2.7"])
'192.0.2.7'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

Network = IPv4Network | IPv6Network
MOST_HOPS = 20


class TrustedProxies:
    """The proxies whose word is taken: how many in a row, or in which networks."""

    def __init__(self, trust: int | Sequence[str] = 0) -> None:
        self._hops = trust if isinstance(trust, int) else 0
        self._networks: tuple[Network, ...] = (
            () if isinstance(trust, int) else tuple(ip_network(text, strict=False) for text in trust)
        )

        self._any = bool(self._hops or self._networks)

    def __bool__(self) -> bool:
        return self._any

    def client_of(self, scope: Mapping[str, Any]) -> str:
        """The address of the client of an ASGI request; empty when it came over no socket."""
        peer = (scope.get("client") or ("",))[0]
        if not self._any:
            return plain_address(peer) or ""
        return self.client(peer, _values(scope, b"x-forwarded-for"))

    def scheme_of(self, scope: Mapping[str, Any]) -> str:
        """The scheme the client of an ASGI request used."""
        scheme: str = scope.get("scheme", "http")
        if not self:
            return scheme
        peer = (scope.get("client") or ("",))[0]
        forwarded_proto = ",".join(_values(scope, b"x-forwarded-proto"))
        return self.scheme(scheme, peer, _values(scope, b"x-forwarded-for"), forwarded_proto)

    def client(self, peer: str, forwarded_for: Iterable[str]) -> str:
        """The address of the client, without a port: `peer`, or what a trusted peer says."""
        return self._trace(plain_address(peer) or "", forwarded_for)[0]

    def scheme(self, scheme: str, peer: str, forwarded_for: Iterable[str], forwarded_proto: str) -> str:
        """The scheme the client used: the connection's, or what the outermost trusted proxy says."""
        hops = self._trace(plain_address(peer) or "", forwarded_for)[1]
        schemes = [part.strip().lower() for part in forwarded_proto.split(",")]
        if not hops or not forwarded_proto:
            return scheme
        outermost = schemes[-min(hops, len(schemes))]
        return outermost if outermost in ("http", "https") else scheme

    def _trace(self, peer: str, forwarded_for: Iterable[str]) -> tuple[str, int]:
        """The client's address, and how many trusted proxies stand before it."""
        entries = [part for header in forwarded_for for part in header.split(",")]
        address, hops = peer, 0
        while self._trusts(address, hops):
            hops += 1
            caller = plain_address(entries.pop()) if entries else None
            if caller is None:  # the proxy does not say, or says what is no address
                break
            address = caller
        return address, hops

    def _trusts(self, address: str, hops: int) -> bool:
        if self._networks:
            return bool(address) and any(ip_address(address) in network for network in self._networks)
        return hops < self._hops


def _values(scope: Mapping[str, Any], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


@lru_cache(4096)  # a connection asks again and again
def plain_address(text: str) -> str | None:
    """An address without port, brackets and zone; IPv4 inside IPv6 as IPv4; None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


@lru_cache(4096)
def caller_network(address: str) -> str:
    """The part of an address that stands for one caller: of IPv6 the /64 that a household is given."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:  # a socket file, or a name that a test gave
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ip_network((ip, 64), strict=False))


def trust_problem(trust: Any) -> str | None:
    """Why this does not say which proxies are trusted; None when it does."""
    if isinstance(trust, bool) or not isinstance(trust, int | tuple | list):
        return "it is a number of proxies, or the networks they stand in, such as ('10.0.0.0/8',)"
    if isinstance(trust, int):
        return None if 0 <= trust <= MOST_HOPS else f"{trust} is no number of proxies from 0 to {MOST_HOPS}"
    for text in trust:
        try:
            ip_network(text, strict=False)
        except ValueError:
            return f"{text!r} is no address or network such as 10.0.0.0/8"
    return None
