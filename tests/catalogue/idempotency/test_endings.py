"""I16: requests that are cut off, in processes of their own: undone and released, or committed and stored."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from tests.catalogue.idempotency.paused_app import AFTER_WRITE, BEFORE_WRITE, go_on, write_app
from tests.catalogue.idempotency.shop import is_replay, keyed
from tests.kit.processes import IMPORTS, Served, serve_process
from tests.kit.sockets import Connection, a_request, connected
from tests.kit.waiting import PATIENCE, eventually

LONG_LEASE = "600"  # so that a key that is free was released
BODY, HEADERS = b'{"title": "tea"}', keyed() | {"content-type": "application/json"}
PLACES = pytest.mark.parametrize("place", [BEFORE_WRITE, AFTER_WRITE])


async def begin_order(connection: Connection, folder: Path) -> None:
    """Send an order, and wait until its request stands still."""
    headers = [f"{name}: {value}" for name, value in HEADERS.items()]
    await connection.send(a_request("POST", "/orders", BODY, *headers))
    await eventually((folder / "reached").exists, "a request that waits")


async def order_again(served: Served) -> httpx.Response:
    """The same order from a client that asks until no other request has its key."""
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        while True:
            answer = await http.post(f"{served.url}/orders", content=BODY, headers=HEADERS)
            if answer.status_code != 409:
                return answer


def orders(served: Served) -> int:
    total: int = httpx.get(f"{served.url}/orders").json()["meta"]["total"]
    return total


@PLACES
async def test_a_process_that_is_told_to_end_finishes_its_request(
    database_url: str, tmp_path: Path, place: str
) -> None:
    """SIGTERM, and the request ends in time: it is committed, stored and answered."""
    write_app(tmp_path, database_url)
    with serve_process(tmp_path, PYTHONPATH=IMPORTS, PAUSES=place, LEASE=LONG_LEASE) as owner:
        async with connected(owner.port) as connection:
            await begin_order(connection, tmp_path)
            owner.send(signal.SIGTERM)
            await asyncio.to_thread(go_on, tmp_path)
            status, headers, content = await connection.answer()
        assert (status, "idempotent-replayed" in headers) == (201, False)
        assert await asyncio.to_thread(owner.ended) == 0
    with serve_process(tmp_path, PYTHONPATH=IMPORTS) as other:
        again = await order_again(other)
        assert (again.status_code, is_replay(again), again.content) == (201, True, content)
        assert orders(other) == 1


@PLACES
async def test_a_process_that_may_not_wait_gives_the_key_back(
    database_url: str, tmp_path: Path, place: str
) -> None:
    """SIGTERM, and the request does not end in time: nothing of it is left, and its key is free at once."""
    write_app(tmp_path, database_url)
    with (
        serve_process(tmp_path, PYTHONPATH=IMPORTS, PAUSES=place, LEASE=LONG_LEASE, SHUTDOWN="0.2") as owner,
        serve_process(tmp_path, PYTHONPATH=IMPORTS, LEASE=LONG_LEASE) as other,
    ):
        async with connected(owner.port) as connection:
            await begin_order(connection, tmp_path)
            owner.send(signal.SIGTERM)
            again = await order_again(other)
            await asyncio.to_thread(go_on, tmp_path)  # the thread that waits would keep the process
            await asyncio.to_thread(owner.ended)
        assert (again.status_code, is_replay(again)) == (201, False)
        assert orders(other) == 1


@PLACES
async def test_a_client_that_leaves_does_not_leave_half_an_order(
    database_url: str, tmp_path: Path, place: str
) -> None:
    """The request of a client that is gone ends either way; the repetition finds one order."""
    write_app(tmp_path, database_url)
    with (
        serve_process(tmp_path, PYTHONPATH=IMPORTS, PAUSES=place, LEASE=LONG_LEASE) as owner,
        serve_process(tmp_path, PYTHONPATH=IMPORTS, LEASE=LONG_LEASE) as other,
    ):
        async with connected(owner.port) as connection:
            await begin_order(connection, tmp_path)
            connection.leave()
        await asyncio.to_thread(go_on, tmp_path)
        again = await order_again(other)
        assert again.status_code == 201
        assert orders(other) == 1
        once_more = await order_again(other)
        assert (once_more.content, is_replay(once_more)) == (again.content, True)
