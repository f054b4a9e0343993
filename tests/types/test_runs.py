"""What type checkers make of the payload of a run; mypy and pyright read this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from maniflex import Run, Server


@dataclass
class Receipt:
    order_id: int


async def test_a_run_of_a_payload_has_its_type(sqlite_url: str) -> None:
    server = Server(sqlite_url, background=False)
    seen: list[Any] = []

    @server.work.handler("typed.v1", payload=Receipt)
    async def typed(run: Run[Receipt]) -> None:
        assert_type(run.payload, Receipt)
        assert_type(run.payload.order_id, int)
        seen.append(run.payload.order_id)

    @server.work.handler("plain.v1")
    async def plain(run: Run) -> None:
        assert_type(run.payload, Any)
        seen.append(run.payload["n"])

    async with server.lifespan():
        await server.work.submit("typed.v1", Receipt(7))
        await server.work.submit("plain.v1", {"n": 8})
        await server.work.worker().drain()
    assert sorted(seen) == [7, 8]
