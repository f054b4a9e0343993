import asyncio

from maniflex import Context, Model, Server
from maniflex.testing import client


class Visit(Model):
    address: str


server = Server(trusted_proxies=1)
server.register(Visit)


@server.action("GET", "/whoami")
async def whoami(ctx: Context) -> str:
    await ctx.db(Visit).create(address=ctx.client_ip)
    return f"{ctx.scheme} {ctx.client_ip}"


async def main() -> None:
    async with client(server) as http:
        # The client claimed to be 6.6.6.6; the proxy appended the address it was called from.
        headers = {"X-Forwarded-For": "6.6.6.6, 192.0.2.7", "X-Forwarded-Proto": "https"}
        answer = await http.get("/api/whoami", headers=headers)
        assert answer.json()["data"] == "https 192.0.2.7"


if __name__ == "__main__":
    asyncio.run(main())
