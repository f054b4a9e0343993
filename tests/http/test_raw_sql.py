"""SQL written by the application, with `?` on both databases."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from maniflex import Context, DatabaseError, Model, Server, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of


class Stock(Model):
    name: str = field(default="")
    left: int = 0
    price: Decimal = Decimal(0)
    seen: datetime = field(default=datetime(2026, 1, 1, tzinfo=UTC))
    code: UUID | None = None


def warehouse() -> Server:
    server = Server()
    server.register(Stock)
    return server


async def test_placeholders_are_bound_in_order(database_url: str) -> None:
    server = warehouse()
    async with client(server, database=database_url) as http:
        for name, left in [("nut", 3), ("bolt", 5), ("it's ?", 7)]:
            await created(http, "/api/stocks", name=name, left=left)
        rows = await server.raw_query(
            'SELECT name, "left" AS n FROM stocks WHERE "left" >= ? AND name <> ? ORDER BY "left"', 4, "nut"
        )
        assert rows == [{"name": "bolt", "n": 5}, {"name": "it's ?", "n": 7}]
        assert await server.raw_query("SELECT name FROM stocks WHERE name = ?", "it's ?") == [
            {"name": "it's ?"}
        ]


async def test_question_marks_in_literals_and_comments_are_left_alone(database_url: str) -> None:
    server = warehouse()
    async with client(server, database=database_url) as http:
        await created(http, "/api/stocks", name="nut", left=3)
        [row] = await server.raw_query(
            """
            SELECT 'why?' AS a, 'it''s ?' AS b, "left" AS "left?" -- really?
              FROM stocks /* or? */ WHERE name = ? -- and?
            """,
            "nut",
        )
        assert row == {"a": "why?", "b": "it's ?", "left?": 3}


async def test_dollar_quotes_and_escaped_operators_reach_postgres(postgres_url: str) -> None:
    server = warehouse()
    async with client(server, database=postgres_url):
        [row] = await server.raw_query(
            "SELECT $$a ? b$$ AS a, $tag$ $$ ? $$ $tag$ AS b, E'it\\'s ?' AS c, "
            """'{"k": 1}'::jsonb ?? 'k' AS d, '{"k": 1}'::jsonb ?? ? AS e""",
            "missing",
        )
        assert row == {"a": "a ? b", "b": " $$ ? $$ ", "c": "it's ?", "d": True, "e": False}


async def test_values_of_every_type_can_be_bound(database_url: str) -> None:
    server = warehouse()
    code = UUID("0190b3a8-7c2e-7d11-8f3a-0123456789ab")
    moment = datetime(2026, 5, 1, 12, 30, 0, 5, tzinfo=UTC)
    values: dict[str, Any] = {
        "name": "nut",
        "left": -5,
        "price": Decimal("1.50"),
        "seen": moment,
        "code": code,
    }
    async with client(server, database=database_url):
        record = await server.db(Stock).create(**values)
        for name, value in values.items():
            found = await server.raw_query(f'SELECT id FROM stocks WHERE "{name}" = ?', value)
            assert found == [{"id": record.id}], name
        touched = await server.raw_exec(
            'UPDATE stocks SET price = ?, seen = ?, code = ? WHERE "left" = ?',
            Decimal("2.25"),
            moment,
            None,
            -5,
        )
        assert touched == 1
        again = await server.db(Stock).read(record.id)
        assert (again.price, again.seen, again.code) == (Decimal("2.25"), moment, None)


async def test_raw_exec_says_how_many_rows_it_touched(database_url: str) -> None:
    server = warehouse()
    async with client(server, database=database_url) as http:
        for left in (1, 2, 3):
            await created(http, "/api/stocks", left=left)
        assert await server.raw_exec('UPDATE stocks SET "left" = 0 WHERE "left" > ?', 1) == 2
        assert await server.raw_exec("DELETE FROM stocks WHERE name = ?", "none") == 0
        assert await server.raw_exec("DELETE FROM stocks") == 3


async def test_a_wrong_number_of_values_is_refused_before_the_database_sees_it(database_url: str) -> None:
    server = warehouse()
    async with client(server, database=database_url):
        with pytest.raises(DatabaseError, match="2 placeholders and got 1"):
            await server.raw_query("SELECT 1 FROM stocks WHERE name = ? AND id = ?", "x")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM stocks",
        "delete from stocks where name <> 'RETURNING' -- RETURNING id",
        "UPDATE stocks SET name = 'x' /* RETURNING id */",
    ],
)
async def test_raw_query_cannot_write_what_gives_no_rows_back(database_url: str, statement: str) -> None:
    server = warehouse()
    async with client(server, database=database_url) as http:
        await created(http, "/api/stocks", name="nut")
        with pytest.raises(DatabaseError):
            await server.raw_query(statement)
        [record] = await server.db(Stock).list()
        assert record.name == "nut"


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_write_that_returns_rows_gives_them_and_is_stored(
    database_url: str, in_transaction: bool
) -> None:
    server = warehouse()
    async with client(server, database=database_url) as http:
        for left in (1, 2, 3):
            await created(http, "/api/stocks", name=f"n{left}", left=left)
        copy = (
            'INSERT INTO stocks (id, name, "left", price, seen, created_at, updated_at)'
            ' SELECT ?, name, "left", price, seen, created_at, updated_at FROM stocks WHERE name = ?'
        )
        async with server.transaction() if in_transaction else nullcontext():
            rows = await server.raw_query(f"{copy} RETURNING id, name", "copy", "n1")
            assert rows == [{"id": "copy", "name": "n1"}]
            rows = await server.raw_query(
                'UPDATE stocks SET "left" = "left" + 1 WHERE name = ? RETURNING "left" AS n', "n1"
            )
            assert rows == [{"n": 2}, {"n": 2}]
            rows = await server.raw_query(
                "WITH old AS (SELECT id FROM stocks WHERE name = ?)"
                " delete from stocks WHERE id IN (SELECT id FROM old) returning name",
                "n2",
            )
            assert rows == [{"name": "n2"}]
            assert await server.raw_exec("DELETE FROM stocks WHERE name = ? RETURNING id", "n1") == 2
        assert [record.name for record in await server.db(Stock).list()] == ["n3"]


async def test_a_value_is_never_sql(database_url: str) -> None:
    server = warehouse()

    @server.action("GET", "/find/{name}")
    async def find(ctx: Context) -> list[dict[str, Any]]:
        return await ctx.raw_query("SELECT name FROM stocks WHERE name = ?", ctx.url_param("name"))

    async with client(server, database=database_url) as http:
        await created(http, "/api/stocks", name="nut")
        assert data_of(await http.get("/api/find/' OR 1=1 --")) == []
        assert data_of(await http.get("/api/find/nut")) == [{"name": "nut"}]


async def test_a_broken_statement_is_a_500_that_says_nothing_about_it(database_url: str) -> None:
    server = warehouse()

    @server.action("GET", "/broken")
    async def broken(ctx: Context) -> list[dict[str, Any]]:
        return await ctx.raw_query("SELECT top_secret FROM stocks WHERE no_such = ?", "x")

    @server.action("GET", "/unbound")
    async def unbound(ctx: Context) -> list[dict[str, Any]]:
        return await ctx.raw_query("SELECT id FROM stocks WHERE id = ?")

    async with client(server, database=database_url) as http:
        generic = {
            "code": "DATABASE_ERROR",
            "message": "the database could not complete the request",
        }
        assert error_of(await http.get("/api/broken"), 500, "DATABASE_ERROR") == generic
        assert error_of(await http.get("/api/unbound"), 500, "DATABASE_ERROR") == generic
