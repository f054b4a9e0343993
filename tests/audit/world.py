"""A shop whose writes are audited, and sinks that do what a test needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx

import maniflex
from maniflex import AuthInfo, Context, Model, Server, scheduled
from maniflex.pipeline.registration import Next
from maniflex.testing import FakeClock, client
from tests.kit.waiting import eventually

SECRET = "hunter2"


class Shop(Model, table="audit_shops"):
    name: str = ""


class Order(Model, table="audit_orders", soft_delete=True, restore=True, export=True):
    number: int = maniflex.field(default=0, filterable=True, sortable=True)
    price: Decimal = Decimal("1.50")
    note: str = maniflex.field(default="", alias="remark")
    tags: dict[str, Any] = maniflex.field(default_factory=dict)
    pin: str = maniflex.field(default="", writeonly=True)
    margin: str = maniflex.field(default="", hidden=True)
    shop_id: str | None = maniflex.field(default=None, relation="Shop", on_delete="cascade")
    expires_at: datetime | None = scheduled(default=None, hard_delete=True)


class Setting(Model, table="audit_settings", singleton=True):
    theme: str = "light"


class Ledger(Model, table="audit_ledgers", headless=True):
    total: int = 0


class Plain(Model, table="audit_plain"):
    name: str = ""


MODELS = (Shop, Order, Setting, Ledger, Plain)


@dataclass
class KeepingSink:
    """Keeps what it gets; fails or hangs when it is told to."""

    records: list[Any] = field(default_factory=list)
    is_down: bool = False
    gate: asyncio.Event | None = None
    on_write: Callable[[Any], Any] | None = None

    async def write(self, record: Any) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.is_down:
            raise OSError("the sink is down")
        if self.on_write is not None:
            await self.on_write(record)
        self.records.append(record)

    def take(self) -> list[Any]:
        records, self.records = self.records, []
        return records


async def sign_in(ctx: Context, next: Next) -> None:
    """Takes the caller's word for it: `user;tenant;role role`."""
    word = ctx.header("x-user")
    if word is not None:
        user, tenant, roles = (*word.split(";"), "", "")[:3]
        ctx.auth = AuthInfo(
            user_id=user, tenant_id=tenant, roles=roles.split(), session_id="s-1", auth_method="word"
        )
    await next()


def new_server(**settings: Any) -> Server:
    server = Server(path_prefix="", service_name="shop", **settings)
    server.register(*MODELS)
    server.pipeline.auth.register(sign_in)
    return server


@dataclass
class World:
    server: Server
    http: httpx.AsyncClient
    clock: FakeClock

    async def drain(self) -> int:
        """Deliver what is in the outbox."""
        return await self.server.outbox.drainer().drain()

    async def order(self, **values: Any) -> str:
        """A new order over HTTP; its id."""
        made = await self.http.post("/audit_orders", json=values)
        assert made.status_code == 201, made.text
        record_id: str = made.json()["data"]["id"]
        return record_id


@asynccontextmanager
async def serving(server: Server, url: str) -> AsyncIterator[World]:
    clock = FakeClock()
    async with client(server, database=url, clock=clock, background=False) as http:
        yield World(server, http, clock)


async def write_and_roll_back(server: Server, write: Coroutine[Any, Any, Any]) -> None:
    """Write in a transaction that fails."""
    with suppress(_Failed):
        async with server.transaction():
            await write
            raise _Failed


class _Failed(Exception): ...


async def received(sink: KeepingSink, count: int) -> list[Any]:
    """The records of the sink, once there are so many."""
    await eventually(lambda: len(sink.records) >= count)
    assert len(sink.records) == count
    return sink.take()
