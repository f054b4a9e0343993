"""Forms of the panel: only changes are sent, nothing typed is lost, nobody's change is overwritten."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.admin.tables import AdminEvent
from tests.kit.bookshop import Author, Book, BookTag, Tag, make_shop
from tests.kit.panel import Browser, text_of, visiting

_INPUT = re.compile(r"<input\b([^>]*)>")
_AREA = re.compile(r'<textarea[^>]* name="([^"]+)"[^>]*>\n(.*?)</textarea>', re.DOTALL)
_SELECT = re.compile(r'<select[^>]* name="([^"]+)".*?</select>', re.DOTALL)


def controls_of(page: str) -> dict[str, Any]:
    """What a browser would send of the form of a record, if nothing is touched."""
    form = page[page.index('class="form"') :]
    controls: dict[str, Any] = {}
    for match in _INPUT.finditer(form):
        attributes = dict(re.findall(r'([a-z-]+)="([^"]*)"', match[1]))
        name, kind = attributes.get("name", ""), attributes.get("type", "text")
        is_off = kind in ("checkbox", "radio") and not re.search(r"\bchecked\b", match[1])
        if name and kind != "file" and not is_off and "disabled" not in match[1]:
            controls[name] = html.unescape(attributes.get("value", ""))
    for area in _AREA.finditer(form):
        controls[area[1]] = html.unescape(area[2]).replace("\n", "\r\n")
    for select in _SELECT.finditer(form):
        chosen = re.search(r'<option value="([^"]*)" selected', select[0])
        controls[select[1]] = html.unescape(chosen[1]) if chosen else ""
    return controls


async def edit(browser: Browser, path: str, **changes: Any) -> httpx.Response:
    """Open the form of a record, change some controls and send it."""
    controls = controls_of(await browser.get(f"{path}/edit"))
    for name, value in changes.items():
        key = name.replace("__", ".")
        if value is None:
            controls.pop(key, None)
        else:
            controls[key] = value
    return await browser.post(path, controls)


async def make_book(server: Server, **values: Any) -> str:
    return (await server.db(Book).create(**{"title": "A book", **values})).id


async def test_a_record_is_created_with_the_defaults_of_the_model(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/books/new"))
        assert controls["f.price"] == "1.10"
        controls |= {"f.title": "New", "f.pin": "1234", "f.number": "7"}
        path = await browser.send("/books", controls)
        book = await server.db(Book).read(path.rpartition("/")[2])
        assert (book.title, book.price, book.status, book.number) == ("New", Decimal("1.10"), "draft", "7")
        assert (book.pin, book.subtitle, book.extra, book.checked) == ("1234", None, {}, None)
        [event] = await server.db(AdminEvent).list({"action": "create"})
        assert (event.model, event.record_id) == ("Book", book.id)
        assert set(event.fields) == {"title", "pin", "number"}


async def test_untouched_values_stay_as_they_are_to_the_last_digit(database_url: str) -> None:
    server = make_shop(time_zone="Europe/Berlin")
    async with visiting(server, database_url) as browser:
        moment = datetime(2026, 3, 29, 0, 59, 59, 123456, tzinfo=UTC)
        extra = {"b": 1, "a": [1.50, "\r\n"], "deep": {"z": None}}
        values: dict[str, Any] = {
            "price": Decimal("0.1000000000000000055"),
            "stock": 2**63 - 1,
            "published_at": moment,
            "extra": extra,
            "weight": 0.1,
            "subtitle": "",
            "raw": b"\x00\xff",
        }
        book_id = await make_book(server, **values)
        response = await edit(browser, f"/books/{book_id}", f__title="Another")
        assert response.status_code == 303, response.text[-2000:]
        book = await server.db(Book).read(book_id)
        assert book.title == "Another"
        for name, value in values.items():
            assert getattr(book, name) == value, name
        assert list(book.extra) == ["b", "a", "deep"]
        [event] = await server.db(AdminEvent).list({"action": "update"})
        assert event.fields == ["title"]


async def test_a_form_without_a_change_sends_nothing(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        book_id = await make_book(server, subtitle="\nfirst line is empty", published_at=datetime.now(UTC))
        before = await server.db(Book).read(book_id)
        response = await edit(browser, f"/books/{book_id}")
        assert response.status_code == 303
        assert "Nothing was changed" in text_of(await browser.get(f"/books/{book_id}"))
        assert (await server.db(Book).read(book_id)).updated_at == before.updated_at
        assert await server.db(AdminEvent).count({"action": "update"}) == 0


async def test_null_empty_and_absent_are_three_things(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book_id = await make_book(server, subtitle="here", checked=True)
        path = f"/books/{book_id}"

        async def subtitle() -> str | None:
            return (await server.db(Book).read(book_id)).subtitle

        await edit(browser, path, f__subtitle="")
        assert await subtitle() == ""
        await edit(browser, path, null__subtitle="1")
        assert await subtitle() is None
        await edit(browser, path, f__title="Other")
        assert await subtitle() is None
        await edit(browser, path, f__subtitle="typed while null was on")
        assert await subtitle() == "typed while null was on"
        await edit(browser, path, f__checked="false")
        assert (await server.db(Book).read(book_id)).checked is False
        await edit(browser, path, f__checked="")
        assert (await server.db(Book).read(book_id)).checked is None


async def test_refusals_stand_at_their_fields_and_nothing_typed_is_lost(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/books/new"))
        controls |= {"f.title": "x", "f.stock": "many", "f.price": "-1", "f.extra": '{"a": 1,\n oops}'}
        response = await browser.post("/books", controls)
        assert response.status_code == 422
        assert "Line 2, column 2" in text_of(response.text)
        controls["f.extra"] = '{"a": 1e400}'
        assert "1e400" in text_of((await browser.post("/books", controls)).text)
        controls["f.extra"] = "{}"
        response = await browser.post("/books", controls)
        assert response.status_code == 422
        for name in ("title", "stock", "price"):
            [part] = re.findall(f'id="field-{name}".*?(?=id="field-)', response.text, re.DOTALL)
            assert 'aria-invalid="true"' in part, name
            assert 'class="wrong"' in part, name
            assert f'href="#field-{name}"' in response.text
        assert controls_of(response.text)["f.stock"] == "many"
        assert await server.db(Book).count() == 0


async def test_unique_conflicts_are_told_at_the_field(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        await server.db(Tag).create(name="sf")
        controls = controls_of(await browser.get("/tags/new"))
        response = await browser.post("/tags", {**controls, "f.name": "sf"})
        assert response.status_code == 409
        assert 'aria-invalid="true"' in response.text
        assert await server.db(Tag).count() == 1


async def test_a_form_that_is_sent_twice_creates_once(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        controls = {**controls_of(await browser.get("/authors/new")), "f.name": "Ursula"}
        first = await browser.send("/authors", controls)
        second = await browser.send("/authors", controls)
        assert first == second
        assert await server.db(Author).count() == 1


async def test_two_people_keep_changes_of_different_fields(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book_id = await make_book(server)
        path = f"/books/{book_id}"
        mine = controls_of(await browser.get(f"{path}/edit"))
        await server.db(Book).update(book_id, stock=5)
        await browser.send(path, {**mine, "f.title": "Mine"})
        book = await server.db(Book).read(book_id)
        assert (book.title, book.stock) == ("Mine", 5)


async def test_two_changes_of_one_field_are_put_before_the_second_person(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book_id = await make_book(server, title="Old")
        path = f"/books/{book_id}"
        mine = controls_of(await browser.get(f"{path}/edit"))
        await server.db(Book).update(book_id, title="Theirs")
        page = await browser.post(path, {**mine, "f.title": "Mine", "f.stock": "9"})
        assert page.status_code == 409
        text = text_of(page.text)
        assert "Old" in text
        assert "Theirs" in text
        assert "Mine" in text
        assert (await server.db(Book).read(book_id)).title == "Theirs"
        again = conflict_controls(page.text)
        await browser.send(path, {**again, "take.title": "theirs"})
        book = await server.db(Book).read(book_id)
        assert (book.title, book.stock) == ("Theirs", 9)
        await browser.send(path, {**again, "take.title": "yours"})
        assert (await server.db(Book).read(book_id)).title == "Mine"


def conflict_controls(page: str) -> dict[str, str]:
    controls = {}
    for match in _INPUT.finditer(page[page.index("<main") :]):
        attributes = dict(re.findall(r'([a-z-]+)="([^"]*)"', match[1]))
        if attributes.get("type") == "hidden":
            controls[attributes["name"]] = html.unescape(attributes["value"])
    return controls


class Page(Model, optimistic_lock=True):
    title: str = field(filterable=True)
    body: str = ""


async def test_with_versions_every_change_of_others_is_shown(database_url: str) -> None:
    server = Server()
    server.register(Page)
    server.admin()
    async with visiting(server, database_url) as browser:
        page = await server.db(Page).create(title="Old")
        path = f"/pages/{page.id}"
        mine = controls_of(await browser.get(f"{path}/edit"))
        await server.db(Page).update(page.id, body="theirs")
        shown = await browser.post(path, {**mine, "f.title": "Mine"})
        assert shown.status_code == 409
        await browser.send(path, conflict_controls(shown.text))
        stored = await server.db(Page).read(page.id)
        assert (stored.title, stored.body) == ("Mine", "theirs")


async def test_times_are_read_in_the_zone_of_the_person(database_url: str) -> None:
    server = make_shop(time_zone="Europe/Berlin")
    async with visiting(server, database_url) as browser:
        book_id = await make_book(server)
        path = f"/books/{book_id}"

        async def stored() -> datetime | None:
            return (await server.db(Book).read(book_id)).published_at

        await edit(browser, path, f__published_at="2026-07-01T12:00")
        assert await stored() == datetime(2026, 7, 1, 10, tzinfo=UTC)
        gap = await edit(browser, path, f__published_at="2026-03-29T02:30")
        assert (gap.status_code, "does not exist" in text_of(gap.text)) == (422, True)
        twice = await edit(browser, path, f__published_at="2026-10-25T02:30")
        assert (twice.status_code, "exists twice" in text_of(twice.text)) == (422, True)
        assert 'name="fold.published_at"' in twice.text
        await edit(browser, path, f__published_at="2026-10-25T02:30", fold__published_at="second")
        assert await stored() == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
        await edit(browser, path, f__published_at="2026-10-25T02:31", fold__published_at="first")
        assert await stored() == datetime(2026, 10, 25, 0, 31, tzinfo=UTC)


async def test_fields_that_are_not_for_writing_have_no_control(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book_id = await make_book(server, pin="4711", internal="marker-internal", number="7")
        page = await browser.get(f"/books/{book_id}/edit")
        assert 'name="f.views"' not in page
        assert 'name="f.number"' not in page  # immutable
        assert "4711" not in page
        assert "marker-internal" not in page
        forged = await edit(browser, f"/books/{book_id}", f__views="99", f__number="8", f__internal="x")
        assert forged.status_code == 303
        book = await server.db(Book).read(book_id)
        assert (book.views, book.number, book.internal) == (0, "7", "marker-internal")
        await edit(browser, f"/books/{book_id}", f__pin="0815")
        assert (await server.db(Book).read(book_id)).pin == "0815"


async def test_a_field_that_the_api_leaves_out_is_neither_shown_nor_sent(database_url: str) -> None:
    server = make_shop()

    @server.pipeline.response.middleware(models=[Book], at="after")
    async def redact(ctx: Context, next: Next) -> None:
        await next()
        if ctx.response is not None and isinstance(ctx.response.data, dict):
            ctx.response.data.pop("subtitle", None)

    async with visiting(server, database_url) as browser:
        book_id = await make_book(server, subtitle="kept")
        assert 'name="f.subtitle"' not in await browser.get(f"/books/{book_id}/edit")
        assert (await edit(browser, f"/books/{book_id}", f__title="Other")).status_code == 303
        assert (await server.db(Book).read(book_id)).subtitle == "kept"


async def test_tags_are_saved_with_the_record_or_not_at_all(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        one, two = [(await server.db(Tag).create(name=name)).id for name in ("one", "two")]
        controls = controls_of(await browser.get("/books/new"))
        controls |= {"f.title": "Tagged", "f.tags": f"{one}\r\n{two}"}
        path = await browser.send("/books", controls)
        assert await server.db(BookTag).count() == 2
        refused = await edit(browser, path, f__title="Changed", f__tags=f"{one}\r\nnobody")
        assert refused.status_code in (409, 422), refused.status_code
        assert 'aria-invalid="true"' in refused.text
        book = await server.db(Book).read(path.rpartition("/")[2])
        assert book.title == "Tagged"
        assert await server.db(BookTag).count() == 2
        await edit(browser, path, f__tags=two)
        [link] = await server.db(BookTag).list()
        assert link.tag_id == two


PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


async def test_files_are_uploaded_shown_and_removed(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/books/new"))
        controls |= {"f.title": "With cover", "f.extra": '{"n": 1}', "f.price": "3.30"}
        path = await browser.send("/books", controls, files={"f.cover": ("ü cover.png", PNG, "image/png")})
        book = await server.db(Book).read(path.rpartition("/")[2])
        assert (book.price, book.extra) == (Decimal("3.30"), {"n": 1})
        shown = await browser.http.get(f"/admin{path}/file/cover")
        assert (shown.status_code, shown.content) == (200, PNG)
        assert shown.headers["content-type"] == "image/png"
        assert shown.headers["content-disposition"] == "inline"
        assert "sandbox" in shown.headers["content-security-policy"]
        refused = await browser.post(
            path,
            controls_of(await browser.get(f"{path}/edit")),
            files={"f.cover": ("a.txt", b"text", "text/plain")},
        )
        assert refused.status_code == 415
        assert "attention" in text_of(refused.text), text_of(refused.text)
        await edit(browser, path, null__cover="1")
        assert (await server.db(Book).read(book.id)).cover is None


async def test_other_files_are_only_downloaded(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
        controls = {**controls_of(await browser.get("/books/new")), "f.title": "Svg"}
        path = await browser.send("/books", controls, files={"f.cover": ("x.svg", svg, "image/svg+xml")})
        shown = await browser.http.get(f"/admin{path}/file/cover")
        assert shown.headers["content-type"] == "application/octet-stream"
        assert shown.headers["content-disposition"].startswith("attachment")
        assert shown.headers["x-content-type-options"] == "nosniff"


async def test_buttons_lead_on(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        controls = {**controls_of(await browser.get("/authors/new")), "f.name": "A"}
        assert await browser.send("/authors", {**controls, "_then": "another"}) == "/authors/new"
        [author] = await server.db(Author).list()
        stay = await edit(browser, f"/authors/{author.id}", f__name="B", _then="stay")
        assert stay.headers["location"].endswith(f"/authors/{author.id}/edit")
        copy = await edit(browser, f"/authors/{author.id}", f__name="C", _then="copy")
        assert copy.status_code == 303
        assert sorted(a.name for a in await server.db(Author).list()) == ["B", "C"]


class Options(Model, singleton=True):
    shop: str = "Books"
    open: bool = True


async def test_a_singleton_is_its_form(database_url: str) -> None:
    server = Server()
    server.register(Options)
    server.admin()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/options"))
        assert controls["f.shop"] == "Books"
        path = re.search(r'action="/admin(/options/[^"]*)"', await browser.get("/options"))
        assert path is not None
        await browser.send(path[1], {**controls, "f.shop": "More books"})
        assert controls_of(await browser.get("/options"))["f.shop"] == "More books"


@pytest.mark.parametrize("page", ["/books/{id}", "/books/{id}/edit", "/books/{id}/delete", "/books/new", "/"])
async def test_pages_are_small(sqlite_url: str, page: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        book_id = await make_book(server)
        assert len((await browser.get(page.replace("{id}", book_id))).encode()) < 60_000


async def test_pickers_lead_to_a_form_for_a_new_record(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        page = await browser.get("/books/new")
        for table in ("authors", "tags"):
            assert f'<a href="/admin/{table}/new" target="_blank" rel="noopener" data-new>' in page


async def test_pickers_lead_nowhere_for_those_who_may_not(sqlite_url: str) -> None:
    server = make_shop()

    async def refuse(ctx: Context, next: Next) -> None:
        ctx.abort(403, "FORBIDDEN", "no")

    server.pipeline.auth.register(refuse, models=[Author, Tag], operations="create")
    async with visiting(server, sqlite_url) as browser:
        page = await browser.get("/books/new")
        assert "data-pick" in page
        assert "data-new" not in page


async def test_who_may_not_list_a_model_types_the_id(sqlite_url: str) -> None:
    server = make_shop()

    async def refuse(ctx: Context, next: Next) -> None:
        ctx.abort(403, "FORBIDDEN", "no")

    server.pipeline.auth.register(refuse, models=[Author, Tag], operations="list")
    async with visiting(server, sqlite_url) as browser:
        page = await browser.get("/books/new")
        assert 'name="f.author_id"' in page
        assert "/-/pick/authors" not in page
        assert "/-/pick/tags" not in page
