"""Code in requests is bound like the requests (C21, D5), and `ctx.unscoped()` is the way out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Next, Server
from maniflex.encryption import MemoryKeyProvider
from maniflex.errors import ForeignKeyViolation, NotFound, OutOfScope, RawSqlRefused, ValidationFailed
from maniflex.middleware import db
from tests.catalogue.scopes.world import (
    NO_ORG,
    A,
    Currency,
    Member,
    Org,
    Project,
    ProjectLabel,
    Task,
    bind_all,
    make_server,
    serving,
)
from tests.kit.http import data_of, error_of

Body = Callable[[Any], Awaitable[Any]]


async def count(access: Any) -> Any:
    return await access.db(Project).count()


async def listed(access: Any) -> Any:
    return sorted(p.id for p in await access.db(Project).list(sorts="rank"))


async def exists(access: Any) -> Any:
    return await access.db(Project).exists("p-b1"), await access.db(Project).exists(name="common 1 of b")


async def aggregated(access: Any) -> Any:
    return await access.aggregate(Project, select=[("count", None, "n")], group_by="org_id")


async def found(access: Any) -> Any:
    return sorted(hit.id for hit in await access.search("common", limit=50))


async def tree(access: Any) -> Any:
    rows = await access.recursive_query(Project, root_id="p-b1", parent_field="parent_id")
    return [row["id"] for row in rows]


async def included(access: Any) -> Any:
    orgs = await access.db(Org).list(include=["projects", "members"], sorts="id")
    return [(len(org.projects), len(org.members)) for org in orgs]


async def through_filter(access: Any) -> Any:
    return [org.id for org in await access.db(Org).list({"projects.name": "common 1 of b"})]


async def through_where(access: Any) -> Any:
    rows = await access.aggregate(
        Org, select=[("count", None, "n")], where=[("projects.name", "eq", "common 1 of b")]
    )
    return rows[0]["n"]


async def unbound_model(access: Any) -> Any:
    return await access.db(Currency).count()


async def written(access: Any) -> Any:
    """Every write to a foreign record: as if it were absent."""
    records = access.db(Project)
    writes: list[Callable[[], Awaitable[Any]]] = [
        lambda: records.update("p-b1", name="taken"),
        lambda: records.delete("p-b1"),
        lambda: records.increment("p-b1", rank=1),
        lambda: records.restore("p-b9"),
        lambda: access.lock_for_update(Project, "p-b1"),
        lambda: records.read("p-b1"),
    ]
    outcomes = []
    for write in writes:
        try:
            async with access.transaction():
                await write()
        except NotFound:
            outcomes.append("absent")
        else:
            outcomes.append("done")
    return outcomes


def add_action(server: Server, path: str, body: Body, *, unscoped: bool = False, **options: Any) -> None:
    """An action that answers with what the body gives."""

    async def handler(ctx: Context) -> Any:
        return await body(ctx.unscoped() if unscoped else ctx)

    server.action("POST", path, name=path.strip("/"), **options)(handler)


SEEN: dict[Body, tuple[Any, Any]] = {
    count: (3, 6),
    listed: (["p-a1", "p-a2", "p-a3"], ["p-a1", "p-a2", "p-a3", "p-b1", "p-b2", "p-b3"]),
    exists: ([False, False], [True, True]),
    aggregated: ([{"org_id": "org-a", "n": 3}], None),
    found: (["m-a1", "m-a2", "m-a3", "p-a1", "p-a2", "p-a3", "t-a1", "t-a2", "t-a3"], None),
    tree: ([], ["p-b1", "p-b2", "p-b3"]),
    included: ([[3, 3], [0, 0]], [[3, 3], [3, 3]]),
    through_filter: ([], ["org-b"]),
    through_where: (0, 1),
    unbound_model: (2, 2),
    written: (["absent"] * 6, ["done", "done", "absent", "done", "absent", "absent"]),
}


@pytest.mark.parametrize("body", SEEN, ids=lambda body: body.__name__)
async def test_code_in_an_action_sees_its_own_org(database_url: str, body: Body) -> None:
    """C21: all methods, and all of them again through `ctx.unscoped()`."""
    server = make_server(bind_all)
    add_action(server, "/bound", body)
    add_action(server, "/free", body, unscoped=True)
    bound, free = SEEN[body]
    async with serving(server, database_url) as http:
        assert data_of(await http.post("/api/bound", headers=A)) == bound
        if body is not unbound_model:
            error_of(await http.post("/api/bound", headers=NO_ORG), 403, "FORBIDDEN")
        unbound = data_of(await http.post("/api/free", headers=NO_ORG))
        assert unbound == free if free is not None else unbound != bound


async def test_creates_of_code_are_stamped(database_url: str) -> None:
    """C21, D5: and what they refer to lies inside."""
    server = make_server(bind_all)

    @server.action("POST", "/make")
    async def make(ctx: Context) -> Any:
        made = await ctx.db(Project).create(name="n")
        with pytest.raises(ValidationFailed):
            await ctx.db(Project).create(name="n", org_id="org-b")
        with pytest.raises(ForeignKeyViolation):
            await ctx.db(Project).create(name="n", parent_id="p-b1")
        with pytest.raises(NotFound):
            await ctx.db(Task).create(title="t", project_id="p-b1")
        with pytest.raises(NotFound):
            await ctx.db(Task).update("t-a1", project_id="p-b1")
        with pytest.raises(NotFound):
            await ctx.db(ProjectLabel).create(project_id="p-b1", label_id="label-red")
        return made.org_id

    async with serving(server, database_url) as http:
        assert data_of(await http.post("/api/make", headers=A)) == "org-a"
        assert await server.db(Project).count({"org_id": "org-b"}) == 3


@pytest.mark.parametrize("call", ["raw_query", "raw_exec"])
async def test_raw_sql_of_actions_is_refused(
    database_url: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C21: 500 and a log line; `ctx.unscoped()` and model requests may."""
    server = make_server(bind_all)
    sql = "SELECT id FROM projects" if call == "raw_query" else "UPDATE projects SET rank = 0"

    async def run(access: Any) -> Any:
        outcome = await getattr(access, call)(sql)
        return outcome if isinstance(outcome, int) else len(outcome)

    add_action(server, "/bound", run)
    add_action(server, "/free", run, unscoped=True)

    @server.pipeline.service.middleware(models=[Currency])
    async def look(ctx: Context, next: Next) -> None:
        await run(ctx)
        await next()

    async with serving(server, database_url) as http:
        error_of(await http.post("/api/bound", headers=A), 500, "INTERNAL")
        assert "ctx.unscoped()" in caplog.text
        assert data_of(await http.post("/api/free", headers=A)) == 8
        assert (await http.get("/api/currencies", headers=A)).status_code == 200


