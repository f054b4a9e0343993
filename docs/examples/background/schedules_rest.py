import asyncio

from maniflex import AuthInfo, Context, Next, Server
from maniflex.testing import client

server = Server(background=False)
server.schedules.enable(admin_role="operator")


@server.pipeline.auth.middleware()
async def everybody_is_ada(ctx: Context, next: Next) -> None:
    ctx.auth = AuthInfo(user_id="ada", roles=["operator"])
    await next()


async def main() -> None:
    async with client(server) as http:
        wanted = {"name": "ping", "cron": "*/5 * * * *", "kind": "url", "target": "https://example.com/ping"}
        made = (await http.post("/api/schedules", json=wanted)).json()["data"]
        assert made["status"] == "active"
        assert made["next_run_at"] is not None

        refused = await http.post("/api/schedules", json={**wanted, "name": "never", "cron": "0 0 30 2 *"})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "INVALID_SCHEDULE"

        path = f"/api/schedules/{made['id']}"
        assert (await http.post(f"{path}/run")).status_code == 202
        assert (await http.post(f"{path}/deactivate")).json()["data"]["next_run_at"] is None
        assert (await http.delete(f"/api/schedules?ids={made['id']}")).json()["data"] == {"deleted": 1}


if __name__ == "__main__":
    asyncio.run(main())
