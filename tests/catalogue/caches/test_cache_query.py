"""D20 to D25, C44: answers from a cache."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from maniflex import AuthInfo, Context, DeclarationError, Server
from maniflex.middleware import db, stores
from tests.catalogue.caches.world import Everything, Org, Owner, Project, asking, cached
from tests.kit.http import error_of

FORMS = [stores.SqlStore, stores.MemoryStore]


@pytest.mark.parametrize("form", FORMS)
async def test_a_hit_leaves_out_the_database_and_is_the_same_bytes(database_url: str, form: Any) -> None:
    async with asking(cached(store=form()), database_url) as world:
        owner = await world.make("/owners", name="Ada")
        for number in range(3):
            project = await world.make("/projects", name=f"p{number}", owner_id=owner["id"])
        paths = (
            "/projects",
            "/projects?sort=name:desc&limit=2",
            "/projects?filter=name:eq:p1&include=owner",
            "/projects?select=name&page=2&limit=2",
            f"/projects/{project['id']}",
            f"/projects/{project['id']}?include=owner",
            "/owners",
            "/orgs?include=projects.owner",
        )
        for path in paths:
            miss, statements = await world.get(path)
            assert statements > 0, path
            hit, statements = await world.get(path)
            assert statements == 0, path
            assert (hit.content, hit.status_code) == (miss.content, miss.status_code), path
            head = await world.http.head(path)
            assert head.headers["content-length"] == miss.headers["content-length"]


async def test_values_of_every_kind_come_back_as_they_were(database_url: str) -> None:
    async with asking(cached(), database_url) as world:
        await world.make("/everything")
        record = await world.make(
            "/everything",
            flag=False,
            amount="12.3400",
            ratio=0.1,
            at="2026-01-02T03:04:05.678901Z",
            day="2026-01-02",
            clock="03:04:05.5",
            code="12345678-1234-5678-1234-567812345678",
            content="aGk=",
            data={"a": [1, 2.5, None, "x"]},
        )
        for path in ("/everything", f"/everything/{record['id']}"):
            miss, _ = await world.get(path)
            hit, statements = await world.get(path)
            assert statements == 0
            assert hit.content == miss.content
            assert hit.headers.get("etag") == miss.headers.get("etag")


async def test_a_hit_never_crosses_a_scope(database_url: str) -> None:
    """C44: organisations A and B ask the same URL, in both orders."""
    for first, second in (("A", "B"), ("B", "A")):
        async with asking(cached(), database_url) as world:
            for org in ("A", "B"):
                await world.make("/projects", name=f"of {org}", org=org)
            for org in (first, second, first, second):
                answer, _ = await world.get("/projects", x_org=org)
                assert {project["org"] for project in answer.json()["data"]} == {org}
            for org in (first, second):
                assert await world.hits("/projects", x_org=org)
            await world.server.raw_exec("DELETE FROM projects")


async def test_a_write_makes_the_next_list_new_and_a_rollback_does_not(database_url: str) -> None:
    """C44: A's write shows in A's next list; a rolled-back write leaves the cache as it is."""
    server = cached()

    @server.action("POST", "/fail")
    async def fail(ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.db(Project).create(name="never")
            ctx.abort(409, "NO", "never")

    async with asking(server, database_url) as world:
        await world.make("/projects", name="one")
        assert not await world.hits("/projects")
        assert await world.hits("/projects")

        error_of(await world.http.post("/fail"), 409, "NO")
        assert await world.hits("/projects")

        await world.make("/projects", name="two")
        answer, statements = await world.get("/projects")
        assert statements > 0
        assert answer.json()["meta"]["total"] == 2


async def changes(world: Any) -> Any:
    """Every way to write, each with the model it writes to."""
    http, server = world.http, world.server
    org = await world.make("/orgs", name="o")
    owner = await world.make("/owners", name="Ada")
    project = await world.make("/projects", name="p", org_id=org["id"], owner_id=owner["id"])
    other = await world.make("/projects", name="q", org_id=org["id"], owner_id=owner["id"])
    id = project["id"]
    yield "update", http.patch(f"/projects/{id}", json={"name": "x"})
    yield "code update", server.db(Project).update(id, name="y")
    yield "increment", server.db(Project).increment(id, stars=2)
    yield "delete", http.delete(f"/projects/{id}")
    yield "restore", http.post(f"/projects/{id}/restore")
    yield "code create", server.db(Project).create(name="z")
    yield "execute", server.execute("create", Project, body={"name": "w"})
    yield "set_null", http.delete(f"/owners/{owner['id']}")
    yield "cascade", http.delete(f"/orgs/{org['id']}")
    assert other


async def test_every_way_to_write_is_noticed(database_url: str) -> None:
    """D23: requests, code and cascades alike."""
    async with asking(cached(), database_url) as world:
        async for name, write in changes(world):
            await world.get("/projects")
            assert await world.hits("/projects"), name
            await write
            assert not await world.hits("/projects"), name


async def test_a_write_to_a_model_that_is_joined_is_noticed(database_url: str) -> None:
    async with asking(cached(), database_url) as world:
        owner = await world.make("/owners", name="Ada")
        await world.make("/projects", name="p", owner_id=owner["id"])
        joined = ("/projects?include=owner", "/projects?filter=owner.name:eq:Ada")
        for path in (*joined, "/projects"):
            await world.get(path)
            assert await world.hits(path)
        await world.http.patch(f"/owners/{owner['id']}", json={"name": "Bob"})
        for path in joined:
            assert not await world.hits(path)
        assert await world.hits("/projects")
        answer, _ = await world.get("/projects?include=owner")
        assert answer.json()["data"][0]["owner"]["name"] == "Bob"


async def test_a_slow_reader_puts_no_old_row_back(postgres_url: str) -> None:
    """D23: what was read before a write is stored where nobody looks after it."""
    server = cached()
    entered, go_on = asyncio.Event(), asyncio.Event()

    async with asking(server, postgres_url) as world:
        await world.make("/projects", name="old")
        real = world.adapter.fetch

        async def slow(sql: Any, budget: Any = None) -> Any:
            rows = await real(sql, budget)
            if "projects" in sql.text:
                entered.set()
                await go_on.wait()
            return rows

        world.adapter.fetch = slow  # type: ignore[method-assign]  # the reader that is slow
        reader = asyncio.create_task(world.http.get("/projects"))
        await entered.wait()
        world.adapter.fetch = real  # type: ignore[method-assign]
        await world.make("/projects", name="new")
        go_on.set()
        assert (await reader).json()["meta"]["total"] == 1
        assert (await world.get("/projects"))[0].json()["meta"]["total"] == 2


async def test_what_callers_may_see_is_decided_on_every_request(database_url: str) -> None:
    """C44, last: a caller who sees less, after one who sees more; middleware runs on a hit as on a miss."""
    server = cached()
    seen: list[str] = []

    @server.pipeline.response.middleware(models=Project, at="after")
    async def hide(ctx: Context, next: Any) -> None:
        if ctx.response is not None and ctx.header("x-role") != "admin":
            for record in ctx.response.data:
                del record["name"]
        await next()

    @server.pipeline.db.middleware(models=Project, operations="list", at="after")
    async def after(ctx: Context, next: Any) -> None:
        seen.append(str(ctx.result.total))
        await next()

    async with asking(server, database_url) as world:
        await server.db(Project).create(name="p")
        open_answer, _ = await world.get("/projects", x_role="admin")
        closed_answer, statements = await world.get("/projects")
        assert statements == 0
        assert "name" in open_answer.json()["data"][0]
        assert "name" not in closed_answer.json()["data"][0]
        assert seen == ["1", "1"]


async def test_entries_end_with_their_time(database_url: str) -> None:
    async with asking(cached(ttl=60), database_url) as world:
        await world.get("/projects")
        world.clock.advance(timedelta(seconds=59))
        assert await world.hits("/projects")
        world.clock.advance(timedelta(seconds=2))
        assert not await world.hits("/projects")


async def test_without_invalidation_entries_stay_until_then(database_url: str) -> None:
    async with asking(cached(ttl=60, invalidate=False), database_url) as world:
        await world.get("/projects")
        await world.make("/projects", name="p")
        assert await world.hits("/projects")
        world.clock.advance(timedelta(seconds=61))
        assert (await world.get("/projects"))[0].json()["meta"]["total"] == 1


async def test_a_key_adds_and_none_skips(database_url: str) -> None:
    server = cached(key=lambda ctx: ctx.header("x-key"))
    async with asking(server, database_url) as world:
        assert not await world.hits("/projects")
        assert not await world.hits("/projects")
        assert not await world.hits("/projects", x_key="a")
        assert not await world.hits("/projects", x_key="b")
        assert await world.hits("/projects", x_key="a")


async def test_secrets_are_not_stored(database_url: str) -> None:
    store = stores.MemoryStore()
    async with asking(cached(store=store), database_url) as world:
        await world.make("/projects", name="visible")
        await world.get("/projects")
        content = b"".join(value for value, _ in store._entries.values() if isinstance(value, bytes))
        assert b"visible" in content
        assert b"secret" not in content


async def test_refusals_exports_and_reads_in_a_transaction_go_past(database_url: str) -> None:
    server = cached(store=(store := stores.MemoryStore()))

    @server.pipeline.service.middleware(models=Org, operations="list")
    async def within(ctx: Context, next: Any) -> None:
        async with ctx.transaction():
            await next()

    async with asking(server, database_url) as world:
        for path in ("/projects/unknown", "/projects/export?format=csv", "/orgs"):
            for _ in range(2):
                await world.get(path)
        assert [key for _, key in store._entries if key.startswith("query:")] == []
        spec = '{"select":[{"op":"count","as":"n"}]}'
        for _ in range(2):
            answer = await world.http.get("/projects/aggregate", params={"aggregate": spec})
            assert answer.json()["data"] == [{"n": 0}]


async def test_equal_misses_at_once_make_one_query(database_url: str) -> None:
    """D25: twenty callers, one statement on the table."""
    async with asking(cached(store=stores.MemoryStore()), database_url) as world:
        await world.make("/projects", name="p")
        await world.http.get("/owners")
        world.adapter.statements.clear()
        answers = await asyncio.gather(*(world.http.get("/projects") for _ in range(20)))
        assert len(world.adapter.statements) == 1
        assert len({answer.content for answer in answers}) == 1


class Broken:
    """A store that is away."""

    async def get(self, key: str) -> bytes | None:
        raise stores.StoreUnavailable("away")

    set = delete = increment = get


async def test_a_store_that_fails_is_a_miss(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with asking(cached(store=Broken()), database_url) as world:
        await world.make("/projects", name="p")
        for _ in range(3):
            answer, statements = await world.get("/projects")
            assert (answer.status_code, statements) == (200, 1)
    assert len([line for line in caplog.messages if "the store failed" in line]) == 1


async def test_an_entry_that_cannot_be_read_is_a_miss_and_is_deleted(database_url: str) -> None:
    store = stores.MemoryStore()
    async with asking(cached(store=store), database_url) as world:
        await world.make("/projects", name="p")
        await world.get("/projects")
        [key] = [key for _, key in store._entries if key.startswith("query:")]
        for rubbish in (b"", b"rubbish", b"\x94\x01\x02\x03\x04"):
            await store.set(key, rubbish, 60)
            answer, statements = await world.get("/projects")
            assert (answer.json()["meta"]["total"], statements) == (1, 1)
            assert await world.hits("/projects")


async def test_own_keys_are_invalidated_after_the_commit_alone(database_url: str) -> None:
    """D24: and never after a rollback."""
    store = stores.MemoryStore()
    server = Server(path_prefix="")
    server.register(Owner, Project, Org)
    server.pipeline.db.register(
        db.cache_query(store, key=lambda ctx: "owners", invalidate=False), models=Owner
    )
    keys = db.invalidate(store, lambda ctx: ["owners", "mine"])
    server.pipeline.db.register(keys, models=Owner, operations=["create"], at="after")

    @server.pipeline.service.middleware(models=Owner, operations="create")
    async def within(ctx: Context, next: Any) -> None:
        async with ctx.transaction():
            await next()
            assert await store.get("mine") == b"1"
            if ctx.field("name") == "never":
                ctx.abort(409, "NO", "never")

    async with asking(server, database_url) as world:
        await store.set("mine", b"1", 60)
        await world.get("/owners")
        error_of(await world.http.post("/owners", json={"name": "never"}), 409, "NO")
        assert await store.get("mine") == b"1"
        assert await world.hits("/owners")
        await world.make("/owners", name="Ada")
        assert await store.get("mine") is None
        assert not await world.hits("/owners")


async def test_models_nobody_listens_to_stay_as_they_are(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Owner, Everything)
    server.pipeline.db.register(db.cache_query(), models=Everything)
    async with asking(server, database_url):
        stores_by_model = server._seal().runtime.stores
        assert not stores_by_model[Owner].seam.listeners
        assert stores_by_model[Everything].seam.listeners


async def test_runs_and_their_like_are_not_cached(database_url: str) -> None:
    """They change by statements of their own, so a cached list of them would be old at once."""
    from maniflex.background.runs.model import WorkflowRun

    server = cached(store=(store := stores.MemoryStore()))

    @server.work.handler("mail.send")
    async def send(run: Any) -> None: ...

    async with asking(server, database_url) as world:
        assert not server._seal().runtime.stores[WorkflowRun].seam.listeners
        await server.execute("list", WorkflowRun, auth=AuthInfo(user_id="ada", roles=["admin"]))
        assert [key for _, key in store._entries if key.startswith("query:")] == []
        await world.get("/projects")
        assert [key for _, key in store._entries if key.startswith("query:")] != []


def test_named_they_stop_the_start() -> None:
    server = Server(path_prefix="")
    server.register(Owner)

    @server.work.handler("mail.send")
    async def send(run: Any) -> None: ...

    server.pipeline.db.register(db.cache_query(), models="WorkflowRun")
    with pytest.raises(DeclarationError, match="WorkflowRun changes by itself"):
        server.seal()


def test_secret_and_computed_fields_together_stop_the_start() -> None:
    server = cached()

    @server.computed(Project, "label")
    def label(record: Project) -> str:
        return record.pin

    with pytest.raises(DeclarationError, match="Project has secret fields"):
        server.seal()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl": 0}, "ttl=0 is not a time"),
        ({"ttl": "x"}, "ttl='x' is not a time"),
        ({"key": "k"}, "key='k' is not a function"),
        ({"store": object()}, "is no cache"),
        ({"store": stores.MemoryStore(0)}, "max_entries"),
    ],
)
def test_wrong_arguments_stop_the_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        cached(**options).seal()
    assert message in str(caught.value)
