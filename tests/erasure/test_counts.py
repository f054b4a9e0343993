"""What the report of an erasure counts: what goes along, work by former names, and events; as foreseen."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Model, Run, Server, field
from maniflex.background.feed.model import LoggedEvent
from tests.erasure.world import Words
from tests.kit.schema import model
from tests.kit.servers import started
from tests.kit.stored_bytes import stored_bytes

SHE, HE = "person-she", "person-he"


class Account(Model, table="ec_accounts", subject="id", on_erase="delete"):
    email: str = field(personal=True, erased=lambda id: f"{id}@erased.invalid")


class Device(Model, table="ec_devices", subject="owner_id"):
    """Hers are made anonymous, and go along with her account."""

    owner_id: str = field(relation=Account, on_delete="cascade")
    label: str | None = field(default=None, personal=True)


class Reading(Model, table="ec_readings"):
    device_id: str = field(relation=Device, on_delete="cascade")
    account_id: str | None = field(default=None, relation=Account, on_delete="cascade")
    value: int = 0


class Trial(Model, table="ec_trials"):
    account_id: str = field(relation=Account, on_delete="restrict")


async def live(server: Server, person: str) -> None:
    await server.db(Account).create(id=person, email=f"{person}@example.org")
    for number in range(3):
        device = await server.db(Device).create(owner_id=person, label=f"label {number}" if number else None)
        for value in range(4):
            # Some are led to by two ways.
            account_id = person if value % 2 else None
            await server.db(Reading).create(device_id=device.id, account_id=account_id, value=value)


async def test_records_that_go_along_are_counted_and_foreseen(database_url: str) -> None:
    async with started(database_url, Account, Device, Reading, Trial, background=False) as server:
        for person in (SHE, HE):
            await live(server, person)

        foreseen = await server.erasure.erase(SHE, dry_run=True)
        report = await server.erasure.erase(SHE)

        # Two devices had a label: they are counted once, and went along later.
        assert dict(report.counts) == {"ec_accounts": 1, "ec_devices": 2, "ec_readings": 12}
        assert report.counts == foreseen.counts
        assert await server.db(Reading).count() == 12
        assert dict((await server.erasure.erase(SHE)).counts) == {}


async def test_what_a_restricted_record_keeps_is_not_counted(database_url: str) -> None:
    async with started(database_url, Account, Device, Reading, Trial, background=False) as server:
        await live(server, SHE)
        await server.db(Trial).create(account_id=SHE)

        foreseen = await server.erasure.erase(SHE, dry_run=True)
        report = await server.erasure.erase(SHE)

        assert dict(report.counts) == {"ec_accounts": 1, "ec_devices": 2}
        assert (report.counts, report.restricted) == (foreseen.counts, foreseen.restricted)
        assert await server.db(Reading).count() == 12


OWNED: dict[str, Any] = {"person_id": (str, field(relation=None))}


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("parcels", ("shipments", "renamed")),
        ("parcels", ("parcels",)),
        ("ec_sent", ("ec_sent",)),
    ],
    ids=["table renamed with it", "table of before", "a table called otherwise"],
)
async def test_runs_about_a_record_are_found_when_its_class_has_another_name(
    database_url: str, then: str, now: tuple[str, ...]
) -> None:
    words = Words()

    def a_server(parcel: Any) -> Server:
        server = Server(database_url, background=False)
        server.register(parcel)
        server.outbox.enable()

        @server.work.handler("pack")
        async def pack(run: Run) -> Any:
            return run.payload

        return server

    before = model("Parcel", then, OWNED, subject="person_id")
    async with (old := a_server(before)).lifespan():
        hers, his = [await old.db(before).create(person_id=person) for person in (SHE, HE)]
        await old.work.submit("pack", {"to": words.new()}, about=hers)
        kept = await old.work.submit("pack", {"to": "somebody else"}, about=his)
        async with old.transaction():
            await old.outbox.enqueue("sent", {"to": words.new()}, about=hers)
        await old.work.worker().drain()

    table, *renamed = now
    options = {"renamed_from": then} if renamed else {}
    server = a_server(model("Shipment", table, OWNED, subject="person_id", **options))
    async with server.lifespan():
        foreseen = await server.erasure.erase(SHE, dry_run=True)
        report = await server.erasure.erase(SHE)

        assert dict(report.counts) == {"workflow_run": 1, "outbox_event": 1}
        assert report.counts == foreseen.counts
        assert words.found_in(await stored_bytes(database_url)) == []
        assert (await server.work.get(kept.id)).payload == {"to": "somebody else"}


class Singer(Model, table="ec_singers", subject="id", events=True):
    name: str = field(personal=True, erased="erased")


class Song(Model, table="ec_songs", subject="singer_id", on_erase="delete", events=True):
    singer_id: str = field(relation=None)
    title: str = field(personal=True, erased="")


@pytest.mark.parametrize("routed", [True, False])
async def test_events_that_the_erasure_makes_are_blank_and_in_no_count(
    database_url: str, routed: bool
) -> None:
    async with started(database_url, Singer, Song, background=False) as server:
        for person in (SHE, HE):
            await server.db(Singer).create(id=person, name="a name")
            await server.db(Song).create(singer_id=person, title="a title")
        if routed:
            await server.events.drain()

        foreseen = await server.erasure.erase(SHE, dry_run=True)
        report = await server.erasure.erase(SHE)

        assert report.counts["event_log"] == 2
        assert report.counts == foreseen.counts
        events = await server.db(LoggedEvent).list(sorts="created_at")
        assert [event.data for event in events if event.erased] == [None] * 4
        assert sum(not event.erased for event in events) == 2
