"""Scheduled fields: what becomes of a record when its time has come, and what must not."""

from __future__ import annotations

import inspect
import logging
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from types import new_class
from typing import Any, Literal

import pytest

from maniflex import (
    DeclarationError,
    Model,
    Server,
    WithDeletedAt,
    WithIsDeleted,
    field,
    scheduled,
)
from maniflex.testing.clock import FakeClock
from tests.kit.scheduled_fields import FUTURE, PAST, START, Post, a_newsroom, runner_of, stored

HOUR = timedelta(hours=1)


# -- the three actions


async def test_a_field_is_set_when_its_time_has_come_and_the_time_stays_on_record(database_url: str) -> None:
    clock = FakeClock(START)
    async with a_newsroom(database_url, clock=clock) as server:
        posts = server.db(Post)
        due = await posts.create(title="due", publish_at=START)
        later = await posts.create(title="later", publish_at=START + timedelta(microseconds=1))
        never = await posts.create(title="never")
        clock.advance(timedelta(0))

        report = await runner_of(server).sweep()

        assert (report.updated, report.deleted, report.truncated, report.errors) == (1, 0, False, ())
        assert report.per_model["Post"].updated == 1
        served = await posts.read(due.id)
        assert (served.status, served.publish_at, served.updated_at) == ("published", START, clock.now())
        assert [(await posts.read(p.id)).status for p in (later, never)] == ["draft", "draft"]


async def test_a_record_whose_field_is_not_as_demanded_is_left_alone(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        post = await server.db(Post).create(status="archived", publish_at=PAST)

        report = await runner_of(server).sweep()

        assert report.changed == 0
        assert (await server.db(Post).read(post.id)).status == "archived"


async def test_without_from_the_field_is_set_whatever_it_was(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        for status in ("draft", "published", "archived"):
            await server.db(Post).create(status=status, archive_at=PAST)

        report = await runner_of(server).sweep()

        assert report.updated == 2
        assert {row["status"] for row in await stored(server, "posts")} == {"archived"}


class Ticket(Model):
    status: Literal["open", "pending", "closed"] = "open"
    team: str | None = None
    late: bool = False
    due_at: datetime | None = scheduled(
        default=None,
        set_field="late",
        from_=False,
        to=True,
        where={"status": ("open", "pending"), "team": "red"},
    )
    purge_at: datetime | None = scheduled(default=None, hard_delete=True, where={"status": "closed"})


async def test_a_time_counts_only_while_other_fields_have_their_values(database_url: str) -> None:
    async with a_newsroom(database_url, Ticket) as server:
        tickets = server.db(Ticket)
        due = {"due_at": PAST, "team": "red"}
        late = [(await tickets.create(status=status, **due)).id for status in ("open", "pending")]
        closed = await tickets.create(status="closed", **due)
        blue = await tickets.create(due_at=PAST, team="blue")
        nobody = await tickets.create(due_at=PAST)
        kept = await tickets.create(purge_at=PAST)
        gone = await tickets.create(status="closed", purge_at=PAST)
        await server.scheduled.sweep()
        assert {t.id for t in await tickets.list({"late": True})} == set(late)
        assert {t.id for t in await tickets.list()} == {*late, closed.id, blue.id, nobody.id, kept.id}
        assert not await tickets.exists(gone.id)
        await tickets.update(closed.id, status="open")
        await server.scheduled.sweep()
        assert (await tickets.read(closed.id)).late


class Offer(Model):
    status: Literal["open", "closed"] | None = "open"
    price: Decimal = Decimal(1)
    shown: bool = False
    show_at: datetime | None = scheduled(default=None, set_field="shown", to=True)
    hide_at: datetime | None = scheduled(
        default=None,
        set_field="shown",
        to=False,
        where={"status": "open", "price": (Decimal("1.0"), Decimal(2))},
    )


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, False),
        ({"price": Decimal("2.00")}, False),
        ({"price": Decimal(3)}, True),
        ({"status": "closed"}, True),
        ({"status": None}, True),
        ({"hide_at": FUTURE}, True),
        ({"hide_at": FUTURE, "status": None}, True),
        ({"hide_at": None}, True),
        ({"hide_at": PAST - 2 * HOUR}, True),
    ],
)
async def test_a_later_time_that_does_not_count_leaves_an_earlier_one_to_decide(
    database_url: str, values: dict[str, Any], shown: bool
) -> None:
    async with a_newsroom(database_url, Offer) as server:
        offers = server.db(Offer)
        made = [
            await offers.create(**{"show_at": PAST - HOUR, "hide_at": PAST, "shown": was, **values})
            for was in (False, True)
        ]
        await server.scheduled.sweep()
        assert [(await offers.read(one.id)).shown for one in made] == [shown, shown]
        assert (await server.scheduled.sweep()).updated == 0


