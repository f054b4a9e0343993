"""C46, C47, C48: twins in two processes, processes that are killed, and a process that slept."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from maniflex import Server
from maniflex.middleware import idempotency
from tests.catalogue.idempotency.paused_app import BEFORE_WRITE, go_on, write_app
from tests.catalogue.idempotency.shop import Order, is_replay, keyed
from tests.kit.processes import IMPORTS, accepts, free_port, nursery, serve_process
from tests.kit.sockets import a_request, connected
from tests.kit.waiting import PATIENCE, until

CLIENTS = 64  # connections to each process


async def test_of_twins_in_two_processes_one_runs(database_url: str, tmp_path: Path, long_mode: bool) -> None:
    """C46: one fresh answer per key, the others replays or 409; no row twice, nothing of 500 and more."""
    keys, twins = (1000, 100) if long_mode else (40, 20)
    write_app(tmp_path, database_url)
    answers: list[tuple[int, int, dict[str, str], bytes]] = []
    orders = [
        (key, twin % 2) for key in range(keys) for twin in range(twins)
    ]  # twins are sent one after another
    queues = [iter([key for key, place in orders if place == number]) for number in range(2)]

    async def send(port: int, queue: Iterator[int]) -> None:
        async with connected(port) as connection:
            for key in queue:
                headers = "content-type: application/json", f"idempotency-key: k{key}"
                body = b'{"title": "order %d"}' % key
                await connection.send(a_request("POST", "/orders", body, *headers))
                answers.append((key, *await connection.answer()))

    with (
        serve_process(tmp_path, PYTHONPATH=IMPORTS) as one,
        serve_process(tmp_path, PYTHONPATH=IMPORTS) as other,
    ):
        ports = one.port, other.port
        await asyncio.gather(*(send(ports[n % 2], queues[n % 2]) for n in range(2 * CLIENTS)))
        total = (await asyncio.to_thread(httpx.get, f"{one.url}/orders")).json()["meta"]["total"]
    assert (total, len(answers)) == (keys, keys * twins)
    for key, status, headers, content in answers:
        assert status in (201, 409), (key, content)
        assert status == 201 or int(headers["retry-after"]) >= 1
    made = [
        (key, "idempotent-replayed" in headers, content)
        for key, status, headers, content in answers
        if status == 201
    ]
    assert Counter(key for key, replayed, _ in made if not replayed) == dict.fromkeys(range(keys), 1)
    assert len({(key, content) for key, _, content in made}) == keys


def test_an_owner_that_was_stopped_past_its_lease_gives_the_answer_of_its_successor(
    database_url: str, tmp_path: Path
) -> None:
    """C48: SIGSTOP after the claim, SIGCONT when the repetition has run: one row, one answer."""
    write_app(tmp_path, database_url)

    def send(served: Any) -> httpx.Response:
        return httpx.post(f"{served.url}/orders", json={"title": "x"}, headers=keyed(), timeout=PATIENCE)

    with (
        serve_process(tmp_path, PYTHONPATH=IMPORTS, PAUSES=BEFORE_WRITE) as owner,
        serve_process(tmp_path, PYTHONPATH=IMPORTS) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(send, owner)
        until((tmp_path / "reached").exists, "a request that has its key")
        owner.send(signal.SIGSTOP)
        try:
            repetition = send(other)
        finally:
            owner.send(signal.SIGCONT)
        go_on(tmp_path)
        late = first.result(PATIENCE)
        assert (repetition.status_code, is_replay(repetition)) == (201, False)
        assert (late.status_code, is_replay(late)) == (201, True)
        assert late.content == repetition.content
        assert httpx.get(f"{other.url}/orders").json()["meta"]["total"] == 1


LIFE = """
import sys
from tests.catalogue.idempotency.test_processes import selling
import uvicorn, uvloop, httptools, asyncpg  # noqa

def live(port):
    selling(sys.argv[1], port=int(port), log_level="CRITICAL").run()
"""


def selling(url: str, **settings: Any) -> Server:
    """A server whose every order brings a job and a message."""
    server = Server(url, path_prefix="", access_log=False, background=False, **settings)
    server.register(Order)
    server.pipeline.deserialize.register(idempotency.keys(lease=1, wait=10), at="after")
    server.jobs.handler("ship")(_nothing)
    server.outbox.handler("sold")(_nothing)

    @server.pipeline.db.middleware(operations=["create"], at="after")
    async def announce(ctx: Any, next: Any) -> None:
        await server.jobs.enqueue("ship", {"title": ctx.record.title})
        await server.outbox.enqueue("sold", {"title": ctx.record.title})
        await next()

    return server


async def _nothing(_: Any) -> None: ...


class Buyers:
    """Clients that send each order again and again until they are answered."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http, self._url = http, url
        self.interrupted = 0
        self.open: set[int] = set()
        self.answers: dict[int, str] = {}

    async def buy(self, number: int) -> None:
        """Send one order; a connection that breaks leaves it open."""
        self.open.add(number)
        headers = keyed(f"order-{number}")
        try:
            answer = await self._http.post(self._url, json={"title": f"order {number}"}, headers=headers)
        except httpx.TransportError:
            self.interrupted += 1
            return
        if answer.status_code == 409 and answer.json()["error"]["code"] == "IDEMPOTENCY_IN_PROGRESS":
            return
        assert answer.status_code == 201, answer.text
        self.open.discard(number)
        self.answers[number] = answer.json()["data"]["id"]


async def test_after_kills_each_key_has_had_its_effect_once(database_url: str, long_mode: bool) -> None:
    """C47: kill -9 at random points; each key has one row, one job and one message, and its own answer."""
    chance, wanted, port = random.Random(7), 500 if long_mode else 40, free_port()
    async with selling(database_url).lifespan():  # the tables
        pass
    with nursery(LIFE, database_url) as place:
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            buyers = Buyers(http, f"http://127.0.0.1:{port}/orders")
            number = 0
            while buyers.interrupted < wanted:
                place.start(port)
                await asyncio.to_thread(until, lambda: accepts(port), "a server")
                again = chance.sample(sorted(buyers.open), min(4, len(buyers.open)))
                orders = [*again, *range(number, number + 8)]
                number += 8
                sending = [asyncio.create_task(buyers.buy(order)) for order in orders]
                await asyncio.wait(sending, timeout=chance.uniform(0, 0.06))
                place.kill()
                await asyncio.gather(*sending)
            place.start(port)
            await asyncio.to_thread(until, lambda: accepts(port), "a server")
            while buyers.open:
                with suppress(httpx.TransportError):
                    await asyncio.gather(*map(buyers.buy, sorted(buyers.open)[:8]))
    server = selling(database_url)
    async with server.lifespan():
        rows = await server.raw_query("SELECT id, title FROM orders")
        titles = [f"order {n}" for n in range(number)]
        assert Counter(row["title"] for row in rows) == Counter(titles)
        assert {row["title"]: row["id"] for row in rows} == {
            f"order {n}": id for n, id in buyers.answers.items()
        }
        for table in ("workflow_run", "outbox_event"):
            payloads = await server.raw_query(f"SELECT payload FROM {table}")
            assert Counter(titles) == Counter(_title(row["payload"]) for row in payloads), table


def _title(payload: Any) -> str:
    match = re.search(r"order \d+", str(payload))
    assert match is not None, payload
    return match[0]
