"""Many requests for one record at one moment: each sees all of another or nothing of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from maniflex.testing import client
from tests.kit.http import together
from tests.kit.shop import shop

ROUNDS = 200


async def new_item(http: httpx.AsyncClient) -> Any:
    answer = await http.post("/api/items", json={"name": "tea"})
    assert answer.status_code == 201
    return answer.json()["data"]


async def test_of_two_writers_with_one_etag_exactly_one_wins(database_url: str) -> None:
    async with client(shop(), database=database_url) as http:
        path = f"/api/items/{(await new_item(http))['id']}"

        async def duel(etag: str, names: Sequence[str]) -> None:
            match = {"if-match": etag}
            answers = await together(2, lambda n: http.patch(path, json={"name": names[n]}, headers=match))

            assert sorted(a.status_code for a in answers) == [200, 412], [a.text for a in answers]
            winner = next(n for n, a in enumerate(answers) if a.status_code == 200)
            stored = await http.get(path)
            assert stored.json()["data"]["name"] == names[winner]
            assert stored.headers["etag"] == answers[winner].headers["etag"] != etag

        for n in range(ROUNDS):
            await duel((await http.get(path)).headers["etag"], (f"first {n}", f"second {n}"))


async def test_a_delete_and_an_update_with_one_etag_do_not_both_succeed(database_url: str) -> None:
    async with client(shop(), database=database_url) as http:

        async def duel(path: str, etag: str) -> None:
            match = {"if-match": etag}

            async def request(n: int) -> httpx.Response:
                if n == 0:
                    return await http.patch(path, json={"stock": 1}, headers=match)
                return await http.delete(path, headers=match)

            outcome = tuple(a.status_code for a in await together(2, request))

            assert outcome in {(200, 412), (404, 204), (412, 204)}
            assert (await http.get(path)).status_code == (200 if outcome == (200, 412) else 404)

        for _ in range(50):
            item = await http.post("/api/items", json={"name": "tea"})
            await duel(f"/api/items/{item.json()['data']['id']}", item.headers["etag"])


async def test_a_unique_value_is_given_to_one_of_twenty(database_url: str) -> None:
    async with client(shop(), database=database_url) as http:

        async def race(email: str) -> None:
            answers = await together(20, lambda _: http.post("/api/accounts", json={"email": email}))

            assert Counter(a.status_code for a in answers) == {201: 1, 409: 19}
            refused = next(a for a in answers if a.status_code == 409).json()["error"]
            assert [detail["field"] for detail in refused["details"]] == ["email"]

        for n in range(10):
            await race(f"{n}@example.com")
        assert (await http.get("/api/accounts")).json()["meta"]["total"] == 10


async def test_thirty_first_readers_of_a_singleton_make_one_row(database_url: str) -> None:
    server = shop()
    async with client(server, database=database_url) as http:
        answers = await together(
            30,
            lambda n: (
                http.get("/api/preferences")
                if n % 3
                else http.patch("/api/preferences", json={"theme": "dark"})
            ),
        )

        assert {a.status_code for a in answers} == {200}
        assert len({a.json()["data"]["id"] for a in answers}) == 1
        assert (await server.raw_query("SELECT count(*) AS n FROM preferences")) == [{"n": 1}]
        assert (await http.get("/api/preferences")).json()["data"]["theme"] == "dark"


async def test_no_increment_of_an_action_is_lost(database_url: str) -> None:
    async with client(shop(), database=database_url) as http:
        path = f"/api/items/{(await new_item(http))['id']}"

        answers = await together(100, lambda n: http.post(f"{path}/{'sell' if n % 2 else 'restock'}"))

        assert {a.status_code for a in answers} == {200}
        assert sorted(a.json()["data"]["stock"] for a in answers) == list(range(1, 101))
        assert (await http.get(path)).json()["data"]["stock"] == 100
