"""`db.tenancy`: the rows of another organisation are not there, whatever is asked (C16 to C19, C23)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from maniflex import Context, Server
from maniflex.middleware import db
from tests.catalogue.scopes.world import (
    NO_ORG,
    NOBODY,
    A,
    B,
    Member,
    Project,
    bind_all,
    make_server,
    serving,
)
from tests.kit.http import data_of, error_of

COUNT = json.dumps({"select": [{"op": "count", "as": "n"}, {"op": "max", "field": "rank", "as": "top"}]})


def bind_two(server: Server) -> None:
    """Tenancy for members and projects alone."""
    server.pipeline.auth.register(db.tenancy("org_id"), models=[Member, Project])


def own_ids(response: httpx.Response) -> list[str]:
    return sorted(row["id"] for row in data_of(response))


@pytest.mark.parametrize("step", ["auth", "db"])
async def test_rows_of_another_org_are_not_there(database_url: str, step: str) -> None:
    """C16: every way to ask for a foreign record answers like one that never was."""
    server = make_server(lambda s: getattr(s.pipeline, step).register(db.tenancy("org_id"), models=[Project]))
    async with serving(server, database_url) as http:
        assert own_ids(await http.get("/api/projects", headers=A)) == ["p-a1", "p-a2", "p-a3"]
        for method, path, body in (
            ("GET", "/api/projects/{}", None),
            ("HEAD", "/api/projects/{}", None),
            ("PATCH", "/api/projects/{}", {"name": "taken"}),
            ("DELETE", "/api/projects/{}", None),
            ("POST", "/api/projects/{}/restore", None),
        ):
            for foreign_id in ("p-b1", "p-b9"):
                answers = [
                    await http.request(method, path.format(one), headers=A, json=body)
                    for one in (foreign_id, "nothing")
                ]
                assert {a.status_code for a in answers} == {404}, (method, answers[0].text)
                assert answers[0].content == answers[1].content
        assert "of b" not in (await http.get("/api/projects/export?format=csv", headers=A)).text
        counted = await http.get("/api/projects/aggregate", params={"aggregate": COUNT}, headers=A)
        assert data_of(counted) == [{"n": 3, "top": 3}]
        hits = data_of(await http.get("/api/search?q=common&models=Project", headers=A))
        assert sorted(hit["id"] for hit in hits) == ["p-a1", "p-a2", "p-a3"]
        found = await http.get("/api/projects?q=common", headers=A)
        assert (own_ids(found), found.json()["meta"]["total"]) == (["p-a1", "p-a2", "p-a3"], 3)
        untouched = await server.db(Project).read("p-b1")
        assert (untouched.name, untouched.org_id) == ("common 1 of b", "org-b")


async def test_own_rows_can_be_changed_and_restored(database_url: str) -> None:
    server = make_server(bind_two)
    async with serving(server, database_url) as http:
        changed = data_of(await http.patch("/api/projects/p-a1", headers=A, json={"name": "new"}))
        assert changed["name"] == "new"
        assert (await http.delete("/api/projects/p-a3", headers=A)).status_code == 204
        assert data_of(await http.post("/api/projects/p-a9/restore", headers=A))["id"] == "p-a9"


async def test_models_that_lead_to_bound_ones_show_nothing_of_another_org(database_url: str) -> None:
    """C17: orgs are free; what hangs on them is not."""
    server = make_server(bind_two)
    async with serving(server, database_url) as http:
        orgs = data_of(await http.get("/api/orgs?include=projects,members&sort=id", headers=A))
        assert [len(org["projects"]) for org in orgs] == [3, 0]
        assert [len(org["members"]) for org in orgs] == [3, 0]
        for name, expected in (("common 1 of b", []), ("common 1 of a", ["org-a"])):
            asked = await http.get("/api/orgs", params={"filter": f"projects.name:eq:{name}"}, headers=A)
            assert (own_ids(asked), asked.json()["meta"]["total"]) == (expected, len(expected))
        tasks = data_of(await http.get("/api/tasks?sort=project.name:desc&include=project", headers=A))
        assert all(not task.get("project") for task in tasks if "b" in task["id"])
        foreign = {task["id"] for task in tasks if task["id"].startswith("t-b")}
        assert {task["id"] for task in tasks[3:]} == foreign  # they sort as if they had no project


async def test_creates_are_stamped_and_updates_move_nothing(database_url: str) -> None:
    """C18: the org of a body does not count."""
    server = make_server(bind_two)
    async with serving(server, database_url) as http:
        for body in ({"name": "mine"}, {"name": "theirs", "org_id": "org-b"}, {"name": "n", "org_id": None}):
            made = data_of(await http.post("/api/projects", headers=A, json=body), 201)
            assert made["org_id"] == "org-a"
        patched = await http.patch("/api/projects/p-a1", headers=A, json={"org_id": "org-b", "name": "x"})
        assert data_of(patched)["org_id"] == "org-a"
        assert (await server.db(Project).read("p-a1")).org_id == "org-a"
        refused = await http.post("/api/projects", headers=A, json={"name": "n", "parent_id": "p-b1"})
        absent = await http.post("/api/projects", headers=A, json={"name": "n", "parent_id": "nothing"})
        assert refused.status_code == absent.status_code == 409
        assert refused.json()["error"]["code"] == absent.json()["error"]["code"] == "CONFLICT"


@pytest.mark.parametrize("who", [NOBODY, NO_ORG])
async def test_a_caller_without_an_org_is_refused_everywhere(database_url: str, who: dict[str, str]) -> None:
    """C18: 403 on every route of a bound model, in search, in includes and in actions."""
    server = make_server(bind_all)

    @server.action("GET", "/first")
    async def first(ctx: Context) -> Any:
        return len(await ctx.db(Project).list())

    async with serving(server, database_url) as http:
        requests: list[tuple[str, str, Any]] = [
            ("GET", "/projects", None),
            ("HEAD", "/projects", None),
            ("GET", "/projects/p-a1", None),
            ("HEAD", "/projects/p-a1", None),
            ("POST", "/projects", {"name": "n", "org_id": "org-a"}),
            ("PATCH", "/projects/p-a1", {"name": "n"}),
            ("DELETE", "/projects/p-a1", None),
            ("POST", "/projects/p-a9/restore", None),
            ("GET", "/projects/export?format=csv", None),
            ("GET", f"/projects/aggregate?aggregate={COUNT}", None),
            ("GET", "/search?q=common", None),
            ("GET", "/orgs?include=members", None),
            ("GET", "/orgs?filter=projects.name:eq:x", None),
            ("GET", "/tasks", None),
            ("GET", "/first", None),
        ]
        for method, path, body in requests:
            answer = await http.request(method, f"/api{path}", headers=who, json=body)
            assert answer.status_code == 403, (method, path, answer.text)
        for path in ("/orgs", "/currencies", "/search?q=EUR&models=Currency"):
            assert (await http.get(f"/api{path}", headers=who)).status_code == 200


async def test_or_groups_stay_inside(database_url: str) -> None:
    """C19: a group of alternatives is asked inside the scope."""
    server = make_server(bind_two)
    group = {"filter[0]": ["org_id:eq:org-b", "name:not_null"]}
    async with serving(server, database_url) as http:
        assert own_ids(await http.get("/api/projects", params=group, headers=A)) == ["p-a1", "p-a2", "p-a3"]
        counted = await http.get("/api/projects/aggregate", params={**group, "aggregate": COUNT}, headers=A)
        assert data_of(counted)[0]["n"] == 3
        export = await http.get("/api/projects/export", params={**group, "format": "csv"}, headers=A)
        assert "org-b" not in export.text
        assert "org-a" in export.text


async def _later(ctx: Context) -> str | None:
    return ctx.header("x-org")


def _raises(ctx: Context) -> str:
    raise LookupError("secret cause")


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (lambda ctx: None, 403),
        (lambda ctx: "", 403),
        (_raises, 500),
        (lambda ctx: object(), 500),
        (_later, 200),
        (lambda ctx: db.ALL, 200),
    ],
)
async def test_a_value_that_cannot_be_told_opens_nothing(
    database_url: str, value: Callable[[Context], Any], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """C23: no value, or an error, refuses; it never gives the whole table."""
    server = make_server(
        lambda s: s.pipeline.auth.register(db.force_filter("org_id", value), models=[Project])
    )
    async with serving(server, database_url) as http:
        for path in (
            "/projects",
            "/projects/p-a1",
            "/orgs?include=projects",
            "/search?q=common&models=Project",
        ):
            answer = await http.get(f"/api{path}", headers=A)
            assert answer.status_code == status, answer.text
            if status == 500:
                error_of(answer, 500, "INTERNAL")
                assert "secret" not in answer.text
        if value is _raises:
            assert "secret cause" in caplog.text
        if status == 200:
            rows = own_ids(await http.get("/api/projects", headers=A))
            assert len(rows) == (3 if value is _later else 6)


async def _later_of_claims(ctx: Context) -> Any:
    assert ctx.auth is not None
    return ctx.auth.claims["org"]


@pytest.mark.parametrize("tenant", [lambda ctx: ctx.auth.claims["org"], _later_of_claims])
async def test_an_anonymous_caller_has_no_tenant(database_url: str, tenant: Callable[[Context], Any]) -> None:
    """D9: 403 also where the function fails for want of an identity."""
    server = make_server(lambda s: s.pipeline.auth.register(db.tenancy("org_id", tenant), models=[Project]))
    async with serving(server, database_url) as http:
        assert len(own_ids(await http.get("/api/projects", headers=A))) == 3
        for path in ("/projects", "/projects/p-a1", "/orgs?include=projects"):
            error_of(await http.get(f"/api{path}", headers=NOBODY), 403, "FORBIDDEN")


async def test_a_value_is_asked_for_once_in_a_request(database_url: str) -> None:
    """D4: a callback may cost a statement, so all models share what it said."""
    calls: list[str] = []

    async def org(ctx: Context) -> str | None:
        calls.append(ctx.scope["path"])
        return ctx.header("x-org")

    server = make_server(
        lambda s: s.pipeline.auth.register(db.tenancy("org_id", org), models=[Member, Project])
    )

    @server.action("GET", "/all")
    async def everything(ctx: Context) -> int:
        return (
            len(await ctx.db(Project).list()) + await ctx.db(Member).count() + len(await ctx.search("common"))
        )

    async with serving(server, database_url) as http:
        for path in ("/orgs?include=projects,members", "/projects?include=below", "/all", "/search?q=common"):
            calls.clear()
            assert (await http.get(f"/api{path}", headers=A)).status_code == 200
            assert len(calls) == 1, path
        calls.clear()
        await http.get("/api/currencies", headers=A)
        assert not calls


async def test_roles_and_shared_models_are_exempt(database_url: str) -> None:
    """D8, D9: an exempt role reads all and says the org of what it creates."""
    server = make_server(
        lambda s: s.pipeline.auth.register(
            db.tenancy("org_id", unless_role="root", shared=[Member, "Org", "Task", "Note"])
        )
    )
    root = {**NO_ORG, "x-roles": "root"}
    async with serving(server, database_url) as http:
        assert len(own_ids(await http.get("/api/projects", headers=root))) == 6
        assert len(own_ids(await http.get("/api/members", headers=NOBODY))) == 6
        unsaid = await http.post("/api/projects", headers=root, json={"name": "n"})
        assert unsaid.status_code == 422
        said = await http.post("/api/projects", headers=root, json={"name": "n", "org_id": "org-b"})
        assert data_of(said, 201)["org_id"] == "org-b"
        assert (await http.get("/api/projects", headers={**NO_ORG, "x-roles": "roo"})).status_code == 403


async def test_several_rules_hold_together(database_url: str) -> None:
    """D11, D3: also with operators that stamp nothing; a write that would end outside is 422."""

    def rules(server: Server) -> None:
        server.pipeline.db.register(db.force_filter("rank", [1, 2], "in"), models=[Project])
        server.pipeline.auth.register(db.tenancy("org_id"), models=[Project])

    async with serving(make_server(rules), database_url) as http:
        assert own_ids(await http.get("/api/projects", headers=A)) == ["p-a1", "p-a2"]
        assert (await http.get("/api/projects/p-a3", headers=A)).status_code == 404
        error_of(
            await http.post("/api/projects", headers=A, json={"name": "n", "rank": 3}),
            422,
            "VALIDATION_FAILED",
        )
        error_of(
            await http.patch("/api/projects/p-a1", headers=A, json={"rank": 9}), 422, "VALIDATION_FAILED"
        )


async def test_a_rule_for_writes_leaves_reads_open(database_url: str) -> None:
    """D1: and with them includes."""
    server = make_server(
        lambda s: s.pipeline.auth.register(
            db.tenancy("org_id"), models=[Project], operations=["create", "update", "delete"]
        )
    )

    @server.action("POST", "/rename/{id}")
    async def rename(ctx: Context) -> Any:
        seen = await ctx.db(Project).read(ctx.url_param("id"))
        return {"seen": seen.name, "now": (await ctx.db(Project).update(seen.id, name="new")).name}

    async with serving(server, database_url) as http:
        assert len(own_ids(await http.get("/api/projects", headers=A))) == 6
        orgs = data_of(await http.get("/api/orgs?include=projects", headers=NOBODY))
        assert [len(org["projects"]) for org in orgs] == [3, 3]
        assert (await http.patch("/api/projects/p-b1", headers=A, json={"name": "x"})).status_code == 404
        assert (await http.delete("/api/projects/p-b1", headers=A)).status_code == 404
        assert data_of(await http.post("/api/rename/p-a1", headers=A))["now"] == "new"
        assert (await http.post("/api/rename/p-b1", headers=A)).status_code == 404


async def test_a_cursor_of_one_scope_is_refused_in_another(database_url: str) -> None:
    """D7."""
    server = make_server(bind_two)
    async with serving(server, database_url) as http:
        first = (await http.get("/api/projects?cursor=&limit=2", headers=A)).json()["meta"]["next_cursor"]
        here = await http.get("/api/projects", params={"cursor": first, "limit": 2}, headers=A)
        assert own_ids(here) == ["p-a3"]
        there = await http.get("/api/projects", params={"cursor": first, "limit": 2}, headers=B)
        error_of(there, 400, "INVALID_QUERY")


async def test_uniqueness_is_that_of_the_org(database_url: str) -> None:
    """D2: what the scope settles is known before anything is looked up."""
    server = make_server(bind_two)
    async with serving(server, database_url) as http:
        same = {"email": "1.common.b@x.org"}
        assert (await http.post("/api/members", headers=A, json=same)).status_code == 201
        assert (await http.post("/api/members", headers=A, json=same)).status_code == 409


async def test_models_without_the_field_are_warned_of(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: a served model that is neither bound nor shared."""
    caplog.set_level(logging.WARNING)
    server = make_server(lambda s: s.pipeline.auth.register(db.tenancy("org_id", shared=["Org", "Currency"])))
    async with serving(server, database_url):
        warned = [r.message for r in caplog.records if "db.tenancy" in r.message]
    assert {name for name in ("Task", "Note", "Label") if any(name in text for text in warned)} == {
        "Task",
        "Note",
        "Label",
    }
    assert not any("Currency" in text or "Org " in text for text in warned)
