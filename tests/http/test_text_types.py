"""Types of pydantic that are text: addresses of mail, the web and networks; and text without case."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, EmailStr, HttpUrl, IPvAnyAddress, NameEmail, PostgresDsn, SecretStr

from maniflex import DeclarationError, Model, Server, ValidationFailed, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, offenders, serving, total


def not_local(url: Any) -> Any:
    if "localhost" in str(url):
        raise ValueError("no address of this machine")
    return url


class Person(Model, table="people"):
    email: EmailStr = field(unique=True, ignore_case=True, filterable=True, sortable=True, searchable=True)
    site: HttpUrl | None = field(default=None, filterable=True, max_length=40)
    hook: Annotated[HttpUrl, AfterValidator(not_local)] | None = None
    address: IPv4Address = field(default=IPv4Address("10.0.0.1"), filterable=True)
    any_address: IPvAnyAddress | None = None
    named: NameEmail | None = None
    database: PostgresDsn | None = None


async def test_they_are_stored_as_the_text_that_pydantic_makes_of_them(database_url: str) -> None:
    server = Server()
    server.register(Person)
    sent = {
        "email": "ada@EXAMPLE.com",
        "site": "https://Example.org",
        "hook": "https://hooks.example.org/a?b=c",
        "address": "192.168.0.7",
        "any_address": "2001:DB8::1",
        "named": "Ada <ada@example.org>",
        "database": "postgresql://ada@db.example.org/app",
    }
    async with client(server, database=database_url) as http:
        person = await created(http, "/api/people", **sent)
        expected = {
            **sent,
            "email": "ada@example.com",
            "site": "https://example.org/",
            "any_address": "2001:db8::1",
        }
        assert {name: person[name] for name in sent} == expected
        assert data_of(await http.get(f"/api/people/{person['id']}")) == person
        [record] = await server.db(Person).list({"site": HttpUrl("https://example.org")})
        assert (record.id, str(record.site)) == (person["id"], "https://example.org/")
        made = await server.db(Person).create(email="b@example.org", site=HttpUrl("https://q.org"))
        assert str(made.site) == "https://q.org/"
        assert record.model_dump()["site"] == "https://example.org/"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("email", "not-an-address", "invalid"),
        ("email", 5, "type"),
        ("email", None, "not_null"),
        ("site", "ftp://example.org", "format"),
        ("site", "no url", "format"),
        ("site", f"https://{'x' * 50}.org", "max_length"),
        ("site", {}, "type"),
        ("hook", "http://localhost/", "invalid"),
        ("address", "1.2.3", "format"),
        ("address", 16909060, "type"),
        ("any_address", "::g", "format"),
        ("named", "nobody", "invalid"),
        ("database", "mysql://a/b", "format"),
    ],
)
async def test_what_is_no_such_text_is_refused(sqlite_url: str, name: str, value: Any, code: str) -> None:
    async with serving(sqlite_url, Person) as http:
        body = {"email": "ada@example.com", name: value}
        assert offenders(await http.post("/api/people", json=body)) == {name: code}
        person = await created(http, "/api/people", email="ada@example.com")
        refused = await http.patch(f"/api/people/{person['id']}", json={name: value})
        assert offenders(refused) == {name: code}


async def test_the_description_names_their_formats(sqlite_url: str) -> None:
    async with serving(sqlite_url, Person) as http:
        schemas = (await http.get("/api/openapi.json")).json()["components"]["schemas"]
    fields = schemas["PersonCreate"]["properties"]
    formats = {name: fields[name]["format"] for name in ("email", "site", "address", "named")}
    assert formats == {"email": "email", "site": "uri", "address": "ipv4", "named": "name-email"}
    assert fields["site"]["maxLength"] == 40
    assert schemas["Person"]["properties"]["email"]["format"] == "email"


def test_a_secret_type_is_told_what_to_write() -> None:
    class Account(Model):
        password: SecretStr
        age: int = field(ignore_case=True)

    server = Server()
    server.register(Account)
    with pytest.raises(DeclarationError) as caught:
        server.seal()
    text = str(caught.value)
    assert "Account.password: no column can hold SecretStr; write str with field(writeonly=True)" in text
    assert "Account.age: ignore_case can only be set on text" in text


class Tag(Model):
    name: str = field(unique=True, ignore_case=True, filterable=True, sortable=True, pattern="^[a-zäöüßσς]+$")


async def test_text_without_case_is_unique_and_found_in_any_case(database_url: str) -> None:
    server = Server()
    server.register(Tag)
    async with client(server, database=database_url) as http:
        assert (await created(http, "/api/tags", name="Über"))["name"] == "über"
        for twin in ("ÜBER", "über", "Über"):
            error_of(await http.post("/api/tags", json={"name": twin}), 409, "CONFLICT")
        other = await created(http, "/api/tags", name="other")
        error_of(await http.patch(f"/api/tags/{other['id']}", json={"name": "ÜBER"}), 409, "CONFLICT")
        for query in (
            "eq:ÜBER",
            "in:ÜBER,x",
            "like:ÜB%",
            "ilike:üB%",
            "starts_with:ÜB",
        ):
            assert await total(http, f"/api/tags?filter=name:{query}") == 1, query
        assert await total(http, "/api/tags?filter=name:neq:ÜBER") == 1
        assert await server.db(Tag).count({"name": "ÜBER"}) == 1
        with pytest.raises(ValidationFailed):
            await server.db(Tag).create(name="A1")
