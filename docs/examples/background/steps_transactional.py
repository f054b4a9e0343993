import asyncio
from datetime import timedelta

from maniflex import Model, Run, Server, field


class Account(Model):
    name: str = field(unique=True)
    balance: int = 0


server = Server(background=False)
server.register(Account)


async def deposit(account_id: str, amount: int) -> int:
    account = await server.db(Account).increment(account_id, balance=amount)
    return account.balance


@server.work.handler("bank.deposit.v1", backoff=lambda failures: timedelta(0))
async def handle(run: Run) -> int:
    balance = await run.step("deposit", deposit, run.payload["account"], 100, transactional=True)
    if run.attempt == 1:
        raise ConnectionError("the process might as well have been killed here")
    return balance


async def main() -> None:
    async with server.lifespan():
        account = await server.db(Account).create(name="savings")
        run = await server.work.submit("bank.deposit.v1", {"account": account.id})
        await server.work.worker().drain()

        assert (await server.work.get(run.id)).result == 100
        assert (await server.db(Account).read(account.id)).balance == 100  # once, though tried twice


if __name__ == "__main__":
    asyncio.run(main())
