import asyncio
from dataclasses import dataclass

from maniflex import Run, Server
from maniflex.testing import client


@dataclass
class Trip:
    city: str


server = Server()
done: list[str] = []


@server.saga("POST", "/trips/book", type="trip.book.v1", request=Trip, max_attempts=1)
async def book(run: Run[Trip]) -> dict[str, str]:
    """Book a hotel and a flight, or neither."""
    await run.step("hotel", done.append, "hotel", compensate=lambda _: done.append("no hotel"))
    await run.step("flight", done.append, "flight", compensate=lambda _: done.append("no flight"))
    if run.payload.city == "Atlantis":
        raise LookupError("nobody flies there")
    return {"city": run.payload.city}


async def main() -> None:
    async with client(server, background=True) as http:
        wait = {"Prefer": "wait=10"}
        booked = await http.post("/api/trips/book", json={"city": "Rome"}, headers=wait)
        assert booked.json()["data"]["result"] == {"city": "Rome"}

        failed = await http.post("/api/trips/book", json={"city": "Atlantis"}, headers=wait)
        assert failed.json()["error"]["code"] == "SAGA_FAILED"
        assert done[-2:] == ["no flight", "no hotel"]


if __name__ == "__main__":
    asyncio.run(main())
