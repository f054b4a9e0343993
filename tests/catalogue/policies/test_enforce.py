"""Policies: what they see, how they fail, what they are made of, and what stands beside them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest
from openapi_spec_validator import validate

from maniflex import (
    AuthInfo,
    Context,
    Model,
    Next,
    Operation,
    Server,
    field,
    has_many,
    with_transaction,
)
from maniflex.middleware import auth, db, idempotency, response
from maniflex.middleware import validate as rules
from maniflex.testing import client
from tests.catalogue.policies.world import (
    ADMIN,
    ANN,
    Doc,
    DocTag,
    Note,
    Shelf,
    Tag,
    app,
    house,
    identify,
    names,
    not_archived,
    where_not_archived,
)
from tests.kit.declarations import refusal_of
from tests.kit.http import created, data_of, error_of, together

OPEN = ["alpha", "gamma"]


# -- what a policy sees, and how it answers


async def test_a_policy_sees_typed_records_with_their_secrets(database_url: str) -> None:
    seen: list[tuple[Operation, Any]] = []

    def remember(ctx: Context, doc: Doc) -> bool:
        seen.append((ctx.operation, doc))
        return True

    async with house(app(remember), database_url) as world:
        seen.clear()
        for path in ("/docs", f"/docs/{world.ids['alpha']}", "/shelves?include=docs"):
            answer = await world.get(path)
            assert "pin-" not in answer.text
        assert {operation for operation, _ in seen} == {Operation.LIST, Operation.READ}
        assert all(type(doc) is Doc and doc.pin.startswith("pin-") for _, doc in seen)


async def test_what_a_policy_does_to_a_new_record_is_not_stored(database_url: str) -> None:
    def scribble(ctx: Context, doc: Doc) -> bool:
        doc.title = "scribbled"
        return True

    async with client(app(scribble), database=database_url) as http:
        made = await created(http, "/api/docs", title="paper one")
        assert made["title"] == "paper one"
        assert data_of(await http.get(f"/api/docs/{made['id']}"))["title"] == "paper one"


async def test_a_new_record_is_judged_as_middleware_and_scopes_leave_it(database_url: str) -> None:
    seen: list[str | None] = []

    def remember(ctx: Context, doc: Doc) -> bool:
        seen.append(doc.shelf_id)
        return True

    server = app(remember)
    server.pipeline.auth.register(db.force_filter("name", "one"), models=Shelf)
    server.pipeline.auth.register(db.force_filter("rank", 7), models=Doc)

    @server.pipeline.service.middleware(models=Doc, operations="create")
    async def on_no_shelf(ctx: Context, next: Next) -> None:
        ctx.set_field("title", "paper set")
        await next()

    async with client(server, database=database_url) as http:
        made = await created(http, "/api/docs", title="paper one", rank=1)
        assert (made["title"], made["rank"]) == ("paper set", 7)
        assert seen == [None]


def plain(verdict: Any) -> Callable[..., Any]:
    return lambda ctx, doc: verdict


def waiting(verdict: Any) -> Callable[..., Any]:
    async def policy(ctx: Context, doc: Doc) -> Any:
        await asyncio.sleep(0)
        return verdict

    return policy


def failing(ctx: Context, doc: Doc) -> bool:
    raise AssertionError("must not be asked")


@pytest.mark.parametrize(
    ("policy", "allows"),
    [
        (plain(True), True),
        (plain(False), False),
        (plain(None), False),
        (waiting(True), True),
        (waiting(None), False),
        (auth.all_of(plain(True), waiting(True)), True),
        (auth.all_of(waiting(False), failing), False),
        (auth.any_of(waiting(True), failing), True),
        (auth.any_of(plain(False), waiting(False)), False),
        (auth.not_(waiting(False)), True),
        (auth.not_(auth.any_of(plain(False), auth.all_of(plain(True), waiting(True)))), False),
    ],
)
async def test_policies_are_plain_or_async_and_stop_when_it_is_decided(
    policy: Any, allows: bool, sqlite_url: str
) -> None:
    async with client(app(policy), database=sqlite_url) as http:
        made = await http.post("/api/docs", json={"title": "x"})
        assert made.status_code == (201 if allows else 403)


@pytest.mark.parametrize("wrap", [lambda p: p, auth.all_of, auth.any_of, auth.not_])
async def test_a_policy_that_raises_is_500_and_the_log_says_why(
    wrap: Any, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(ctx: Context, doc: Doc) -> bool:
        if ctx.auth is None or ctx.auth.user_id == "ann":
            raise KeyError("no-such-thing")
        return wrap is not auth.not_

    async with house(app(wrap(broken)), database_url) as world:
        path = f"/docs/{world.ids['alpha']}"
        for answer in (
            await world.get(path),
            await world.get("/docs"),
            await world.get("/shelves?include=docs"),
            await world.http.patch(f"/api{path}", json={"rank": 9}, headers=ANN),
            await world.http.delete(f"/api{path}", headers=ANN),
            await world.http.post("/api/docs", json={"title": "x"}, headers=ANN),
        ):
            error_of(answer, 500, "INTERNAL")
            assert "no-such-thing" not in answer.text
        assert "no-such-thing" in caplog.text
        assert data_of(await world.get(path, ADMIN))["rank"] == 0


async def test_an_abort_keeps_its_status(database_url: str) -> None:
    def gone(ctx: Context, doc: Doc) -> bool:
        if doc.archived and not ctx.has_role("admin"):
            ctx.abort(410, "GONE", "it is in the archive")
        return True

    async with house(app(auth.all_of(gone)), database_url) as world:
        error_of(await world.get(f"/docs/{world.ids['beta']}"), 410, "GONE")
        error_of(await world.get("/docs"), 410, "GONE")


async def test_all_policies_of_a_model_must_allow(database_url: str) -> None:
    server = app(where=where_not_archived)
    server.pipeline.db.register(auth.enforce(lambda ctx, doc: doc.rank != 2), models=[Doc], operations="list")
    async with house(server, database_url) as world:
        answer = await world.get("/docs")
        assert names(data_of(answer)) == ["alpha"]
        assert "total" not in answer.json()["meta"]  # one of the two has no where
        assert (await world.get(f"/docs/{world.ids['gamma']}")).status_code == 200


async def test_operations_say_what_is_judged(database_url: str) -> None:
    async with house(app(operations="update"), database_url) as world:
        assert (await world.get("/docs")).json()["meta"]["total"] == 4
        assert (await world.get("/shelves?filter=docs.archived:eq:true")).json()["meta"]["total"] == 1
        path = f"/api/docs/{world.ids['beta']}"
        assert (await world.http.patch(path, json={"rank": 1}, headers=ANN)).status_code == 403
        assert (await world.http.delete(path, headers=ANN)).status_code == 204
        assert (await world.http.post(f"{path}/restore", headers=ANN)).status_code == 403


# -- writes


async def test_the_second_of_two_updates_is_judged_by_the_row_as_the_first_left_it(
    database_url: str,
) -> None:
    """The first archives the row, which only the admin may; the second began while it was open."""
    judged = asyncio.Event()
    goes_on = asyncio.Event()

    async def policy(ctx: Context, doc: Doc) -> bool:
        if ctx.has_role("admin") and ctx.operation is Operation.UPDATE:
            judged.set()
            await goes_on.wait()
        return not_archived(ctx, doc)

    server = app(policy)
    server.pipeline.db.register(hold_open := HoldOpen(), models=[Doc], operations="update", name="hold")
    async with client(server, database=database_url) as http:
        made = await created(http, "/api/docs", title="paper one")
        path = f"/api/docs/{made['id']}"
        first = asyncio.create_task(http.patch(path, json={"archived": True}, headers=ADMIN))
        await judged.wait()
        second = asyncio.create_task(http.patch(path, json={"rank": 5}, headers=ANN))
        await hold_open.reached.wait()
        goes_on.set()
        assert (await first).status_code == 200
        error_of(await second, 403, "FORBIDDEN")
        assert data_of(await http.get(path, headers=ADMIN))["rank"] == 0


class HoldOpen:
    """Says when the request of a plain caller is about to touch the row."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def __call__(self, ctx: Context, next: Next) -> None:
        if not ctx.has_role("admin"):
            self.reached.set()
        await next()


