"""A request costs as much CPU in each of four processes as in the only one, at the same pace for each.

The load is steady and below what two cores can bear, because the driver and PostgreSQL need them too. At
saturation the figure is that of caches and the scheduler, and what more than two processes at work in the
same moment cost each other cannot be seen on this machine at all. Of several rounds the lowest counts, since
what other programs do only ever adds to it.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx
import pytest

from tests.kit.processes import MANIFLEX, Served, free_port, start_process

APP = """
import os

from maniflex import Model, Server, field

class Note(Model):
    text: str = field(filterable=True)

server = Server(os.environ["DATABASE"], access_log=False, pool_size=4)
server.register(Note)
"""
REQUESTS = 300  # to each process in a round
PER_SECOND = 40  # to each process, so that what an idle process costs is the same share of a request
ROUNDS = 5


def cpu_seconds(served: Served) -> float:
    fields = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cost(processes: list[Served], path: str) -> float:
    """Microseconds of CPU that a request takes of these processes, each of which has the same load."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=served.url, timeout=60))
            for served in processes
        ]
        before = sum(map(cpu_seconds, processes))

        async def ask(http: httpx.AsyncClient) -> None:
            assert (await http.get(path)).status_code == 200

        tasks = []
        for number in range(REQUESTS * len(clients)):
            tasks.append(asyncio.create_task(ask(clients[number % len(clients)])))
            await asyncio.sleep(1 / PER_SECOND / len(clients))  # the pace of the load
        await asyncio.gather(*tasks)
    return (sum(map(cpu_seconds, processes)) - before) / len(tasks) * 1e6


@pytest.mark.long
async def test_four_processes_take_no_more_cpu_for_a_request_than_one(
    tmp_path: Path, postgres_url: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    with ExitStack() as stack:
        processes = []
        for _ in range(4):
            port = free_port()
            command: list[str | Path] = [MANIFLEX, "run", "app:server", "--no-work", "--port", str(port)]
            processes.append(
                stack.enter_context(start_process(command, port, cwd=tmp_path, DATABASE=postgres_url))
            )
        for served in processes:
            await asyncio.to_thread(served.until_up)
        async with httpx.AsyncClient(base_url=processes[0].url) as http:
            note = await http.post("/api/notes", json={"text": "one"})
        path = f"/api/notes/{note.json()['data']['id']}"
        await cost(processes, path)  # every statement is prepared, every cache is warm
        costs = [(await cost(processes[:1], path), await cost(processes, path)) for _ in range(ROUNDS)]
    alone, together = (min(one) for one in zip(*costs, strict=True))
    print(f"\n{alone:.0f} µs in one process, {together:.0f} µs in one of four: {together / alone:.3f}")
    assert together < alone * 1.10
