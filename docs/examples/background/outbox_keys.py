import asyncio

from maniflex import Server
from maniflex.background.outbox.message import Message
from maniflex.testing import client

server = Server(background=False)
balances: dict[str, int] = {}
refused: set[str] = set()


@server.outbox.handler("account.changed")
async def apply(message: Message) -> None:
    account, balance = message.payload["account"], message.payload["balance"]
    if account in refused:
        raise ConnectionError("the bank is closed")  # tried again in 5 s, then 10 s, 20 s, …
    balances[account] = balance


async def main() -> None:
    balances.clear()
    refused.add("ada")
    async with client(server):
        async with server.transaction():
            for account, balance in (("ada", 1), ("ada", 2), ("bob", 7)):
                change = {"account": account, "balance": balance}
                await server.outbox.enqueue("account.changed", change, key=account)

        assert await server.outbox.drainer().drain() == 1  # what ada waits for does not hold up bob
        assert balances == {"bob": 7}


if __name__ == "__main__":
    asyncio.run(main())
