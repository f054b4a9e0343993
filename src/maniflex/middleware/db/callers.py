"""Who a request is counted for: the user within the tenant, or the address an unknown caller comes from."""

from __future__ import annotations

from maniflex._client_address import caller_network
from maniflex.pipeline.context import Context


def caller_of(ctx: Context, *, exact: bool = False) -> str:
    """A text for the caller that no other has; `exact` takes an address by itself, not its network."""
    auth = ctx.auth
    if auth is not None and auth.user_id:
        return f"user {len(auth.tenant_id)} {auth.tenant_id}{auth.user_id}"
    if not exact:
        return f"address {network_of(ctx)}"
    if auth is not None and auth.tenant_id:  # tenants may come from one address, that of a proxy
        return f"tenant {len(auth.tenant_id)} {auth.tenant_id} at {ctx.client_ip}"
    return f"address {ctx.client_ip}"


def network_of(ctx: Context) -> str:
    """The address a request comes from; of IPv6 the network of its subscriber."""
    return caller_network(ctx.client_ip)