async def test_of_many_who_take_a_free_row_at_once_one_has_it(database_url: str) -> None:
    """Each may change what is free or their own, so all but the first come too late."""
    server = app(lambda ctx, doc: doc.title in ("free", ctx.header("x-user")))
    async with client(server, database=database_url) as http:
        path = f"/api/docs/{(await created(http, '/api/docs', title='free'))['id']}"
        answers = await together(
            8, lambda n: http.patch(path, json={"title": f"u{n}"}, headers={"x-user": f"u{n}"})
        )
        winners = [n for n, answer in enumerate(answers) if answer.status_code == 200]
        assert sorted(answer.status_code for answer in answers) == [200, *[403] * 7]
        kept = await http.get(path, headers={"x-user": f"u{winners[0]}"})
        assert data_of(kept)["title"] == f"u{winners[0]}"


async def test_a_denied_write_takes_back_the_transaction_it_joined(database_url: str) -> None:
    server = app()
    server.pipeline.service.register(with_transaction(), models=[Doc])

    @server.pipeline.service.middleware(models=[Doc], operations="update")
    async def note_it(ctx: Context, next: Next) -> None:
        await ctx.db(Note).create(doc_id=ctx.resource_id, text="a change")
        await next()

    async with house(server, database_url) as world:
        path = f"/api/docs/{world.ids['alpha']}"
        denied = await world.http.patch(path, json={"archived": True}, headers=ANN)
        error_of(denied, 403, "FORBIDDEN")
        assert (await world.get("/notes?filter=text:eq:a change")).json()["meta"]["total"] == 0
        data_of(await world.http.patch(path, json={"rank": 8}, headers=ANN))
        assert (await world.get("/notes?filter=text:eq:a change")).json()["meta"]["total"] == 1