class Poster(Model):
    shown: bool = False
    show_at: datetime | None = scheduled(default=None, set_field="shown", to=True)
    hide_at: datetime | None = scheduled(default=None, set_field="shown", to=False, where={"shown": True})


async def test_a_condition_on_the_field_that_is_set_lets_no_times_undo_each_other(database_url: str) -> None:
    async with a_newsroom(database_url, Poster) as server:
        for was in (False, True):
            await server.db(Poster).create(show_at=PAST - HOUR, hide_at=PAST, shown=was)
        await server.scheduled.sweep()
        assert (await server.scheduled.sweep()).updated == 0


def test_a_condition_that_cannot_hold_stops_the_start() -> None:
    class Task(Model):
        status: Literal["open", "done"] = "open"
        a_at: datetime | None = scheduled(default=None, hard_delete=True, where={"stat": "open"})
        b_at: datetime | None = scheduled(default=None, hard_delete=True, where={"status": "closed"})
        c_at: datetime | None = scheduled(default=None, hard_delete=True, where={"status": ()})
        d_at: datetime | None = scheduled(default=None, hard_delete=True, where={})

    server = Server()
    server.register(Task)
    with pytest.raises(DeclarationError) as stopped:
        server.seal()
    text = str(stopped.value)
    assert "Task.a_at: scheduled: where: Task has no field 'stat'; did you mean 'status'?" in text
    assert "Task.b_at: the scheduled where value 'closed' does not fit for status" in text
    assert "Task.c_at: scheduled: where: status has no values" in text
    assert "Task.d_at: where must map a field to the value" in text


async def test_a_soft_delete_marks_the_record_as_any_delete_does(database_url: str) -> None:
    clock = FakeClock(START)
    async with a_newsroom(database_url, clock=clock) as server:
        post = await server.db(Post).create(expires_at=FUTURE)
        by_hand = await server.db(Post).create()
        clock.advance(HOUR)
        await server.db(Post).delete(by_hand.id)

        report = await runner_of(server).sweep()

        assert report.deleted == 1
        columns = "id, deleted_at, updated_at"
        marks = {row.pop("id"): row for row in await stored(server, "posts", columns)}
        assert marks[post.id] == marks[by_hand.id]
        assert marks[post.id]["deleted_at"] is not None


async def test_a_flag_marks_the_record_too(database_url: str) -> None:
    class Note(Model, WithIsDeleted):
        gone_at: datetime | None = scheduled(default=None, soft_delete=True)

    async with a_newsroom(database_url, Note) as server:
        await server.db(Note).create(gone_at=PAST)

        assert (await runner_of(server).sweep()).deleted == 1
        assert (await runner_of(server).sweep()).deleted == 0
        assert [bool(row["is_deleted"]) for row in await stored(server, "notes")] == [True]


