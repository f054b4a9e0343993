import asyncio
from collections.abc import AsyncIterator
from typing import Any

from maniflex import Context, Model, Server
from maniflex.storage import FileMeta, from_address, new_key
from maniflex.testing import client


class Report(Model):
    title: str
    file: str


server = Server()
server.register(Report)
files = from_address("memory:")  # file:uploads keeps them in a directory


async def lines() -> AsyncIterator[bytes]:
    yield b"month,total\n"
    yield b"May,120\n"


@server.action("POST", "/reports/sales")
async def write_report(ctx: Context) -> Any:
    key = new_key("sales.csv")
    await files.store(key, lines(), FileMeta("sales.csv", "text/csv"))
    return await ctx.db(Report).create(title="Sales", file=key)


async def main() -> None:
    async with client(server) as http:
        report = (await http.post("/api/reports/sales")).json()["data"]
    async with await files.open(report["file"], start=12) as reader:
        assert (reader.meta.size, await reader.read()) == (20, b"May,120\n")


if __name__ == "__main__":
    asyncio.run(main())