class Ticket(Model):
    state: str = field(default="open", lock_when={"state": "closed"})
    owner: str = ""
    hours: int = field(default=0, min=0)


class Settings(Model, singleton=True):
    theme: str = "light"
    frozen: bool = False


async def test_a_locked_row_that_is_denied_says_only_that(database_url: str) -> None:
    """Also where the body breaks rules: which of its states a row is in is not for everybody."""
    server = Server()
    server.register(Ticket)
    server.pipeline.auth.register(identify)
    own = auth.enforce(lambda ctx, ticket: ctx.auth is not None and ticket.owner == ctx.auth.user_id)
    server.pipeline.db.register(own, models=[Ticket])
    server.pipeline.validate.register(
        rules.cross_field(lambda values: {"hours": "too many"} if values["hours"] > 99 else None),
        models=[Ticket],
    )
    bob = {"x-user": "bob"}
    async with client(server, database=database_url) as http:
        made = data_of(
            await http.post("/api/tickets", json={"owner": "ann", "state": "closed"}, headers=ANN), 201
        )
        path = f"/api/tickets/{made['id']}"
        for body in ({"hours": 1}, {"hours": -1}, {"hours": 100}, {"hours": "x"}, {}):
            error_of(await http.patch(path, json=body, headers=bob), 403, "FORBIDDEN")
            assert (await http.patch(path, json=body, headers=ANN)).json()["error"]["code"] == "RECORD_LOCKED"
        error_of(await http.delete(path, headers=bob), 403, "FORBIDDEN")
        error_of(await http.post("/api/tickets", json={"owner": "ann"}, headers=bob), 403, "FORBIDDEN")


async def test_the_record_of_a_singleton_is_judged_too(database_url: str) -> None:
    server = Server()
    server.register(Settings)
    server.pipeline.auth.register(identify)
    free = auth.enforce(lambda ctx, settings: ctx.has_role("admin") or not settings.frozen)
    server.pipeline.db.register(free, models=[Settings])
    async with client(server, database=database_url) as http:
        assert data_of(await http.get("/api/settings"))["frozen"] is False
        error_of(await http.patch("/api/settings", json={"frozen": True}), 403, "FORBIDDEN")
        data_of(await http.patch("/api/settings", json={"frozen": True}, headers=ADMIN))
        error_of(await http.get("/api/settings"), 403, "FORBIDDEN")
        error_of(await http.patch("/api/settings", json={"frozen": False}), 403, "FORBIDDEN")


