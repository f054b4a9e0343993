"""A primary and its standby: how far the standby is behind is a test's to say."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import httpx

from maniflex import Context, Model, Server, field
from maniflex.db.postgres.replicated import POSITION
from tests.kit.postgres import execute, fetch_value
from tests.kit.private_postgres import PrivatePostgres, Standby
from tests.kit.waiting import eventually

_REPLAYED = "SELECT (pg_last_wal_replay_lsn() - '0/0')::bigint"
_numbers = count(1)


@dataclass(frozen=True)
class ReplicatedDatabase:
    """One database on both servers."""

    servers: ServerPair
    primary: str
    replica: str


class Note(Model, export=True):
    text: str = field(filterable=True)


def server_with_replica(primary: str, replica: str, **settings: Any) -> Server:
    """A server of notes whose route /where tells which of the two is asked."""
    server = Server(primary, read_database=replica, metrics_enabled=True, **settings)
    server.register(Note)

    @server.action("GET", "/where")
    async def where(ctx: Context) -> str:
        [row] = await ctx.raw_query("SELECT pg_is_in_recovery() AS is_replica")
        return "replica" if row["is_replica"] else "primary"

    return server


async def is_read_from(http: httpx.AsyncClient, place: str) -> bool:
    return bool((await http.get("/api/where")).json()["data"] == place)


@dataclass(frozen=True)
class ServerPair:
    """The two servers."""

    primary: PrivatePostgres
    standby: Standby

    async def create_database(self) -> ReplicatedDatabase:
        name = f"test_{next(_numbers)}"
        await execute(self.primary.url, f"CREATE DATABASE {name}")
        await self.until_caught_up()
        urls = (
            urlsplit(server.url)._replace(path=f"/{name}").geturl() for server in (self.primary, self.standby)
        )
        return ReplicatedDatabase(self, *urls)

    async def follow_after(self, seconds: float) -> None:
        """Let the standby show a commit so many seconds later."""
        await execute(self.standby.url, f"ALTER SYSTEM SET recovery_min_apply_delay = '{seconds}s'")
        await execute(self.standby.url, "SELECT pg_reload_conf()")

    async def until_caught_up(self) -> None:
        target = await fetch_value(self.primary.url, POSITION.text)

        async def has_passed() -> bool:
            return bool(await fetch_value(self.standby.url, _REPLAYED) >= target)

        await eventually(has_passed, "the standby has replayed all there is")


async def replicate_synchronously(primary: PrivatePostgres) -> None:
    """Let the primary acknowledge nothing that the standby has not got."""
    await execute(primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    await execute(primary.url, "SELECT pg_reload_conf()")
    in_sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"

    async def is_sync() -> bool:
        return bool(await fetch_value(primary.url, in_sync))

    await eventually(is_sync, "a synchronous standby")
