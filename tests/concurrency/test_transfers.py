"""Money moved by code that reads two balances and writes them back: none is made, none is lost."""

from __future__ import annotations

from collections import Counter
from random import Random

import httpx
import pytest

from maniflex import Context, Model, Server
from maniflex.testing import client
from tests.kit.http import together

START = 1_000


class Purse(Model):
    balance: int = START


def bank() -> Server:
    """Transfers as a newcomer writes them: no lock, no increment, only a transaction."""
    server = Server(static_disabled=True)
    server.register(Purse)

    @server.action("POST", "/purses/{source}/to/{target}")
    async def transfer(ctx: Context) -> None:
        async with ctx.transaction():
            source = await ctx.db(Purse).read(ctx.url_param("source"))
            target = await ctx.db(Purse).read(ctx.url_param("target"))
            await ctx.db(Purse).update(source.id, balance=source.balance - 1)
            await ctx.db(Purse).update(target.id, balance=target.balance + 1)

    return server


async def move_money(database_url: str, *, clients: int, rounds: int, purses: int = 3) -> Counter[int]:
    """Let all clients transfer at once, round after round; their statuses."""
    statuses: Counter[int] = Counter()
    moved: Counter[str] = Counter()
    chance = Random(7)
    async with client(bank(), database=database_url) as http:
        ids = [(await http.post("/api/purses", json={})).json()["data"]["id"] for _ in range(purses)]

        async def transfer(_: int) -> httpx.Response:
            source, target = chance.sample(ids, 2)
            answer = await http.post(f"/api/purses/{source}/to/{target}")
            if answer.status_code == 204:
                moved.update({source: -1, target: 1})
            else:
                assert answer.json()["error"]["retryable"] is True, answer.text
            return answer

        for _ in range(rounds):
            answers = await together(clients, transfer)
            statuses.update(answer.status_code for answer in answers)

        stored = {p["id"]: p["balance"] for p in (await http.get("/api/purses")).json()["data"]}
        assert stored == {id: START + moved[id] for id in ids}
        assert sum(stored.values()) == START * purses
    return statuses


async def test_naive_transfers_of_sixty_four_clients_keep_the_sum(database_url: str) -> None:
    statuses = await move_money(database_url, clients=64, rounds=2)

    assert set(statuses) <= {204, 409}
    assert statuses[204] >= 2


@pytest.mark.long
async def test_many_rounds_of_naive_transfers_keep_the_sum(database_url: str) -> None:
    statuses = await move_money(database_url, clients=64, rounds=40)

    assert set(statuses) <= {204, 409}
    assert statuses[204] >= 40
