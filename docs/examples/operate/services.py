import asyncio

from maniflex import Model, Server


class Visit(Model):
    page: str


server = Server(database="sqlite:///:memory:")
server.register(Visit)
happened: list[str] = []


class Mailer:
    async def start(self) -> None:
        happened.append("mailer started")

    async def stop(self) -> None:
        happened.append("mailer stopped")


server.add_service(Mailer())


@server.on_start
async def first_visit() -> None:
    await server.db(Visit).create(page="/")


@server.on_shutdown
async def say_goodbye() -> None:
    happened.append(f"{await server.db(Visit).count()} visit")


async def main() -> None:
    async with server.lifespan():
        assert happened == ["mailer started"]
    assert happened == ["mailer started", "mailer stopped", "1 visit"]


if __name__ == "__main__":
    asyncio.run(main())
