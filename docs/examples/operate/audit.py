import asyncio

from maniflex import AuthInfo, Context, Model, Operation, Server, field
from maniflex.audit import AuditRecord, TableSink
from maniflex.middleware import auth, db
from maniflex.testing import client

ADA = "a key of at least sixteen letters"


class Account(Model):
    owner: str
    limit: int = 100
    pin: str = field(default="", writeonly=True)


class Siem:
    """A sink of your own: anything that has `write`."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    async def write(self, record: AuditRecord) -> None:
        self.records.append(record)  # here: send it on


server = Server(service_name="bank")
server.register(Account)
server.pipeline.auth.register(auth.api_keys(keys={ADA: AuthInfo(user_id="ada", roles=["admin"])}))

siem, table = Siem(), TableSink(routes=True)
server.pipeline.db.register(db.audit_log(siem, changes=True), operations=Operation.WRITES)
server.pipeline.db.register(db.audit_log(table), models=[Account], operations=Operation.WRITES)
server.pipeline.response.register(db.audit_reads(table, required=True), models=[Account])


@server.action("POST", "/close", middleware=[db.audit_action(table)])
async def close(ctx: Context) -> str:
    return "closed"


async def main() -> None:
    async with client(server, headers={"x-api-key": ADA}) as http:
        account = (await http.post("/api/accounts", json={"owner": "eve", "pin": "1234"})).json()["data"]
        await http.patch(f"/api/accounts/{account['id']}", json={"limit": 500})
        await http.get("/api/accounts")
        await http.post("/api/close")

        await server.outbox.drainer().drain()  # a server that works in the background does it by itself
        created, updated = siem.records
        assert (created.operation, created.actor, created.service_name) == ("create", "ada", "bank")
        change = (updated.changes or {})["limit"]
        assert (change.from_, change.to) == (100, 500)
        assert "1234" not in str(siem.records)

        trail = (await http.get(f"/api/audit_log?filter=resource_id:eq:{account['id']}")).json()["data"]
        assert {record["operation"] for record in trail} == {"create", "update"}
        [read] = (await http.get("/api/read_audit_log")).json()["data"]
        assert (read["operation"], read["record_count"]) == ("list", 1)
        [action] = (await http.get("/api/action_audit_log")).json()["data"]
        assert (action["action"], action["status"]) == ("close", 200)


if __name__ == "__main__":
    asyncio.run(main())
