import asyncio

from maniflex import Model, Server
from maniflex.ext.saga import Saga, UndoFailed
from maniflex.testing import client


class Trip(Model):
    hotel: str = ""


server = Server()
server.register(Trip)


async def book_hotel(trip: Trip) -> None:
    await server.db(Trip).update(trip.id, hotel="booked")


async def cancel_hotel(trip: Trip) -> None:
    await server.db(Trip).update(trip.id, hotel="cancelled")


def book_flight(trip: Trip) -> None:
    raise ConnectionError("no seat left")


booking = Saga("booking").step("hotel", book_hotel, cancel_hotel).step("flight", book_flight)


async def main() -> None:
    async with client(server):
        trip = await server.db(Trip).create()
        try:
            await booking.execute(trip)
        except UndoFailed as failure:
            print("to be looked at:", failure.failures)
        except ConnectionError:
            assert (await server.db(Trip).read(trip.id)).hotel == "cancelled"


if __name__ == "__main__":
    asyncio.run(main())
