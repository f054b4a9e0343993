"""A forced condition binds every route: no foreign row anywhere, and "not yours" looks like "not there".

The requests are made from the routes and relations the server has, so a route that is added is tested.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import (
    Context,
    LocaleOptions,
    LocaleString,
    Model,
    Next,
    Server,
    WithDeletedAt,
    field,
    has_many,
    many_to_many,
)
from maniflex.middleware import db
from maniflex.model.meta import ModelMeta, RelationKind
from maniflex.testing import client
from tests.kit.http import data_of

TENANTS = ("red", "green", "blue")
NOBODY = "01900000-0000-7000-8000-000000000000"


def tenant() -> Any:
    return field(filterable=True)


class Person(Model, optimistic_lock=True, export=True, aggregate=True, cursor_field="name"):
    tenant_id: str = tenant()
    name: str = field(filterable=True, sortable=True, searchable=True)
    boss_id: str | None = field(default=None, relation="Person", filterable=True)
    reports: list[Person] = has_many(key="boss_id")
    tasks: list[Task] = has_many()


class Task(Model, WithDeletedAt, restore=True, export=True, aggregate=True, cursor_field="created_at"):
    tenant_id: str = tenant()
    name: str = field(filterable=True, sortable=True, searchable=True)
    person_id: str | None = field(default=None, filterable=True)
    title: LocaleString | None = field(default=None, filterable=True, sortable=True)
    state: str = field(default="open", lock_when={"state": "done"}, filterable=True)
    labels: list[Label] = many_to_many(through="TaskLabel")


class Label(Model, export=True, aggregate=True):
    tenant_id: str = tenant()
    name: str = field(filterable=True, sortable=True, searchable=True)
    title: LocaleString | None = field(default=None, filterable=True, sortable=True)
    tasks: list[Task] = many_to_many(through="TaskLabel")


class TaskLabel(Model):
    tenant_id: str = tenant()
    name: str = field(default="link", filterable=True, sortable=True)
    task_id: str = field(filterable=True)
    label_id: str = field(filterable=True, on_delete="cascade")


MODELS: tuple[type[Model], ...] = (Person, Task, Label, TaskLabel)


def declared() -> Server:
    server = Server(locale=LocaleOptions(supported=("en", "de")))
    server.register(*MODELS)
    server.pipeline.auth.register(bound, models=MODELS)
    return server


async def bound(ctx: Context, next: Next) -> None:
    ctx.query.force("tenant_id", ctx.header("x-tenant") or ctx.abort(401, "WHO", "who are you?"))
    await next()


class House:
    """A served application with rows of three tenants, some of which refer to each other's."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.metas: dict[str, ModelMeta] = {m.__name__: server._seal().runtime.store(m).meta for m in MODELS}
        self.ids: dict[str, dict[str, list[str]]] = {t: {m.__name__: [] for m in MODELS} for t in TENANTS}

    async def furnish(self) -> None:
        for who in TENANTS:
            for number in range(3):
                await self._add(who, Person, name=f"{who} person {number}")
            for number in range(3):
                await self._add(
                    who, Task, name=f"{who} task {number}", state="done" if number == 2 else "open"
                )
            await self._add(who, Label, name=f"{who} label")
        for who, other in zip(TENANTS, TENANTS[1:] + TENANTS[:1], strict=True):
            people, tasks = self.ids[who]["Person"], self.ids[who]["Task"]
            foreign = self.ids[other]
            # References across the border, as a careless import would leave them.
            await self.server.db(Person).update(people[0], boss_id=foreign["Person"][0])
            await self.server.db(Person).update(people[1], boss_id=people[2])
            await self.server.db(Task).update(tasks[0], person_id=foreign["Person"][1])
            await self.server.db(Task).update(tasks[1], person_id=people[0])
            await self._add(who, TaskLabel, task_id=tasks[0], label_id=foreign["Label"][0])
            await self._add(who, TaskLabel, task_id=foreign["Task"][0], label_id=self.ids[who]["Label"][0])
            await self._add(who, TaskLabel, task_id=tasks[1], label_id=self.ids[who]["Label"][0])
            gone = await self.server.db(Task).create(tenant_id=who, name=f"{who} gone")
            await self.server.db(Task).delete(gone.id)
            self.ids[who]["gone"] = [gone.id]

    async def _add(self, who: str, model: type[Model], **values: Any) -> None:
        if model in (Task, Label):  # whose titles have translations
            values["title"] = {"en": f"{who} title", "de": f"{who} Titel"}
        record = await self.server.db(model).create({"tenant_id": who, **values})
        self.ids[who][model.__name__].append(record.id)

    async def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"x-tenant": who, "x-request-id": "same", **more.pop("headers", {})}
        answer = await self.http.request(method, path, headers=headers, **more)
        assert answer.status_code < 500, f"{method} {path}: {answer.text}"
        return answer

    def routes(self, *, item: bool) -> Iterator[tuple[str, str, ModelMeta]]:
        """Method, path and model of every route of a scoped model; a new kind of route must be met here."""
        for method, path, owner in self.server.routes:
            if owner in self.metas and ("{id}" in path) is item and method != "OPTIONS":
                yield method, path, self.metas[owner]

    async def snapshot(self, *, without: str) -> list[dict[str, Any]]:
        rows = [
            await self.server.raw_query(
                f"SELECT * FROM {meta.table} WHERE tenant_id <> ? ORDER BY id", without
            )
            for meta in self.metas.values()
        ]
        return [row for table in rows for row in table]

    def foreign(self, who: str) -> set[str]:
        return {i for t in TENANTS if t != who for ids in self.ids[t].values() for i in ids}


