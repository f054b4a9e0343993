"""Versions of a record against each other and at a time; records beside it in the list it came from."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from maniflex import AuthInfo, Context, Model, Server, field
from maniflex.middleware import auth, db
from maniflex.testing import FakeClock
from tests.kit.bookshop import Book, make_shop
from tests.kit.panel import add_superuser, text_of, visiting

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Page(Model, versioned_diff_only=True):
    text: str
    rank: int = 0


@pytest.mark.parametrize("model", [Book, Page])
async def test_any_two_versions_are_compared_and_a_time_is_looked_at(
    database_url: str, model: type[Model]
) -> None:
    clock = FakeClock(START)
    server = make_shop(time_zone="Europe/Berlin") if model is Book else Server()
    if model is Page:
        server.register(Page)
        server.admin(time_zone="Europe/Berlin")
    name, number = ("title", "stock") if model is Book else ("text", "rank")
    async with visiting(server, database_url, clock=clock) as browser:
        record = await server.db(model).create(**{name: "First", number: 1})
        for text in ("Second", "Third"):
            clock.advance(timedelta(minutes=10))
            await server.db(model).update(record.id, **{name: text})
        path = f"/{'books' if model is Book else 'pages'}/{record.id}/history"
        page = await browser.get(f"{path}?a=1&b=3")
        assert re.search(r'class="old">First<.*class="new">Third<', page, re.DOTALL)
        assert "Second" not in page
        assert "do not differ" in text_of(await browser.get(f"{path}?a=2&b=2"))
        await browser.get(f"{path}?a=1&b=9", 404)
        await browser.get(f"{path}?a=x&b=1", 404)
        assert "Second" in text_of(await browser.get(f"{path}?at=2026-05-01T14:15"))  # 12:15 UTC
        assert "no such record then" in text_of(await browser.get(f"{path}?at=2026-04-01T00:00"))
        await browser.get(f"{path}?at=yesterday", 400)


async def test_records_know_their_neighbours_in_the_list(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        books = [
            await server.db(Book).create(title=f"Book {stock}", stock=stock, sold=stock != 2)
            for stock in (3, 1, 2, 4)
        ]
        query = "f_sold=true&sort=stock:asc"
        page = await browser.get(f"/books?{query}")
        address = f"/admin/books/{books[0].id}?list={quote(query, safe='')}"
        assert address.replace("%3A", "%253A").split("?")[0] in page
        detail = await browser.get(f"/books/{books[0].id}", params={"list": query})
        before, behind = (re.search(rf'href="([^"]+)" rel="{rel}"', detail) for rel in ("prev", "next"))
        assert before is not None
        assert behind is not None
        assert books[1].id in before[1]
        assert books[3].id in behind[1]
        last = await browser.get(f"/books/{books[3].id}", params={"list": query})
        assert 'rel="next"' not in last
        newest_first = await browser.get(f"/books/{books[1].id}")
        assert re.search(rf'href="/admin/books/{books[2].id}" rel="prev"', newest_first)
        await browser.get(f"/books/{books[0].id}?list=f_nope~x%3D1")


class Folder(Model):
    tenant_id: str = field(relation=None)
    name: str = ""


class Letter(Model, versioned=True, history_restore=True):
    folder_id: str = field(on_delete="cascade")
    text: str = ""


class Draft(Model, versioned_diff_only=True):
    folder_id: str = field(on_delete="cascade")
    text: str = ""


@pytest.mark.parametrize(("model", "table"), [(Letter, "letters"), (Draft, "drafts")])
async def test_a_record_that_was_handed_over_shows_nothing_of_its_former_tenant(
    database_url: str, model: type[Model], table: str
) -> None:
    def tenant(ctx: Context) -> str:
        return ctx.require_auth().tenant_id

    server, clock = Server(), FakeClock(START)
    server.register(Folder, Letter, Draft)
    server.pipeline.auth.register(auth.api_keys(keys={"k" * 20: AuthInfo(user_id="k", tenant_id="t1")}))
    server.pipeline.db.register(db.tenancy(), models=[Folder])
    via = db.force_filter_via("folder", "tenant_id", tenant)
    server.pipeline.db.register(via, models=[Letter, Draft])
    server.admin(time_zone="UTC")
    async with visiting(server, database_url, signed_in=False, clock=clock) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        await add_superuser(server, "bob@two.example", tenant_id="t2")
        folder = await server.db(Folder).create(tenant_id="t2")
        record = await server.db(model).create(folder_id=folder.id, text="former words")
        clock.advance(timedelta(minutes=10))
        await browser.sign_in("bob@two.example")
        path = f"/{table}/{record.id}"
        for text in ("former answer", "as it was handed over"):
            await browser.send(path, {"f.text": text, "_seen": "{}"})
        page = await browser.get(f"{path}/history")
        assert "former words" in page
        assert "former answer" in page
        await browser.send("/-/logout")
        clock.advance(timedelta(minutes=10))
        await server.db(Folder).update(folder.id, tenant_id="t1")
        for text in ("own words", "own answer"):
            await server.db(model).update(record.id, text=text)
        await browser.sign_in("ada@one.example")

        page = await browser.get(f"{path}/history")
        assert "own answer" in page
        assert "as it was handed over" in page  # what the new tenant found and changed
        past = (
            "?a=1&b=2",
            "?a=1&b=5",
            "?a=3&b=5",
            "?at=2026-05-01T12:05",
            "?at=2026-05-01T12:15",
            "/1",
            "/2",
        )
        addresses = [path, f"/{table}", "/-/audit", f"/-/audit?f_record={record.id}"]
        addresses += [f"{path}/history{question}" for question in ("", "?page=2", *past)]
        addresses += [f"{path}/edit?version={version}" for version in (1, 2)]
        for address in addresses:
            assert "former" not in (await browser.http.get(f"/admin{address}")).text, address
        for version in (1, 2):
            assert (await browser.post(f"{path}/history/{version}/restore")).status_code == 404
        assert (await server.db(model).read(record.id)).text == "own answer"  # type: ignore[attr-defined]
