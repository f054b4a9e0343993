"""Erasing while others work: two erasures of one person, writes, holds that come and go, a replay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from maniflex import Model, Run, Server, field
from maniflex.erasure.erasing import Erasing
from maniflex.middleware import db
from maniflex.testing import client
from tests.erasure.world import OTHER, PERSON, Customer, Order, a_shop


async def rows(server: Server, text: str) -> list[Any]:
    return [tuple(row.values()) for row in await server.raw_query(text)]


async def test_two_erasures_of_one_person_are_one(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        for number in range(450):
            await server.db(Order).create(customer_id=PERSON, address=f"Elm Street {number}")
        gone = await server.db(Order).create(customer_id=PERSON, address="Elm Street")
        await server.db(Order).delete(gone.id)
        foreseen = await server.erasure.erase(PERSON, dry_run=True)

        reports = await asyncio.gather(*[server.erasure.erase(PERSON) for _ in range(2)])

        assert reports[0].id == reports[1].id
        assert dict(reports[0].counts) == dict(reports[1].counts) == dict(foreseen.counts)
        assert await rows(server, "SELECT count(*) FROM erasure") == [(1,)]
        told = await rows(server, "SELECT count(*) FROM outbox_event WHERE kind = 'maniflex.erased'")
        assert told == [(1,)]
        again = await rows(server, "SELECT count(*) FROM order_histories WHERE source = 'erasure'")
        assert again == [(450,)]


async def test_what_is_written_during_an_erasure_is_erased_by_it(
    database_url: str, tmp_path: Path, monkeypatch: Any
) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        await server.db(Customer).create(id=PERSON, name="Jane")
        erase_records, written = Erasing._erase_records, list[str]()

        async def write_behind_it(self: Erasing, one: Any) -> None:
            await erase_records(self, one)
            if one.meta.name == "Order" and not written:
                order = await server.db(Order).create(customer_id=PERSON, address="Elm Street")
                run = await server.work.submit("mail", {"to": "Elm Street"}, about=order)
                await server.raw_exec(
                    "INSERT INTO idempotency_key (id, fingerprint, token, settled, answer, expires_at)"
                    " VALUES ('k', 'f', 't', ?, ?, 9999999999999999)",
                    True,
                    b"Elm Street",
                )
                written.extend((order.id, run.id))

        monkeypatch.setattr(Erasing, "_erase_records", write_behind_it)

        await server.erasure.erase(PERSON)

        order_id, run_id = written
        assert (await server.db(Order).read(order_id)).address is None
        assert (await server.work.get(run_id)).payload == {}
        assert await rows(server, "SELECT answer FROM idempotency_key") == [(None,)]


async def test_a_hold_that_begins_during_an_erasure_holds(
    database_url: str, tmp_path: Path, monkeypatch: Any
) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        await server.db(Customer).create(id=PERSON, name="Jane")
        erase_some = Erasing.erase_some

        async def hold_first(self: Erasing, one: Any, ids: Any) -> Any:
            if one.meta.name == "Customer":
                await server.db(Customer).update(PERSON, held=True)
            return await erase_some(self, one, ids)

        monkeypatch.setattr(Erasing, "erase_some", hold_first)

        report = await server.erasure.erase(PERSON)

        assert report.held == (("Customer", PERSON),)
        assert (await server.db(Customer).read(PERSON)).name == "Jane"
        assert await rows(server, "SELECT count(*) FROM customer_histories WHERE erased_at IS NOT NULL") == [
            (0,)
        ]


class Claim(Model, table="at_claims", subject="owner", versioned=True, retention_hold="held"):
    owner: str
    text: str | None = field(default=None, personal=True)
    held: bool = False


def a_court(url: str, **settings: Any) -> Server:
    server = Server(url, background=False, **settings)
    server.register(Claim)
    server.outbox.enable()

    @server.work.handler("write")
    async def write(run: Run) -> None:
        """Write a letter."""

    return server


async def test_what_was_held_goes_with_what_is_about_it_when_the_hold_ends(database_url: str) -> None:
    server = a_court(database_url)
    async with server.lifespan():
        claims = server.db(Claim)
        free, gone, moved = [await claims.create(owner=PERSON, text="she owes", held=True) for _ in range(3)]
        run = await server.work.submit("write", {"text": "she owes"}, about=free)
        report = await server.erasure.erase(PERSON)
        assert len(report.held) == 3
        assert (await server.work.get(run.id)).payload == {"text": "she owes"}
        await claims.update(free.id, held=False)
        await claims.delete(gone.id)
        await claims.update(moved.id, held=False, owner=OTHER, text="he owes")

        await server.retention.sweep()

        everything = repr(await rows(server, "SELECT diff, snapshot FROM claim_histories"))
        everything += repr(await rows(server, "SELECT payload, error FROM workflow_run"))
        assert "she owes" not in everything
        assert (await server.work.get(run.id)).status == "failed"
        assert [(c.owner, c.text) for c in await claims.list(sorts="id")] == [
            (PERSON, None),
            (OTHER, "he owes"),
        ]
        [(held,)] = await rows(server, "SELECT held FROM erasure")
        assert (json.loads(held) if isinstance(held, str) else held) == []


async def test_a_replay_that_is_repeated_leaves_who_came_back(database_url: str) -> None:
    server = a_court(database_url)
    async with server.lifespan():
        claim = await server.db(Claim).create(owner=PERSON, text="she owes")
        await server.erasure.erase(PERSON)
        log = await server.erasure.log()
        await server.raw_exec("DELETE FROM erasure")  # as an older backup would have it
        await server.db(Claim).update(claim.id, text="she owes")

        [report] = await server.erasure.replay(log)

        assert report.counts["at_claims"] == 1
        assert [entry.id for entry in await server.erasure.log()] == [log[0].id]
        await server.db(Claim).create(owner=PERSON, text="a new one")
        assert await server.erasure.replay(log) == []
        assert {claim.text for claim in await server.db(Claim).list()} == {None, "a new one"}


async def test_an_erasure_that_is_a_run_does_not_end_itself(database_url: str) -> None:
    server = a_court(database_url, subject_fields=("subject",))
    async with server.lifespan():
        await server.db(Claim).create(owner=PERSON, text="she owes")
        run = await server.work.submit("maniflex.erasure", {"subject": PERSON}, subjects=[PERSON])
        await server.work.worker(prefixes=["maniflex."]).drain()

        assert (await server.work.get(run.id)).status == "succeeded"
        assert [claim.text for claim in await server.db(Claim).list()] == [None]


async def test_a_dry_run_says_what_is_left_to_run(database_url: str) -> None:
    server = a_court(database_url, subject_fields=("person",))
    async with server.lifespan():
        await server.work.submit("write", {"person": PERSON})
        await server.work.worker().drain()
        await server.work.submit("write", {"person": PERSON})
        async with server.transaction():
            await server.outbox.enqueue("told", {"person": PERSON})

        foreseen = await server.erasure.erase(PERSON, dry_run=True, keep_running=True)
        report = await server.erasure.erase(PERSON, keep_running=True)

        assert dict(report.counts) == dict(foreseen.counts) == {"workflow_run": 1}


async def test_no_record_of_a_trail_waits_with_the_words_of_an_erased_person(database_url: str) -> None:
    written: list[Any] = []

    class Sink:
        async def write(self, record: Any) -> None:
            written.append(record)

    server = a_court(database_url)
    server.pipeline.db.register(db.audit_log(Sink(), changes=True, delivery="outbox"))
    async with client(server, database=None):
        for owner, text in ((PERSON, "she owes"), (OTHER, "he owes")):
            claim = await server.db(Claim).create(owner=owner, text=text)
            await server.db(Claim).update(claim.id, text=f"{text} much")

        foreseen = await server.erasure.erase(PERSON, dry_run=True)
        report = await server.erasure.erase(PERSON)

        waiting = repr(await rows(server, "SELECT payload, raw FROM outbox_event"))
        assert "she owes" not in waiting
        assert waiting.count("he owes") == 5
        assert report.counts["outbox_event"] == foreseen.counts["outbox_event"] == 2
        await server.outbox.drainer().drain()
        assert len(written) == 5  # of the erasure, too
        assert "she owes" not in repr(written)
