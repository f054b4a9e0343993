"""A rule for reads binds writes too: what a caller may not read it can neither change nor be shown."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Operation, Server, field
from maniflex.errors import NotFound
from maniflex.middleware import auth, db
from maniflex.middleware.idempotency import keys
from maniflex.testing import client
from tests.catalogue.scopes.world import NO_ORG, NOBODY, A, B, Project, Task, make_server, org_of, serving
from tests.kit.http import data_of, error_of

READS: dict[str, Any] = {"operations": Operation.READS}


def for_reads(server: Server) -> None:
    """Projects and tasks are bound where they are read."""
    server.pipeline.auth.register(db.tenancy("org_id"), models=[Project], **READS)
    server.pipeline.auth.register(db.force_filter_via("project", "org_id", org_of), models=[Task], **READS)


def for_read_alone(server: Server) -> None:
    server.pipeline.auth.register(db.force_filter("org_id", org_of), models=[Project], operations="read")
    server.pipeline.auth.register(
        db.force_filter_via("project", "org_id", org_of), models=[Task], operations="read"
    )


def by_policy(server: Server) -> None:
    async def is_own(ctx: Context, record: Any) -> bool:
        org = record.org_id
        if isinstance(record, Task):
            org = (await ctx.unscoped().db(Project).read(record.project_id or "")).org_id
        return ctx.auth is not None and org == ctx.auth.tenant_id

    server.pipeline.db.register(auth.enforce(is_own), models=[Project], **READS)


WRITES: tuple[tuple[str, str, Any], ...] = (
    ("PATCH", "/api/projects/p-a1", {"name": "taken"}),
    ("PATCH", "/api/projects/p-a1", {"org_id": "org-b"}),
    ("PATCH", "/api/projects/p-a1", {}),
    ("DELETE", "/api/projects/p-a1", None),
    ("POST", "/api/projects/p-a9/restore", None),
)


@pytest.mark.parametrize("bind", [for_reads, for_read_alone])
async def test_a_record_outside_can_neither_be_changed_nor_deleted(database_url: str, bind: Any) -> None:
    tasks = [
        (m, path.replace("projects/p", "tasks/t"), {"title": "x"} if body else body)
        for m, path, body in WRITES
    ]
    server = make_server(bind)
    async with serving(server, database_url) as http:
        before = [(r.id, r.name, r.org_id) for r in await server.db(Project).list(sorts="id")]
        for method, path, body in (*WRITES, *tasks):
            answer = await http.request(method, path, headers=B, json=body)
            error_of(answer, 404, "NOT_FOUND")
            unknown = path.replace("-a", "-zz")
            assert answer.json() == (await http.request(method, unknown, headers=B, json=body)).json()
            assert "common" not in answer.text
            refused = await http.request(method, path, headers=NO_ORG, json=body)
            assert refused.status_code == 403, (method, path, refused.text)
        assert [(r.id, r.name, r.org_id) for r in await server.db(Project).list(sorts="id")] == before
        for method, path, body in (WRITES[0], tasks[0], WRITES[4], tasks[4], WRITES[3]):
            assert (await http.request(method, path, headers=A, json=body)).is_success


async def test_code_is_bound_alike(database_url: str) -> None:
    server = make_server(for_reads)

    @server.action("POST", "/try/{what}")
    async def attempt(ctx: Context) -> dict[str, str]:
        records, id = ctx.db(Project), "p-a1"
        match ctx.url_param("what"):
            case "update":
                await records.update(id, name="taken")
            case "delete":
                await records.delete(id)
            case "restore":
                await records.restore("p-a9")
            case "increment":
                await records.increment(id, rank=1)
            case _:
                async with ctx.transaction():
                    await ctx.lock_for_update(Project, id)
        return {}

    async with serving(server, database_url) as http:
        for what in ("update", "delete", "restore", "increment", "lock"):
            error_of(await http.post(f"/api/try/{what}", headers=B), 404, "NOT_FOUND")
            data_of(await http.post(f"/api/try/{what}", headers=A)) if what != "delete" else None
        async with server.scoped(auth=AuthInfo(user_id="bob", tenant_id="org-b")) as scope:
            with pytest.raises(NotFound):
                await scope.db(Project).update("p-a1", name="taken")
            assert (await scope.db(Project).create(org_id="org-a", name="for them")).org_id == "org-a"
        in_process = await server.execute(
            Operation.UPDATE, Project, "p-a1", body={"name": "x"}, auth=AuthInfo("bob", tenant_id="org-b")
        )
        assert in_process.status == 404


async def test_what_is_written_is_not_bound_and_shown_only_inside(database_url: str) -> None:
    """A create or update may end outside; its answer has then the id alone, replays of it too."""
    server = make_server(for_reads)
    server.pipeline.deserialize.register(keys(), at="after")
    async with serving(server, database_url) as http:
        inside = data_of(
            await http.post("/api/projects", headers=B, json={"org_id": "org-b", "name": "own"}), 201
        )
        assert inside["name"] == "own"
        body = {"org_id": "org-a", "name": "for them"}
        for headers in (B, NO_ORG, NOBODY):
            made = data_of(await http.post("/api/projects", headers=headers, json=body), 201)
            assert set(made) == {"id"}
            assert (await server.db(Project).read(made["id"])).name == "for them"
        keyed = {**B, "Idempotency-Key": "once"}
        first = await http.post("/api/projects", headers=keyed, json=body)
        again = await http.post("/api/projects", headers=keyed, json=body)
        assert set(data_of(first, 201)) == {"id"}
        assert first.json() == again.json()
        own = f"/api/projects/{inside['id']}"
        assert data_of(await http.patch(own, headers=B, json={"name": "still"}))["name"] == "still"
        moved = await http.patch(own, headers=B, json={"org_id": "org-a"})
        assert moved.json() == {"data": {"id": inside["id"]}}
        assert data_of(await http.get(own, headers=A))["name"] == "still"
        error_of(await http.patch(own, headers=B, json={"name": "again"}), 404, "NOT_FOUND")


async def test_a_policy_for_reads_judges_the_stored_row_of_a_write(database_url: str) -> None:
    server = make_server(by_policy)
    async with serving(server, database_url) as http:
        for method, path, body in WRITES:
            refused = await http.request(method, path, headers=B, json=body)
            error_of(refused, 403, "FORBIDDEN")
            assert "common" not in refused.text
        made = await http.post("/api/projects", headers=B, json={"org_id": "org-a", "name": "theirs"})
        assert set(data_of(made, 201)) == {"id"}
        moved = await http.patch("/api/projects/p-b1", headers=B, json={"org_id": "org-a"})
        assert moved.json() == {"data": {"id": "p-b1"}}
        assert data_of(await http.patch("/api/projects/p-b1", headers=A, json={"name": "x"}))["name"] == "x"


class Setting(Model, singleton=True):
    org_id: str = field(default="", filterable=True)
    colour: str = "grey"


async def test_the_one_row_of_a_scope_is_the_one_that_is_written() -> None:
    def bind(server: Server) -> None:
        server.pipeline.auth.register(db.tenancy("org_id"), models=[Setting], **READS)

    async with client(make_server(bind, models=[Setting])) as http:
        data_of(await http.patch("/api/settings", headers=A, json={"colour": "red"}))
        assert data_of(await http.get("/api/settings", headers=A))["colour"] == "red"
        assert data_of(await http.get("/api/settings", headers=B))["colour"] == "grey"


async def test_a_rule_for_lists_leaves_single_records_open(database_url: str) -> None:
    """Who may read a record by its id may change it."""

    def bind(server: Server) -> None:
        server.pipeline.auth.register(db.tenancy("org_id"), models=[Project], operations="list")

    async with serving(make_server(bind), database_url) as http:
        assert data_of(await http.patch("/api/projects/p-a1", headers=B, json={"name": "x"}))["name"] == "x"