async def test_raw_sql_stays_open_without_rules(database_url: str) -> None:
    server = make_server()

    @server.action("GET", "/raw")
    async def raw(ctx: Context) -> Any:
        return len(await ctx.raw_query("SELECT id FROM projects"))

    async with serving(server, database_url) as http:
        assert data_of(await http.get("/api/raw")) == 8


async def test_code_in_model_requests_is_bound_too(database_url: str) -> None:
    """D5: in requests to bound models and to others."""
    server = make_server(bind_all)
    seen: list[Any] = []

    @server.pipeline.service.middleware(models=[Currency, Project], operations=["list"])
    async def look(ctx: Context, next: Next) -> None:
        async with ctx.transaction():
            seen.append((await ctx.db(Project).count(), await ctx.db(Member).count()))
        await next()

    async with serving(server, database_url) as http:
        for path in ("/currencies", "/projects"):
            assert (await http.get(f"/api{path}", headers=A)).status_code == 200
    assert seen == [(3, 3), (3, 3)]


async def test_a_rule_may_stand_in_one_action(database_url: str) -> None:
    """X5: it binds the code of that action, and closes raw SQL there."""
    server = make_server()

    async def counts(ctx: Context) -> Any:
        return await ctx.db(Project).count(), await ctx.db(Currency).count(), await ctx.db(Org).count()

    async def raw(ctx: Context) -> Any:
        return await ctx.raw_query("SELECT 1")

    add_action(server, "/bound", counts, middleware=[db.tenancy("org_id")])
    add_action(server, "/raw", raw, middleware=[db.tenancy("org_id")])
    add_action(server, "/free", counts)
    async with serving(server, database_url) as http:
        assert data_of(await http.post("/api/bound", headers=A)) == [3, 2, 2]
        assert data_of(await http.post("/api/free", headers=A)) == [6, 2, 2]
        assert (await http.post("/api/bound", headers=NO_ORG)).status_code == 403
        assert (await http.post("/api/raw", headers=A)).status_code == 500


async def test_a_block_outside_requests_is_bound(database_url: str) -> None:
    """D6: `server.scoped` binds its object and `server.db`; outside the block nothing is bound."""
    server = make_server(bind_all)
    async with serving(server, database_url):
        async with server.scoped(auth=AuthInfo(user_id="ann", tenant_id="org-a")) as scope:
            for body, (bound, _) in SEEN.items():
                assert json.loads(json.dumps(await body(scope))) == bound, body.__name__
            assert await server.db(Project).count() == 3
            with pytest.raises(NotFound):
                await server.db(Project).read("p-b1")
            assert (await server.db(Project).create(name="n")).org_id == "org-a"
            for raw in (server.raw_query, scope.raw_query):
                with pytest.raises(RawSqlRefused):
                    await raw("SELECT 1")
            assert await scope.unscoped().db(Project).count() == 7
            assert len(await scope.unscoped().raw_query("SELECT id FROM orgs")) == 2
        assert await server.db(Project).count() == 7
        async with server.scoped(auth=AuthInfo(user_id="ann")) as scope:
            with pytest.raises(OutOfScope):
                await scope.db(Project).list()
            assert await scope.db(Currency).count() == 2


async def test_execute_is_bound_by_its_identity(database_url: str) -> None:
    """X11: without one the call is anonymous."""
    server = Server()
    server.set_key_provider(MemoryKeyProvider({"default": bytes(range(32))}))
    server.register(Org, Member, Project, Task, *_others())
    server.pipeline.auth.register(db.tenancy("org_id"), models=[Project])
    async with serving(server, database_url):
        listed = await server.execute("list", Project, auth=AuthInfo(user_id="ann", tenant_id="org-a"))
        assert {row["org_id"] for row in listed.data} == {"org-a"}
        assert (await server.execute("list", Project)).status == 403
        assert (await server.execute("read", Project, "p-b1", auth=AuthInfo(tenant_id="org-a"))).status == 404


def _others() -> list[Any]:
    from tests.catalogue.scopes import world

    return [model for model in world.MODELS if model not in (Org, Member, Project, Task)]
