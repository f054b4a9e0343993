"""A guarded model is guarded wherever it shows: rows nobody may see change no answer at all.

Each world is asked the same questions before and after the hidden rows exist. Equal answers leave no
row, no count, no order and no difference between "not there" and "not yours" to learn from. `Secret` is
the guarded model; people, notes, badges, regions and a query model are open and lead to it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest

from maniflex import Context, Model, Next, Response, Server, WithDeletedAt, field, has_many, many_to_many
from maniflex.model.meta import ModelMeta, RelationKind
from maniflex.testing import FakeClock, client
from tests.kit.http import data_of

# -- the world

ME = {"x-tenant": "red", "x-request-id": "same"}
HIDDEN = ("s-hidden-1", "s-hidden-2")
STRIDE = 13


class Region(Model, export=True, aggregate=True):
    """A lookup table that all tenants share."""

    name: str = field(filterable=True, sortable=True, searchable=True)
    people: list[Person] = has_many()


class Person(Model, export=True, aggregate=True, cursor_field="name", global_searchable=True):
    name: str = field(filterable=True, sortable=True, searchable=True)
    team: str = field(filterable=True)
    region_id: str | None = field(default=None, filterable=True)
    secrets: list[Secret] = has_many()


class Secret(
    Model,
    WithDeletedAt,
    export=True,
    aggregate=True,
    restore=True,
    cursor_field="code",
    global_searchable=True,
):
    tenant_id: str = field(filterable=True, relation=None)
    code: str = field(filterable=True, sortable=True, searchable=True)
    rank: int = field(default=0, filterable=True, sortable=True)
    person_id: str = field(filterable=True)
    parent_id: str | None = field(default=None, relation="Secret", filterable=True)
    below: list[Secret] = has_many(key="parent_id")
    notes: list[Note] = has_many()
    badges: list[Badge] = many_to_many(through="SecretBadge")


class Note(Model, export=True, aggregate=True, cursor_field="title"):
    title: str = field(filterable=True, sortable=True)
    secret_id: str | None = field(default=None, filterable=True)


class Badge(Model, export=True, aggregate=True):
    name: str = field(filterable=True, sortable=True)
    secrets: list[Secret] = many_to_many(through="SecretBadge")


class SecretBadge(Model):
    name: str = field(default="link", filterable=True, sortable=True)
    secret_id: str = field(filterable=True, on_delete="cascade")
    badge_id: str = field(filterable=True, on_delete="cascade")


class Headline(Model, query="SELECT id, title, secret_id FROM notes", table="headlines", aggregate=True):
    id: str
    title: str = field(filterable=True, sortable=True)
    secret_id: str | None = field(filterable=True)


MODELS: tuple[type[Model], ...] = (Region, Person, Secret, Note, Badge, SecretBadge, Headline)


def by_role(server: Server) -> None:
    """Nobody without the role may see secrets."""

    @server.pipeline.auth.middleware(models=[Secret])
    async def admins(ctx: Context, next: Next) -> None:
        if ctx.header("x-role") != "admin":
            ctx.abort(403, "ADMINS_ONLY", "for admins")
        await next()


def by_answer(server: Server) -> None:
    """The same, by an answer instead of an exception."""

    @server.pipeline.auth.middleware(models=[Secret])
    async def admins(ctx: Context, next: Next) -> None:
        if ctx.header("x-role") == "admin":
            await next()
        else:
            ctx.response = Response(403, error={"code": "ADMINS_ONLY", "message": "for admins"})


def by_global_scope(server: Server) -> None:
    """One middleware binds all requests to the caller's tenant."""

    @server.pipeline.auth.middleware()
    async def tenancy(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ctx.header("x-tenant"))
        await next()


def by_named_scope(server: Server) -> None:
    """One middleware binds the rows of one model in all requests."""

    @server.pipeline.auth.middleware()
    async def tenancy(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ctx.header("x-tenant"), model=Secret)
        await next()


def by_model_scope(server: Server) -> None:
    """A middleware of the model binds its rows."""

    @server.pipeline.auth.middleware(models=[Secret])
    async def tenancy(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ctx.header("x-tenant"))
        await next()


def by_parent_scope(server: Server) -> None:
    """A middleware of the model binds its rows through the person they belong to."""

    @server.pipeline.auth.middleware(models=[Secret])
    async def teams(ctx: Context, next: Next) -> None:
        ctx.query.force("person.team", ctx.header("x-tenant"))
        await next()


