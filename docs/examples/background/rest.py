import asyncio
from typing import Any

from pydantic import BaseModel

from maniflex import AuthInfo, Context, Next, Run, Server
from maniflex.testing import client

server = Server()


class Report(BaseModel):
    month: str


@server.pipeline.auth.middleware()
async def who(ctx: Context, next: Next) -> None:
    if user := ctx.header("x-user"):  # stands for a token that you check
        ctx.auth = AuthInfo(user_id=user)
    await next()


@server.work.handler("report.monthly.v1", public=True, payload=Report)
async def monthly(run: Run) -> dict[str, Any]:
    return {"pages": 12, "month": run.payload.month}


async def main() -> None:
    ada, bob = {"x-user": "ada"}, {"x-user": "bob"}
    wanted = {"type": "report.monthly.v1", "payload": {"month": "2026-01"}, "idempotency_key": "2026-01"}
    async with client(server, background=True) as http:
        submitted = await http.post("/api/workflow_run", json=wanted, headers=ada)
        assert submitted.status_code == 201
        again = await http.post("/api/workflow_run", json=wanted, headers=ada)
        assert again.status_code == 200  # the same run

        run = submitted.json()["data"]
        await server.work.wait(run["id"], timeout=10)
        done = (await http.get(f"/api/workflow_run/{run['id']}", headers=ada)).json()["data"]
        assert (done["status"], done["result"]["pages"]) == ("succeeded", 12)

        assert (await http.get(f"/api/workflow_run/{run['id']}", headers=bob)).status_code == 404
        assert (await http.post(f"/api/workflow_run/{run['id']}/cancel", headers=ada)).status_code == 409
        wrong = {"type": "report.monthly.v1", "payload": {}}
        assert (await http.post("/api/workflow_run", json=wrong, headers=ada)).status_code == 422


if __name__ == "__main__":
    asyncio.run(main())
