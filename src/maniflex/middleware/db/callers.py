"""Who a request is counted for: the user within the tenant, or the address an unknown caller comes from."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from maniflex.pipeline.context import Context

_PREFIX = 64  # bits of an IPv6 address that one subscriber has; the rest is theirs to choose


def caller_of(ctx: Context) -> str:
    """A text for the caller that no other caller has."""
    auth = ctx.auth
    if auth is not None and auth.user_id:
        return f"user {len(auth.tenant_id)} {auth.tenant_id}{auth.user_id}"
    return f"address {_network(address_of(ctx))}"


def address_of(ctx: Context) -> str:
    """The address of the client, without its port; empty for a request that came by no wire."""
    client_ip: str | None = getattr(ctx, "client_ip", None)
    if client_ip is not None:
        return client_ip
    peer = ctx.scope.get("client")
    return "" if peer is None else str(peer[0])


@lru_cache(maxsize=4096)
def _network(address: str) -> str:
    """The address; of IPv6 the network of its subscriber."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:  # a socket file, or a name that a test gave
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return f"{IPv6Address(int(ip) >> _PREFIX << _PREFIX)}/{_PREFIX}"
