"""Make somebody who has signed up an admin: `python -m examples.orders.make_admin ada@example.com`."""

import asyncio
import sys

from examples.orders.app import server
from examples.orders.models import User


async def main(email: str) -> None:
    async with server.lifespan(role="client"):
        users = await server.db(User).list({"email": email})
        if not users:
            sys.exit(f"nobody has signed up as {email}")
        await server.db(User).update(users[0].id, role="admin")
    print(f"{email} is an admin now")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m examples.orders.make_admin EMAIL")
    asyncio.run(main(sys.argv[1]))
