"""Forms for people whom the application writes into what they make, and for models that code alone makes."""

from __future__ import annotations

import pytest

from maniflex import AuthInfo, Context, Model, Server, field, has_many
from maniflex.admin import Inline, ModelAdmin
from maniflex.middleware import auth, service
from tests.kit.panel import visiting


class Person(Model, operations=["list", "read", "delete"]):
    """Made by code alone, such as a sign-up."""

    name: str = field(filterable=True)


class Ticket(Model):
    subject: str = field(filterable=True)
    remarks: list[Remark] = has_many()


class Remark(Model):
    ticket_id: str = field(filterable=True)
    author_id: str = field(relation="Person", immutable=True)
    text: str


PASSWORD = "a long enough phrase"


def make_server(url: str) -> Server:
    server = Server(url)
    server.register(Person, Ticket, Remark)
    keys = {"k" * 20: AuthInfo(user_id="k")}
    server.pipeline.auth.register(auth.api_keys(keys=keys))
    stamp = service.owner_scope("author_id", unless_role="clerk")
    server.pipeline.service.register(stamp, models=[Remark])

    async def enter(ctx: Context, username: str, password: str) -> AuthInfo | None:
        people = await server.db(Person).list({"name": username})
        if not people or password != PASSWORD:
            return None
        return AuthInfo(user_id=people[0].id, roles=["staff", *(["clerk"] if username == "Cleo" else [])])

    admin = server.admin(auth=enter, role="staff")
    admin.add(ModelAdmin(Ticket, inlines=(Inline(Remark, columns=("author_id", "text")),)))
    return server


@pytest.mark.parametrize(("name", "asked"), [("Ada", False), ("Cleo", True)])
async def test_who_is_written_into_a_record_is_not_asked_whose_it_is(
    database_url: str, name: str, asked: bool
) -> None:
    server = make_server(database_url)
    async with visiting(server, database_url, signed_in=False) as browser:
        person = await server.db(Person).create(name=name)
        ticket = await server.db(Ticket).create(subject="Fire")
        await browser.sign_in(name, PASSWORD)

        page = await browser.get("/remarks/new")
        assert ('name="f.author_id"' in page) is asked
        controls = {"f.ticket_id": ticket.id, "f.text": "Water is on its way", "_seen": "{}", "_key": "k"}
        await browser.send("/remarks", controls | ({"f.author_id": person.id} if asked else {}))
        [remark] = await server.db(Remark).list()
        assert remark.author_id == person.id


async def test_a_row_of_a_form_is_not_asked_whose_it_is_either(sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        person = await server.db(Person).create(name="Ada")
        await browser.sign_in("Ada", PASSWORD)
        await browser.get("/tickets/new")
        controls = {"f.subject": "Fire", "inline.remarks.0.text": "Help", "_seen": "{}", "_key": "k"}
        await browser.send("/tickets", controls)
        assert [remark.author_id for remark in await server.db(Remark).list()] == [person.id]


async def test_a_model_that_code_alone_makes_has_no_way_to_a_form(database_url: str) -> None:
    server = make_server(database_url)
    async with visiting(server, database_url, signed_in=False) as browser:
        person = await server.db(Person).create(name="Cleo")
        await browser.sign_in("Cleo", PASSWORD)
        assert "/people/new" not in await browser.get("/people")
        record = await browser.get(f"/people/{person.id}")
        assert f"/people/{person.id}/edit" not in record
        assert f"/people/{person.id}/delete" in record
        picker = await browser.get("/remarks/new")
        assert "/-/pick/people" in picker
        assert "/people/new" not in picker
        for page in ("/people/new", f"/people/{person.id}/edit"):
            await browser.get(page, status=404)
