"""Erasing a person reaches the feed: events about her records keep their places and say nothing."""

from __future__ import annotations

from maniflex import Model, Run, Server, field
from maniflex.background.outbox.model import OutboxMessage
from maniflex.events import Emit, Event
from tests.erasure.world import Words
from tests.kit.stored_bytes import stored_bytes


class Client(Model, subject="id", events=True):
    name: str = field(personal=True, erased="erased")


class Visit(Model, subject="client_id", on_erase="delete", events=Emit(subject="stay", type="stay")):
    client_id: str = field(relation=None)
    room: str = field(personal=True, erased="")


async def test_events_about_an_erased_person_say_nothing(database_url: str) -> None:
    words, seen = Words(), list[Event]()
    server = Server(database_url, background=False, outbox_base_backoff=3600)
    server.register(Client, Visit)

    @server.events.subscribe("client.created", group="fails", max_retry=0)
    async def fail(event: Event) -> None:
        raise ValueError(event.data["name"])

    async with server.lifespan():
        other = await server.db(Client).create(name="somebody else")
        client = await server.db(Client).create(name=words.new())
        visit = await server.db(Visit).create(client_id=client.id, room=words.new())
        await server.events.drain()
        await server.db(Client).update(client.id, name=words.new())  # not routed yet
        assert words.found_in(await stored_bytes(database_url)) == words.planted

        await server.erasure.erase(client.id)

        assert words.found_in(await stored_bytes(database_url)) == []
        await server.events.drain()
        seen = await server.events.read()
        assert [event.position for event in seen] == list(range(1, len(seen) + 1))
        hers = [event for event in seen if event.record_id != other.id]
        assert [event.type for event in hers[:3]] == ["client.created", "stay.created", "client.updated"]
        assert {event.type for event in hers[3:]} == {"client.updated", "stay.deleted"}
        assert all(event.erased and event.data is None for event in hers[:3])
        assert all(event.data in (None, {"id": event.record_id}) for event in hers)
        assert {event.record_id for event in hers} == {client.id, visit.id}
        [kept] = [event for event in seen if event.record_id == other.id]
        assert kept.data["name"] == "somebody else"
        dead = await server.db(OutboxMessage).list([("status", "eq", "dead")])
        assert sorted(str(row.last_error) for row in dead) == ["None", "ValueError: somebody else"]


async def test_what_came_of_runs_about_an_erased_person_is_told_to_nobody_any_more(database_url: str) -> None:
    words = Words()
    server = Server(database_url, background=False)
    server.register(Client)
    server.work.enable(events=True)

    @server.work.handler("write.letter")
    async def write(run: Run) -> str:
        return str(run.payload["text"])

    async with server.lifespan(role="client"):
        client = await server.db(Client).create(name="ada")
        over = await server.work.submit("write.letter", {"text": words.new()}, about=client)
        await server.work.worker().drain()
        waiting = await server.work.submit("write.letter", {"text": words.new()}, about=client)
        await server.events.drain()
        assert words.found_in(await stored_bytes(database_url)) == words.planted

        await server.erasure.erase(client.id)

        assert words.found_in(await stored_bytes(database_url)) == []
        await server.events.drain()
        events = await server.events.read(patterns=["run.*"])
    assert [(event.type, event.erased) for event in events] == [
        ("run.write.letter.succeeded", True),
        ("run.write.letter.failed", False),
    ]
    assert events[0].subject == f"run/{over.id}"
    assert events[0].data is None
    assert events[1].data["error"] == {"code": "erased"}
    assert events[1].data["id"] == waiting.id
