"""Inviting somebody: the invitation and the work that sends its mail are one transaction."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from examples.saas.accounts import Password
from examples.saas.models import Invitation, Mail, Member, Organization
from maniflex import Context, Next, Operation, Response, Run, Server, with_transaction
from maniflex.middleware import auth, db

INVITE = "mail.invite.v1"
GOOD_FOR = timedelta(days=7)


@dataclass
class Acceptance:
    code: Annotated[str, Field(max_length=100, repr=False)]
    password: Password


def digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


async def accept(ctx: Context) -> Response:
    """Become a member with the code of an invitation, which is good once and for a week."""
    wanted: Acceptance = ctx.body
    password = await auth.hash_password(wanted.password)
    everything = ctx.unscoped()  # the code says whose invitation it is
    async with everything.transaction():
        found = await everything.db(Invitation).list({"code_digest": digest(wanted.code)}, limit=1)
        if not found:
            ctx.abort(404, "NO_INVITATION", "there is no invitation with this code")
        invitation = await everything.lock_for_update(Invitation, found[0].id)
        if invitation.status != "pending" or invitation.created_at + GOOD_FOR < ctx.now():
            ctx.abort(409, "INVITATION_OVER", "the invitation was accepted before, or is too old")
        await everything.db(Invitation).update(invitation.id, status="accepted")
        member = await everything.db(Member).create(
            organization_id=invitation.organization_id,
            email=invitation.email,
            role=invitation.role,
            password=password,
        )
    return Response(201, member)


def add_invitations(server: Server) -> None:
    @server.work.handler(INVITE, max_attempts=5, scoped=True)
    async def send(run: Run) -> None:
        # Inside the transaction that remembers the step: one mail, however often we are tried.
        await run.step("write", write, run.payload["invitation_id"], transactional=True)

    async def write(invitation_id: str) -> str:
        code = secrets.token_urlsafe(24)
        invitation = await server.db(Invitation).update(invitation_id, code_digest=digest(code))
        organization = await server.db(Organization).read(invitation.organization_id)
        text = f"{organization.name} invites you as {invitation.role}. Your code: {code}"
        return (await server.db(Mail).create(to=invitation.email, text=text)).id

    async def send_mail(ctx: Context, next: Next) -> None:
        await server.work.submit(INVITE, {"invitation_id": ctx.result.id})
        await next()

    server.pipeline.service.register(with_transaction(), models=[Invitation], operations=Operation.CREATE)
    server.pipeline.db.register(send_mail, models=[Invitation], operations=Operation.CREATE, at="after")
    open_to_all = [auth.allow_anonymous(), db.rate_limit(20, 60)]
    server.action(
        "POST", "/invitations/accept", request=Acceptance, errors=[404, 409], middleware=open_to_all
    )(accept)