async def test_a_hard_delete_removes_the_row_even_if_it_was_marked_before(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        await server.db(Post).create(purge_at=PAST)
        marked = await server.db(Post).create(purge_at=PAST)
        await server.db(Post).delete(marked.id)
        kept = await server.db(Post).create(purge_at=FUTURE)

        report = await runner_of(server).sweep()

        assert report.deleted == 2
        assert [row["id"] for row in await stored(server, "posts")] == [kept.id]


async def test_a_deleted_record_is_neither_changed_nor_deleted_again(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        post = await server.db(Post).create(publish_at=PAST, expires_at=PAST)
        await server.db(Post).delete(post.id)
        [before] = await stored(server, "posts")

        assert (await runner_of(server).sweep()).changed == 0
        assert await stored(server, "posts") == [before]


async def test_nothing_is_served_twice(database_url: str) -> None:
    calls: list[Any] = []
    async with a_newsroom(database_url) as server:
        for n in range(7):
            await server.db(Post).create(title=str(n), publish_at=PAST, archive_at=PAST, expires_at=PAST)
        runner = runner_of(
            server,
            batch=3,
            on_delete=lambda *told: calls.append(told),
            on_set_field=lambda *told: calls.append(told),
        )

        reports = [await runner.sweep() for _ in range(3)]

        assert [r.changed for r in reports[1:]] == [0, 0]
        assert len(calls) == len(set(calls)) == reports[0].changed


class Colour(StrEnum):
    RED = "it's red"
    BLUE = "blue"


VALUES: list[tuple[Any, Any, Any]] = [
    (bool, False, True),
    (int, 1, -7),
    (float, 0.5, 1.25),
    (Decimal, Decimal("1.50"), Decimal("2.50")),
    (str, "plain", "it's \\ 100% :quoted $1 ?"),
    (Colour, Colour.RED, Colour.BLUE),
    (date, date(2026, 1, 1), date(2027, 1, 1)),
    (datetime, START, START + HOUR),
    (str | None, None, "set"),
    (str | None, "set", None),
    (bytes, b"a", b"\x00'b"),
]


@pytest.mark.parametrize(("kind", "from_", "to"), VALUES, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("conditional", [True, False])
async def test_every_kind_of_value_can_be_set_once(
    database_url: str, kind: Any, from_: Any, to: Any, conditional: bool
) -> None:
    settings: dict[str, Any] = {"from_": from_} if conditional else {}
    body = {
        "__module__": __name__,
        "__annotations__": {"value": kind, "at": datetime | None},
        "at": scheduled(default=None, set_field="value", to=to, **settings),
    }
    Thing: Any = new_class("Thing", (Model,), exec_body=lambda namespace: namespace.update(body))
    async with a_newsroom(database_url, Thing) as server:
        made = await server.db(Thing).create(value=from_, at=PAST)
        runner = runner_of(server)

        assert [(await runner.sweep()).updated for _ in range(2)] == [1, 0]
        assert (await server.db(Thing).read(made.id)).value == to


async def test_the_values_of_a_declaration_are_read_as_the_field_reads_them(database_url: str) -> None:
    class Offer(Model):
        price: Decimal = field(default=Decimal(5), alias="thePrice")
        cut_at: datetime | None = scheduled(default=None, set_field="thePrice", from_="5.00", to="4.50")

    async with a_newsroom(database_url, Offer) as server:
        offer = await server.db(Offer).create(cut_at=PAST)

        assert (await runner_of(server).sweep()).updated == 1
        assert (await server.db(Offer).read(offer.id)).price == Decimal("4.50")


# -- several times for one field


class Banner(Model):
    shown: bool = False
    show_at: datetime | None = scheduled(default=None, set_field="shown", to=True)
    hide_at: datetime | None = scheduled(default=None, set_field="shown", to=False)


@pytest.mark.parametrize(
    ("show", "hide", "shown_before", "expected"),
    [
        (-2, -1, False, False),
        (-2, -1, True, False),
        (-1, -2, False, True),
        (-1, -2, True, True),
        (-1, 1, False, True),
        (-1, 1, True, True),
        (1, -1, True, False),
        (1, -1, False, False),
        (1, 2, True, True),
        (-1, -1, True, False),
        (-1, -1, False, False),
        (-1, None, False, True),
        (None, -1, True, False),
    ],
)
async def test_of_two_times_the_latest_that_has_passed_decides(
    database_url: str, show: int | None, hide: int | None, shown_before: bool, expected: bool
) -> None:
    def at(hours: int | None) -> datetime | None:
        return None if hours is None else START + hours * HOUR

    async with a_newsroom(database_url, Banner) as server:
        banner = await server.db(Banner).create(shown=shown_before, show_at=at(show), hide_at=at(hide))
        runner = runner_of(server)

        reports = [await runner.sweep() for _ in range(4)]

        assert (await server.db(Banner).read(banner.id)).shown is expected
        assert [report.changed for report in reports[1:]] == [0, 0, 0]
        assert reports[0].changed == (shown_before is not expected)


async def test_a_window_opens_and_closes_once(database_url: str) -> None:
    clock = FakeClock(START)
    async with a_newsroom(database_url, Banner, clock=clock) as server:
        banner = await server.db(Banner).create(show_at=START + HOUR, hide_at=START + 3 * HOUR)
        runner = runner_of(server)
        seen = []
        for _ in range(5):
            report = await runner.sweep()
            seen.append((report.updated, (await server.db(Banner).read(banner.id)).shown))
            clock.advance(HOUR)

        assert seen == [(0, False), (1, True), (0, True), (1, False), (0, False)]


async def test_a_record_that_was_published_by_hand_is_still_archived_in_time(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        post = await server.db(Post).create(status="published", publish_at=FUTURE, archive_at=PAST)

        assert (await runner_of(server).sweep()).updated == 1
        assert (await server.db(Post).read(post.id)).status == "archived"


async def test_three_times_for_one_field_come_to_rest(database_url: str) -> None:
    class Lamp(Model):
        colour: str = "off"
        red_at: datetime | None = scheduled(default=None, set_field="colour", to="red")
        green_at: datetime | None = scheduled(default=None, set_field="colour", to="green")
        off_at: datetime | None = scheduled(default=None, set_field="colour", to="off")
        dark_at: datetime | None = scheduled(default=None, set_field="colour", to="off")

    clock = FakeClock(START)
    async with a_newsroom(database_url, Lamp, clock=clock) as server:
        times = {
            "red_at": START,
            "green_at": START + HOUR,
            "off_at": START + 2 * HOUR,
            "dark_at": START - HOUR,
        }
        lamp = await server.db(Lamp).create(**times)
        runner = runner_of(server)
        seen = []
        for _ in range(4):
            await runner.sweep()
            seen.append((await server.db(Lamp).read(lamp.id)).colour)
            assert (await runner.sweep()).changed == 0
            clock.advance(HOUR)

        assert seen == ["red", "green", "off", "off"]


# -- relations


class Author(Model):
    name: str = ""
    leaves_at: datetime | None = scheduled(default=None, hard_delete=True)


class Book(Model, WithDeletedAt):
    author_id: str | None = field(default=None, relation="Author", on_delete="cascade")


class Award(Model):
    author_id: str | None = field(default=None, relation="Author", on_delete="set_null")


class Contract(Model):
    author_id: str | None = field(default=None, relation="Author", on_delete="restrict")


async def test_a_scheduled_delete_takes_along_what_any_delete_would(database_url: str) -> None:
    async with a_newsroom(database_url, Author, Book, Award) as server:
        author = await server.db(Author).create(leaves_at=PAST)
        for _ in range(3):
            await server.db(Book).create(author_id=author.id)
        await server.db(Award).create(author_id=author.id)

        report = await runner_of(server).sweep()

        assert report.deleted == 1
        assert await stored(server, "authors") == []
        assert [row["deleted_at"] is not None for row in await stored(server, "books")] == [True] * 3
        assert [row["author_id"] for row in await stored(server, "awards")] == [None]


@pytest.mark.parametrize("models", [(Author, Contract), (Author, Contract, Book)])
async def test_a_record_that_must_stay_stays_and_holds_up_nobody(
    database_url: str, models: tuple[type[Model], ...]
) -> None:
    deleted: list[str] = []
    async with a_newsroom(database_url, *models) as server:
        authors = [await server.db(Author).create(leaves_at=PAST, name=str(n)) for n in range(20)]
        held = {author.id for author in authors[::6]}
        for id in held:
            await server.db(Contract).create(author_id=id)
        runner = runner_of(server, batch=7, on_delete=lambda model, id: deleted.append(id))

        report = await runner.sweep()

        assert (report.deleted, report.skipped, report.failed, report.truncated) == (16, 4, 4, False)
        assert {row["id"] for row in await stored(server, "authors")} == held
        assert {failure.id for failure in report.errors} == held
        assert report.errors[0].message.startswith("other records still refer to this one")
        assert (len(deleted), set(deleted) & held) == (16, set())


async def test_records_that_must_stay_do_not_use_up_a_bounded_sweep(database_url: str) -> None:
    async with a_newsroom(database_url, Author, Contract) as server:
        for n in range(6):
            author = await server.db(Author).create(leaves_at=PAST - HOUR, name=str(n))
            await server.db(Contract).create(author_id=author.id)
        await server.db(Author).create(leaves_at=PAST)
        runner = runner_of(server, batch=2, max_batches=2)

        reports = [await runner.sweep() for _ in range(3)]

        assert [report.deleted for report in reports] == [0, 1, 0]
        assert reports[0].truncated


async def test_a_constraint_refuses_one_record_and_not_its_neighbours(database_url: str) -> None:
    class Seat(Model):
        room: str
        holder: str = field(unique="room")
        free_at: datetime | None = scheduled(default=None, set_field="holder", to="nobody")

    async with a_newsroom(database_url, Seat) as server:
        for n in range(9):
            await server.db(Seat).create(room=str(n // 2 if n < 2 else n), holder=f"h{n}", free_at=PAST)

        report = await runner_of(server).sweep()

        assert (report.updated, report.skipped) == (8, 1)
        [failure] = report.errors
        assert (failure.model, failure.field) == ("Seat", "free_at")


async def test_a_locked_record_waits_until_it_is_free(database_url: str) -> None:
    class Invoice(Model):
        posted: bool = False
        text: str = field(default="", lock_when={"posted": True})
        void_at: datetime | None = scheduled(default=None, set_field="text", to="void")
        gone_at: datetime | None = scheduled(default=None, hard_delete=True)

    async with a_newsroom(database_url, Invoice) as server:
        await server.db(Invoice).create(posted=True, void_at=PAST, gone_at=PAST)
        await server.db(Invoice).create(void_at=PAST)

        report = await runner_of(server).sweep()

        assert (report.updated, report.deleted, report.skipped) == (1, 0, 0)
        await server.raw_exec("UPDATE invoices SET posted = ?", False)
        assert (await runner_of(server).sweep()).changed == 2


# -- the indexes


async def test_a_second_start_finds_its_indexes_as_they_should_be(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_newsroom(database_url, Post, Banner):
        pass
    with caplog.at_level(logging.INFO, "maniflex"):
        async with a_newsroom(database_url, Post, Banner):
            pass

    assert [r.getMessage() for r in caplog.records if "index" in r.getMessage()] == []


def test_the_settings_of_a_runner_have_names_and_types() -> None:
    parameters = inspect.signature(Server().scheduled.runner).parameters
    assert {"interval", "batch", "max_batches", "clock", "on_delete", "on_set_field"} == parameters.keys()
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters.values())
    assert "Any" not in {one.annotation for one in parameters.values()}
