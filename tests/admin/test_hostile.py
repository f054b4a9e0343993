"""What somebody sends who does not use the forms: rows of others, odd numbers, texts that take for ever."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from maniflex import AuthInfo, Model, Server, belongs_to, field, has_many, many_to_many
from maniflex.admin import Inline, ModelAdmin
from maniflex.admin.tables import AdminEvent
from maniflex.admin.widgets import diff_words, render_markdown
from maniflex.middleware import auth, db
from tests.admin.test_forms import controls_of, edit
from tests.kit.bookshop import Book, make_shop
from tests.kit.panel import Browser, add_superuser, text_of, visiting


class House(Model):
    tenant_id: str = field(default="", relation=None)
    name: str
    rooms: list[Room] = has_many()
    owners: list[Owner] = many_to_many(through="Share")
    lamps: list[Lamp] = many_to_many(through="HouseLamp")


class Room(Model):
    tenant_id: str = field(default="", relation=None)
    house_id: str = field(filterable=True, on_delete="cascade")
    house: House | None = belongs_to()
    name: str
    checked_by: str = field(default="nobody", readonly=True)
    plan: str = field(default="plain", hidden=True)
    pin: str | None = field(default=None, writeonly=True)
    rank: int = 0


class Owner(Model):
    tenant_id: str = field(default="", relation=None)
    name: str


class Share(Model):
    tenant_id: str = field(default="", relation=None)
    house_id: str = field(on_delete="cascade")
    owner_id: str = field(on_delete="cascade")
    percent: int = 100


class Lamp(Model):
    tenant_id: str = field(default="", relation=None)
    name: str


class HouseLamp(Model):
    tenant_id: str = field(default="", relation=None)
    house_id: str = field(on_delete="cascade")
    lamp_id: str = field(on_delete="cascade")


def make_town(**room_options: Any) -> Server:
    server = Server()
    server.register(House, Room, Owner, Share, Lamp, HouseLamp)
    server.pipeline.auth.register(auth.api_keys(keys={"k" * 20: AuthInfo(user_id="k", tenant_id="t1")}))
    server.pipeline.db.register(db.tenancy())
    admin = server.admin()
    admin.add(ModelAdmin(House, inlines=[Inline(Room, columns=("name", "rank", "checked_by", "pin"))]))
    if room_options:
        admin.add(ModelAdmin(Room, **room_options))
    return server


async def _sign_in(server: Server, browser: Browser) -> None:
    await add_superuser(server, "ada@one.example", tenant_id="t1")
    await browser.sign_in("ada@one.example")


async def test_rows_and_links_reach_no_other_tenant(database_url: str) -> None:
    server = make_town()
    async with visiting(server, database_url, signed_in=False) as browser:
        await _sign_in(server, browser)
        mine = await server.db(House).create(tenant_id="t1", name="Mine")
        theirs = await server.db(House).create(tenant_id="t2", name="foreign-house")
        room = await server.db(Room).create(tenant_id="t2", house_id=theirs.id, name="foreign-room")
        # a row of another tenant that names our record as its parent
        planted = await server.db(Room).create(tenant_id="t2", house_id=mine.id, name="foreign-plant")
        owner = await server.db(Owner).create(tenant_id="t2", name="foreign-owner")
        lamp = await server.db(Lamp).create(tenant_id="t2", name="foreign-lamp")
        share = await server.db(Share).create(tenant_id="t2", house_id=mine.id, owner_id=owner.id)
        path = f"/houses/{mine.id}"
        page = await browser.get(f"{path}/edit")
        assert "foreign" not in page
        for other in (room, planted):
            for more in ({"_delete": "1"}, {"name": "stolen"}):
                forged = {f"inline.rooms.0.{name}": value for name, value in more.items()}
                forged |= {"inline.rooms.0._id": other.id, "inline.rooms.0._seen": '{"name": "x"}'}
                answer = await browser.post(path, controls_of(page) | forged | {"_key": f"{other.id}{more}"})
                assert "foreign" not in answer.text
                assert (await server.db(Room).read(other.id)).name.startswith("foreign")
        for forged in (
            {"inline.owners.0.owner_id": owner.id},
            {"inline.owners.0._id": share.id, "inline.owners.0._delete": "1"},
            {"inline.owners.0._id": share.id, "inline.owners.0._seen": "{}", "inline.owners.0.percent": "1"},
            {"f.lamps": lamp.id, "seen.lamps": ""},
        ):
            answer = await browser.post(path, controls_of(page) | forged | {"_key": str(forged)[:60]})
            assert "foreign" not in answer.text
        assert (await server.db(Share).read(share.id)).percent == 100
        assert await server.db(Share).count() == 1
        assert await server.db(HouseLamp).count() == 0
        # a new record whose parent is of another tenant
        answer = await browser.post(f"/houses/{theirs.id}", {"inline.rooms.0.name": "in", "_seen": "{}"})
        assert answer.status_code == 404
        assert await server.db(Room).count({"name": "in"}) == 0


async def test_rows_take_no_field_that_they_do_not_show(database_url: str) -> None:
    server = make_town()
    async with visiting(server, database_url, signed_in=False) as browser:
        await _sign_in(server, browser)
        controls = controls_of(await browser.get("/houses/new"))
        names = ("checked_by", "plan", "tenant_id", "house_id", "id", "created_at")
        forged = {f"inline.rooms.0.{name}": "forged" for name in names} | {"inline.rooms.0.name": "Hall"}
        path = await browser.send("/houses", controls | {"f.name": "Mine"} | forged)
        [room] = await server.db(Room).list()
        assert (room.checked_by, room.plan, room.tenant_id) == ("nobody", "plain", "t1")
        assert room.house_id == path.rpartition("/")[2]
        controls = controls_of(await browser.get(f"{path}/edit"))
        seen = '{"name": "Hall", "checked_by": "nobody", "plan": "plain", "tenant_id": "t1", "house_id": "x"}'
        forged |= {"inline.rooms.0._seen": seen, "inline.rooms.0.name": "Hall 2"}
        await browser.send(path, controls | forged)
        [room] = await server.db(Room).list()
        assert (room.name, room.checked_by, room.plan, room.tenant_id) == ("Hall 2", "nobody", "plain", "t1")
        assert room.house_id == path.rpartition("/")[2]


@pytest.mark.parametrize("option", ["can_create", "can_edit", "can_delete"])
async def test_rows_obey_what_the_panel_of_their_model_leaves_out(sqlite_url: str, option: str) -> None:
    server = make_town(**{option: False})
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await _sign_in(server, browser)
        house = await server.db(House).create(tenant_id="t1", name="Mine")
        room = await server.db(Room).create(tenant_id="t1", house_id=house.id, name="Hall")
        seen = {"inline.rooms.0._id": room.id, "inline.rooms.0._seen": '{"name": "Hall"}'}
        forged = {
            "can_create": {"inline.rooms.5.name": "Made"},
            "can_edit": seen | {"inline.rooms.0.name": "Changed"},
            "can_delete": seen | {"inline.rooms.0._delete": "1"},
        }[option]
        controls = controls_of(await browser.get(f"/houses/{house.id}/edit"))
        await browser.post(f"/houses/{house.id}", controls | {"f.name": "Other"} | forged)
        assert [one.name for one in await server.db(Room).list()] == ["Hall"]


async def test_a_row_that_others_changed_is_not_deleted_unseen(database_url: str) -> None:
    server = make_town()
    async with visiting(server, database_url, signed_in=False) as browser:
        await _sign_in(server, browser)
        house = await server.db(House).create(tenant_id="t1", name="Mine")
        room = await server.db(Room).create(tenant_id="t1", house_id=house.id, name="Hall")
        path = f"/houses/{house.id}"
        controls = controls_of(await browser.get(f"{path}/edit"))
        await server.db(Room).update(room.id, name="Kept for good")
        answer = await browser.post(path, controls | {"inline.rooms.0._delete": "1"})
        assert answer.status_code == 409
        assert "Kept for good" in text_of(answer.text)
        assert await server.db(Room).count() == 1
        again = controls_of(answer.text)
        assert again["inline.rooms.0._delete"] == "1"  # still what the person wants
        await browser.send(path, again)
        assert await server.db(Room).count() == 0


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "forged",
    [
        {"_seen": DEEP},
        {"_seen": "[]"},
        {"_newest": DEEP},
        {"inline.rooms.0._seen": DEEP, "inline.rooms.0._id": "x", "inline.rooms.0.name": "y"},
        {"inline.rooms.0._seen": '{"name": ' + DEEP, "inline.rooms.0._id": "../houses", "_key": "\x00"},
        {"inline.rooms.0._id": "\x00", "inline.rooms.0.name": "y", "inline.rooms.0._seen": '{"name": 1}'},
        {
            "inline.rooms.9999.name": "\x00",
            "inline.rooms.-1.name": "x",
            "inline.rooms.name": "x",
            "inline.": "x",
        },
        {"f.lamps": "\x00 a/b .. ?x", "seen.lamps": "\x00"},
        {"f.name": "\ud800".encode("utf-16", "surrogatepass").decode("latin-1")},
        {"inline.owners.0.owner_id": "../../x", "inline.owners.0.percent": "9" * 5000},
    ],
)
async def test_forged_forms_are_refused_and_never_fail(sqlite_url: str, forged: dict[str, str]) -> None:
    server = make_town()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await _sign_in(server, browser)
        house = await server.db(House).create(tenant_id="t1", name="Mine")
        await server.db(Room).create(tenant_id="t1", house_id=house.id, name="Hall")
        controls = controls_of(await browser.get(f"/houses/{house.id}/edit"))
        for path in (f"/houses/{house.id}", "/houses"):
            answer = await browser.post(path, controls | forged)
            assert answer.status_code < 500, answer.text[-600:]


@pytest.mark.parametrize(
    "query",
    [
        "page=" + "9" * 5000,
        "a=" + "9" * 5000 + "&b=1",
        "a=1&b=" + "9" * 5000,
        "a=%D9%A1&b=%D9%A1",
        "at=0001-01-01T00:00",
        "at=9999-12-31T23:59:59-12:00",
        "at=0001-01-01T00:00%2B14:00",
    ],
)
async def test_odd_numbers_and_times_of_a_history_are_refused(database_url: str, query: str) -> None:
    server = make_shop(time_zone="Pacific/Auckland")
    async with visiting(server, database_url) as browser:
        book = await server.db(Book).create(title="Old")
        answer = await browser.http.get(f"/admin/books/{book.id}/history?{query}")
        assert answer.status_code < 500, answer.text[-600:]
        await browser.get(f"/books/{book.id}/history/{'9' * 5000}", 404)
        answer = await browser.http.get(f"/admin/books?page={'9' * 5000}")
        assert answer.status_code == 400


@pytest.mark.parametrize(
    "text", ["", "sort=nope", "f_published_at~gte=9999-12-31", "f_published_at~lte=9999-12-31", "page=x",
             "f_x", "sort=" + "a" * 5000, "%00=1", "q=%00", "f_status~in=,", "f_stock=9" + "9" * 400,
             "&" * 2000, "after=AAAA", "sort=internal:asc", "f_internal=x", "sort=pin:asc",
             "f_published_at~gte=0001-01-01", "f_published_at~gt=9999-12-31"],
)  # fmt: skip
async def test_any_list_may_be_named_as_where_a_record_came_from(database_url: str, text: str) -> None:
    server = make_shop(time_zone="Pacific/Auckland")
    async with visiting(server, database_url) as browser:
        book = await server.db(Book).create(title="Old", stock=3)
        await browser.get(f"/books/{book.id}?list={quote(text)}")
        answer = await browser.http.get(f"/admin/books?{text}")
        assert answer.status_code < 500


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Los_Angeles"])
async def test_the_first_and_the_last_instant_have_pages(database_url: str, zone: str) -> None:
    server = make_shop(time_zone=zone)
    async with visiting(server, database_url) as browser:
        for moment in (
            datetime(1, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
        ):  # fmt: skip
            book = await server.db(Book).create(title="Old", published_at=moment)
            for path in (
                "/books",
                f"/books/{book.id}",
                f"/books/{book.id}/edit",
                f"/books/{book.id}/history",
            ):
                await browser.get(path)
            assert (await edit(browser, f"/books/{book.id}", f__title="New")).status_code == 303
            assert (await server.db(Book).read(book.id)).published_at == moment
            for text in ("0001-01-01T00:00", "9999-12-31T23:59", "9999-12-31T23:59:59-12:00"):
                answer = await edit(browser, f"/books/{book.id}", f__published_at=text)
                assert answer.status_code in (303, 422)
            await server.db(Book).delete(book.id)


PIECES = ("[", "[a](", "**a", "*a ", "`a", "> ", "# ", "- ", "[](", "\n", "[a](http://x", "* ")


def cpu_seconds(call: Callable[[], object]) -> float:
    """The best of two, so that what else the machine does counts little."""
    times = []
    for _ in range(2):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def require_linear(call: Callable[[int], object]) -> None:
    """Eight times the text costs some eight times as much; a place that looks at all others, 64 times."""
    few, many = (cpu_seconds(partial(call, length)) for length in (20_000, 160_000))
    assert many < 28 * max(few, 0.01)


@pytest.mark.parametrize("piece", PIECES)
def test_a_markdown_text_that_would_take_for_ever_is_shown_at_once(piece: str) -> None:
    require_linear(lambda length: render_markdown(piece * (length // len(piece))))


def test_a_difference_that_would_take_for_ever_is_shown_at_once() -> None:
    same = "a " * 4_900
    pairs = ((same, "b " + same), (same, same[:-2] + "b b"), ("a b " * 2400, "b a " * 2400))
    for old, new in (*pairs, ("\n" * 160_000, "x\n" + "\n" * 160_000)):
        parts = diff_words(old, new)
        assert "".join(text for kind, text in parts if kind != "ins").split() == old.split()
        assert "".join(text for kind, text in parts if kind != "del").split() == new.split()
    require_linear(lambda length: diff_words("a " * length, "b " + "a " * length))
    require_linear(lambda length: diff_words("\n" * length, "x\n" + "\n" * length))
    require_linear(lambda length: diff_words("a b " * length, "b a " * length))


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Sensor:
    level: Level = Level.LOW
    factor: float | None = None
    count: int = 0
    name: str = ""


class Device(Model):
    title: str
    sensor: Sensor
    extra: dict[str, Any] = field(default_factory=dict)


async def test_parts_take_numbers_of_their_own_kind_and_no_others(database_url: str) -> None:
    server = Server()
    server.register(Device)
    server.admin()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/devices/new"))
        path = await browser.send("/devices", controls | {"f.title": "One", "f.sensor.factor": "1.5"})
        device = path.rpartition("/")[2]

        async def sensor() -> Any:
            return (await server.call("GET", f"/api/devices/{device}")).data["sensor"]

        assert (await edit(browser, path, f__sensor__level="2")).status_code == 303
        assert (await sensor())["level"] == 2
        for name, text in (
            ("factor", "1e400"), ("factor", "NaN"), ("factor", "Infinity"), ("count", "true"),
            ("count", "1e400"), ("count", "9" * 5000), ("factor", "[" * 100_000), ("count", '"5"'),
        ):  # fmt: skip
            answer = await edit(browser, path, **{f"f__sensor__{name}": text})
            assert answer.status_code == 422, (name, text[:9])
            assert f'href="#field-sensor.{name}"' in answer.text, (name, text[:9])
        assert (await sensor())["factor"] == 1.5
        assert (await edit(browser, path, f__extra="[" * 100_000)).status_code == 422
        assert (await server.db(AdminEvent).count({"action": "update"})) == 1
