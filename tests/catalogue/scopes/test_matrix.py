"""The tenant matrix: the rows of another organisation change no answer at all.

Two servers get the same requests of organisation A. One database has the rows of both organisations, the
other those of A alone. Equal answers leave no row, no count, no order and no difference between "not
there" and "not yours" to learn from. Without rules the same requests must tell the two apart on every
surface, or they would prove nothing.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Run, Server
from maniflex.errors import RequestError
from maniflex.model.meta import Kind, ModelMeta, RelationKind
from maniflex.testing import FakeClock
from tests.catalogue.scopes.world import (
    MODELS,
    A,
    Member,
    Note,
    Project,
    ProjectLabel,
    Task,
    bind_all,
    make_server,
    serving,
)

BOUND: tuple[type[Model], ...] = (Member, Project, Task, Note, ProjectLabel)
TEXTS = [
    "common",
    "common 1 of a",
    "common 2 of b",
    "note 1 b",
    "1.common.b@x.org",
    "org-b",
    "red",
    "p-b1",
    "b",
]
IDS = [
    "p-a1",
    "p-b1",
    "p-b2",
    "p-b9",
    "p-a9",
    "t-a1",
    "t-b1",
    "n-a2",
    "n-b2",
    "m-a1",
    "m-b1",
    "absent",
    "org-b",
]
PREFIXES = {"Project": "p-", "Task": "t-", "Note": "n-", "Member": "m-", "ProjectLabel": "l-", "Org": "org-"}
SURFACES = {
    *("list", "include", "nested filter", "nested sort", "read", "head", "write", "create", "restore"),
    *("aggregate", "export", "search", "count", "action", "tree", "block", "run", "batch", "nested"),
}


class Probe(NamedTuple):
    """One request, and the surface it is about."""

    surface: str
    method: str
    path: str
    params: Sequence[tuple[str, str]] = ()
    body: Any = None


# -- what to ask


class Asker:
    """Makes random requests for the models of a server."""

    def __init__(self, metas: dict[str, ModelMeta], seed: int) -> None:
        self.random = random.Random(seed)
        self._metas = metas
        self._surfaces: list[Callable[[ModelMeta], Probe | None]] = [
            self.list_,
            self.list_,
            self.include,
            self.nested_filter,
            self.nested_sort,
            self.read,
            self.head,
            self.write,
            self.create,
            self.restore,
            self.restore,
            self.aggregate,
            self.export,
            self.search,
            self.cursor,
            self.action,
            self.action,
            self.batch,
            self.batch,
            self.nested,
            self.nested,
        ]

    def next(self) -> Probe:
        while True:
            meta = self._metas[self.random.choice(MODELS).__name__]
            probe = self.random.choice(self._surfaces)(meta)
            if probe is not None:
                return probe

    def list_(self, meta: ModelMeta) -> Probe:
        return Probe("list", "GET", f"/{meta.table}", self._filters(meta) + self._page(meta))

    def include(self, meta: ModelMeta) -> Probe | None:
        paths = list(self._paths(meta, 2))
        if not paths:
            return None
        names = {".".join(self.random.choice(paths)) for _ in range(self.random.randint(1, 2))}
        return Probe(
            "include", "GET", f"/{meta.table}", [("include", ",".join(sorted(names))), *self._page(meta)]
        )

    def nested_filter(self, meta: ModelMeta) -> Probe | None:
        paths = list(self._paths(meta, 3))
        if not paths:
            return None
        conditions = [("filter", self._condition(meta, self.random.choice(paths)))]
        if self.random.random() < 0.3:
            conditions = [
                (f"filter[{n % 2}]", self._condition(meta, self.random.choice(paths))) for n in range(3)
            ]
        return Probe("nested filter", "GET", f"/{meta.table}", conditions + self._page(meta))

    def nested_sort(self, meta: ModelMeta) -> Probe | None:
        paths = self._paths(meta, 3, to_one=True)
        if not paths:
            return None
        path = self.random.choice(paths)
        field = self.random.choice([f for f in self._end(meta, path).fields if f.sortable] or [None])
        if field is None:
            return None
        term = f"{'.'.join(path)}.{field.api}:{self.random.choice(['asc', 'desc'])}"
        return Probe("nested sort", "GET", f"/{meta.table}", [("sort", term)])

    def read(self, meta: ModelMeta) -> Probe:
        paths = list(self._paths(meta, 2))
        params = (
            [("include", ".".join(self.random.choice(paths)))] if paths and self.random.random() < 0.5 else []
        )
        return Probe("read", "GET", f"/{meta.table}/{self._id(meta)}", params)

    def head(self, meta: ModelMeta) -> Probe:
        one = self.random.random() < 0.5
        path = f"/{meta.table}/{self._id(meta)}" if one else f"/{meta.table}"
        return Probe("head", "HEAD", path, [] if one else self._filters(meta))

    def write(self, meta: ModelMeta) -> Probe | None:
        if meta.cls not in BOUND:
            return None
        likely = PREFIXES[meta.name] + self.random.choice(["b1", "b2", "b3"])
        foreign = likely if self.random.random() < 0.8 else "absent"
        if self.random.random() < 0.3:
            return Probe("write", "DELETE", f"/{meta.table}/{foreign}")
        own = self.random.random() < 0.4
        body = self._body(meta, required=False)
        id = f"{PREFIXES[meta.name]}a1" if own else foreign
        return Probe("write", "PATCH", f"/{meta.table}/{id}", [], body)

    def create(self, meta: ModelMeta) -> Probe | None:
        return (
            None if meta.cls not in BOUND else Probe("create", "POST", f"/{meta.table}", [], self._body(meta))
        )

    def restore(self, meta: ModelMeta) -> Probe | None:
        if not meta.options.restore:
            return None
        id = self.random.choice([f"{PREFIXES[meta.name]}b9", f"{PREFIXES[meta.name]}b1", "absent"])
        return Probe("restore", "POST", f"/{meta.table}/{id}/restore")

    def aggregate(self, meta: ModelMeta) -> Probe | None:
        if not meta.options.aggregate:
            return None
        spec: dict[str, Any] = {"select": [{"op": "count", "as": "n"}]}
        keys = [f.api for f in meta.fields if f.filterable and f.kind is Kind.TEXT]
        if keys and self.random.random() < 0.6:
            spec["group_by"] = [self.random.choice(keys)]
        paths = [(), *self._paths(meta, 2)]
        field, op, *values = self._condition(meta, self.random.choice(paths)).split(":", 2)
        if op in ("eq", "neq", "contains"):
            spec["where"] = [{"field": field, "operator": op, "value": values[0]}]
        return Probe("aggregate", "GET", f"/{meta.table}/aggregate", [("aggregate", json.dumps(spec))])

    def export(self, meta: ModelMeta) -> Probe | None:
        if not meta.options.export:
            return None
        return Probe("export", "GET", f"/{meta.table}/export", [("format", "csv"), *self._filters(meta)])

    def search(self, meta: ModelMeta) -> Probe:
        params = [("q", self.random.choice(["common", "common 1", "of", "x", "b", "org"]))]
        if meta.options.global_searchable and self.random.random() < 0.5:
            params.append(("models", meta.name))
        return Probe("search", "GET", "/search", params)

    def cursor(self, meta: ModelMeta) -> Probe | None:
        if not meta.options.cursor_field:
            return None
        return Probe("count", "GET", f"/{meta.table}", [("cursor", ""), ("limit", "2"), *self._filters(meta)])

    def action(self, meta: ModelMeta) -> Probe:
        kinds = ["count", "list", "read", "include", "aggregate", "search", "update", "delete", "lock"]
        kinds += ["tree"] * 3
        body = {
            "kind": self.random.choice(kinds),
            "model": meta.name,
            "id": self._id(meta),
            "text": self.random.choice(TEXTS),
            "include": ".".join(self.random.choice([("",), *self._paths(meta, 2)])),
            "where": self._condition(meta, self.random.choice([(), *self._paths(meta, 2)])).split(":", 2),
        }
        if self.random.random() < 0.3 and body["kind"] not in ("aggregate", "tree", "search", "lock"):
            return Probe("run", "POST", "/submit", [], body)
        if self.random.random() < 0.3:
            return Probe("block", "", "", [], body)
        return Probe("tree" if body["kind"] == "tree" else "action", "POST", "/code", [], body)

    def batch(self, meta: ModelMeta) -> Probe | None:
        """Another probe, as the second operation of a batch that fails at its end, so that nothing stays."""
        makers = (
            self.list_,
            self.include,
            self.nested_filter,
            self.read,
            self.write,
            self.create,
            self.nested,
        )
        probe = self.random.choice(makers)(meta)
        if probe is None:
            return None
        query = f"?{urlencode(list(probe.params))}" if probe.params else ""
        operation = {"method": probe.method, "path": probe.path + query}
        if probe.body is not None:
            operation["body"] = probe.body
        is_atomic = probe.method != "GET"
        operations = [{"method": "GET", "path": "/currencies"}, operation]
        if is_atomic:
            operations.append({"method": "GET", "path": "/nowhere"})
        return Probe("batch", "POST", "/batch", [], {"atomic": is_atomic, "operations": operations})

    def nested(self, meta: ModelMeta) -> Probe | None:
        """A change of a record of our own, or of another's, with records in its body."""
        if meta.cls is not Project and meta.cls is not Task:
            return None
        ids = {name: self.random.choice(["b1", "b2", "a2", "zz"]) for name in ("task", "note", "label")}
        forms: tuple[dict[str, Any], ...] = (
            {"tasks": {"update": [{"id": f"t-{ids['task']}", "title": "x"}]}},
            {"tasks": {"delete": [f"t-{ids['task']}"]}},
            {"labels": {"link": [f"label-{self.random.choice(['red', 'zz'])}"], "create": [{}]}},
            {"tasks": {"update": [{"id": f"t-{ids['task']}", "notes": {"delete": [f"n-{ids['note']}"]}}]}},
        )
        if meta.cls is Task:
            forms = ({"notes": {"update": [{"id": f"n-{ids['note']}", "text": "x"}]}},)
        own = self.random.random() < 0.5
        side = "a1" if own else self.random.choice(["b1", "b2", "zz"])
        return Probe(
            "nested", "PATCH", f"/{meta.table}/{PREFIXES[meta.name]}{side}", [], self.random.choice(forms)
        )

    # -- parts of requests

    def _paths(self, meta: ModelMeta, depth: int, *, to_one: bool = False) -> list[tuple[str, ...]]:
        paths: list[tuple[str, ...]] = []
        for name, relation in meta.relations.items():
            if to_one and relation.kind is not RelationKind.BELONGS_TO:
                continue
            paths.append((name,))
            if depth > 1:
                below = self._paths(self._metas[relation.target], depth - 1, to_one=to_one)
                paths += [(name, *rest) for rest in below]
        return paths

    def _end(self, meta: ModelMeta, path: tuple[str, ...]) -> ModelMeta:
        for name in path:
            meta = self._metas[meta.relations[name].target]
        return meta

    def _condition(self, meta: ModelMeta, path: tuple[str, ...]) -> str:
        candidates = self._end(meta, path).fields
        fields = [f for f in candidates if (f.filterable or f.blind_index) and f.kind is Kind.TEXT]
        field = self.random.choice(fields)
        op = self.random.choice(["eq", "neq", "contains", "not_null", "is_null", "in", "gt"])
        value = "" if op.endswith("null") else self.random.choice([*TEXTS, *IDS])
        return f"{'.'.join((*path, field.api))}:{op}:{value}".removesuffix(":")

    def _filters(self, meta: ModelMeta) -> list[tuple[str, str]]:
        if self.random.random() < 0.4:
            return []
        group = self.random.random() < 0.3
        return [
            (f"filter[{n % 2}]" if group else "filter", self._condition(meta, ()))
            for n in range(self.random.randint(1, 3))
        ]

    def _page(self, meta: ModelMeta) -> list[tuple[str, str]]:
        params = []
        if self.random.random() < 0.3:
            params += [("limit", str(self.random.randint(1, 4))), ("page", str(self.random.randint(1, 3)))]
        if self.random.random() < 0.2 and any(f.searchable for f in meta.fields):
            params.append(("q", self.random.choice(["common", "b", "of"])))
        return params

    def _id(self, meta: ModelMeta) -> str:
        prefix = PREFIXES.get(meta.name)
        likely = [one for one in IDS if prefix is not None and one.startswith(prefix)]
        return self.random.choice(likely if likely and self.random.random() < 0.8 else IDS)

    def _body(self, meta: ModelMeta, *, required: bool = True) -> dict[str, Any]:
        body: dict[str, Any] = {}
        for field in meta.fields:
            if field.name in ("id", "created_at", "updated_at", "deleted_at", "rank"):
                continue
            relations = meta.relations.values()
            targets = [
                r.target for r in relations if r.key == field.name and r.kind is RelationKind.BELONGS_TO
            ]
            if targets:
                if self.random.random() < (0.8 if required else 0.3):
                    prefix = PREFIXES.get(targets[0], "label-")
                    body[field.api] = prefix + self.random.choice(["a1", "a2", "b1", "b2", "b9", "red"])
            elif required or self.random.random() < 0.3:
                body[field.api] = self.random.choice(["x", "y", "1.common.b@x.org"])
        return body