@pytest.fixture
async def house(database_url: str) -> AsyncIterator[House]:
    server = declared()
    async with client(server, database=database_url) as http:
        made = House(server, http)
        await made.furnish()
        yield made


def queries(meta: ModelMeta, metas: dict[str, ModelMeta]) -> Iterator[str]:
    """Every way to look across a relation, and every way to ask for more than one's own."""
    yield from ("", "limit=200", "sort=name:desc", "select=name", "select=id", "page=2&limit=1")
    for other in (*TENANTS, "nobody"):
        yield f"filter=tenant_id:eq:{other}"
        yield f"filter[0]=tenant_id:eq:{other}&filter[0]=name:not_null"
        yield f"filter=tenant_id:neq:{other}"
    yield "filter=tenant_id:in:red,green,blue"
    yield "filter=id:not_null&filter[1]=tenant_id:not_null&filter[1]=tenant_id:is_null"
    if meta.options.cursor_field:
        yield "cursor="
    if any(f.searchable for f in meta.fields):
        yield from ("q=red", "q=green&filter=name:not_null", "q=blue", "q=person")
    if meta.soft_delete is not None:
        yield from (
            "filter=deleted_at:not_null",
            "filter[0]=deleted_at:not_null&filter[0]=deleted_at:is_null",
        )
    if "title" in meta.by_name:
        yield from ("sort=title.de:desc&locale=de", "select=title_i18n,id", "filter=title.en:not_null")
        yield from (f"filter=title.de:starts_with:{who}&locale=de" for who in TENANTS)
    for name, relation in meta.relations.items():
        target = metas[relation.target]
        if "title" in target.by_name:
            yield from (f"filter={name}.title.de:starts_with:{who}" for who in TENANTS)
            yield f"filter={name}.title:not_null&include={name}&locale=de"
            if relation.kind is RelationKind.BELONGS_TO:
                yield f"sort={name}.title.de"
        yield f"include={name}"
        yield f"filter={name}.name:not_null"
        yield from (f"filter={name}.tenant_id:eq:{who}" for who in TENANTS)
        yield from (f"filter={name}.name:starts_with:{who}&include={name}" for who in TENANTS)
        if relation.kind is RelationKind.BELONGS_TO:
            yield f"sort={name}.name&include={name}"
        for inner in target.relations:
            yield f"include={name}.{inner}"
            yield f"filter={name}.{inner}.name:not_null"


