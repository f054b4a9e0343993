"""What a plan has room for, how a project moves on, and who an organization cannot do without."""

from examples.saas.models import PROJECTS, Member, Organization, Project
from maniflex import Context, Next, Operation, Server, with_transaction
from maniflex.middleware import workflow


async def count_projects(ctx: Context, next: Next) -> None:
    """Refuse a project that the plan has no room for.

    The lock makes creates of one organization wait for each other, so the count is still true when the row
    is written.
    """
    organization = await ctx.lock_for_update(Organization, ctx.require_auth().tenant_id)
    most = PROJECTS[organization.plan]
    if await ctx.db(Project).count() >= most:
        ctx.abort(
            402,
            "PROJECT_LIMIT",
            f'plan "{organization.plan}" allows {most} projects; upgrade to add more',
        )
    await next()


async def keep_an_owner(ctx: Context, next: Next) -> None:
    """Refuse to remove, or to give another role to, the last owner."""
    stays = ctx.operation is not Operation.DELETE and ctx.field("role", "owner") == "owner"
    await ctx.lock_for_update(Organization, ctx.require_auth().tenant_id)
    owners = await ctx.db(Member).list({"role": "owner"}, limit=2)
    if not stays and [owner.id for owner in owners] == [ctx.url_param("id")]:
        ctx.abort(409, "LAST_OWNER", "an organization needs an owner; make somebody else one first")
    await next()


def add_projects(server: Server) -> None:
    in_service = server.pipeline.service.register
    in_service(with_transaction(), models=[Project], operations=Operation.CREATE)
    in_service(count_projects, models=[Project], operations=Operation.CREATE, errors={402: "PROJECT_LIMIT"})
    in_service(with_transaction(), models=[Member], operations=[Operation.UPDATE, Operation.DELETE])
    in_service(
        keep_an_owner,
        models=[Member],
        operations=[Operation.UPDATE, Operation.DELETE],
        errors={409: "LAST_OWNER"},
    )
    status = workflow.machine(
        "status",
        workflow.allow_initial("active"),
        workflow.allow("active", "paused"),
        workflow.allow("paused", "active"),
        workflow.allow("*", "archived", workflow.require_role("owner", "admin")),
        workflow.allow("archived", "active", workflow.require_role("owner")),
    )
    server.pipeline.validate.register(status, models=[Project])