# -- two worlds


class World(NamedTuple):
    """A server and its client; `outcomes` is what runs left behind."""

    server: Server
    http: httpx.AsyncClient
    outcomes: list[Any]


async def work(access: Any, body: dict[str, Any]) -> Any:
    """What code does to a model, as plain values."""
    try:
        return await _work(access, body)
    except RequestError as error:
        return [error.status, error.code, error.message]


async def _work(access: Any, body: dict[str, Any]) -> Any:
    kind, model, id = body["kind"], body["model"], body["id"]
    where = [tuple(body["where"])] if body["where"][1] in ("eq", "neq", "contains") else []
    match kind:
        case "count":
            return await access.db(model).count(where)
        case "list":
            return repr([vars(r) for r in await access.db(model).list(where, sorts="id")])
        case "include":
            records = await access.db(model).list(include=body["include"] or None, sorts="id")
            return [r.model_dump_json() for r in records]
        case "read":
            return repr(vars(await access.db(model).read(id)))
        case "aggregate":
            return await access.aggregate(model, select=[("count", None, "n")], where=where)
        case "tree":
            return repr(await access.recursive_query(Project, root_id=id, parent_field="parent_id"))
        case "search":
            return [hit.id for hit in await access.search(body["text"])]
    if is_own(id):
        return None  # rows of our own stay as they are
    async with access.transaction():
        match kind:
            case "update":
                return repr(await access.db(model).update(id))
            case "delete":
                return repr(await access.db(model).delete(id))
            case "lock":
                return repr(await access.lock_for_update(model, id))
    raise AssertionError(kind)


