import asyncio

from maniflex import Context, Model, Next, Server, field, has_many
from maniflex.testing import client


class Project(Model):
    tenant_id: str = field(filterable=True)
    name: str = field(filterable=True)
    tasks: list["Task"] = has_many()


class Task(Model):
    tenant_id: str = field(filterable=True)
    title: str
    project_id: str = field(filterable=True)


server = Server()
server.register(Project, Task)


@server.pipeline.auth.middleware(models=[Project, Task])
async def own_rows_only(ctx: Context, next: Next) -> None:
    tenant = ctx.header("x-tenant")
    if not tenant:
        ctx.abort(401, "UNAUTHENTICATED", "who is asking?")
    ctx.query.force("tenant_id", tenant)
    await next()


async def main() -> None:
    async with client(server) as http:
        red, blue = {"x-tenant": "red"}, {"x-tenant": "blue"}
        body = {"name": "Mine", "tenant_id": "blue"}
        mine = (await http.post("/api/projects", json=body, headers=red)).json()["data"]
        assert mine["tenant_id"] == "red"

        path = f"/api/projects/{mine['id']}"
        assert (await http.get(path, headers=red)).status_code == 200
        assert (await http.get(path, headers=blue)).status_code == 404
        assert (await http.delete(path, headers=blue)).status_code == 404

        wide = "filter[0]=tenant_id:eq:red&filter[0]=name:not_null&include=tasks"
        seen = (await http.get(f"/api/projects?{wide}", headers=blue)).json()
        assert seen == {"data": [], "meta": {"total": 0, "page": 1, "limit": 20, "pages": 0}}


if __name__ == "__main__":
    asyncio.run(main())
