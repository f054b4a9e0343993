"""Only so many large bodies are held at once; the others wait, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.errors import BodyTooSlow, Unavailable
from maniflex.pipeline import body
from maniflex.pipeline.body import BodyRoom
from maniflex.testing import client

SIZE = 100_000  # one that needs a place
JSON = {"content-type": "application/json"}


class Note(Model):
    data: list[Any] = field(default_factory=list)


def _body() -> bytes:
    return b'{"data":["' + b"t" * SIZE + b'"]}'


def _count(server: Server) -> Callable[[], int]:
    """Count the bodies between validation and answer; the call returns the most there were."""
    inside = most = 0
    full = asyncio.Event()

    @server.pipeline.service.middleware()
    async def count(ctx: Context, next: Next) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == body.WORKED_ON:
            full.set()
        await full.wait()
        for _ in range(20):  # whoever could come too has the time to
            await asyncio.sleep(0)
        await next()
        inside -= 1

    return lambda: most


async def test_so_many_large_bodies_are_worked_on_at_once_and_all_are_answered(database_url: str) -> None:
    server = Server(max_body_size=SIZE + 100)
    server.register(Note)
    most = _count(server)
    async with client(server, database=database_url) as http:
        answers = await asyncio.gather(
            *(http.post("/api/notes", content=_body(), headers=JSON) for _ in range(12))
        )

    assert [answer.status_code for answer in answers] == [201] * 12
    assert most() == body.WORKED_ON


async def test_small_bodies_do_not_wait(database_url: str) -> None:
    server = Server(max_body_size=SIZE + 100)
    server.register(Note)
    go_on = asyncio.Event()

    @server.pipeline.service.middleware()
    async def wait(ctx: Context, next: Next) -> None:
        if len(ctx.raw_body or b"") > SIZE:
            await go_on.wait()
        await next()

    async with client(server, database=database_url) as http:
        large = [
            asyncio.create_task(http.post("/api/notes", content=_body(), headers=JSON)) for _ in range(12)
        ]
        small = await http.post("/api/notes", json={"data": []})
        go_on.set()
        answers = await asyncio.gather(*large)

    assert small.status_code == 201
    assert [answer.status_code for answer in answers] == [201] * 12


async def test_an_action_keeps_nobody_waiting_with_the_body_it_was_given(database_url: str) -> None:
    server = Server(max_body_size=SIZE + 100)
    begun: list[int] = []
    all_begun = asyncio.Event()

    @server.action("POST", "/hold", request=dict[str, Any])
    async def hold(ctx: Context) -> int:
        begun.append(1)
        if len(begun) == 3 * body.ARRIVING:
            all_begun.set()
        await all_begun.wait()  # each waits for all others
        return len(ctx.body)

    async with client(server, database=database_url) as http:
        posts = (http.post("/api/hold", content=_body(), headers=JSON) for _ in range(3 * body.ARRIVING))
        answers = await asyncio.gather(*posts)

    assert {answer.status_code for answer in answers} == {200}


async def test_code_that_writes_a_large_record_inside_a_request_does_not_wait_for_itself(
    database_url: str,
) -> None:
    server = Server(max_body_size=SIZE + 100)
    server.register(Note)
    nested: list[int] = []

    @server.pipeline.service.middleware()
    async def again(ctx: Context, next: Next) -> None:
        if len(ctx.body["data"]) == 1:
            answer = await server.execute("create", Note, body={"data": ["t" * (SIZE - 100), "again"]})
            nested.append(answer.status)
        await next()

    async with client(server, database=database_url) as http:
        posts = (http.post("/api/notes", content=_body(), headers=JSON) for _ in range(6))
        answers = await asyncio.gather(*posts)

    assert [answer.status_code for answer in answers] == [201] * 6
    assert nested == [201] * 6


async def test_a_request_in_a_transaction_does_not_wait_for_those_who_wait_for_it(database_url: str) -> None:
    server = Server(max_body_size=SIZE + 100)
    server.register(Note)

    @server.pipeline.auth.middleware()
    async def first(ctx: Context, next: Next) -> None:
        async with ctx.transaction():  # on SQLite, nobody else writes until it ends
            await next()

    async with client(server, database=database_url) as http:
        posts = (http.post("/api/notes", content=_body(), headers=JSON) for _ in range(8))
        answers = await asyncio.gather(*posts)

    assert [answer.status_code for answer in answers] == [201] * 8


# -- the room itself


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "PLACE_PATIENCE", 0.02)
    monkeypatch.setattr(body, "GRACE", 0.02)


async def _never() -> Any:
    await asyncio.Event().wait()


async def _room(places: int) -> tuple[BodyRoom, list[body.BodyPlace]]:
    room = BodyRoom(10)
    return room, [await room.admit(10, waits=True) for _ in range(places)]


async def test_who_finds_no_place_in_time_is_told_to_come_again(hasty: None) -> None:
    room, held = await _room(body.ARRIVING)

    with pytest.raises(Unavailable):
        await room.admit(10, waits=True)

    held[0].leave()
    (await room.admit(10, waits=True)).leave()


async def test_a_body_that_does_not_come_gives_its_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "GRACE", 0.02)
    room, held = await _room(body.ARRIVING)
    stalled = asyncio.create_task(held[0].receive(_never))
    stalled.add_done_callback(lambda _: held[0].leave())
    await asyncio.sleep(0)

    (await room.admit(10, waits=True)).leave()
    with pytest.raises(BodyTooSlow):
        await stalled


async def test_a_slow_body_has_its_time_while_nobody_waits(hasty: None) -> None:
    room, [place] = await _room(1)
    arriving: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def receive() -> Any:
        return await arriving

    slow = asyncio.create_task(place.receive(receive))
    asyncio.get_running_loop().call_later(0.1, arriving.set_result, {"body": b"late"})

    assert (await slow)["body"] == b"late"
    assert not room.arriving.crowded


async def test_who_waits_is_let_in_by_turns_and_who_leaves_the_line_takes_nothing() -> None:
    room, held = await _room(body.ARRIVING)
    waiting = [asyncio.create_task(room.admit(10, waits=True)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    held[0].leave()
    held[0].leave()  # twice is once

    second = await waiting[1]
    await asyncio.sleep(0)
    assert waiting[0].cancelled()
    assert not waiting[2].done()
    second.leave()
    (await waiting[2]).leave()
    for place in held:
        place.leave()
    assert room.arriving.fits(10 * body.ARRIVING)


async def test_a_place_given_to_a_request_that_just_ended_is_not_lost() -> None:
    room, held = await _room(body.ARRIVING)
    waiting = asyncio.create_task(room.admit(10, waits=True))
    await asyncio.sleep(0)
    held[0].leave()  # it is let in
    waiting.cancel()  # and does not want it any more
    with pytest.raises(asyncio.CancelledError):
        await waiting

    (await room.admit(10, waits=True)).leave()


async def test_a_body_larger_than_the_room_has_it_alone() -> None:
    room = BodyRoom(10)
    large = await room.admit(1000, waits=True)
    waiting = asyncio.create_task(room.admit(1, waits=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    large.leave()
    (await waiting).leave()


async def test_those_who_wait_for_each_other_go_on(hasty: None) -> None:
    """Work that has waited long goes on: what it waits for may be waiting for it."""
    _, held = await _room(body.WORKED_ON + 1)

    for place in held:
        await place.work()
    for place in held:
        place.leave()


async def test_a_body_in_parts_is_read_whole(database_url: str) -> None:
    server = Server()
    server.register(Note)

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(_body()), 7001):
            yield _body()[start : start + 7001]

    async with client(server, database=database_url) as http:
        answer: httpx.Response = await http.post("/api/notes", content=parts(), headers=JSON)

    assert answer.json()["data"]["data"] == ["t" * SIZE]
