"""`webhooks` of the document: the types that callers can have posted, with their schemas."""

from __future__ import annotations

import json
from typing import Any

from openapi_spec_validator import validate
from pydantic import BaseModel

from maniflex import Model, Run, Server, WithDeletedAt, field
from maniflex.events import Emit


class Order(Model, WithDeletedAt, events=True):
    """What is sold."""

    total: int = 0
    pin: str | None = field(default=None, writeonly=True)
    code: str | None = field(default=None, hidden=True)


class Line(Model, events=Emit(data="id")):
    """A part of it."""

    text: str = ""


class Secret(Model, events=True):
    """What nobody is offered."""

    text: str = ""


class Shipped(BaseModel):
    """The data of a declared type."""

    city: str


async def document(server: Server) -> dict[str, Any]:
    described: dict[str, Any] = await server.openapi()
    validate(described)
    return described


def a_server() -> Server:
    server = Server()
    server.register(Order, Line, Secret)
    server.events.declare("parcel.shipped", Shipped, title="A parcel left", example={"city": "Ulm"})
    server.events.declare("parcel.lost", audience="nobody")
    server.work.enable(events=True)

    @server.work.handler("mail.send", public=True)
    async def send(run: Run) -> None:
        """Send it."""

    @server.work.handler("inner.work", internal=True)
    async def work(run: Run) -> None:
        """Work."""

    return server


async def test_the_offered_types_are_described_with_their_data() -> None:
    server = a_server()
    server.webhooks.enable(["order.*", "line.created", "parcel.*", "run.*"])

    described = await document(server)

    assert list(described["webhooks"]) == [
        "line.created",
        "order.created",
        "order.deleted",
        "order.restored",
        "order.updated",
        "parcel.shipped",
        "run.mail.send.cancelled",
        "run.mail.send.failed",
        "run.mail.send.succeeded",
    ]
    schemas = described["components"]["schemas"]

    def data(type: str, media: str = "application/json") -> Any:
        body = described["webhooks"][type]["post"]["requestBody"]["content"][media]["schema"]
        assert body["properties"]["type"] == {"const": type}
        schema = body["properties"]["data"]
        return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    assert set(data("order.created")["properties"]) == {
        *("id", "total", "deleted_at", "created_at", "updated_at")
    }
    assert data("order.updated", "application/cloudevents+json") == data("order.created")
    assert set(data("line.created")["properties"]) == {"id"}
    assert data("run.mail.send.failed")["required"] == ["id", "type", "attempt", "error"]
    shipped = described["webhooks"]["parcel.shipped"]["post"]
    assert shipped["summary"] == "A parcel left"
    assert '"examples": [{"city": "Ulm"}]' in json.dumps(shipped)
    assert "pin" not in json.dumps(described["webhooks"])


async def test_who_offers_nothing_has_no_such_part() -> None:
    plain = a_server()
    of_code = a_server()
    of_code.webhooks.send("https://partner.example.com/hooks", "order.*", secret=None)

    assert "webhooks" not in await document(plain)
    assert "webhooks" not in await document(of_code)
