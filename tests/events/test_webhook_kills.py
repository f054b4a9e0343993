"""A process that dies between routing and delivery, or in a delivery, costs no endpoint an event."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook

from maniflex.testing.clock import FakeClock
from tests.kit.processes import IMPORTS, PROGRAMS
from tests.kit.programs.webhook_sender import SECRET, server_of
from tests.kit.scripted_http import Answer, ScriptedHttp, scripted
from tests.kit.waiting import eventually

OK: Answer = (200, {}, b"fine")


async def begun(database: str, receiver: ScriptedHttp, count: int, what: str) -> asyncio.subprocess.Process:
    arguments = (database, receiver.url, str(count), what)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAMS / "webhook_sender.py"),
        *arguments,
        env={**os.environ, "PYTHONPATH": IMPORTS},
    )


async def deliver_the_rest(database: str, receiver: ScriptedHttp) -> None:
    server = server_of(database, receiver.url)
    clock = FakeClock(datetime.now(UTC) + timedelta(minutes=5))  # when leases of the dead have ended
    with server.on_database(None, clock=clock):
        async with server.lifespan():
            await server.webhooks.drain()


async def test_killed_between_routing_and_delivery(database_url: str) -> None:
    async with scripted(OK) as receiver:
        process = await begun(database_url, receiver, 20, "routes")
        assert await process.wait() == -signal.SIGKILL
        assert receiver.asked == []

        await deliver_the_rest(database_url, receiver)

    totals = sorted(json.loads(asked.body)["data"]["total"] for asked in receiver.asked)
    assert totals == list(range(20))


async def test_killed_in_a_delivery(database_url: str) -> None:
    async with scripted(None, OK) as receiver:
        process = await begun(database_url, receiver, 5, "sends")
        await eventually(lambda: receiver.asked)
        process.kill()
        await process.wait()

        await deliver_the_rest(database_url, receiver)

    ids = [asked.headers["webhook-id"] for asked in receiver.asked]
    assert len(set(ids)) == 5
    assert ids.count(ids[0]) == 2  # the one that nobody knows the end of comes again


@pytest.mark.long
async def test_a_thousand_deliveries_verify_by_another_library(database_url: str) -> None:
    async with scripted(OK) as receiver:
        process = await begun(database_url, receiver, 1000, "routes")
        await process.wait()
        await deliver_the_rest(database_url, receiver)
    assert len({asked.headers["webhook-id"] for asked in receiver.asked}) == 1000
    hook = Webhook(SECRET)
    for asked in receiver.asked:
        time = datetime.fromtimestamp(int(asked.headers["webhook-timestamp"]), UTC)
        signature = hook.sign(asked.headers["webhook-id"], time, asked.body.decode())
        assert signature == asked.headers["webhook-signature"]
