"""The primary dies or hangs, its synchronous standby is promoted: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from maniflex.testing import client
from tests.kit.acknowledged_load import AcknowledgedLoad
from tests.kit.network_tools import haproxy, tool_directory, with_changes
from tests.kit.postgres import fetch_value
from tests.kit.private_postgres import PrivatePostgres, Standby, private_postgres, standby_of
from tests.kit.processes import free_port
from tests.kit.replicas import replicate_synchronously
from tests.kit.waiting import eventually

PROMOTED_AFTER = 3.0
FIRST_WRITE_WITHIN = {"kill": 5.0, "freeze": 15.0}


@asynccontextmanager
async def by_hosts(primary: PrivatePostgres, standby: Standby) -> AsyncIterator[str]:
    yield primary.url.replace(f":{primary.port}", f":{primary.port},127.0.0.1:{standby.port}")


@asynccontextmanager
async def by_haproxy(primary: PrivatePostgres, standby: Standby) -> AsyncIterator[str]:
    front = free_port()
    with tool_directory() as directory:
        script = directory / "takes_writes.sh"
        login = f"user=postgres password={primary.password}"
        script.write_text(with_changes("takes_writes.sh", {"user=watcher": login}))
        script.chmod(0o755)
        changes = {
            ":5400": f":{front}",
            ":5401": f":{primary.port}",
            ":5402": f":{standby.port}",
            '"/usr/bin:/bin"': f'"{primary.binaries}:/usr/bin:/bin"',
            "/etc/haproxy/takes_writes.sh": script,
        }
        with haproxy(with_changes("haproxy_postgres.cfg", changes), front):
            url = primary.url.replace(f":{primary.port}", f":{front}") + "?target_session_attrs=read-write"
            await eventually(lambda: _takes_writes(url), "HAProxy knows the primary")
            yield url


@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 6))])
@pytest.mark.parametrize("way", [by_hosts, by_haproxy])
@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_a_failover_loses_and_doubles_nothing(
    long_mode: bool,
    number: int,
    fault: str,
    way: Callable[[PrivatePostgres, Standby], AbstractAsyncContextManager[str]],
) -> None:
    per_second, before = (50, 1_000) if long_mode else (10, 30)
    with private_postgres() as primary:
        await primary.start()
        async with AsyncExitStack() as stack:
            standby = await stack.enter_async_context(standby_of(primary))
            await replicate_synchronously(primary)
            url = await stack.enter_async_context(way(primary, standby))
            load = AcknowledgedLoad(url)
            http = await stack.enter_async_context(client(load.server, database=None, background=True))
            loading = asyncio.create_task(load.run(http, per_second))
            await load.until_written(before)
            getattr(primary, fault)()
            await asyncio.sleep(PROMOTED_AFTER)  # as long as those who watch the primary take
            await asyncio.to_thread(standby.promote)
            promoted_at = time.monotonic()
            await eventually(lambda: load.written_at[-1] > promoted_at, "a good write", 60)
            first = next(at for at in load.written_at if at > promoted_at) - promoted_at
            await load.until_written(before)
            load.end()
            await asyncio.wait_for(loading, 60)
            summary = await load.check()
    name = getattr(way, "__name__", "")
    print(f"\n{fault}, {name}: {summary}, first good write {first:.1f} s after the promotion")
    assert first <= FIRST_WRITE_WITHIN[fault]


async def _takes_writes(url: str) -> bool:
    """Whether connections come to the primary, also several of them one after the other."""
    try:
        for _ in range(4):
            await fetch_value(url, "SELECT 1")
    except (OSError, asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched):
        return False
    return True
