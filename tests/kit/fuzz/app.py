"""An application with one of everything a client can reach: every kind of field, every kind of model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, field_validator, model_validator

from maniflex import Context, Model, Server, WithDeletedAt, WithIsDeleted, field


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    street: str
    number: int = 1


class Contact(BaseModel):
    name: str
    age: int | None = None


class Thing(Model):
    """Every kind of value, all of them open to filters and sorts where that is possible."""

    name: str = field(filterable=True, sortable=True)
    count: int = field(filterable=True, sortable=True, default=0)
    ratio: float = field(filterable=True, sortable=True, default=0.0)
    active: bool = field(filterable=True, sortable=True, default=True)
    price: Decimal | None = field(filterable=True, sortable=True)
    at: datetime | None = field(filterable=True, sortable=True)
    day: date | None = field(filterable=True, sortable=True)
    clock: time | None = field(filterable=True, sortable=True)
    ref: UUID | None = field(filterable=True, sortable=True)
    blob: bytes | None
    size: Literal["s", "m", "l"] = field(filterable=True, sortable=True, default="m")
    level: Literal[1, 2, 3] | None = field(filterable=True)
    colour: Colour | None = field(filterable=True)
    payload: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    anything: list[Any] | None
    address: Address | None
    contact: Contact | None


class Note(Model, WithDeletedAt):
    """Bounds, uniqueness, other names, and secrets."""

    slug: str = field(unique=True, min_length=1, max_length=40, pattern=r"^[^\s]+$", filterable=True)
    body_text: str = field(alias="bodyText", column="content", max_length=200, default="")
    stars: int | None = field(min=1, max=5, sortable=True, filterable=True)
    secret: str | None = field(writeonly=True)
    internal: str = field(hidden=True, default="inside")
    serial: int = field(readonly=True, default=7)
    origin: str = field(immutable=True, default="web")
    thing_id: str | None = field(filterable=True)


class Doc(Model, optimistic_lock=True):
    """Versions, a final state, and validators of its own."""

    title: str = field(filterable=True, sortable=True)
    status: Literal["draft", "posted"] = field(default="draft", lock_when={"status": "posted"})
    low: int = 0
    high: int = 10

    @field_validator("title")
    @classmethod
    def not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be blank")
        return value

    @model_validator(mode="after")
    def in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class Flag(Model, WithIsDeleted):
    label: str = field(unique=True, max_length=20, filterable=True, sortable=True)


class Setting(Model, singleton=True, optimistic_lock=True):
    theme: str = "plain"
    limits: dict[str, int] = field(default_factory=dict)


class Order(BaseModel):
    thing: str
    amount: int = 1
    notes: list[str] = []


async def order(ctx: Context) -> dict[str, Any]:
    wanted: Order = ctx.body
    return {"thing": wanted.thing, "amount": wanted.amount, "notes": wanted.notes}


async def rename(ctx: Context) -> Thing:
    async with ctx.transaction():
        thing = await ctx.lock_for_update(Thing, ctx.url_param("id"))
        return await ctx.db(Thing).update(thing.id, name=f"{thing.name[:20]}!", count=1)


async def parrot(ctx: Context) -> dict[str, Any]:
    body = await ctx.bind_json()
    return {"word": ctx.url_param("word"), "q": ctx.query_param("q"), "body": body}


def slowly(ctx: Context) -> list[str]:
    return [ctx.url_param("a"), ctx.url_param("b"), ctx.query_param("q")]


async def nothing(ctx: Context) -> None:
    return None


def fuzzed_server(static: Path | None = None, **settings: Any) -> Server:
    """The application; with a directory of static files if one is given."""
    server = Server(static_dir=str(static or "no-such-directory"), max_body_size=200_000, **settings)
    server.register(Thing, Note, Doc, Flag, Setting)
    server.action("POST", "/orders", request=Order)(order)
    server.action("POST", "/things/{id}/rename")(rename)
    server.action("PUT", "/parrot/{word}")(parrot)
    server.action("GET", "/slowly/{a}/and/{b}")(slowly)
    server.action("DELETE", "/nothing")(nothing)
    server.computed(Note, "shout")(lambda note: note.slug.upper())
    return server
