"""Signing up, in and out. A token names the member and the organization; roles are read with each request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from examples.saas.models import Address, Member, Organization
from maniflex import AuthInfo, Context, NotFound, Response, Server
from maniflex.middleware import auth, db, idempotency, service

Password = Annotated[str, Field(min_length=8, max_length=128, repr=False)]


@dataclass
class SignUp:
    organization: Annotated[str, Field(min_length=1, max_length=100)]
    email: Address
    password: Password


async def sign_up(ctx: Context) -> Response:
    """Make an organization on the free plan and its first member, who owns it."""
    wanted: SignUp = ctx.body
    password = await auth.hash_password(wanted.password)
    everything = ctx.unscoped()  # nobody is known yet
    async with everything.transaction():
        organization = await everything.db(Organization).create(name=wanted.organization)
        member = await everything.db(Member).create(
            organization_id=organization.id, email=wanted.email, password=password, role="owner"
        )
    return Response(201, {"organization": organization, "member": member})


async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
    members = await ctx.unscoped().db(Member).list({"email": credentials.email.strip().lower()})
    stored = members[0].password if members else None  # None takes as long as a wrong password
    if not await auth.verify_password(credentials.password, stored):
        return None
    return AuthInfo(user_id=members[0].id, tenant_id=members[0].organization_id, roles=[members[0].role])


async def read_member(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
    """Asked with every request: who was removed, or has another role, is not what a token says."""
    try:
        member = await ctx.unscoped().db(Member).read(info.user_id)
    except NotFound:
        raise ValueError("the member was removed") from None
    info.roles = [member.role]


def add_accounts(server: Server, secret: str) -> None:
    tokens = auth.Tokens(secret, issuer="saas", revoker=auth.SqlRevoker())
    server.pipeline.auth.register(tokens.bearer())
    server.pipeline.auth.register(auth.verify(read_member))
    tokens.mount(server, login=log_in)
    # Whoever has a session of a member loses it when the password is changed, and when the member is removed.
    server.pipeline.service.register(service.hash_field("password", ends=tokens), models=[Member])
    open_to_all = [auth.allow_anonymous(), db.rate_limit(20, 60), idempotency.keys()]
    server.action("POST", "/signup", request=SignUp, errors=[409], middleware=open_to_all)(sign_up)
