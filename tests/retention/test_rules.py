"""`retention=`: records go when their model keeps them no longer, and no sooner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from maniflex import Model, Retention, Server, WithDeletedAt, WithIsDeleted, field
from maniflex.errors import DeclarationError
from maniflex.middleware import db
from maniflex.testing import FakeClock, client
from tests.kit.servers import started
from tests.kit.waiting import eventually

DAY = timedelta(days=1)


class Session(Model, table="ret_sessions", retention="90d", retention_hold="on_hold"):
    label: str = ""
    on_hold: bool = False


class Ticket(
    Model,
    WithDeletedAt,
    table="ret_tickets",
    versioned=True,
    retention=[
        Retention(after="30d", since="closed_at", action="soft_delete", where={"status": ("closed", "void")}),
        Retention(after=timedelta(days=365)),
    ],
    deleted_retention="10d",
):
    title: str = ""
    status: Literal["open", "closed", "void"] = "open"
    closed_at: datetime | None = None


def a_server(url: str, clock: FakeClock, *models: type[Model], **settings: Any) -> Any:
    return started(url, *models, clock=clock, background=False, **settings)


async def titles(server: Server, model: type[Any], name: str) -> set[str]:
    table = model.__options__.table
    return {row[name] for row in await server.raw_query(f"SELECT {name} FROM {table}")}


async def test_a_record_goes_when_its_time_is_over_and_none_goes_before(database_url: str) -> None:
    clock = FakeClock()
    async with a_server(database_url, clock, Session) as server:
        sessions = server.db(Session)
        await sessions.create(label="old")
        await sessions.create(label="held", on_hold=True)
        clock.advance(DAY)
        await sessions.create(label="due tomorrow")
        clock.advance(89 * DAY - timedelta(seconds=1))
        assert (await server.retention.sweep()).deleted == 0
        clock.advance(timedelta(seconds=1))

        report = await server.retention.sweep()

        assert (report.deleted, report.skipped, report.failed) == (1, 0, 0)
        assert await titles(server, Session, "label") == {"held", "due tomorrow"}
        assert (await server.retention.sweep()).deleted == 0


async def test_a_record_that_is_no_longer_held_goes_with_the_next_sweep(database_url: str) -> None:
    clock = FakeClock()
    async with a_server(database_url, clock, Session) as server:
        held = await server.db(Session).create(on_hold=True)
        clock.advance(100 * DAY)
        assert (await server.retention.sweep()).deleted == 0
        await server.db(Session).update(held.id, on_hold=False)

        assert (await server.retention.sweep()).deleted == 1


async def test_rules_look_at_their_field_and_their_condition(database_url: str) -> None:
    clock = FakeClock()
    async with a_server(database_url, clock, Ticket) as server:
        tickets = server.db(Ticket)
        tickets_by_title: dict[str, dict[str, Any]] = {
            "closed": {"status": "closed", "closed_at": clock.now()},
            "void": {"status": "void", "closed_at": clock.now()},
            "open": {"status": "open", "closed_at": clock.now()},
            "never closed": {"status": "closed"},
        }
        for title, values in tickets_by_title.items():
            await tickets.create(title=title, **values)
        clock.advance(31 * DAY)

        report = await server.retention.sweep()

        assert report.deleted == 2  # softly
        assert {ticket.title for ticket in await tickets.list()} == {"open", "never closed"}
        assert len(await titles(server, Ticket, "title")) == 4
        clock.advance(9 * DAY)
        assert (await server.retention.sweep()).deleted == 0
        clock.advance(DAY)
        assert (await server.retention.sweep()).deleted == 2  # for good, ten days later
        assert await titles(server, Ticket, "title") == {"open", "never closed"}
        clock.advance(325 * DAY)
        assert (await server.retention.sweep()).deleted == 2
        assert await titles(server, Ticket, "title") == set()


async def test_what_went_is_in_its_history_as_the_work_of_nobody(database_url: str) -> None:
    clock = FakeClock(datetime.now(UTC))
    async with a_server(database_url, clock, Ticket) as server:
        await server.db(Ticket).create(title="old")
        clock.advance(366 * DAY)
        with server.acting_as("somebody"):
            await server.retention.sweep()

        rows = await server.raw_query(
            "SELECT operation, source, actor_id FROM ticket_histories ORDER BY version"
        )

        assert [tuple(row.values()) for row in rows] == [
            ("create", "code", None),
            ("delete", "retention", None),
        ]


async def test_a_clock_that_is_set_back_during_a_sweep_lets_nothing_go_early(database_url: str) -> None:
    clock = FakeClock()
    async with a_server(database_url, clock, Session, sweep_batch_size=2) as server:
        for number in range(6):
            await server.db(Session).create(label=str(number))
        now = clock.now()
        clock.advance(91 * DAY)  # by mistake

        def set_back(model: str, id: str) -> None:
            clock.move_to(now)

        report = await server.retention.sweep(on_delete=set_back)

        assert report.deleted == 2  # the batch that was at work when the clock was set right
        assert len(await server.db(Session).list()) == 4


# -- what refers to a record


class Owner(Model, table="ret_owners", retention="1d"):
    name: str


class Kept(Model, table="ret_kept"):
    owner_id: str = field(relation=Owner, on_delete="restrict")


class Part(Model, table="ret_parts", retention_hold="legal"):
    owner_id: str = field(relation=Owner, on_delete="cascade")
    legal: bool | None = None


class Leaf(Model, table="ret_leaves", retention_hold="legal"):
    part_id: str | None = field(default=None, relation=Part, on_delete="set_null")
    legal: bool = False


async def test_a_record_that_others_need_is_left_and_reported(database_url: str) -> None:
    clock = FakeClock()
    async with a_server(database_url, clock, Owner, Kept, Part, Leaf) as server:
        needed, free = [await server.db(Owner).create(name=name) for name in ("needed", "free")]
        await server.db(Kept).create(owner_id=needed.id)
        await server.db(Part).create(owner_id=free.id)
        clock.advance(2 * DAY)

        report = await server.retention.sweep()

        assert (report.deleted, report.skipped) == (1, 1)
        assert [(one.model, one.id) for one in report.errors] == [("Owner", needed.id)]
        assert await titles(server, Owner, "name") == {"needed"}
        assert await server.db(Part).list() == []


async def test_a_held_record_is_not_taken_along_with_another(database_url: str) -> None:
    clock = FakeClock()
    async with a_server(database_url, clock, Owner, Kept, Part, Leaf) as server:
        owners = server.db(Owner)
        first, second, third = [await owners.create(name=name) for name in ("part", "leaf", "free")]
        await server.db(Part).create(owner_id=first.id, legal=True)
        part = await server.db(Part).create(owner_id=second.id)
        await server.db(Leaf).create(part_id=part.id, legal=True)
        clock.advance(2 * DAY)

        report = await server.retention.sweep()

        assert (report.deleted, report.skipped) == (1, 2)
        assert await titles(server, Owner, "name") == {"part", "leaf"}
        assert len(await server.db(Part).list()) == 2
        await owners.delete(second.id)  # a person may: the hold binds rules
        assert len(await server.db(Part).list()) == 1
        del third


async def test_histories_and_trails_are_pruned_to_their_end(database_url: str) -> None:
    clock = FakeClock(datetime.now(UTC))
    server = Server(database_url, clock=clock, background=False, audit_retention=20 * DAY)

    class Page(Model, table="ret_all_pages", versioned=True, history_retention="30d"):
        text: str = ""

    server.register(Page)
    server.pipeline.db.register(db.audit_log())
    async with client(server, database=None) as http:
        page = await server.db(Page).create(text="0")
        for number in range(1, 4):
            await server.db(Page).update(page.id, text=str(number))
        clock.advance(40 * DAY)
        then = (clock.now() - 5 * DAY).isoformat().replace("+00:00", "Z")

        async def past() -> Any:
            return (await http.get(f"/api/ret_all_pages?as_of={then}")).json()["data"]

        before = await past()
        trail = await server.raw_query("SELECT id FROM audit_log")
        report = await server.retention.sweep()

        assert {name: part.deleted for name, part in report.per_model.items()} == {
            "PageHistory": 3,
            "AuditLogRow": len(trail),
        }
        assert await past() == before
        assert len(trail) == 4
        assert await server.raw_query("SELECT id FROM audit_log") == []
        assert (await server.retention.sweep()).deleted == 0


async def test_a_serving_process_sweeps_by_itself(database_url: str) -> None:
    clock = FakeClock()
    async with started(database_url, Session, clock=clock, retention_interval=timedelta(minutes=5)) as server:
        await server.db(Session).create()

        async def is_gone() -> bool:
            clock.advance(timedelta(days=1))
            return not await server.db(Session).list()

        await eventually(is_gone, "the old session is gone")


# -- declarations


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retention": "soon"}, "retention: 'soon' is not a duration such as 90d"),
        ({"retention": 90}, "retention: 90 is not a duration"),
        ({"retention": timedelta(0)}, "retention: datetime.timedelta(0) is not a duration"),
        ({"deleted_retention": "1d"}, "deleted_retention needs a soft-delete model"),
        ({"retention": Retention("1d", since="made")}, "retention: since: Wrong has no field 'made'"),
        ({"retention": Retention("1d", since="label")}, "since: label is no datetime field"),
        (
            {"retention": Retention("1d", action="soft_delete")},
            "action='soft_delete' needs a soft-delete model",
        ),
        ({"retention": Retention("1d", action="delet")}, "unknown action 'delet'; use delete, soft_delete"),  # type: ignore[arg-type]
        ({"retention": Retention("1d", where={"labl": 1})}, "where: Wrong has no field 'labl'"),
        ({"retention": Retention("1d", where={})}, "where must map a field"),
        ({"retention": Retention("1d", where={"state": "c"})}, "'c' does not fit"),
        ({"retention_hold": "hold"}, "retention_hold: Wrong has no field 'hold'"),
        ({"retention_hold": "label"}, "retention_hold: label must be a bool field"),
        ({"query": "SELECT 1", "retention": "1d"}, "retention cannot be set on a query model"),
        ({"query": "SELECT 1", "retention_hold": "flag"}, "retention_hold cannot be set on a query model"),
    ],
)
async def test_mistakes_stop_the_start(options: dict[str, Any], text: str) -> None:
    class Wrong(Model, table="ret_wrong", **options):
        label: str = ""
        flag: bool = False
        state: Literal["a", "b"] = "a"

    server = Server("sqlite://")
    server.register(Wrong)

    with pytest.raises(DeclarationError) as caught:
        async with server.lifespan():
            pass
    assert text in str(caught.value)


async def test_a_flag_does_not_say_when_a_record_was_deleted() -> None:
    class Flagged(Model, WithIsDeleted, table="ret_flagged", deleted_retention="1d"):
        label: str = ""

    server = Server("sqlite://")
    server.register(Flagged)

    with pytest.raises(DeclarationError, match="is_deleted does not say when a record was deleted"):
        async with server.lifespan():
            pass
