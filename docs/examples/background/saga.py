import asyncio

from maniflex import Fatal, Run, Server

server = Server(background=False)
happened: list[str] = []


async def book(what: str) -> str:
    if what == "car":
        raise Fatal("no car is left")
    happened.append(f"book {what}")
    return f"{what}-1"


async def give_back(booking: str) -> None:
    happened.append(f"give back {booking}")


@server.work.handler("trip.book.v1")
async def trip(run: Run) -> None:
    await run.step("flight", book, "flight", compensate=give_back)
    await run.step("hotel", book, "hotel", compensate=give_back)
    await run.step("car", book, "car", compensate=give_back)


async def main() -> None:
    happened.clear()
    async with server.lifespan():
        run = await server.work.submit("trip.book.v1")
        await server.work.worker().drain()

        assert happened == ["book flight", "book hotel", "give back hotel-1", "give back flight-1"]
        failed = await server.work.get(run.id)
        assert (failed.status, failed.last_error) == ("failed", "Fatal: no car is left")


if __name__ == "__main__":
    asyncio.run(main())