def records(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in an answer, however deep."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from records(item)


AGGREGATES = (
    {"select": [{"op": "count", "as": "n"}]},
    {
        "group_by": ["name"],
        "select": [{"op": "count", "as": "n"}, {"op": "max", "field": "tenant_id", "as": "t"}],
    },
)


@pytest.mark.parametrize("who", TENANTS)
async def test_no_answer_of_any_collection_route_has_a_foreign_row(house: House, who: str) -> None:
    others = [t for t in TENANTS if t != who]
    asked = 0
    for method, path, meta in house.routes(item=False):
        if method == "POST":
            continue
        for query in queries(meta, house.metas):
            answer = await house.ask(who, method, f"{path}?{query}")
            asked += 1
            assert not any(f"{other} " in answer.text for other in others), f"{path}?{query}: {answer.text}"
            if (
                answer.status_code == 200
                and answer.headers["content-type"] == "application/json"
                and method == "GET"
            ):
                assert not ({r.get("id") for r in records(answer.json())} & house.foreign(who)), (
                    f"{path}?{query}"
                )
            assert answer.status_code in (200, 400), f"{path}?{query}: {answer.text}"
        if path.endswith("/aggregate"):
            for spec in AGGREGATES:
                answer = await house.ask(who, method, f"{path}?aggregate={quote(json.dumps(spec))}")
                assert answer.status_code == 200, answer.text
                assert not any(other in answer.text for other in others), answer.text
                asked += 1
    assert asked > 400


@pytest.mark.parametrize("who", TENANTS)
async def test_every_list_counts_and_finds_all_of_ones_own(house: House, who: str) -> None:
    for meta in house.metas.values():
        own = house.ids[who][meta.name]
        answer = await house.ask(
            who, "GET", f"/api/{meta.table}?filter[0]=tenant_id:not_null&filter[0]=tenant_id:eq:red"
        )
        assert {row["id"] for row in data_of(answer)} == set(own)
        assert answer.json()["meta"]["total"] == len(own)


async def test_what_lies_across_the_border_looks_like_nothing_at_all(house: House) -> None:
    """The planted references: not found by name, not sorted by, not included."""
    ids = house.ids["red"]
    for query in (
        "filter=person.name:starts_with:green",
        "filter=person.tenant_id:eq:green",
        "filter=labels.name:starts_with:green",
    ):
        assert data_of(await house.ask("red", "GET", f"/api/tasks?{query}")) == []
    assert data_of(await house.ask("red", "GET", "/api/labels?filter=tasks.name:starts_with:green")) == []
    assert data_of(await house.ask("red", "GET", "/api/people?filter=boss.name:starts_with:green")) == []
    tasks = data_of(await house.ask("red", "GET", "/api/tasks?include=person,labels&sort=person.name,id"))
    assert [("person" in t, [label["name"] for label in t["labels"]]) for t in tasks] == [
        (False, []),
        (False, []),
        (True, ["red label"]),
    ]
    assert [t["id"] for t in tasks] == [ids["Task"][0], ids["Task"][2], ids["Task"][1]]
    [deep] = [
        p for p in data_of(await house.ask("red", "GET", "/api/people?include=boss.reports")) if "boss" in p
    ]
    assert {r["name"] for r in deep["boss"]["reports"]} == {"red person 1"}


BODIES: tuple[dict[str, Any], ...] = (
    {"name": "changed"},
    {},
    {"tenant_id": "red"},
    {"name": None},
    {"name": 5, "state": "x"},
    {"id": "x"},
)
HEADERS: tuple[dict[str, str], ...] = ({}, {"if-match": "*"}, {"if-match": '"x"'})


async def test_not_yours_and_not_there_are_one_answer_on_every_route(house: House) -> None:
    before = await house.snapshot(without="red")
    asked = 0
    for method, path, meta in house.routes(item=True):
        foreign = [*house.ids["green"][meta.name], *house.ids["blue"][meta.name]]
        foreign += house.ids["green"]["gone"] if meta.name == "Task" else []
        bodies = BODIES if method in ("PATCH", "PUT", "POST") else (None,)
        suffixes = (
            ("", f"?include={next(iter(meta.relations))}", "?select=name")
            if method in ("GET", "HEAD")
            else ("",)
        )
        for body in bodies:
            for headers in HEADERS:
                for suffix in suffixes:
                    answers = set()
                    for record_id in (NOBODY, *foreign):
                        url = path.replace("{id}", record_id) + suffix
                        answer = await house.ask("red", method, url, json=body, headers=headers)
                        assert answer.status_code in (404, 400, 422), f"{method} {url}: {answer.text}"
                        answers.add((answer.status_code, answer.text, tuple(sorted(answer.headers.items()))))
                        asked += 1
                    assert len(answers) == 1, f"{method} {path} {body}: {answers}"
    assert asked > 300
    assert await house.snapshot(without="red") == before


async def test_a_row_is_created_inside_the_scope_whatever_the_body_says(house: House) -> None:
    for body in ({"name": "new"}, {"name": "new", "tenant_id": "green"}, {"name": "new", "tenant_id": None}):
        made = data_of(await house.ask("red", "POST", "/api/people", json=body), 201)
        assert made["tenant_id"] == "red"


async def test_a_row_cannot_be_moved_out_of_the_scope(house: House) -> None:
    [mine, *_] = house.ids["red"]["Label"]
    changed = data_of(
        await house.ask("red", "PATCH", f"/api/labels/{mine}", json={"tenant_id": "green", "name": "n"})
    )
    assert (changed["tenant_id"], changed["name"]) == ("red", "n")
    for body in ({"tenant_id": "green"}, {"tenant_id": ""}):
        assert (
            data_of(await house.ask("red", "PATCH", f"/api/labels/{mine}", json=body))["tenant_id"] == "red"
        )


async def test_a_reference_across_the_border_is_refused_like_one_that_leads_nowhere(house: House) -> None:
    answers = set()
    for person in (NOBODY, *house.ids["green"]["Person"]):
        body = {"name": "x", "person_id": person}
        answer = await house.ask("red", "POST", "/api/tasks", json=body)
        answers.add((answer.status_code, answer.text.replace(person, "…")))
        mine = house.ids["red"]["Task"][1]
        answer = await house.ask("red", "PATCH", f"/api/tasks/{mine}", json={"person_id": person})
        answers.add((answer.status_code, answer.text.replace(person, "…")))
    assert len(answers) == 1, answers
    assert {status for status, _ in answers} == {409}


async def test_ones_own_rows_can_be_read_changed_and_deleted(house: House) -> None:
    for meta in house.metas.values():
        path = f"/api/{meta.table}/{house.ids['blue'][meta.name][0]}"
        assert data_of(await house.ask("blue", "GET", path))["tenant_id"] == "blue"
        assert data_of(await house.ask("blue", "PATCH", path, json={"name": "mine"}))["name"] == "mine"
        assert (await house.ask("blue", "HEAD", path)).status_code == 200
    assert (
        await house.ask("blue", "DELETE", f"/api/labels/{house.ids['blue']['Label'][0]}")
    ).status_code in (204, 409)
    [gone] = house.ids["blue"]["gone"]
    assert data_of(await house.ask("blue", "POST", f"/api/tasks/{gone}/restore"))["name"] == "blue gone"


async def test_without_the_value_a_request_is_refused_rather_than_unbound(house: House) -> None:
    for method, path, _ in (*house.routes(item=False), *house.routes(item=True)):
        answer = await house.http.request(method, path.replace("{id}", house.ids["red"]["Label"][0]))
        assert answer.status_code == 401, f"{method} {path}"


async def test_a_value_that_the_scope_settles_is_no_change(database_url: str) -> None:
    class Part(Model):
        tenant_id: str | None = field(default=None, relation=None)
        name: str = ""

    server = Server()
    server.register(Part)
    server.pipeline.db.register(db.tenancy("tenant_id", lambda ctx: ctx.header("x-tenant") or ""))
    async with client(server, database=database_url) as http:
        headers = {"x-tenant": "red"}
        made = (await http.post("/api/parts", json={"name": "bolt"}, headers=headers)).json()["data"]
        for sent in ("blue", None, "red"):
            answer = await http.patch(f"/api/parts/{made['id']}", json={"tenant_id": sent}, headers=headers)
            assert answer.json()["data"] == made
        body = {"tenant_id": "blue", "name": "nut"}
        changed = (await http.patch(f"/api/parts/{made['id']}", json=body, headers=headers)).json()["data"]
        assert (changed["tenant_id"], changed["name"]) == ("red", "nut")
        assert changed["updated_at"] > made["updated_at"]
