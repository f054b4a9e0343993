import asyncio
from datetime import date
from decimal import Decimal
from typing import Any

from maniflex import Model, Server
from maniflex.middleware import validate
from maniflex.testing import client


class Booking(Model):
    room: str
    starts_on: date
    ends_on: date
    price: Decimal = Decimal(0)
    status: str = "open"
    reason: str | None = None
    approved_by: str | None = None


def check_length(values: dict[str, Any]) -> str | None:
    return "a stay has at most 30 nights" if (values["ends_on"] - values["starts_on"]).days > 30 else None


server = Server()
server.register(Booking)
for rule in (
    validate.regex_field("room", "^[A-Z][0-9]+$"),
    validate.date_range("starts_on", "ends_on"),
    validate.numeric_precision("price", 10, 2),
    validate.require_when("reason", "status:eq:cancelled"),
    validate.cross_field(check_length, fields=["starts_on", "ends_on"]),
    validate.field_role("approved_by", "manager"),
):
    server.pipeline.validate.register(rule, models=[Booking])


async def main() -> None:
    stay = {"room": "A1", "starts_on": "2026-05-01", "ends_on": "2026-05-03"}
    async with client(server) as http:
        booking = (await http.post("/api/bookings", json=stay)).json()["data"]
        path = f"/api/bookings/{booking['id']}"

        answer = await http.patch(path, json={"room": "attic", "ends_on": "2026-04-30", "price": 1.005})
        assert answer.status_code == 422
        assert [d["field"] for d in answer.json()["error"]["details"]] == ["room", "price", "ends_on"]

        answer = await http.patch(path, json={"status": "cancelled"})
        assert [d["field"] for d in answer.json()["error"]["details"]] == ["reason"]

        answer = await http.patch(path, json={"approved_by": "me"})
        assert answer.json()["error"]["code"] == "FIELD_FORBIDDEN"


if __name__ == "__main__":
    asyncio.run(main())
