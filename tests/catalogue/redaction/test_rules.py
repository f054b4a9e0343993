"""Where a rule of redaction acts, what goes with it, and what stops the start (X3, X8, R10, K10)."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, Operation, Server, field
from maniflex.middleware import response
from maniflex.testing import client
from tests.catalogue.redaction.app import PHONE, STAFF, Person, Team, a_server, identify, is_stranger
from tests.kit.http import created, data_of


class Ticket(Model, optimistic_lock=True):
    title: str = field(default="", lock_when={"state": "closed"})
    state: str = field(default="open", filterable=True)
    pin: str = field(default="", writeonly=True)


def _problems(server: Server) -> str:
    with pytest.raises(DeclarationError) as error:
        server.seal()
    return str(error.value)


@pytest.mark.parametrize(
    ("entry", "options", "said"),
    [
        (response.redact_field("phne", is_stranger), {"models": [Person]}, "did you mean 'phone'"),
        (response.redact_field("phne", is_stranger), {}, "no model has a field 'phne'"),
        (response.redact_field("id", is_stranger), {"models": [Person]}, "cannot be hidden"),
        (response.redact_field("pin", is_stranger), {"models": [Ticket]}, "nothing to hide"),
        (response.redact_field("phone", None), {}, "not callable"),  # type: ignore[arg-type]
        (response.redact_field("phone", lambda: True), {}, "called with (ctx)"),
    ],
)
def test_mistakes_stop_the_start(entry: Any, options: Any, said: str) -> None:
    server = a_server()
    server.register(Ticket)
    server.pipeline.response.register(entry, **options)
    assert said in _problems(server)


def test_a_public_cache_refuses_it_on_its_own_model_and_on_those_that_reach_it() -> None:
    for model in (Person, Team):
        server = Server()
        server.register(Person, Team)
        server.pipeline.response.register(response.redact_field("phone", is_stranger), models=[Person])
        server.pipeline.response.register(response.cache(60, public=True), models=[model])
        assert "response.redact_field" in _problems(server)
        shared = Server()
        shared.register(Person, Team)
        shared.pipeline.response.register(response.redact_field("phone", is_stranger), models=[Person])
        shared.pipeline.response.register(response.cache(60, public=True, shared=True), models=[model])
        shared.seal()


class Contact(Model):
    phone: str = ""


def test_only_a_server_with_rules_has_a_step_behind_its_answers() -> None:
    """X14: what is not registered costs nothing."""
    plain, redacting = Server(), Server()
    for server in (plain, redacting):
        server.register(Contact)
    redacting.pipeline.response.register(response.redact_field("phone", is_stranger), models=[Contact])
    chains = [{len(e.chains) for e in server._seal().endpoints} for server in (plain, redacting)]
    assert chains == [{2}, {3}]


async def test_a_computed_field_can_be_hidden(database_url: str) -> None:
    server = a_server()

    @server.computed(Person, "initial")
    def initial(person: Person) -> str:
        return person.phone[:1]

    @server.computed(Person, "sizes", batch=True)
    def sizes(people: list[Person]) -> list[int]:
        return [len(person.phone) for person in people]

    for name in ("initial", "sizes"):
        server.pipeline.response.register(response.redact_field(name, is_stranger), models=[Person])
    async with client(server, database=database_url) as http:
        made = await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        stranger = data_of(await http.get("/api/people"))
        staff = data_of(await http.get("/api/people", headers=STAFF))

    for record in (made, *stranger):
        assert {"initial", "sizes", "phoneNumber"}.isdisjoint(record)
    assert (staff[0]["initial"], staff[0]["sizes"]) == ("5", 7)


async def test_a_rule_for_some_operations_leaves_the_others_alone(database_url: str) -> None:
    server = Server()
    server.register(Person, Team)
    server.pipeline.response.register(
        response.redact_field("phone", lambda ctx: True), models=[Person], operations=Operation.LIST
    )
    async with client(server, database=database_url) as http:
        made = await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        read = data_of(await http.get(f"/api/people/{made['id']}"))
        [listed] = data_of(await http.get("/api/people"))
        exported = await http.get("/api/people/export")

    assert (made["phoneNumber"], read["phoneNumber"]) == (PHONE, PHONE)
    assert "phoneNumber" not in listed
    assert "phoneNumber" not in exported.text


async def test_code_asks_what_its_caller_may_not_see(database_url: str) -> None:
    server = a_server()

    @server.action("GET", "/hidden")
    async def hidden(ctx: Context) -> Any:
        people = await ctx.db(Person).list()
        return [sorted(await ctx.redacted(Person)), sorted(await ctx.redacted("Team")), people[0].phone]

    async with client(server, database=database_url) as http:
        await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        stranger, staff = await http.get("/api/hidden"), await http.get("/api/hidden", headers=STAFF)

    assert data_of(stranger) == [["hint", "phoneNumber"], [], PHONE]  # code itself sees everything
    assert data_of(staff) == [[], [], PHONE]


async def test_in_process_calls_are_callers_too(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        made = await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        staff = AuthInfo(user_id="a", roles=["staff"])
        stranger = await server.execute(Operation.READ, Person, made["id"])
        known = await server.execute(Operation.READ, Person, made["id"], auth=staff)

    assert "phoneNumber" not in stranger.data
    assert known.data["phoneNumber"] == PHONE


async def test_a_locked_record_does_not_tell_the_value_of_a_field_with_a_rule(database_url: str) -> None:
    server = Server()
    server.register(Ticket)
    server.pipeline.auth.register(identify)
    server.pipeline.response.register(response.redact_field("state", is_stranger), models=[Ticket])
    async with client(server, database=database_url) as http:
        ticket = await created(http, "/api/tickets", state="closed")
        answer = await http.patch(f"/api/tickets/{ticket['id']}", json={"title": "x"})

    assert answer.status_code == 422
    assert "closed" not in answer.text
    assert "state" not in answer.text


async def test_the_description_keeps_the_field_and_requires_it_of_no_answer() -> None:
    server = a_server()
    async with client(server) as http:
        schema = (await http.get("/api/openapi.json")).json()["components"]["schemas"]["Person"]

    assert "phoneNumber" in schema["properties"]
    assert "phoneNumber" not in schema.get("required", ())


async def test_adding_a_rule_to_a_searchable_field_rebuilds_the_index_of_a_database_that_exists(
    database_url: str,
) -> None:
    plain = Server()
    plain.register(Person, Team)
    async with client(plain, database=database_url) as http:
        await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        assert len(data_of(await http.get(f"/api/people?q={PHONE}"))) == 1
    ruled = Server()
    ruled.register(Person, Team)
    ruled.pipeline.auth.register(identify)
    ruled.pipeline.response.register(response.redact_field("phone", is_stranger), models=[Person])
    async with client(ruled, database=database_url) as http:
        assert data_of(await http.get(f"/api/people?q={PHONE}")) == []
        assert len(data_of(await http.get(f"/api/people?q={PHONE}", headers=STAFF))) == 1
        assert len(data_of(await http.get(f"/api/people?q=ada {PHONE}", headers=STAFF))) == 1


async def test_groups_and_excerpts_show_a_transformed_field_as_records_do(database_url: str) -> None:
    server = Server()
    server.register(Person, Team)
    server.enable_global_search()
    server.pipeline.response.register(
        response.transform_field("phone", lambda value: f"…{value[-2:]}"), models=[Person]
    )
    spec = '{"select":["count",{"op":"max","field":"phoneNumber"}],"group_by":["phoneNumber"]}'
    async with client(server, database=database_url) as http:
        await created(http, "/api/people", name="ada lovelace", phoneNumber=PHONE)
        groups = data_of(await http.get(f"/api/people/aggregate?aggregate={spec}"))
        hits = [data_of(await http.get(f"/api/search?q={text}")) for text in ("lovelace", PHONE)]

    assert groups == [{"phoneNumber": "…99", "count": 1, "max_phoneNumber": "…99"}]
    assert [[hit["snippet"] for hit in found] for found in hits] == [["ada lovelace"], ["ada lovelace"]]