async def test_a_row_outside_the_scope_is_not_there_and_no_policy_is_asked(database_url: str) -> None:
    def never(ctx: Context, doc: Doc) -> bool:
        assert doc.rank == 0, "a row outside the scope was judged"
        return True

    server = app(never, models=[Doc])
    server.pipeline.auth.register(
        db.force_filter("rank", lambda ctx: db.ALL if ctx.has_role("admin") else 0), models=[Doc]
    )
    async with client(server, database=database_url) as http:
        own = (await created(http, "/api/docs", title="one"))["id"]
        async with server.scoped(auth=AuthInfo("root", roles=["admin"])) as scoped:
            other = (await scoped.db(Doc).create(title="two", rank=1)).id
        for id, status in ((own, 200), (other, 404)):
            assert (await http.get(f"/api/docs/{id}")).status_code == status
            assert (await http.patch(f"/api/docs/{id}", json={"title": "x"})).status_code == status
        assert (await http.delete(f"/api/docs/{other}")).status_code == 404


# -- where


@pytest.mark.parametrize("nothing", [None, {}, [], {"title": None}])
async def test_a_where_that_cannot_tell_refuses(nothing: Any, database_url: str) -> None:
    async with house(
        app(where=lambda ctx: db.ALL if ctx.has_role("admin") else nothing), database_url
    ) as world:
        error_of(await world.get("/docs"), 403, "FORBIDDEN")
        error_of(await world.get("/shelves?include=docs"), 403, "FORBIDDEN")
        assert (await world.get(f"/docs/{world.ids['alpha']}")).status_code == 200
        assert (await world.get("/docs", ADMIN)).json()["meta"]["total"] == 4


