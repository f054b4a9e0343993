"""An application with every kind of field, relation and route that a description can show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from maniflex import Context, Model, Run, Server, WithDeletedAt, field, has_many, many_to_many


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    number: int = Field(default=1, ge=0, le=10_000)


class Contact(BaseModel, strict=True):
    name: str
    age: int | None = Field(default=None, ge=0, le=150)


class Shop(Model):
    """Where things are sold."""

    name: str = field(filterable=True, sortable=True, min_length=1, max_length=80)
    opened: date | None = field(filterable=True, sortable=True)
    things: list[Thing] = has_many()


class Thing(
    Model,
    WithDeletedAt,
    optimistic_lock=True,
    cursor_field="created_at",
    export=True,
    aggregate=True,
    restore=True,
    global_searchable=True,
):
    """Something that can be sold."""

    name: str = field(filterable=True, sortable=True, searchable=True, max_length=100)
    count: int = field(filterable=True, sortable=True, default=0, min=0, max=1000)
    ratio: float = field(filterable=True, sortable=True, default=0.5)
    active: bool = field(filterable=True, default=True)
    price: Decimal | None = field(filterable=True, sortable=True)
    at: datetime | None = field(filterable=True, sortable=True)
    day: date | None = field(filterable=True)
    clock: time | None = field(filterable=True, sortable=True)
    ref: UUID | None = field(filterable=True)
    blob: bytes | None
    size: Literal["s", "m", "l"] = field(filterable=True, sortable=True, default="m")
    level: Literal[1, 2, 3] | None = field(filterable=True)
    colour: Colour | None = field(filterable=True)
    payload: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    address: Address | None
    contact: Contact | None
    code: str | None = field(unique=True, pattern="^[a-z]{2,8}$", alias="productCode")
    pin: str | None = field(writeonly=True, min_length=4, max_length=12)
    margin: int = field(hidden=True, default=3)
    serial: int = field(readonly=True, default=7)
    origin: str = field(immutable=True, default="web", max_length=20)
    shop_id: str | None = field(filterable=True)
    labels: list[Label] = many_to_many(through="ThingLabel")


class Label(Model):
    text: str = field(filterable=True, sortable=True, max_length=30)


class ThingLabel(Model):
    thing_id: str = field(filterable=True)
    label_id: str = field(filterable=True)


class News(Model):
    """A word that is its own plural."""

    headline: str = field(max_length=200)


class Stock(Model, query="SELECT size, COUNT(*) AS things FROM things GROUP BY size", table="stock"):
    """How many things there are of each size."""

    size: str = field(filterable=True, sortable=True)
    things: int = field(filterable=True, sortable=True)


class Setting(Model, singleton=True):
    theme: str = field(default="plain", max_length=20)


class Order(BaseModel):
    """What is ordered."""

    thing: str
    amount: int = Field(default=1, ge=1, le=99)


class Receipt(BaseModel):
    order: Order
    total: int


async def place(ctx: Context) -> Receipt:
    """Place an order."""
    order: Order = ctx.body
    return Receipt(order=order, total=order.amount)


async def first(ctx: Context) -> list[Thing]:
    return list(await ctx.db(Thing).list(limit=1))


async def nothing(ctx: Context) -> None:
    return None


def rich_server() -> Server:
    server = Server(openapi_title="Rich", openapi_version="2.1.0", openapi_all_methods=True)
    server.register(Shop, Thing, Label, ThingLabel, News, Stock, Setting)
    server.enable_global_search()
    server.action("POST", "/orders", request=Order, response=Receipt, tags=["Orders"])(place)
    server.action("GET", "/things/first", response=list[Thing], query_params={"loud": bool})(first)
    server.action("DELETE", "/old/{name}/{part}", deprecated=True)(nothing)

    @server.computed(Thing, "label")
    def label(thing: Thing) -> str:
        return thing.name.upper()

    return server


def durable_server() -> Server:
    """A server with the routes of all durable work."""
    server = Server(metrics_enabled=True, openapi_all_methods=True)
    server.schedules.enable()
    server.outbox.enable()
    server.jobs.mount_status()

    @server.work.handler("report.v1", public=True)
    async def report(run: Run) -> None:
        """Nothing to do."""

    return server