def open_to_all(server: Server) -> None:
    """No guard: then the hidden rows must show, or the questions prove nothing."""


SCOPES: tuple[Callable[[Server], None], ...] = (
    by_global_scope,
    by_named_scope,
    by_model_scope,
    by_parent_scope,
)
GUARDS: tuple[Callable[[Server], None], ...] = (by_role, by_answer, *SCOPES)


class Probe(NamedTuple):
    """One request."""

    method: str
    path: str
    body: dict[str, Any] | None = None


class World:
    """The served application."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self.server = server
        self.http = http
        self.metas: dict[str, ModelMeta] = {m.__name__: server._seal().runtime.store(m).meta for m in MODELS}

    async def furnish(self) -> None:
        """Everything but the hidden rows; some of it refers to them already."""
        add = self.server.db
        for name in ("north", "south"):
            await add(Region).create(id=name, name=name)
        for name, team, region in (
            ("ann", "red", "north"),
            ("bob", "blue", "south"),
            ("cid", "blue", "north"),
        ):
            await add(Person).create(id=name, name=name, team=team, region_id=region)
        for number, code in enumerate(("m-mine", "q-mine")):
            await add(Secret).create(
                id=f"s-own-{number}", tenant_id="red", code=code, person_id="ann", rank=number
            )
        for name in ("gold", "tin"):
            await add(Badge).create(id=name, name=name)
        for place, secret in enumerate((None, "s-own-0", "s-own-1", None, None)):
            await add(Note).create(id=f"n{place}", title=f"note {place}", secret_id=secret)
            if secret is not None:
                await add(SecretBadge).create(id=f"l{place}", secret_id=secret, badge_id="gold")
        for place, secret in enumerate(HIDDEN):
            sql = "UPDATE notes SET secret_id = ? WHERE id = ?"
            await self.server.raw_exec(sql, secret, f"n{place + 3}")
            await add(SecretBadge).create(id=f"h{place}", secret_id="s-own-0", badge_id="tin")
            await self.server.raw_exec(
                "UPDATE secret_badges SET secret_id = ? WHERE id = ?", secret, f"h{place}"
            )

    async def hide(self) -> None:
        """The rows nobody may learn of: one sorts before all others, one after them."""
        add = self.server.db(Secret)
        for record_id, code, person in zip(HIDDEN, ("a-hidden", "z-hidden"), ("bob", "cid"), strict=True):
            await add.create(
                id=record_id, tenant_id="blue", code=code, person_id=person, rank=99, parent_id="s-own-0"
            )
        gone = await add.create(
            id="s-hidden-gone", tenant_id="blue", code="b-hidden", person_id="bob", parent_id=HIDDEN[0]
        )
        await add.delete(gone.id)

    async def ask(self, probe: Probe, headers: dict[str, str] = ME) -> tuple[int, str, dict[str, str]]:
        answer = await self.http.request(probe.method, probe.path, json=probe.body, headers=headers)
        assert answer.status_code < 500, f"{probe}: {answer.text}"
        return answer.status_code, answer.text, dict(answer.headers)

    def some_reads(self, offset: int = 0) -> list[Probe]:
        """A sample of the reads; another offset gives others."""
        return list(self.reads())[offset % STRIDE :: STRIDE]

    def reads(self) -> Iterator[Probe]:
        """Every route that shows rows, with everything that can be asked across relations."""
        for meta in self.metas.values():
            asked = list(dict.fromkeys(self._queries(meta)))
            for query in asked:
                yield Probe("GET", f"/api/{meta.table}?{query}")
            for query in asked[::5]:
                yield Probe("HEAD", f"/api/{meta.table}?{query}")
            if meta.options.export:
                for query in [q for q in asked if "include" not in q][::3]:
                    yield Probe("GET", f"/api/{meta.table}/export?{query}")
            if meta.options.aggregate:
                yield from self._aggregates(meta)
            yield from self._items(meta, asked)
        for models in ("", "&models=Secret", "&models=Person,Secret", "&models=Person"):
            for word in ("mine", "hidden", "ann"):
                yield Probe("GET", f"/api/search?q={word}{models}")
                yield Probe("HEAD", f"/api/search?q={word}{models}")

    def _paths(self, meta: ModelMeta, depth: int = 3) -> Iterator[tuple[list[str], ModelMeta, bool]]:
        """Relation names, the model they lead to, and whether they lead to one record."""
        for name, relation in meta.relations.items():
            target, one = self.metas[relation.target], relation.kind is RelationKind.BELONGS_TO
            yield [name], target, one
            if depth > 1:
                for names, end, ends_in_one in self._paths(target, depth - 1):
                    yield [name, *names], end, one and ends_in_one

    def _queries(self, meta: ModelMeta) -> Iterator[str]:
        yield from ("", "limit=1", "page=2&limit=1", "limit=200")
        if meta.options.cursor_field:
            yield "cursor="
        for names, target, one in self._paths(meta):
            secret = target.name == "Secret"
            if not secret and "secret" not in " ".join(names):
                continue
            if len(names) < 3:
                yield f"include={'.'.join(names)}"
            path = ".".join(names)
            for condition in _conditions(target):
                yield f"filter={path}.{condition}"
            first = next(_conditions(target))
            yield f"filter[0]={path}.{first}&filter[0]=id:eq:nobody"
            if one:
                sorted_by = "code" if secret else _named(target)
                yield f"sort={path}.{sorted_by},id"
                yield f"sort={path}.{sorted_by}:desc,id&limit=1&select=id"

    def _aggregates(self, meta: ModelMeta) -> Iterator[Probe]:
        count = {"op": "count", "as": "n"}
        specs: list[dict[str, Any]] = [{"select": [count]}]
        if meta.name == "Secret":
            specs += [
                {"select": [count], "group_by": ["code"]},
                {
                    "select": [
                        {"op": "max", "field": "code", "as": "m"},
                        {"op": "sum", "field": "rank", "as": "s"},
                    ]
                },
                {
                    "select": [count],
                    "group_by": ["tenant_id"],
                    "having": [{"alias": "n", "operator": "gt", "value": 1}],
                },
            ]
        for names, target, _ in self._paths(meta, 2):
            if target.name == "Secret":
                where = {"field": ".".join([*names, "code"]), "operator": "contains", "value": "hidden"}
                specs.append({"select": [count], "where": [where]})
                specs.append({"select": [count], "group_by": [_named(meta)], "where": [where]})
        for spec in specs:
            yield Probe("GET", f"/api/{meta.table}/aggregate?aggregate={quote(json.dumps(spec))}")

    def _items(self, meta: ModelMeta, asked: list[str]) -> Iterator[Probe]:
        ids = {
            "Region": ["north"],
            "Person": ["ann", "bob"],
            "Secret": ["s-own-0", *HIDDEN, "s-hidden-gone", "nobody"],
            "Note": ["n1", "n3"],
            "Badge": ["tin"],
            "SecretBadge": ["h0"],
            "Headline": ["n3"],
        }[meta.name]
        for record_id in ids:
            path = f"/api/{meta.table}/{record_id}"
            yield from (Probe("GET", path), Probe("HEAD", path))
            for query in [q for q in asked if q.startswith(("include", "filter="))][::3]:
                yield Probe("GET", f"{path}?{query}")


def _conditions(target: ModelMeta) -> Iterator[str]:
    if target.name != "Secret":
        yield from (f"{_named(target)}:not_null", "id:neq:nobody")
        return
    yield from ("code:not_null", "code:eq:a-hidden", "code:neq:m-mine", "code:contains:hidden", "code:lt:m")
    yield from (
        "rank:gt:50",
        "rank:in:99,1",
        "tenant_id:eq:blue",
        "code:neq_field:tenant_id",
        "id:eq:s-hidden-1",
    )


def _named(meta: ModelMeta) -> str:
    return next(f.api for f in meta.fields if f.name in ("name", "title", "code"))


def writes() -> Iterator[Probe]:
    """Writes that a hidden row must not change the answer to; all of them fail or change nothing."""
    for secret in (*HIDDEN, "s-hidden-gone", "nobody"):
        path = f"/api/secrets/{secret}"
        yield Probe("PATCH", path, {"code": "x"})
        yield Probe("PATCH", path, {"rank": "no number"})
        yield Probe("PATCH", path, {})
        yield Probe("DELETE", path)
        yield Probe("POST", f"{path}/restore")
        for note in ("n0", "n1"):
            yield Probe("PATCH", f"/api/notes/{note}", {"secret_id": secret})
        yield Probe("POST", "/api/notes", {"title": "t", "secret_id": secret})
        yield Probe("POST", "/api/secret_badges", {"secret_id": secret, "badge_id": "gold"})
        yield Probe(
            "POST",
            "/api/secrets",
            {"tenant_id": "red", "code": "c", "person_id": "ann", "parent_id": secret},
        )
        yield Probe("PATCH", "/api/secrets/s-own-1", {"parent_id": secret})


@asynccontextmanager
async def furnished(database: str, guard: Callable[[Server], None]) -> AsyncIterator[World]:
    """A world with this guard and without the hidden rows, at a time that stands still."""
    server = Server(clock=FakeClock(datetime(2026, 5, 1, tzinfo=UTC)))
    server.register(*MODELS)
    server.enable_global_search()
    guard(server)
    async with client(server, database=database) as http:
        world = World(server, http)
        await world.furnish()
        yield world


# -- the tests


def called(guard: Callable[[Server], None]) -> str:
    return guard.__name__


async def what_hidden_rows_change(world: World, probes: Sequence[Probe]) -> list[tuple[Probe, Any, Any]]:
    """The probes that are answered otherwise once the hidden rows exist, with both answers."""
    before = [await world.ask(probe) for probe in probes]
    await world.hide()
    after = [await world.ask(probe) for probe in probes]
    return [(p, one, two) for p, one, two in zip(probes, before, after, strict=True) if one != two]


@pytest.mark.parametrize("guard", GUARDS, ids=called)
async def test_hidden_rows_change_no_answer(database_url: str, guard: Callable[[Server], None]) -> None:
    async with furnished(database_url, guard) as world:
        probes = [*world.some_reads(GUARDS.index(guard)), *writes()]
        told = await what_hidden_rows_change(world, probes)

    assert told == []
    assert len(probes) * len(GUARDS) * 2 > 2_000  # with all guards, on both databases


@pytest.mark.long
@pytest.mark.parametrize("guard", GUARDS, ids=called)
async def test_hidden_rows_change_no_answer_of_all(
    database_url: str, guard: Callable[[Server], None]
) -> None:
    async with furnished(database_url, guard) as world:
        assert await what_hidden_rows_change(world, [*world.reads(), *writes()]) == []


async def test_without_a_guard_most_answers_tell_of_the_rows(database_url: str) -> None:
    async with furnished(database_url, open_to_all) as world:
        probes = world.some_reads()
        told = await what_hidden_rows_change(world, probes)
        statuses = {(await world.ask(probe))[0] for probe in probes}

    assert len(told) > len(probes) / 2
    assert statuses <= {200, 400, 404}


@pytest.mark.parametrize("guard", GUARDS, ids=called)
async def test_a_lookup_table_and_open_models_stay_usable(
    database_url: str, guard: Callable[[Server], None]
) -> None:
    async with furnished(database_url, guard) as world:
        await world.hide()
        for path in ("regions", "regions?include=people", "people?filter=region.name:eq:north", "notes"):
            assert data_of(await world.http.get(f"/api/{path}", headers=ME))
        data_of(await world.http.post("/api/regions", json={"name": "east"}, headers=ME), 201)
        data_of(await world.http.patch("/api/people/ann", json={"region_id": "south"}, headers=ME))


@pytest.mark.parametrize("guard", SCOPES, ids=called)
async def test_ones_own_rows_show_by_every_way(database_url: str, guard: Callable[[Server], None]) -> None:
    async with furnished(database_url, guard) as world:
        await world.hide()

        async def asked(path: str) -> list[dict[str, object]]:
            rows: list[dict[str, object]] = data_of(await world.http.get(f"/api/{path}", headers=ME))
            return rows

        [ann] = await asked("people?include=secrets&filter=secrets.code:eq:m-mine")
        [gold] = await asked("badges?include=secrets&filter=secrets.code:not_null")
        notes = await asked("notes?sort=secret.code:desc,id&include=secret")
        hits = await asked("search?q=mine")

    assert [s["code"] for s in ann["secrets"]] == ["m-mine", "q-mine"]  # type: ignore[attr-defined]  # JSON
    assert (gold["name"], len(gold["secrets"])) == ("gold", 2)  # type: ignore[arg-type]  # JSON
    assert [n["id"] for n in notes] == ["n2", "n1", "n0", "n3", "n4"]
    assert ["secret" in n for n in notes] == [True, True, False, False, False]
    assert {hit["id"] for hit in hits} == {"s-own-0", "s-own-1"}
