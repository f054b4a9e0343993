"""`Retention(action="erase")`: a record stays, and what it says of a person goes when its time is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from maniflex import Model, Retention, Run, Server, WithDeletedAt, field, file
from maniflex.errors import DeclarationError
from maniflex.middleware import db
from maniflex.sql.scheduled_fields import take
from maniflex.sql.scheduled_indexes import retention_indexes
from maniflex.storage import LocalStorage
from maniflex.testing import FakeClock, client
from tests.kit.internals import store_of
from tests.kit.local_files import files
from tests.kit.servers import started
from tests.kit.statements import rows_examined, sqlite_plan

DAY = timedelta(days=1)


class Invoice(
    Model,
    WithDeletedAt,
    table="re_invoices",
    subject="customer_id",
    versioned=True,
    on_erase="keep",
    keep_reason="ten years by tax law",
    retention=Retention("10y", action="erase"),
    retention_hold="in_court",
):
    customer_id: str = field(relation=None)
    addressee: str = field(personal=True, erased="erased")
    lines: list[str] = field(default_factory=list, personal=True, erased=[])
    scan: str | None = file(default=None, personal=True)
    total: int = 0
    in_court: bool = False


class Letter(
    Model,
    table="re_letters",
    subject="customer_id",
    versioned=True,
    on_erase="delete",
    retention=Retention("1y", action="erase"),
):
    customer_id: str = field(relation=None)
    text: str = field(personal=True, erased="")


class Receipt(Model, table="re_receipts", subject="person", retention=Retention("1y", action="erase")):
    person: str
    payer: str | None = field(default=None, personal=True)


def an_archive(url: str, directory: Path, clock: FakeClock) -> Server:
    server = Server(url, storage=LocalStorage(directory), clock=clock, background=False)
    server.register(Invoice, Letter)
    server.pipeline.db.register(db.audit_log(changes=True))

    @server.work.handler("print")
    async def print_(run: Run) -> None:
        """Print an invoice."""

    return server


async def test_a_kept_record_is_anonymised_when_its_time_is_over_and_once(
    database_url: str, tmp_path: Path
) -> None:
    clock = FakeClock(datetime.now(UTC))
    server = an_archive(database_url, tmp_path / "files", clock)
    async with client(server, database=None):
        invoices = server.db(Invoice)
        scan = await server.files.store(b"planted scan", filename="planted.png")
        old = await invoices.create(
            customer_id="a", addressee="planted A", lines=["planted"], scan=scan.key, total=7
        )
        await invoices.update(old.id, addressee="planted B")
        deleted = await invoices.create(customer_id="b", addressee="planted C")
        await invoices.delete(deleted.id)
        held = await invoices.create(customer_id="c", addressee="in court", in_court=True)
        run = await server.work.submit("print", {"to": "planted"}, about=old)
        assert dict((await server.erasure.erase("a")).kept) == {"Invoice": "ten years by tax law"}
        clock.advance(3600 * DAY)
        young = await invoices.create(customer_id="a", addressee="young")
        clock.advance(60 * DAY)

        due = [row.due for row in await server.retention.due() if row.model.name == "Invoice"]
        report = await server.retention.sweep()

        assert due == [2]
        assert (report.updated, report.deleted, report.skipped) == (2, 0, 0)
        erased = await invoices.read(old.id)
        assert (erased.addressee, erased.lines, erased.scan, erased.total) == ("erased", [], None, 7)
        assert (await invoices.read(young.id)).addressee == "young"
        assert (await invoices.read(held.id)).addressee == "in court"
        await server.files.sweep()  # the row of the file has its name until then
        tables = ("re_invoices", "invoice_histories", "audit_log", "workflow_run", "stored_file")
        everything = repr([await server.raw_query(f"SELECT * FROM {table}") for table in tables])
        assert "planted" not in everything
        assert (await server.work.get(run.id)).status == "failed"
        await server.files.sweep()
        assert not files(tmp_path / "files")
        assert (await server.retention.sweep()).updated == 0
        [versions] = await server.raw_query(
            "SELECT count(*) AS n FROM invoice_histories WHERE source = 'erasure'"
        )
        assert versions["n"] == 2


async def test_a_record_that_is_to_be_deleted_goes_with_its_versions(
    database_url: str, tmp_path: Path
) -> None:
    clock = FakeClock(datetime.now(UTC))
    server = an_archive(database_url, tmp_path / "files", clock)
    async with server.lifespan():
        await server.db(Letter).create(customer_id="a", text="planted")
        clock.advance(366 * DAY)

        report = await server.retention.sweep()

        assert report.per_model["Letter"].deleted == 1
        assert await server.db(Letter).list() == []
        assert await server.raw_query("SELECT * FROM letter_histories") == []


async def test_what_is_erased_or_young_costs_a_sweep_nothing(database_url: str) -> None:
    clock = FakeClock(datetime.now(UTC))
    async with started(database_url, Receipt, clock=clock, background=False) as server:
        async with server.transaction():
            for number in range(2000):
                await server.db(Receipt).create(person=str(number), payer="planted")
        clock.advance(400 * DAY)
        assert (await server.retention.sweep()).updated == 2000
        async with server.transaction():
            for number in range(2000):
                await server.db(Receipt).create(person=str(number), payer="young")
        await server.raw_exec("ANALYZE")

        question = question_of_the_sweep(server, clock.now())

        if database_url.startswith("sqlite"):
            assert "INDEX due_re_receipts_created_at" in sqlite_plan(database_url, *question)
        else:
            assert await rows_examined(database_url, *question) <= 2
        assert (await server.retention.sweep()).updated == 0


def question_of_the_sweep(server: Server, now: datetime) -> tuple[str, tuple[Any, ...]]:
    """The statement that takes the next batch of due records."""
    store = store_of(server, Receipt)
    [index] = retention_indexes(store.meta)
    sql = take(store.sql, index, now, None, 100)
    return sql.text, tuple(sql.params)


_PERSONAL: Any = str | None, field(default=None, personal=True)


@pytest.mark.parametrize(
    ("options", "fields", "text"),
    [
        ({}, {}, "action='erase' needs subject="),
        ({"subject": "id"}, {}, "no field is personal"),
        (
            {"subject": "id"},
            {"email": (str, field(personal=True, erased=lambda id: f"{id}@erased.invalid"))},
            "cannot see in the database whether email is erased",
        ),
        (
            {"subject": "id"},
            {"words": (dict[str, int], field(personal=True, erased={"a": 1}))},
            "cannot see in the database whether words is erased",
        ),
    ],
)
async def test_a_rule_that_could_not_end_stops_the_start(
    options: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    body: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": "Wrong",
        "__annotations__": {"number": int, **{name: kind for name, (kind, _) in fields.items()}},
        **{name: default for name, (_, default) in fields.items()},
    }
    make: Any = type(Model)
    wrong = make(
        "Wrong", (Model,), body, table="re_wrong", retention=Retention("1d", action="erase"), **options
    )
    server = Server("sqlite://")
    server.register(wrong)

    with pytest.raises(DeclarationError) as caught:
        async with server.lifespan():
            pass
    assert text in str(caught.value)
