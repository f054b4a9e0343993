"""Accounts of the shop: anybody signs up, products are for all to read, orders for those who placed them."""

from collections.abc import Mapping
from typing import Any

from examples.orders.models import Order, Product, Receipt, Shipment, User
from maniflex import AuthInfo, Context, NotFound, Operation, Server
from maniflex.middleware import auth, db, service, validate


async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
    users = await ctx.unscoped().db(User).list({"email": credentials.email})
    stored = users[0].password if users else None  # None takes as long as a wrong password
    if not await auth.verify_password(credentials.password, stored):
        return None
    return AuthInfo(user_id=users[0].id, roles=[users[0].role])


async def read_user(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
    """Asked with every request: who was deleted, or has another role, is not what a token says."""
    try:
        user = await ctx.unscoped().db(User).read(info.user_id)
    except NotFound:
        raise ValueError("the account was deleted") from None
    info.roles = [user.role]


def caller(ctx: Context) -> str:
    return ctx.require_auth().user_id


def add_accounts(server: Server, secret: str) -> None:
    tokens = auth.Tokens(secret, issuer="shop", revoker=auth.SqlRevoker())
    tokens.mount(server, login=log_in)

    register = server.pipeline.auth.register
    register(auth.allow_public_write(), models=[User], operations=Operation.CREATE)
    register(auth.allow_public_read(), models=[Product])
    register(tokens.bearer())
    register(auth.verify(read_user))
    register(auth.require_role("admin"), models=[Product], operations=Operation.WRITES)
    register(auth.require_role("admin"), operations=[Operation.UPLOAD_FILE, Operation.DELETE_FILE])
    register(auth.require_role("admin"), models=[User, Order], operations=Operation.DELETE)
    register(
        auth.require_owner("id", admin_roles="admin"), models=[User], operations=["list", "read", "update"]
    )
    register(auth.require_owner("customer_id", admin_roles="admin"), models=[Order])
    register(
        db.force_filter_via("order", "customer_id", caller, unless_role="admin"), models=[Receipt, Shipment]
    )

    server.pipeline.db.register(db.rate_limit(20, 60), models=[User], operations=Operation.CREATE)
    server.pipeline.validate.register(validate.field_role("role", "admin"), models=[User])
    # Whoever has a session of an account loses it when its password is changed, and when it is deleted.
    server.pipeline.service.register(service.hash_field("password", ends=tokens), models=[User])
