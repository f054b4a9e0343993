"""A service for companies: organizations, their members, their projects; nobody sees another's rows.

Run it with `maniflex run examples.saas.app:server`. The README beside this file walks through it.
"""

from examples.saas.accounts import add_accounts
from examples.saas.invitations import add_invitations
from examples.saas.models import Invitation, Mail, Member, Organization, Project
from examples.saas.projects import add_projects
from maniflex import Config, Context, Next, Operation, Server
from maniflex.middleware import auth, db, idempotency, openapi, response, validate


def organization_of(ctx: Context) -> str:
    return ctx.require_auth().tenant_id


def is_own_record(ctx: Context) -> bool:
    return ctx.url_param("id") == ctx.require_auth().user_id


async def refuse_other_tenants(ctx: Context, next: Next) -> None:
    """`db.tenancy` would put the row into the caller's organization; here the client is told instead."""
    if ctx.field("organization_id") not in (None, organization_of(ctx)):
        ctx.abort(403, "TENANT_MISMATCH", "organization_id does not match the authenticated tenant")
    await next()


def guard(server: Server) -> None:
    """Who may do what, and to which rows."""
    register = server.pipeline.auth.register
    register(auth.require_role("owner", "admin", "editor"), models=[Project], operations=["create", "update"])
    register(auth.require_role("owner", "admin"), models=[Project], operations=Operation.DELETE)
    register(auth.require_role("owner", "admin"), models=[Organization], operations=Operation.UPDATE)
    register(auth.require_role("owner", "admin"), models=[Invitation, Mail])
    register(auth.require_role("owner"), models=[Member], operations=Operation.DELETE)
    register(db.tenancy("organization_id", shared=[Organization]))
    register(db.force_filter("id", organization_of), models=[Organization])
    register(auth.require_owner("id", admin_roles="owner"), models=[Member], operations=Operation.UPDATE)

    server.pipeline.deserialize.register(
        refuse_other_tenants, models=[Member, Project, Invitation], at="after"
    )
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    server.pipeline.validate.register(validate.field_role("plan", "owner"), models=[Organization])
    server.pipeline.validate.register(validate.field_role("role", "owner"), models=[Member])
    server.pipeline.validate.register(validate.restrict_field("password", is_own_record), models=[Member])
    server.pipeline.db.register(db.rate_limit(120, 60), operations=Operation.WRITES)


def create_server(config: Config, secret: str) -> Server:
    server = Server(config=config)
    server.register(Organization, Member, Project, Invitation, Mail)
    server.use(response.security_headers())
    server.pipeline.openapi.generate.register(openapi.set_title("Projects for companies"), at="after")
    add_accounts(server, secret)
    guard(server)
    add_projects(server)
    add_invitations(server)
    return server
