import asyncio

from maniflex import Context, Model, Server
from maniflex.testing import client


class Account(Model):
    balance: int = 100


server = Server()
server.register(Account)


@server.action("POST", "/accounts/{source}/to/{target}")
async def transfer(ctx: Context) -> None:
    accounts = ctx.db(Account)
    async with ctx.transaction():
        source = await accounts.read(ctx.url_param("source"))
        target = await accounts.read(ctx.url_param("target"))
        await accounts.update(source.id, balance=source.balance - 1)
        await accounts.update(target.id, balance=target.balance + 1)


async def main() -> None:
    async with client(server) as http:
        ids = [(await http.post("/api/accounts", json={})).json()["data"]["id"] for _ in range(2)]
        path = f"/api/accounts/{ids[0]}/to/{ids[1]}"
        answers = await asyncio.gather(*(http.post(path) for _ in range(20)))

        done = sum(answer.status_code == 204 for answer in answers)
        for answer in answers:
            assert answer.status_code == 204 or answer.json()["error"]["retryable"]
        stored = [(await http.get(f"/api/accounts/{id}")).json()["data"]["balance"] for id in ids]
        assert stored == [100 - done, 100 + done]


if __name__ == "__main__":
    asyncio.run(main())