def is_own(id: str) -> bool:
    return id[1:3] == "-a"


@asynccontextmanager
async def world(url: str, *rules: Callable[[Server], None], sides: str) -> AsyncIterator[World]:
    server = make_server(*rules)
    outcomes: list[Any] = []

    @server.action("POST", "/code")
    async def code(ctx: Context) -> Any:
        return await work(ctx, await ctx.bind_json())

    @server.work.handler("probe.v1", scoped=True)
    async def probe(run: Run) -> None:
        outcomes.append(await work(server, run.payload))

    @server.action("POST", "/submit")
    async def submit(ctx: Context) -> None:
        await server.work.submit("probe.v1", await ctx.bind_json())

    async with serving(server, url, sides=tuple(sides), clock=FakeClock()) as http:
        yield World(server, http, outcomes)


async def answer(world: World, probe: Probe) -> tuple[Any, ...]:
    """What A learns by a request; what it created is taken away again."""
    if probe.surface == "block":
        async with world.server.scoped(auth=AuthInfo(user_id="ann", tenant_id="org-a")) as scope:
            return (await work(scope, probe.body),)
    response = await world.http.request(
        probe.method,
        f"/api{probe.path}",
        params=list[tuple[str, Any]](probe.params),
        json=probe.body,
        headers=A,
    )
    assert response.status_code < 500, (probe, response.text)
    if probe.surface == "run":
        world.outcomes.clear()
        await world.server.work.worker().drain()
        return (response.status_code, *world.outcomes)
    if response.status_code == 201:
        made = response.json()["data"]
        await world.server.raw_exec(f"DELETE FROM {probe.path.strip('/')} WHERE id = ?", made.pop("id"))
        return 201, made
    return response.status_code, response.content, response.headers.get("content-length")


