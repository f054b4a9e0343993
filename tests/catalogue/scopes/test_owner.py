"""`auth.require_owner`: callers touch the rows that name them (C24, A32)."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Server
from maniflex.middleware import auth
from tests.catalogue.scopes.world import NOBODY, A, B, Member, Project, make_server, serving
from tests.kit.http import data_of, error_of


def bind_owner(server: Server, **options: Any) -> None:
    server.pipeline.auth.register(auth.require_owner("owner_id", **options), models=[Project])


async def test_records_of_others_are_not_there(database_url: str) -> None:
    """C24: on every route of one record; `p-a3` belongs to a third person."""
    server = make_server(bind_owner)
    async with serving(server, database_url) as http:
        for method, path, body in (
            ("GET", "/api/projects/p-a3", None),
            ("HEAD", "/api/projects/p-a3", None),
            ("PATCH", "/api/projects/p-a3", {"name": "x"}),
            ("DELETE", "/api/projects/p-a3", None),
            ("POST", "/api/projects/p-b9/restore", None),
        ):
            answer = await http.request(method, path, headers=A, json=body)
            assert answer.status_code == 404, (method, answer.text)
            assert (await http.request(method, path, headers=NOBODY, json=body)).status_code == 401
        assert data_of(await http.post("/api/projects/p-a9/restore", headers=A))["id"] == "p-a9"
        assert data_of(await http.get("/api/projects/p-a1", headers=A))["id"] == "p-a1"


@pytest.mark.parametrize("lists", [True, False])
async def test_lists_show_own_rows_unless_left_open(database_url: str, lists: bool) -> None:
    """A32: with `lists=False` lists, exports and includes show the rows of all."""
    expected = {"ann"} if lists else {"ann", "bob", "third"}
    async with serving(make_server(lambda s: bind_owner(s, lists=lists)), database_url) as http:
        owners = {row["owner_id"] for row in data_of(await http.get("/api/projects", headers=A))}
        assert owners == expected
        orgs = data_of(await http.get("/api/orgs?include=projects", headers=A))
        assert {p["owner_id"] for org in orgs for p in org["projects"]} == expected
        export = (await http.get("/api/projects/export?format=csv", headers=A)).text
        assert ("bob" in export) is not lists
        anonymous = await http.get("/api/projects", headers=NOBODY)
        assert anonymous.status_code == (401 if lists else 200)
        for method in ("GET", "HEAD", "DELETE"):
            assert (await http.request(method, "/api/projects/p-b1", headers=A)).status_code == 404


async def test_creates_are_stamped_and_cannot_be_given_away(database_url: str) -> None:
    server = make_server(bind_owner)
    async with serving(server, database_url) as http:
        made = await http.post(
            "/api/projects", headers=A, json={"name": "n", "org_id": "org-a", "owner_id": "bob"}
        )
        assert data_of(made, 201)["owner_id"] == "ann"
        moved = await http.patch("/api/projects/p-a1", headers=A, json={"owner_id": "bob"})
        assert data_of(moved)["owner_id"] == "ann"


async def test_children_that_others_own_come_along(database_url: str) -> None:
    """C24: only the parent's model is bound."""
    server = make_server(bind_owner)
    async with serving(server, database_url) as http:
        project = data_of(await http.get("/api/projects/p-a1?include=tasks,org", headers=A))
        assert [task["id"] for task in project["tasks"]] == ["t-a1"]
        assert len(data_of(await http.get("/api/tasks", headers=NOBODY))) == 6


async def test_admins_and_other_models_are_not_bound(database_url: str) -> None:
    server = make_server(lambda s: bind_owner(s, admin_roles=["admin"]))

    @server.action("GET", "/counts")
    async def counts(ctx: Context) -> Any:
        return await ctx.db(Project).count(), await ctx.db(Member).count()

    async with serving(server, database_url) as http:
        admin = {**B, "x-roles": "admin"}
        assert data_of(await http.get("/api/projects/p-a1", headers=admin))["owner_id"] == "ann"
        assert data_of(await http.get("/api/counts", headers=admin)) == [6, 6]
        assert data_of(await http.get("/api/counts", headers=A)) == [2, 6]


async def test_anonymous_callers_are_told_to_sign_in(database_url: str) -> None:
    server = make_server(bind_owner)
    async with serving(server, database_url) as http:
        refused = await http.get("/api/projects", headers=NOBODY)
        error_of(refused, 401, "UNAUTHORIZED")
        assert "www-authenticate" in refused.headers


@pytest.mark.parametrize("field", ["owner", "org_idd", ""])
def test_an_unknown_field_stops_the_start(field: str) -> None:
    server = make_server(lambda s: s.pipeline.auth.register(auth.require_owner(field), models=[Project]))
    with pytest.raises(Exception, match=r"auth\.require_owner"):
        server.seal()
