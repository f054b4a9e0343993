import asyncio

from maniflex import AuthInfo, Context, Model, Next, Server, field, has_many
from maniflex.middleware import auth, db
from maniflex.testing import client


class Org(Model):
    name: str
    projects: list["Project"] = has_many()


class Project(Model):
    org_id: str = field(filterable=True)
    name: str = field(filterable=True)


class Task(Model):
    project_id: str = field(filterable=True)
    title: str


class Draft(Model):
    owner_id: str = field(relation=None, readonly=True)
    text: str


def org_of(ctx: Context) -> str:
    return ctx.require_auth().tenant_id


server = Server(database="sqlite:///:memory:")
server.register(Org, Project, Task, Draft)
register = server.pipeline.auth.register
register(db.tenancy("org_id", shared=[Org, Task, Draft]))  # every model with an org_id
register(db.force_filter_via("project", "org_id", org_of), models=[Task])
register(auth.require_owner("owner_id", admin_roles="admin"), models=[Draft])


@server.pipeline.auth.middleware()
async def identify(ctx: Context, next: Next) -> None:  # in an application: auth.jwt(...)
    ctx.auth = AuthInfo(user_id=ctx.header("x-user") or "", tenant_id=ctx.header("x-org") or "")
    await next()


@server.action("GET", "/totals")
async def totals(ctx: Context) -> dict[str, int]:
    everything = ctx.unscoped()  # says that all rows are meant
    return {"ours": await ctx.db(Project).count(), "all": await everything.db(Project).count()}


async def main() -> None:
    ours, theirs = {"x-user": "ann", "x-org": "red"}, {"x-user": "bob", "x-org": "blue"}
    async with client(server) as http:
        for org in ("red", "blue"):
            await server.db(Org).create(id=org, name=org)
        made = (await http.post("/api/projects", headers=ours, json={"name": "Moon"})).json()["data"]
        assert made["org_id"] == "red"  # stamped, whatever the body says

        assert (await http.get(f"/api/projects/{made['id']}", headers=theirs)).status_code == 404
        task = {"project_id": made["id"], "title": "Land"}
        assert (await http.post("/api/tasks", headers=theirs, json=task)).status_code == 404
        orgs = (await http.get("/api/orgs?include=projects", headers=theirs)).json()["data"]
        assert not any(org["projects"] for org in orgs)
        assert (await http.get("/api/projects", headers={"x-user": "eve"})).status_code == 403
        assert (await http.get("/api/totals", headers=theirs)).json()["data"] == {"ours": 0, "all": 1}

        async with server.scoped(auth=AuthInfo(user_id="ann", tenant_id="red")):
            assert await server.db(Project).count() == 1


if __name__ == "__main__":
    asyncio.run(main())
