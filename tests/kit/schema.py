"""The schema of a database, seen from outside, and versions of a model that change it."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from maniflex import Model, Server
from maniflex.errors import DeclarationError
from tests.kit.servers import started

PLAIN_TYPES: dict[str, Any] = {
    "text": str,
    "whole": int,
    "real": float,
    "flag": bool,
    "money": Decimal,
    "moment": datetime,
    "day": date,
    "clock": time,
    "key": UUID,
    "raw": bytes,
    "tree": dict[str, Any],
}
_TABLES = {
    "sqlite": "SELECT name AS name FROM sqlite_master WHERE type = 'table'",
    "postgres": "SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema()",
}
_COLUMNS = {
    "sqlite": "SELECT name AS name FROM pragma_table_info(?)",
    "postgres": "SELECT attname AS name FROM pg_attribute"
    " WHERE attrelid = to_regclass(quote_ident(?)) AND attnum > 0 AND NOT attisdropped",
}
_INDEXES = {
    "sqlite": "SELECT name AS name, sql AS sql FROM sqlite_master"
    " WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ?",
    "postgres": "SELECT indexname AS name, indexdef AS sql FROM pg_indexes"
    " WHERE schemaname = current_schema() AND tablename = ? AND indexname NOT LIKE '%\\_pkey'",
}


def kind(url: str) -> str:
    return url.partition(":")[0].replace("postgresql", "postgres")


async def raw(url: str, *statements: str, **settings: Any) -> None:
    """Change the database behind the server's back."""
    async with Server(url, **settings).lifespan() as server:
        for statement in statements:
            await server.raw_exec(statement)


async def tables(url: str, **settings: Any) -> set[str]:
    async with Server(url, **settings).lifespan() as server:
        return {row["name"] for row in await server.raw_query(_TABLES[kind(url)])}


async def columns(url: str, table: str, **settings: Any) -> set[str]:
    async with Server(url, **settings).lifespan() as server:
        return {row["name"] for row in await server.raw_query(_COLUMNS[kind(url)], table)}


async def indexes(url: str, table: str) -> dict[str, str]:
    """Index name → its definition."""
    async with Server(url).lifespan() as server:
        return {row["name"]: row["sql"] for row in await server.raw_query(_INDEXES[kind(url)], table)}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def model(name: str, table: str, annotations: dict[str, Any], *bases: type, **options: Any) -> type[Model]:
    """One more version of a model on the same table."""
    body: dict[str, Any] = {"__annotations__": {}, "__module__": __name__, "__qualname__": name}
    for field, given in annotations.items():
        annotation, *default = given if isinstance(given, tuple) else (given,)
        body["__annotations__"][field] = annotation
        if default:
            body[field] = default[0]
    metaclass: Any = type(Model)
    made: type[Model] = metaclass(name, (Model, *bases), body, table=table, **options)
    return made


# -- advice: the SQL that a refusal tells a person to run

ANEW = "start once with auto_migrate=True afterwards"


async def run_advice(url: str, advised: str) -> list[Any]:
    """What a person does who copies the statements into a shell; the rows of the last of them."""
    if kind(url) == "postgres":
        connection = await asyncpg.connect(url)
        try:
            rows: list[Any] = []
            async with connection.transaction():
                for statement in advised.split("; "):
                    rows = await connection.fetch(statement)
            return rows
        finally:
            await connection.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as shell, shell:
        for statement in advised.split("; "):
            rows = shell.execute(statement).fetchall()
        return rows


async def refusals(url: str, *models: Any, **settings: Any) -> tuple[str, ...]:
    """The problems a start with these models stops with."""
    with pytest.raises(DeclarationError) as stopped:
        async with started(url, *models, **settings):
            raise AssertionError("it must not start")
    return stopped.value.problems


async def refused(url: str, *models: Any, **settings: Any) -> str:
    [problem] = await refusals(url, *models, **settings)
    return problem


def statements(problem: str) -> str:
    return problem.rpartition("migration: ")[2]
