"""Whose a record is: rows of another person are left, and what refers to a deleted record is found first."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Model, Run, Server, field
from maniflex.erasure import ownership
from maniflex.middleware import db
from maniflex.testing import client
from tests.erasure.world import OTHER, PERSON
from tests.kit.servers import started


class Buyer(Model, table="ow_buyers", subject="id", on_erase="delete"):
    name: str = field(personal=True, erased="")


class Parcel(Model, table="ow_parcels", subject="buyer_id", versioned_diff_only=True):
    buyer_id: str | None = field(default=None, relation=Buyer, on_delete="set_null")
    street: str | None = field(default=None, personal=True)


class Tag(Model, table="ow_tags", subject="parcel.buyer_id", versioned=True):
    parcel_id: str = field(relation=Parcel, on_delete="cascade")
    text: str | None = field(default=None, personal=True)


class Bill(Model, table="ow_bills", subject="buyer_id", on_erase="keep", keep_reason="law"):
    buyer_id: str | None = field(default=None, relation=Buyer, on_delete="set_null")
    payer: str = field(personal=True, erased="")


class Promise(Model, table="ow_promises", subject="buyer_id", on_erase="delete", retention_hold="held"):
    buyer_id: str = field(relation=Buyer, on_delete="cascade")
    text: str = field(personal=True, erased="")
    held: bool = False


class Paper(Model, table="ow_papers", subject="person_id", versioned=True):
    person_id: str = field(relation=None)
    text: str | None = field(default=None, personal=True)


MODELS = (Buyer, Parcel, Tag, Bill, Promise)


async def texts(server: Server) -> dict[str, list[Any]]:
    """Every row of every table of an application, as text, by table."""
    tables = {model.__options__.table or "": model for model in MODELS}
    return {
        table: [repr(row) for row in await server.raw_query(f"SELECT * FROM {table}")] for table in tables
    }


async def test_what_refers_to_a_deleted_record_is_erased_before_it_goes(database_url: str) -> None:
    async with started(database_url, *MODELS, background=False) as server:
        await server.db(Buyer).create(id=PERSON, name="Jane")
        parcel = await server.db(Parcel).create(buyer_id=PERSON, street="Elm Street")
        tag = await server.db(Tag).create(parcel_id=parcel.id, text="for Jane")
        await server.db(Promise).create(buyer_id=PERSON, text="a ring")

        foreseen = await server.erasure.erase(PERSON, dry_run=True)
        report = await server.erasure.erase(PERSON)

        assert await server.db(Buyer).list() == []
        [left] = await server.db(Parcel).list()
        assert (left.buyer_id, left.street) == (None, None)
        assert (await server.db(Tag).read(tag.id)).text is None
        assert report.counts == foreseen.counts
        assert {t: report.counts[t] for t in ("ow_buyers", "ow_parcels", "ow_tags", "ow_promises")} == {
            "ow_buyers": 1,
            "ow_parcels": 1,
            "ow_tags": 1,
            "ow_promises": 1,
        }


async def test_a_kept_or_held_record_keeps_the_one_that_would_take_it_along(database_url: str) -> None:
    async with started(database_url, *MODELS, background=False) as server:
        for person in (PERSON, OTHER):
            await server.db(Buyer).create(id=person, name="Jane")
        bill = await server.db(Bill).create(buyer_id=PERSON, payer="Jane")
        held = await server.db(Promise).create(buyer_id=OTHER, text="a ring", held=True)

        for person in (PERSON, OTHER):
            foreseen = await server.erasure.erase(person, dry_run=True)
            report = await server.erasure.erase(person)

            assert report.restricted == foreseen.restricted == (("Buyer", person),)
            assert (report.counts, report.held) == (foreseen.counts, foreseen.held)
        kept = await server.db(Bill).read(bill.id)
        assert (kept.buyer_id, kept.payer) == (PERSON, "Jane")
        assert (await server.db(Promise).read(held.id)).text == "a ring"
        assert {buyer.name for buyer in await server.db(Buyer).list()} == {""}


async def test_what_hangs_on_a_record_that_is_anothers_now_is_left(database_url: str) -> None:
    server = Server(database_url, background=False)
    server.register(*MODELS)

    @server.work.handler("print")
    async def print_(run: Run) -> None:
        """Print a label."""

    async with server.lifespan():
        parcel = await server.db(Parcel).create(street="Elm Street")
        for person in (PERSON, OTHER):
            await server.db(Buyer).create(id=person, name=person)
            await server.db(Parcel).update(parcel.id, buyer_id=person)
        tag = await server.db(Tag).create(parcel_id=parcel.id, text="for the other")
        run = await server.work.submit("print", {"label": "for the other"}, about=parcel)
        before = await texts(server)

        report = await server.erasure.erase(PERSON)

        after = await texts(server)
        del before["ow_buyers"], after["ow_buyers"]
        assert after == before
        assert (await server.db(Tag).read(tag.id)).text == "for the other"
        assert (await server.work.get(run.id)).status == "pending"
        [versions] = await server.raw_query(
            "SELECT count(*) AS number FROM tag_histories WHERE erased_at IS NOT NULL"
        )
        assert versions["number"] == 0
        assert set(report.counts) <= {"ow_buyers", "parcel_histories"}


async def test_versions_without_a_snapshot_are_hers_by_those_before_them(database_url: str) -> None:
    async with started(database_url, *MODELS, background=False) as server:
        for person, street in ((PERSON, "Elm Street"), (OTHER, "Mill Lane")):
            await server.db(Buyer).create(id=person, name=person)
            parcel = await server.db(Parcel).create(buyer_id=person)
            await server.db(Parcel).update(parcel.id, street=street)  # the version does not say whose
            await server.db(Parcel).delete(parcel.id)

        await server.erasure.erase(PERSON)

        diffs = repr(await server.raw_query("SELECT diff FROM parcel_histories"))
        assert "Elm Street" not in diffs
        assert diffs.count("Mill Lane") == 2


async def test_a_record_that_names_nobody_any_more_is_hers_by_its_past(database_url: str) -> None:
    async with started(database_url, *MODELS, background=False) as server:
        await server.db(Buyer).create(id=PERSON, name="Jane")
        parcel = await server.db(Parcel).create(buyer_id=PERSON, street="Elm Street")
        await server.db(Buyer).delete(PERSON)  # years before: the key is empty now

        await server.erasure.erase(PERSON)

        assert (await server.db(Parcel).read(parcel.id)).street is None


class Note(Model, table="ow_notes", subject="owner"):
    owner: str
    text: str | None = field(default=None, personal=True)


async def test_the_past_is_looked_at_in_stretches_and_to_its_end(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "STRETCH", 3)
    async with started(database_url, Paper, background=False) as server:
        papers = server.db(Paper)
        for number in range(20):
            paper = await papers.create(person_id="she" if number % 7 == 6 else "he", text=f"text {number}")
            await papers.delete(paper.id)

        report = await server.erasure.erase("she")

        assert report.counts["paper_histories"] == 4  # two papers, each made and deleted
        [left] = await server.raw_query("SELECT count(*) AS n FROM paper_histories WHERE erased_at IS NULL")
        assert left["n"] == 36


async def test_the_trail_of_a_record_follows_its_owner(database_url: str) -> None:
    server = Server(database_url, background=False)
    server.register(Note)
    server.pipeline.db.register(db.audit_log(changes=True))
    async with client(server, database=None):
        notes = server.db(Note)
        moved = await notes.create(owner=OTHER, text="of the other")
        await notes.update(moved.id, owner=PERSON, text="of the person")
        gone = await notes.create(owner=PERSON, text="gone, of the person")
        await notes.update(gone.id, text="gone later, of the person")
        await notes.delete(gone.id)

        foreseen = await server.erasure.erase(PERSON, dry_run=True)
        report = await server.erasure.erase(PERSON)

        trail = repr(await server.raw_query("SELECT result, changes FROM audit_log"))
        assert "of the person" not in trail
        assert trail.count("of the other") == 3  # what it was, what it became then, and what the move ended
        assert report.counts == foreseen.counts == {"audit_log": 4, "ow_notes": 1}


async def test_an_export_shows_nothing_of_who_had_a_record_before_or_has_it_now(database_url: str) -> None:
    async with started(database_url, *MODELS, background=False) as server:
        for person in (PERSON, OTHER):
            await server.db(Buyer).create(id=person, name=person)
        for first, last in ((OTHER, PERSON), (PERSON, OTHER)):
            parcel = await server.db(Parcel).create(buyer_id=first, street=f"street of {first}")
            await server.db(Parcel).update(parcel.id, buyer_id=last, street=f"street of {last}")
            await server.db(Parcel).update(parcel.id, street=f"second street of {last}")

        parts = [part async for part in server.erasure.export(PERSON, history=True)]

        content = b"".join(content for name, content in parts if "manifest" not in name).decode()
        assert f"street of {OTHER}" not in content
        assert content.count(f"second street of {PERSON}") >= 2