async def rows_of_b(server: Server) -> str:
    """All that B has, deleted rows too."""
    tables = {model: server._seal().runtime.models[model].table for model in BOUND}
    rows = {
        t: await server.raw_query(f"SELECT * FROM {t} WHERE id LIKE ? ORDER BY id", "_-b%")
        for t in tables.values()
    }
    return repr(rows)


async def differences(
    urls: tuple[str, str], rules: list[Callable[[Server], None]], probes: int, seed: int
) -> tuple[Counter[str], list[Probe]]:
    """How many requests each surface had, and those that tell the two worlds apart."""
    asked: Counter[str] = Counter()
    leaks: list[Probe] = []
    async with world(urls[0], *rules, sides="ab") as full, world(urls[1], *rules, sides="a") as half:
        metas = {meta.name: meta for meta in full.server._seal().runtime.models.values()}
        before = await rows_of_b(full.server)
        asker = Asker(metas, seed)
        for _ in range(probes):
            probe = asker.next()
            if not rules and (probe.method == "DELETE" or (probe.body or {}).get("kind") == "delete"):
                continue  # there would soon be nothing left to see
            asked[probe.surface] += 1
            if await answer(full, probe) != await answer(half, probe):
                leaks.append(probe)
        if rules:
            assert await rows_of_b(full.server) == before
    return asked, leaks


@pytest.fixture
def urls(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if database_url.startswith("sqlite"):
        return database_url, f"sqlite:///{tmp_path}/twin.db"
    return database_url, request.getfixturevalue("new_postgres_url")()


async def test_no_answer_tells_of_another_org(urls: tuple[str, str], long_mode: bool) -> None:
    """Must show 3: all surfaces, 1,000 requests a database, or 20,000."""
    asked, leaks = await differences(urls, [bind_all], 20_000 if long_mode else 1_000, seed=10)
    assert not leaks, (len(leaks), leaks[:3])
    assert set(asked) == SURFACES
    assert min(asked.values()) >= 10, asked


async def test_without_rules_every_surface_would_tell(urls: tuple[str, str]) -> None:
    """The probes of the matrix see what there is to see."""
    _, leaks = await differences(urls, [], 600, seed=11)
    assert {probe.surface for probe in leaks} == SURFACES
