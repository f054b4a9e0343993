"""Code that uses a database other than the default one: transactions, raw SQL and locks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, NotFound, Server
from maniflex.errors import DatabaseError, DeclarationError, TransactionError
from maniflex.middleware import db
from maniflex.sql.statement import Sql
from maniflex.testing import client
from tests.kit.http import error_of


class Order(Model):
    number: int


class Parcel(Model):
    tenant: str = ""


@asynccontextmanager
async def shop(database: str, tmp_path: Path) -> AsyncIterator[tuple[Server, type[Any], httpx.AsyncClient]]:
    """Orders in the default database, stock in one of its own; the actions below use both."""
    server = Server()

    class Stock(Model, table="stock", database=f"sqlite:///{tmp_path}/stock.db"):
        pieces: int

    server.register(Order, Stock)

    @server.action("POST", "/take/{id}/{way}")
    async def take(ctx: Context) -> Any:
        on: Any = {"class": Stock, "name": "Stock"}[ctx.url_param("way")]
        async with ctx.transaction(on=on):
            row: Any = await ctx.lock_for_update(Stock, ctx.url_param("id"))
            await ctx.raw_exec("UPDATE stock SET pieces = pieces - 1 WHERE id = ?", row.id, on=on)
            ctx.after_commit(lambda: told.append(row.id))
            if ctx.query_param("abort"):
                ctx.abort(409, "CONFLICT", "not today")
            [found] = await ctx.raw_query("SELECT pieces FROM stock WHERE id = ?", row.id, on=on)
        return found

    @server.action("POST", "/both/{id}")
    async def both(ctx: Context) -> Any:
        async with ctx.transaction(), ctx.transaction(on=Stock):
            await ctx.db(Order).create(number=1)
            await ctx.db(Stock).update(ctx.url_param("id"), pieces=0)
            ctx.abort(409, "CONFLICT", "neither")

    @server.action("POST", "/bare/{id}")
    async def bare(ctx: Context) -> Any:
        async with ctx.transaction():
            await ctx.lock_for_update(Stock, ctx.url_param("id"))

    @server.action("POST", "/look")
    async def look(ctx: Context) -> Any:
        async with ctx.transaction(on=Stock, read_only=True):
            await ctx.db(Stock).create(pieces=1)

    told: list[str] = []
    server.told = told  # type: ignore[attr-defined]  # for the tests
    async with client(server, database=database) as http:
        yield server, Stock, http


@pytest.mark.parametrize("way", ["class", "name"])
async def test_an_action_locks_and_writes_in_a_transaction_on_the_database_of_a_model(
    database_url: str, tmp_path: Path, way: str
) -> None:
    async with shop(database_url, tmp_path) as (server, stock, http):
        row: Any = await server.db(stock).create(pieces=5)
        assert (await http.post(f"/api/take/{row.id}/{way}")).json()["data"] == {"pieces": 4}
        assert server.told == [row.id]  # type: ignore[attr-defined]  # set above

        error_of(await http.post(f"/api/take/{row.id}/{way}?abort=1"), 409, "CONFLICT")
        assert (await server.db(stock).read(row.id)).pieces == 4
        assert server.told == [row.id]  # type: ignore[attr-defined]  # the call waited for that transaction


async def test_two_transactions_inside_each_other_both_roll_back(database_url: str, tmp_path: Path) -> None:
    async with shop(database_url, tmp_path) as (server, stock, http):
        row: Any = await server.db(stock).create(pieces=5)
        error_of(await http.post(f"/api/both/{row.id}"), 409, "CONFLICT")
        assert await server.db(Order).count() == 0
        assert (await server.db(stock).read(row.id)).pieces == 5


async def test_a_lock_says_which_transaction_it_needs(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(sqlite_url, tmp_path) as (server, stock, http):
        row: Any = await server.db(stock).create(pieces=5)
        error_of(await http.post(f"/api/bare/{row.id}"), 500, "TX_REQUIRED")
        assert "`async with ctx.transaction(on=Stock):`" in caplog.text


async def test_a_read_only_transaction_writes_nothing(database_url: str, tmp_path: Path) -> None:
    async with shop(database_url, tmp_path) as (server, stock, http):
        assert (await http.post("/api/look")).status_code == 500
        assert await server.db(stock).count() == 0
        with pytest.raises((DatabaseError, TransactionError)):
            async with server.transaction(read_only=True):
                await server.db(Order).create(number=1)
        assert await server.db(Order).count() == 0


async def test_scripts_reach_the_database_of_a_model_too(sqlite_url: str, tmp_path: Path) -> None:
    async with shop(sqlite_url, tmp_path) as (server, stock, _):
        row: Any = await server.db(stock).create(pieces=5)
        async with server.transaction(on=stock) as tx:
            assert await server.raw_exec("UPDATE stock SET pieces = 1", on="Stock") == 1
            assert await tx.fetch(Sql("SELECT pieces FROM stock")) == [(1,)]
        rows = await server.raw_query("SELECT pieces FROM stock WHERE id = ?", row.id, on=stock)
        assert rows == [{"pieces": 1}]
        with pytest.raises(
            DeclarationError, match="no model named 'Stok' is registered; did you mean 'Stock'"
        ):
            await server.raw_query("SELECT 1", on="Stok")


async def test_scripts_and_handlers_lock_a_record_of_either_database(
    database_url: str, tmp_path: Path
) -> None:
    async with shop(database_url, tmp_path) as (server, stock, _):
        order, row = await server.db(Order).create(number=1), await server.db(stock).create(pieces=5)
        with pytest.raises(TransactionError, match=r"async with server\.transaction\(on=Stock\):"):
            await server.lock_for_update(stock, row.id)
        with pytest.raises(TransactionError, match=r"async with server\.transaction\(\):"):
            await server.lock_for_update(Order, order.id)
        async with server.transaction(), server.transaction(on=stock):
            assert (await server.lock_for_update(Order, order.id)).number == 1
            locked = await server.lock_for_update(stock, row.id)
            await server.db(stock).update(row.id, pieces=locked.pieces - 1)
        assert (await server.db(stock).read(row.id)).pieces == 4
        with pytest.raises(NotFound):
            async with server.transaction():
                await server.lock_for_update(Order, "nobody")


async def test_a_block_of_scoped_code_locks_no_record_of_another_tenant(database_url: str) -> None:
    server = Server()
    server.register(Parcel)
    server.pipeline.auth.register(db.tenancy("tenant"), models=[Parcel])
    async with client(server, database=database_url):
        mine, theirs = [await server.db(Parcel).create(tenant=name) for name in ("red", "blue")]
        async with server.scoped(auth=AuthInfo(user_id="u", tenant_id="red")), server.transaction():
            assert (await server.lock_for_update(Parcel, mine.id)).id == mine.id
            with pytest.raises(NotFound):
                await server.lock_for_update(Parcel, theirs.id)
