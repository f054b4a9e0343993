"""Erasing a person: whose records, what becomes of each, who is told, and what waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from maniflex import LocaleString, Model, Server, WithDeletedAt, field
from maniflex.config import sqlite_path
from maniflex.encryption.local import generate_key
from maniflex.erasure.api import ErasedSubject
from maniflex.errors import DatabaseError, DeclarationError, ValidationFailed
from maniflex.testing import FakeClock, client
from tests.erasure.world import KEY, OTHER, PERSON, Customer, Letter, Order, a_shop
from tests.kit.servers import started


async def rows(server: Server, text: str) -> list[Any]:
    return [tuple(row.values()) for row in await server.raw_query(text)]


def database_files(url: str) -> bytes:
    """The file and its log, without the memory that processes share."""
    return b"".join(Path(f"{sqlite_path(url)}{ending}").read_bytes() for ending in ("", "-wal"))


async def test_a_dry_run_changes_not_one_byte(sqlite_url: str, tmp_path: Path) -> None:
    server = a_shop(sqlite_url, tmp_path / "files")
    async with server.lifespan(role="client"):
        await server.db(Customer).create(id=PERSON, name="Jane", email="jane@example.org")
        before = database_files(sqlite_url)

        report = await server.erasure.erase(PERSON, dry_run=True)

        assert database_files(sqlite_url) == before
        assert report.id is None
        assert dict(report.counts) == {"audit_log": 1, "customer_histories": 1, "er_customers": 1}


async def test_a_held_record_is_erased_when_its_hold_ends_and_once(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        customers = server.db(Customer)
        await customers.create(id=PERSON, name="Jane", email="jane@example.org", held=True)

        report = await server.erasure.erase(PERSON)

        assert report.held == (("Customer", PERSON),)
        assert (await customers.read(PERSON)).email == "jane@example.org"
        assert await rows(server, "SELECT count(*) FROM customer_histories WHERE erased_at IS NULL") == [(1,)]
        assert (await server.retention.sweep()).deleted == 0
        await customers.update(PERSON, held=False)

        swept = await server.retention.sweep()

        assert swept.per_model["er_customers"].deleted == 1
        assert (await customers.read(PERSON)).email is None
        [row] = await server.raw_query("SELECT held, counts FROM erasure")
        assert "customer_histories" in str(row["counts"])
        assert str(row["held"]) in ("[]", "b'[]'")
        await customers.update(PERSON, email="new@example.org")
        await server.retention.sweep()
        assert (await customers.read(PERSON)).email == "new@example.org"


async def test_history_tells_that_it_was_erased_and_not_what(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with client(server, database=None) as http:
        await server.db(Order).create(id="o1", customer_id=PERSON, address="Baker Street", total=3)
        await server.db(Order).update("o1", address="Elm Street", total=4)
        await server.erasure.erase(PERSON, by="the-office", reason="asked")

        versions = (await http.get("/api/er_orders/o1/history", headers={"X-API-Key": KEY})).json()["data"]

        assert [(v["operation"], v["source"], v["diff"]) for v in versions] == [
            ("update", "erasure", {}),
            (
                "update",
                "code",
                {"address": {"old": None, "new": None}, "total": {"old": 3, "new": 4}},
            ),
            (
                "create",
                "code",
                {
                    "address": {"old": None, "new": None},
                    "customer_id": {"old": None, "new": PERSON},
                    "total": {"old": None, "new": 3},
                },
            ),
        ]
        assert versions[0]["actor_id"] == "the-office"
        assert [bool(v["erased_at"]) for v in versions] == [False, True, True]
        trail = await rows(server, "SELECT source, changes FROM audit_log ORDER BY timestamp, id")
        assert trail[-1][0] == "erasure"
        assert "Elm" not in str(trail)


async def test_versions_of_a_record_that_was_another_persons_stay(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        order = await server.db(Order).create(customer_id=OTHER, address="Baker Street")
        await server.db(Order).update(order.id, address="Hill Road")
        await server.db(Order).update(order.id, customer_id=PERSON, address="Elm Street")

        await server.erasure.erase(PERSON)

        snapshots = [str(row[0]) for row in await rows(server, "SELECT snapshot FROM order_histories")]
        assert sum("Baker Street" in one for one in snapshots) == 1
        assert sum("Elm Street" in one for one in snapshots) == 0
        second = await server.db(Order).create(customer_id=PERSON, address="Mill Lane")
        await server.db(Order).update(second.id, customer_id=OTHER)
        await server.erasure.erase(PERSON)
        assert (await server.db(Order).read(second.id)).address == "Mill Lane"  # it is the other's now


class Member(Model, table="er_members", subject="id", on_erase="delete"):
    email: str = field(personal=True, unique=True, erased=lambda id: f"{id}@erased.invalid")


class Contract(Model, table="er_contracts"):
    member_id: str = field(relation=Member, on_delete="restrict")


class Badge(Model, table="er_badges"):
    member_id: str = field(relation=Member, on_delete="cascade")


async def test_what_others_need_is_anonymised_instead_of_deleted(database_url: str) -> None:
    async with started(database_url, Member, Contract, Badge, background=False) as server:
        for number in (1, 2):
            await server.db(Member).create(id=f"m{number}", email=f"m{number}@example.org")
            await server.db(Badge).create(member_id=f"m{number}")
        await server.db(Contract).create(member_id="m1")

        first = await server.erasure.erase("m1")
        second = await server.erasure.erase("m2")

        assert first.restricted == (("Member", "m1"),)
        assert second.restricted == ()
        assert [(m.id, m.email) for m in await server.db(Member).list()] == [("m1", "m1@erased.invalid")]
        assert [badge.member_id for badge in await server.db(Badge).list()] == ["m1"]


async def test_work_is_found_by_its_record_its_subjects_and_its_payload(
    database_url: str, tmp_path: Path
) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        order = await server.db(Order).create(customer_id=PERSON)
        foreign = await server.db(Order).create(customer_id=OTHER)
        submit = server.work.submit
        about = await submit("mail", {"to": "Jane"}, about=order)
        named = await submit("mail", {"to": "Jane"}, subjects=[PERSON, OTHER])
        by_key = await submit("mail", {"customer_id": PERSON, "to": "Jane"})
        others = await submit("mail", {"customer_id": OTHER, "to": "Joe"}, about=foreign)
        many = await server.work.submit_many("mail", [{"to": "Jane"}, {"to": "Jane"}], subjects=[PERSON])
        async with server.transaction():
            await server.outbox.enqueue("sent", {"to": "Jane"}, subjects=[PERSON])
            await server.outbox.enqueue("sent", {"to": "Joe"}, subjects=[OTHER])

        report = await server.erasure.erase(PERSON)

        assert report.counts["workflow_run"] == 5
        for run in (about, named, by_key, *many):
            erased = await server.work.get(run.id)
            assert (erased.status, erased.payload, erased.error["code"]) == ("failed", {}, "erased")  # type: ignore[index]
        kept = await server.work.get(others.id)
        assert (kept.status, kept.payload) == ("pending", {"customer_id": OTHER, "to": "Joe"})
        messages = await rows(
            server, "SELECT status, payload FROM outbox_event WHERE kind = 'sent' ORDER BY seq"
        )
        assert messages[0] == ("dead", None)
        assert "Joe" in str(messages[1])
        told = await rows(server, "SELECT payload FROM outbox_event WHERE kind = 'maniflex.erased'")
        assert PERSON in str(told)


async def test_what_runs_may_be_kept_running(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        run = await server.work.submit("mail", {"to": "Jane"}, subjects=[PERSON])

        await server.erasure.erase(PERSON, keep_running=True)

        assert (await server.work.get(run.id)).payload == {"to": "Jane"}
        await server.work.worker().drain()
        await server.erasure.erase(PERSON)
        done = await server.work.get(run.id)
        assert (done.status, done.payload, done.result) == ("succeeded", {}, None)


async def test_an_erasure_comes_as_a_run_too(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        await server.db(Order).create(customer_id=PERSON, address="Elm Street")
        run = await server.work.submit("maniflex.erasure", {"subject": PERSON, "reason": "asked"})
        await server.work.worker(prefixes=["maniflex."]).drain()

        done = await server.work.get(run.id)

        assert done.status == "succeeded", done.last_error
        assert done.result["counts"]["er_orders"] == 1  # type: ignore[index, call-overload]
        assert [order.address for order in await server.db(Order).list()] == [None]


async def test_links_to_work_that_is_gone_are_forgotten(database_url: str, tmp_path: Path) -> None:
    clock = FakeClock(datetime.now(UTC))
    server = a_shop(database_url, tmp_path / "files", clock=clock)
    async with server.lifespan():
        gone = await server.work.submit("mail", {}, subjects=[PERSON])
        await server.work.submit("mail", {}, subjects=[PERSON])
        await server.raw_exec("DELETE FROM workflow_run WHERE id = ?", gone.id)
        clock.advance(timedelta(hours=2))

        await server.retention.sweep()

        assert await rows(server, "SELECT count(*) FROM work_subject") == [(1,)]


async def test_a_restored_database_is_erased_again(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        await server.db(Order).create(customer_id=PERSON, address="Elm Street")
        await server.db(Order).create(customer_id=OTHER, address="Elm Street")
        await server.erasure.erase(OTHER)
        [known] = await server.erasure.log()
        later = ErasedSubject("0000", PERSON, None, known.finished_at)

        reports = await server.erasure.replay([known, later])

        assert [report.subject for report in reports] == [PERSON]
        assert {order.address for order in await server.db(Order).list()} == {None}


async def test_an_erasure_is_no_part_of_a_transaction(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan(), server.transaction():
        with pytest.raises(DatabaseError, match="cannot be part of a transaction"):
            await server.erasure.erase(PERSON)
    async with started(database_url, Contract, Member, background=False) as server:
        with pytest.raises(ValidationFailed):
            await server.erasure.erase("")


class Patient(Model, table="er_patients", subject="id", versioned=True):
    number: str | None = field(default=None, personal=True, encrypted=True, blind_index=True)
    diagnosis: str = field(personal=True, encrypted=True, erased="erased")
    titles: LocaleString | None = field(default=None, personal=True)


async def test_encrypted_and_translated_fields_are_erased_with_their_digests(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MFX_KEY_DEFAULT", generate_key())
    async with started(database_url, Patient, background=False) as server:
        patients = server.db(Patient)
        for name in (PERSON, OTHER):
            await patients.create(id=name, number=f"no-{name}", diagnosis="flu", titles={"en": "Dr"})

        await server.erasure.erase(PERSON)

        erased, other = await patients.read(PERSON), await patients.read(OTHER)
        assert (erased.number, erased.diagnosis, erased.titles) == (None, "erased", None)
        assert (other.number, other.diagnosis) == (f"no-{OTHER}", "flu")
        assert await patients.list({"number": f"no-{PERSON}"}) == []
        [row] = await server.raw_query("SELECT * FROM er_patients WHERE id = ?", PERSON)
        assert [name for name, value in row.items() if "hmac" in name and value is not None] == []
        assert dict((await server.erasure.erase(PERSON)).counts) == {}


async def test_softly_deleted_records_are_erased_for_good(database_url: str, tmp_path: Path) -> None:
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        letter = await server.db(Letter).create(customer_id=PERSON, text="Dear Jane")
        await server.db(Letter).delete(letter.id)

        await server.erasure.erase(PERSON)

        assert await rows(server, "SELECT count(*) FROM er_letters") == [(0,)]
        assert await rows(server, "SELECT count(*) FROM letter_histories") == [(0,)]


class Profile(Model, table="er_profiles", subject="owner", versioned=True, history_restore=True):
    owner: str = field(relation=None)
    motto: str | None = field(default=None, personal=True)
    level: int = 1


class Plain(
    Model, table="er_plain_profiles", subject="owner", versioned_diff_only=True, history_restore=True
):
    owner: str = field(relation=None)
    motto: str | None = field(default=None, personal=True)
    level: int = 1


@pytest.mark.parametrize("model", [Profile, Plain])
async def test_a_way_back_to_an_erased_version_empties_nothing(database_url: str, model: Any) -> None:
    server = Server(database_url, background=False)
    server.register(model)
    async with client(server, database=None) as http:
        profile = await server.db(model).create(owner=PERSON, motto="hers")
        await server.erasure.erase(PERSON)
        await server.db(model).update(profile.id, motto="a new one", level=2)

        answer = await http.post(f"/api/{model.__options__.table}/{profile.id}/history/1/restore")

        assert answer.status_code == 200, answer.text
        assert (answer.json()["data"]["motto"], answer.json()["data"]["level"]) == ("a new one", 1)


# -- declarations

_PERSONAL: Any = str | None, field(default=None, personal=True)
_NO_FLAG: Any = str | None, field(personal="yes")  # type: ignore[call-overload]
_PERSONAL_TIME: Any = datetime | None, field(default=None, personal=True)


@pytest.mark.parametrize(
    ("options", "fields", "text"),
    [
        ({}, {"email": _PERSONAL}, "personal needs subject="),
        ({"on_erase": "delete"}, {}, "on_erase= means nothing without subject="),
        ({"subject": "owner"}, {}, "subject: 'owner' is no field"),
        ({"subject": "number"}, {}, "must be a plain text field"),
        (
            {"subject": "owner_key"},
            {"owner_key": _PERSONAL},
            "is personal",
        ),
        (
            {"subject": "owner_key", "versioned": True},
            {"owner_key": (str, field(default="", hidden=True))},
            "owner_key is hidden, so histories do not say whose data",
        ),
        ({"subject": "id", "on_erase": "keep"}, {}, "needs keep_reason="),
        ({"subject": "id", "keep_reason": "law"}, {}, "keep_reason= goes with on_erase='keep'"),
        ({"subject": "id", "on_erase": "anonymize"}, {}, "unknown on_erase 'anonymize'"),
        ({"subject": "id"}, {"email": (str, field(personal=True))}, "say erased="),
        ({"subject": "id"}, {"email": (str, field(personal=True, erased=None))}, "erased=None does not fit"),
        ({"subject": "id"}, {"age": (int, field(personal=True, erased="old"))}, "erased='old' does not fit"),
        (
            {"subject": "id"},
            {"email": (str, field(personal=True, unique=True, erased="x"))},
            "must be a function of the id",
        ),
        (
            {"subject": "id", "indices": [("email", "number")]},
            {"email": (str | None, field(default=None, erased="x"))},
            "erased= means nothing without personal=True",
        ),
        (
            {"subject": "id"},
            {"deleted_at": (datetime | None, field(default=None, personal=True))},
            "framework",
        ),
        ({"query": "SELECT 1 AS number", "subject": "number"}, {}, "subject cannot be set on a query model"),
        ({"subject": "id"}, {"email": _NO_FLAG}, "personal must be True or False"),
    ],
)
async def test_contradictions_stop_the_start(
    options: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    bases = (Model, WithDeletedAt) if "deleted_at" in fields else (Model,)
    body: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": "Wrong",
        "__annotations__": {"number": int, **{name: kind for name, (kind, _) in fields.items()}},
        **{name: default for name, (_, default) in fields.items()},
    }
    make: Any = type(Model)
    wrong = make("Wrong", bases, body, table="er_wrong", **options)
    server = Server("sqlite://")
    server.register(wrong)

    with pytest.raises(DeclarationError) as caught:
        async with server.lifespan():
            pass
    assert text in str(caught.value)


async def test_subjects_are_refused_where_nobody_could_be_erased() -> None:
    server = Server("sqlite://", background=False)
    server.work.enable()
    async with server.lifespan():
        with pytest.raises(ValidationFailed, match="no model says with subject="):
            await server.work.submit("mail", {}, subjects=["somebody"])
