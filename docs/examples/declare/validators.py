import asyncio
from datetime import date
from typing import Self

from pydantic import field_validator, model_validator

from maniflex import Model, Server
from maniflex.testing import client


class Booking(Model):
    guest: str
    arrives: date
    leaves: date

    @field_validator("guest")
    @classmethod
    def trim(cls, guest: str) -> str:
        return guest.strip()

    @model_validator(mode="after")
    def stays_a_night(self) -> Self:
        if self.leaves <= self.arrives:
            raise ValueError("a stay has at least one night")
        return self


server = Server()
server.register(Booking)


async def main() -> None:
    async with client(server) as http:
        stay = {"guest": " Ada ", "arrives": "2030-05-01", "leaves": "2030-05-03"}
        created = await http.post("/api/bookings", json=stay)
        assert created.json()["data"]["guest"] == "Ada"

        refused = await http.post("/api/bookings", json=stay | {"leaves": "2030-05-01"})
        assert refused.status_code == 422


if __name__ == "__main__":
    asyncio.run(main())
