"""Who a request is counted for: the user within the tenant, or the address an unknown caller comes from."""

from __future__ import annotations

import hashlib

from maniflex._client_address import caller_network
from maniflex.errors import RequestError
from maniflex.middleware.db.query_text import scope_text
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


async def scopes_of_caller(ctx: Context) -> str:
    """A text for all that scope rules say of the caller, whose tenant may stand in a header.

    It is for requests whose own query no rule binds, and whose code may touch every model. A rule that
    refuses such a caller says so too; where the code needs no rows of that rule, it does not end the request.
    """
    texts: dict[str, None] = {}
    for rules in ctx.runtime.scopes.values():
        for rule in rules:
            try:
                texts[scope_text(tuple(await rule.rule.conditions(ctx)))] = None
            except RequestError as refusal:
                texts[f"refused {refusal.code}"] = None
    return hashlib.blake2b(repr(list(texts)).encode(), digest_size=16).hexdigest()
