"""A small shop for many customers at once, with actions that hold on, wait or take long."""

from __future__ import annotations

import asyncio
from typing import Any

from maniflex import Context, Model, Server, field


class Item(Model, optimistic_lock=True):
    name: str = field(filterable=True)
    stock: int = 0


class Account(Model):
    email: str = field(unique=True)


class Entry(Model):
    writer: int = field(filterable=True)
    number: int = 0


class Preference(Model, singleton=True):
    theme: str = "plain"


# Longer than any test waits: these end by being given up.
SLOW = {
    "sqlite": """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000000)
                 SELECT count(*) AS n FROM n""",
    "postgresql": "SELECT count(*) AS n FROM (SELECT pg_sleep(600)) AS slept",
}


class Signals:
    """How tests and the actions below tell each other where they are."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()


def shop(signals: Signals | None = None, **settings: Any) -> Server:
    """The shop; `signals` are for the actions that stop halfway."""
    server = Server(static_disabled=True, **settings)
    server.register(Item, Account, Entry, Preference)

    @server.action("POST", "/items/{id}/sell")
    async def sell(ctx: Context) -> Item:
        return await ctx.db(Item).increment(ctx.url_param("id"), stock=1)

    @server.action("POST", "/items/{id}/restock")
    async def restock(ctx: Context) -> Item:
        async with ctx.transaction():
            item = await ctx.lock_for_update(Item, ctx.url_param("id"))
            return await ctx.db(Item).update(item.id, stock=item.stock + 1)

    @server.action("GET", "/slow")
    async def slow(ctx: Context) -> Any:
        if signals is not None:
            signals.reached.set()
        return await ctx.raw_query(SLOW[ctx.adapter.dialect])

    @server.action("POST", "/hold")
    async def hold(ctx: Context) -> Entry:
        assert signals is not None
        async with ctx.transaction():
            entry = await ctx.db(Entry).create(writer=-1)
            signals.reached.set()
            await signals.release.wait()
        return entry

    return server
