"""Whose rows of durable work a caller reaches: their own, those of their tenant, or all.

The only home of that rule. An identity with a tenant never gets beyond it, with any role: a role is a word
of the application, and one tenant's admin is a stranger to another tenant. All rows are for operators, who
have the admin role and no tenant. The panel says of its requests who looks after durable work there; that
is `OPERATES` in the scope of the request, which only code of this process can set.
"""

from __future__ import annotations

from enum import StrEnum

from maniflex.errors import Forbidden, Unauthorized
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.exchange import LOOKS, OPERATES
from maniflex.pipeline.operation import Operation


class CallerReach(StrEnum):
    """How far a caller gets."""

    OWN = "own"
    TENANT = "tenant"
    ALL = "all"


def require_identity(ctx: Context) -> AuthInfo:
    """The identity of the caller; `Unauthorized` without one."""
    if ctx.auth is None or not ctx.auth.user_id:
        raise Unauthorized()
    return ctx.auth


def actor_of(ctx: Context) -> str | None:
    """The id of the caller, which the open panel of a developer has none of; others are `Unauthorized`."""
    if ctx.auth is None and ctx.scope.get(OPERATES):
        return None
    return require_identity(ctx).user_id


def reach_of(ctx: Context, admin_role: str) -> CallerReach:
    """How far the caller gets; `Unauthorized` without an identity."""
    if ctx.scope.get(OPERATES):
        return CallerReach.TENANT if ctx.auth is not None and ctx.auth.tenant_id else CallerReach.ALL
    auth = require_identity(ctx)
    if not ctx.has_role(admin_role):
        return CallerReach.OWN
    return CallerReach.TENANT if auth.tenant_id else CallerReach.ALL


def is_operator(ctx: Context, admin_role: str) -> bool:
    """Whether the caller reaches all rows and operates them; a caller without an identity does not."""
    panel_word = ctx.scope.get(OPERATES)
    if panel_word:
        return panel_word != LOOKS and (ctx.auth is None or not ctx.auth.tenant_id)
    return ctx.has_role(admin_role) and ctx.auth is not None and not ctx.auth.tenant_id


def require_operator(ctx: Context, admin_role: str) -> None:
    """Refuse callers other than operators where rows belong to no tenant; OPTIONS is open to all callers."""
    if ctx.operation is not Operation.OPTIONS and reach_of(ctx, admin_role) is not CallerReach.ALL:
        raise Forbidden()
