"""What an adapter makes sure of when it opens: its schema, the time zone, and room for its connections."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from maniflex.db.port import Row
from maniflex.errors import ConfigError, RequestError
from maniflex.sql.statement import Sql

Ask = Callable[[Sql], Awaitable[list[Row]]]

log = logging.getLogger("maniflex.db")


async def make_schema(ask: Ask, label: str, schema: str | None) -> None:
    """Make the schema unless it is there."""
    if schema is None or schema == "public" or await _has_schema(ask, schema):
        return
    try:
        await ask(Sql(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
    except RequestError as error:
        # Two processes that start together may both try; the loser finds what it wanted.
        if not await _has_schema(ask, schema):
            raise ConfigError(f"{label}: schema {schema} is absent and cannot be made") from error


async def _has_schema(ask: Ask, schema: str) -> bool:
    return bool(await ask(Sql("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1", (schema,))))


async def check_settings(ask: Ask, label: str, pool_size: int, *, pooler: bool) -> int:
    """Report settings that do not suit us; how many connections there are for all, 0 behind a pooler."""
    if pooler:
        zone = await _setting(ask, "TimeZone")
        if zone.upper() not in ("UTC", "ETC/UTC", "GMT"):
            log.warning("%s: the time zone is %s; set the role's to UTC", label, zone)
        return 0
    max_connections = int(await _setting(ask, "max_connections"))
    if pool_size > max_connections / 2:
        text = "%s: pools of %d exceed half of max_connections (%d)"
        log.warning(text, label, pool_size, max_connections)
    return max_connections - int(await _setting(ask, "superuser_reserved_connections"))


async def _setting(ask: Ask, name: str) -> str:
    [row] = await ask(Sql(f"SHOW {name}"))
    return str(row[0])


def report_needs(label: str, size: int, free_for_all: int) -> None:
    """Say what each process may take of the connections that there are for all."""
    if not free_for_all:
        log.info("%s: up to %d connections of each process, to the pooler", label, size)
        return
    fitting = free_for_all // size
    level = logging.INFO if fitting > 1 else logging.WARNING
    text = "%s: up to %d connections of each process; the server has %d, enough for %d processes"
    log.log(level, text, label, size, free_for_all, fitting)
