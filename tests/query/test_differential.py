"""SQLite and PostgreSQL answer random requests over random models and data byte for byte the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from urllib.parse import quote

import httpx
import pytest

from maniflex.testing import client
from tests.kit.postgres import empty
from tests.kit.random_models import World, world
from tests.kit.random_queries import request

WORLDS = 10
REQUESTS = 210
LONG_WORLDS = 96


async def both(stack: AsyncExitStack, made: World, urls: tuple[str, str]) -> list[httpx.AsyncClient]:
    """A client of each database, filled alike."""
    clients = []
    for url in urls:
        server, clock = made.server()
        clients.append(await stack.enter_async_context(client(server, database=url)))
        await made.fill(server, clock)
    return clients


async def asked(clients: list[httpx.AsyncClient], method: str, url: str) -> httpx.Response:
    """The one answer of both."""
    one, other = await asyncio.gather(*(http.request(method, url) for http in clients))
    assert (one.status_code, one.text) == (other.status_code, other.text), f"{method} {url}"
    assert one.status_code < 500, f"{method} {url}"
    return one


async def test_both_databases_answer_every_request_alike(
    tmp_path: Path,
    postgres_url: str,
    long_mode: bool,
    record_property: Callable[[str, object], None],
) -> None:
    seen: Counter[int] = Counter()
    worlds = LONG_WORLDS if long_mode else WORLDS
    for seed in range(worlds):
        random = Random(seed)
        made = world(random)
        async with AsyncExitStack() as stack:
            clients = await both(stack, made, (f"sqlite:///{tmp_path}/{seed}.db", postgres_url))
            for _ in range(REQUESTS):
                method, url = request(random, made)
                answer = await asked(clients, method, url)
                seen[answer.status_code] += 1
                seen.update(await walked(clients, answer, method, url))
        await empty(postgres_url)
    record_property("answers", dict(seen))
    assert sum(seen.values()) >= worlds * REQUESTS
    assert seen[200] > sum(seen.values()) / 2  # the wrong ones do not make up the number
    assert seen[400] > 100


async def walked(
    clients: list[httpx.AsyncClient], answer: httpx.Response, method: str, url: str
) -> list[int]:
    """The next page of a keyset walk, and the way back from there."""
    statuses = []
    for word in ("next_cursor", "prev_cursor"):
        if method != "GET" or "cursor=" not in url or answer.status_code != 200:
            break
        token = answer.json().get("meta", {}).get(word)  # one record has no pages
        if token is None:
            break
        answer = await asked(clients, method, url.replace("cursor=", f"cursor={quote(token)}", 1))
        statuses.append(answer.status_code)
    return statuses


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_makes_the_same_world(seed: int) -> None:
    one, other = (world(Random(seed)) for _ in range(2))

    assert one.writes == other.writes
    assert [m.kinds for m in one.models.values()] == [m.kinds for m in other.models.values()]