@pytest.mark.parametrize("wrong", [{"titel": "x"}, 5, "title", [("rank", "is", 1)], [("a", "b", "c", "d")]])
async def test_a_where_that_makes_no_sense_is_500(
    wrong: Any, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(app(where=lambda ctx: wrong), database=sqlite_url) as http:
        error_of(await http.get("/api/docs"), 500, "INTERNAL")
        assert "auth.enforce" in caplog.text


async def test_a_where_may_be_async_and_go_across_relations(database_url: str) -> None:
    asked: list[str] = []

    async def on_shelf_one(ctx: Context) -> Any:
        if ctx.has_role("admin"):
            return db.ALL
        asked.append(ctx.request_id)
        return [("shelf.name", "eq", "one"), ("rank", "lt", 2), ("notes.text", "contains", "on")]

    async with house(app(lambda ctx, doc: True, on_shelf_one), database_url) as world:
        answer = await world.get("/docs?sort=rank&include=below")
        assert (names(data_of(answer)), answer.json()["meta"]["total"]) == (["alpha", "beta"], 2)
        assert names(answer.json()["data"][0]["below"]) == ["beta"]
        assert len(asked) == 1  # asked once for a request
        assert (await world.get(f"/docs/{world.ids['gamma']}")).status_code == 200


async def test_the_policy_still_judges_what_where_lets_pass(database_url: str) -> None:
    server = app(not_archived, lambda ctx: db.ALL if ctx.has_role("admin") else [("rank", "lt", 3)])
    async with house(server, database_url) as world:
        answer = await world.get("/docs?sort=rank")
        assert (names(data_of(answer)), answer.json()["meta"]["total"]) == (OPEN, 3)
        hits = {hit["id"] for hit in data_of(await world.get("/search?q=paper"))}
        assert hits == {world.ids["alpha"], world.ids["gamma"]}


@pytest.mark.parametrize(("where", "count"), [(None, 4), (where_not_archived, 2)])
async def test_code_is_bound_by_where_and_not_by_the_policy(
    where: Any, count: int, database_url: str
) -> None:
    def act_on(server: Server) -> Server:
        @server.action("GET", "/codes/{id}")
        async def codes(ctx: Context) -> Any:
            docs = await ctx.db(Doc).list()
            found = await ctx.search("paper", models=[Doc])
            [row] = await ctx.aggregate(Doc, select=[("count", None, "n")])
            tree = await ctx.recursive_query(Doc, root_id=ctx.url_param("id"), parent_field="parent_id")
            shelf = (await ctx.db(Shelf).list(include="docs"))[0]
            hidden = await ctx.db(Doc).read((await ctx.unscoped().db(Doc).list({"rank": 1}))[0].id)
            counts = [len(docs), await ctx.db(Doc).count(), len(found), row["n"], len(tree), len(shelf.docs)]
            return {"counts": counts, "hidden": hidden.title}

        return server

    async with house(act_on(app(where=where)), database_url) as world:
        answer = data_of(await world.get(f"/codes/{world.ids['alpha']}"))
        assert answer == {"counts": [count] * 6, "hidden": "paper beta hidden"}


async def test_a_new_row_need_not_be_inside_where(database_url: str) -> None:
    """Also where the body names a record of the same model, which is looked for inside it."""
    server = app(lambda ctx, doc: True, where_not_archived)
    async with house(server, database_url) as world:
        body = {"title": "paper new", "archived": True, "parent_id": world.ids["alpha"]}
        made = await world.http.post("/api/docs", json=body, headers=ANN)
        assert data_of(made, 201)["archived"] is True
        outside = await world.http.post(
            "/api/docs", json={**body, "parent_id": world.ids["beta"]}, headers=ANN
        )
        assert outside.status_code == 409


async def test_a_relation_through_judged_links_needs_where(database_url: str) -> None:
    """Which links there are shows by what they lead to."""

    def first_tag_only(ctx: Context, link: DocTag) -> bool:
        return ctx.has_role("admin")

    async with house(app(first_tag_only, models=[DocTag]), database_url) as world:
        for path in ("/tags?include=docs", "/docs?include=tags", "/docs?filter=tags.name:eq:red"):
            error_of(await world.get(path), 403, "FORBIDDEN")
            error_of(await world.get(path, ADMIN), 403, "FORBIDDEN")
        assert (await world.get("/docs")).json()["meta"]["total"] == 4
        assert data_of(await world.get("/doc_tags")) == []


async def test_links_outside_where_lead_nowhere(database_url: str) -> None:
    def of_alpha(ctx: Context) -> Any:
        return db.ALL if ctx.has_role("admin") else [("doc.rank", "eq", 0)]

    async with house(app(lambda ctx, link: True, of_alpha, models=[DocTag]), database_url) as world:
        [tag] = data_of(await world.get("/tags?include=docs"))
        assert names(tag["docs"]) == ["alpha"]
        assert await world.titles("/docs?filter=tags.name:eq:red") == ["alpha"]


async def test_middleware_sees_what_is_left(database_url: str) -> None:
    """Behind the db step, also after `next()` in it, denied rows are gone."""
    seen: list[list[str]] = []
    server = app()

    @server.pipeline.db.middleware(models=[Doc], operations="list")
    async def look(ctx: Context, next: Next) -> None:
        await next()
        seen.append([doc.title for doc in ctx.result.items])

    @server.pipeline.response.middleware(models=[Doc], operations="list")
    async def look_again(ctx: Context, next: Next) -> None:
        seen.append([doc.title for doc in ctx.result.items])
        await next()

    async with house(server, database_url) as world:
        answer = await world.get("/docs?sort=rank&include=notes")
        assert seen == [["paper alpha", "paper gamma"]] * 2
        assert "total" not in answer.json()["meta"]
        assert [doc["notes"][0]["text"] for doc in data_of(answer)] == ["on alpha", "on gamma"]


async def test_a_walk_goes_on_over_pages_that_are_denied_as_a_whole(database_url: str) -> None:
    async with house(app(lambda ctx, doc: ctx.has_role("admin") or doc.rank == 3), database_url) as world:
        path, pages = "/docs?cursor=&limit=1&select=title", []
        while path:
            answer = (await world.get(path)).json()
            pages.append(names(answer["data"]))
            token = answer["meta"].get("next_cursor")
            path = f"/docs?cursor={token}&limit=1&select=title" if token else ""
        assert pages == [[], [], [], ["zeta"]]


async def test_a_denied_row_is_not_named_by_the_cursor_of_a_page_that_shows_others(database_url: str) -> None:
    async with house(app(), database_url) as world:
        meta = (await world.get("/docs?cursor=&limit=2")).json()["meta"]
        token = base64.urlsafe_b64decode(meta["next_cursor"] + "==").decode()
        assert world.ids["alpha"] in token
        assert world.ids["beta"] not in token


# -- beside other entries


async def test_cached_rows_are_judged_for_each_caller(database_url: str) -> None:
    async with client(cached_server(), database=database_url) as http:
        desk = data_of(await http.post("/api/desks", json={"name": "d"}), 201)
        job = data_of(
            await http.post("/api/jobs", json={"owner": "ann", "desk_id": desk["id"]}, headers=ANN), 201
        )
        for _ in range(2):
            for headers, count in ((ANN, 1), ({"x-user": "bob"}, 0)):
                assert len(data_of(await http.get("/api/jobs?select=owner", headers=headers))) == count
                assert len(data_of(await http.get("/api/jobs", headers=headers))) == count
                [shown] = data_of(await http.get("/api/desks?include=jobs", headers=headers))
                assert len(shown["jobs"]) == count
                one = await http.get(f"/api/jobs/{job['id']}", headers=headers)
                assert one.status_code == (200 if count else 403)


class Desk(Model):
    name: str
    jobs: list[Job] = has_many()


class Job(Model):
    owner: str
    desk_id: str | None = None


def cached_server() -> Server:
    server = Server()
    server.register(Desk, Job)
    server.pipeline.auth.register(identify)
    server.pipeline.db.register(db.cache_query())
    own = auth.enforce(lambda ctx, job: ctx.auth is not None and job.owner == ctx.auth.user_id)
    server.pipeline.db.register(own, models=[Job])
    return server


async def test_a_replay_is_the_answer_that_was_given_and_not_judged_again(database_url: str) -> None:
    """The caller has had that answer already; a lost role, which the auth step asks for, gets none (I14)."""
    allowed = True
    server = app(lambda ctx, doc: allowed)
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    async with client(server, database=database_url) as http:
        headers = {**ANN, "idempotency-key": "one"}
        first = await http.post("/api/docs", json={"title": "x"}, headers=headers)
        allowed = False
        again = await http.post("/api/docs", json={"title": "x"}, headers=headers)
        assert (again.status_code, again.content) == (201, first.content)
        other = {**ANN, "idempotency-key": "two"}
        error_of(await http.post("/api/docs", json={"title": "x"}, headers=other), 403, "FORBIDDEN")


async def test_a_policy_is_asked_with_the_identity_that_the_models_own_middleware_found(
    database_url: str,
) -> None:
    server = Server()
    server.register(Desk, Job)

    @server.pipeline.auth.middleware(models=[Job])
    async def only_here(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id=ctx.header("x-user") or "")
        await next()

    own = auth.enforce(lambda ctx, job: job.owner == ctx.auth.user_id)
    server.pipeline.db.register(own, models=[Job])
    async with client(server, database=database_url) as http:
        desk = data_of(await http.post("/api/desks", json={"name": "d"}), 201)
        await http.post("/api/jobs", json={"owner": "ann", "desk_id": desk["id"]}, headers=ANN)
        for headers, count in ((ANN, 1), ({"x-user": "bob"}, 0)):
            [shown] = data_of(await http.get("/api/desks?include=jobs", headers=headers))
            assert len(shown["jobs"]) == count


async def test_an_export_that_is_too_large_does_not_say_by_how_much(database_url: str) -> None:
    class Line(Model, export=True, max_export_rows=1):
        owner: str = field(filterable=True)

    server = Server()
    server.register(Line)
    server.pipeline.db.register(auth.enforce(lambda ctx, line: line.owner == "ann"), models=[Line])
    async with client(server, database=database_url) as http:
        async with server.scoped(auth=AuthInfo("x")) as scoped:
            for owner in ("ann", "bob", "bob"):
                await scoped.db(Line).create(owner=owner)
        refusal = error_of(await http.get("/api/lines/export"), 413, "EXPORT_TOO_LARGE")
        assert "3" not in refusal["message"]
        assert (await http.get("/api/lines/export?filter=owner:eq:ann")).status_code == 200


async def test_a_policy_that_fails_in_an_export_gives_no_file(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(ctx: Context, doc: Doc) -> bool:
        if ctx.operation is Operation.EXPORT and doc.rank == 2:
            raise ValueError("no-such-thing")
        return True

    async with house(app(broken), database_url) as world:
        error_of(await world.get("/docs/export?sort=rank"), 500, "INTERNAL")
        assert "no-such-thing" in caplog.text


# -- the start, the description, the list of guards


@pytest.mark.parametrize("step", ["auth", "deserialize", "validate", "service", "response"])
def test_on_another_step_it_stops_the_start(step: str) -> None:
    server = Server()
    server.register(Job, Desk)
    getattr(server.pipeline, step).register(auth.enforce(not_archived), models=[Job])
    [problem] = refusal_of(server).problems
    assert "it does nothing on this step; register it on pipeline.db" in problem


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (lambda: auth.enforce(lambda ctx: True), "a policy is a function of (ctx, record)"),  # type: ignore[arg-type, misc]
        (lambda: auth.enforce(auth.all_of()), "auth.all_of() has no policies"),
        (lambda: auth.enforce(auth.not_(auth.any_of())), "auth.any_of() has no policies"),
        (lambda: auth.enforce(auth.any_of(not_archived, None)), "a policy is a function"),  # type: ignore[arg-type]
        (lambda: auth.enforce(not_archived, where={"archived": False}), "where is a function of (ctx)"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_stop_the_start(entry: Any, text: str) -> None:
    server = Server()
    server.register(Job, Desk)
    server.pipeline.db.register(entry(), models=[Job])
    assert any(text in problem for problem in refusal_of(server).problems)


def test_what_it_could_not_keep_stops_the_start() -> None:
    server = app(where=where_not_archived, operations=["read", "update"])
    assert any("where= binds lists, which operations= leaves out" in p for p in refusal_of(server).problems)

    server = app()

    async def own_step(ctx: Context, next: Next) -> None: ...

    server.pipeline.db.register(own_step, models=[Doc], operations="list", at="replace")
    assert any("the db step of Doc is replaced by own_step" in p for p in refusal_of(server).problems)

    server = app()
    server.pipeline.db.register(db.cache_query(), models=[Shelf])
    assert any(
        "Doc has secret fields, which db.cache_query does not keep" in p for p in refusal_of(server).problems
    )

    server = app()

    @server.action("POST", "/act", middleware=[auth.enforce(not_archived)])
    async def act(ctx: Context) -> None: ...

    assert any("auth.enforce: it means nothing without a model" in p for p in refusal_of(server).problems)


def test_a_public_cache_of_judged_rows_stops_the_start() -> None:
    server = app()
    server.pipeline.response.register(response.cache(60, public=True), models=[Tag])
    assert any("response.cache" in problem for problem in refusal_of(server).problems)


async def test_the_description_and_the_list_of_guards_show_it() -> None:
    server = app()
    document = await server.openapi()
    validate(document)
    paths = document["paths"]
    for path, method in (("/api/docs", "get"), ("/api/docs/{id}", "patch"), ("/api/docs/{id}", "delete")):
        assert "403" in paths[path][method]["responses"]
    meta = paths["/api/docs"]["get"]["responses"]["200"]["content"]["application/json"]["schema"][
        "properties"
    ]["meta"]
    assert meta["anyOf"][0]["required"] == ["page", "limit", "has_more"]
    counted = (await app(where=where_not_archived).openapi())["paths"]["/api/docs"]["get"]["responses"]["200"]
    assert "PageMeta" in str(counted)
    guards = {(method, path): str(guards) for method, path, guards in server.guards}
    assert "auth.enforce" in guards["GET", "/api/docs/{id}"]
    assert "auth.enforce" not in guards["GET", "/api/shelves"]


async def test_routes_that_lead_to_no_policy_are_composed_as_without_any() -> None:
    """X14: what is not registered costs nothing."""
    judged = Server()
    judged.register(Desk, Job, Ticket)
    judged.pipeline.db.register(auth.enforce(not_archived), models=[Ticket])
    plain_server = Server()
    plain_server.register(Desk, Job, Ticket)
    shapes = [
        {(e.method, e.path): [len(chain) for chain in e.chains] for e in server._seal().endpoints}
        for server in (judged, plain_server)
    ]
    differing = {path for path, lengths in shapes[0].items() if lengths != shapes[1][path]}
    assert differing == {
        ("GET", "/tickets"),
        ("HEAD", "/tickets"),
        ("GET", "/tickets/{id}"),
        ("HEAD", "/tickets/{id}"),
    }
