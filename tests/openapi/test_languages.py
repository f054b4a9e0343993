"""Texts in several languages in the description: what answers show of them, and what bodies may say."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from maniflex import LocaleOptions, LocaleString, Model, Server, belongs_to, field
from maniflex.testing import client
from tests.kit.http import data_of


class Department(Model, export=True, aggregate=True):
    name: LocaleString = field(filterable=True, sortable=True, max_length=30)
    motto: LocaleString | None = field(default=None, locale="resolve")
    sign: LocaleString | None = field(default=None, locale="dynamic", filterable=True)
    plan: LocaleString | None = field(default=None, readonly=True)
    word: LocaleString | None = field(default=None, writeonly=True)


class Person(Model):
    nick: str
    department_id: str | None = None
    department: Department | None = belongs_to()


class Alone(Model):
    nick: str


def declared() -> Server:
    server = Server(locale=LocaleOptions(supported=("en", "de")))
    server.register(Department, Person, Alone)
    return server


async def test_every_route_that_shows_such_texts_takes_a_locale() -> None:
    document = await declared().openapi()
    with_locale = {
        f"{method} {path.removeprefix('/api')}"
        for path, methods in document["paths"].items()
        for method, route in methods.items()
        if any(one.get("name") == "locale" for one in route.get("parameters", ()))
    }
    own = {"get /{0}", "post /{0}", "get /{0}/{{id}}", "patch /{0}/{{id}}"}
    routes = {route.format(table) for route in own for table in ("departments", "people")}
    assert with_locale == routes | {"get /departments/aggregate", "get /departments/export"}


def problems(document: Any, name: str, value: Any) -> list[str]:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


@pytest.mark.parametrize("query", ["", "?locale=de"])
async def test_answers_are_as_they_are_described(sqlite_url: str, query: str) -> None:
    server = declared()
    document = await server.openapi()
    shown = document["components"]["schemas"]["Department"]["properties"]
    assert {"name_i18n", "plan_i18n"} <= shown.keys()
    assert {"motto_i18n", "sign_i18n", "word", "word_i18n"}.isdisjoint(shown)
    async with client(server, database=sqlite_url) as http:
        for motto, sign in (({"de": "x"}, {"en": "y"}), (None, None), ({}, {})):
            body = {"name": {"en": "Finance"}, "motto": motto, "sign": sign, "word": {"en": "z"}}
            assert problems(document, "DepartmentCreate", body) == []
            record = data_of(await http.post(f"/api/departments{query}", json=body), 201)
            assert problems(document, "Department", record) == []
            assert record.keys() == shown.keys()


@pytest.mark.parametrize(
    ("body", "is_right"),
    [
        ({"name": "Finance"}, True),
        ({"name": {"en": "Finance", "pt-BR": "Finanças"}}, True),
        ({"name_i18n": {"de": "Finanzen"}}, True),
        ({"name": {"en": "x" * 31}}, False),
        ({"name": {"!": "x"}}, False),
        ({"name": 5}, False),
        ({"name_i18n": {"de": 5}}, False),
    ],
)
async def test_bodies_are_taken_as_they_are_described(sqlite_url: str, body: Any, is_right: bool) -> None:
    server = declared()
    document = await server.openapi()
    assert (problems(document, "DepartmentCreate", body) == []) is is_right
    async with client(server, database=sqlite_url) as http:
        answer = await http.post("/api/departments", json=body)
        assert answer.status_code == (201 if is_right else 422), answer.text
