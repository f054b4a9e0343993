"""`db.force_filter_via`: rows are bound through the record they belong to (C20, D10)."""

from __future__ import annotations

from typing import Any

from maniflex import Server
from maniflex.middleware import db
from tests.catalogue.scopes.world import A, B, Note, Task, make_server, org_of, serving
from tests.kit.http import data_of, error_of


def bind_tasks(server: Server) -> None:
    server.pipeline.auth.register(db.force_filter_via("project", "org_id", org_of), models=[Task])
    server.pipeline.auth.register(db.force_filter_via("task.project", "org_id", org_of), models=[Note])


async def test_a_foreign_parent_is_as_absent_as_a_random_one(database_url: str) -> None:
    """C20."""
    server = make_server(bind_tasks)
    async with serving(server, database_url) as http:
        post, patch = http.post, http.patch
        foreign = await post("/api/tasks", headers=A, json={"title": "t", "project_id": "p-b1"})
        absent = await post("/api/tasks", headers=A, json={"title": "t", "project_id": "nothing"})
        error_of(foreign, 404, "NOT_FOUND")
        assert foreign.content == absent.content
        deleted = await post("/api/tasks", headers=A, json={"title": "t", "project_id": "p-a9"})
        error_of(deleted, 404, "NOT_FOUND")
        for body in ({"title": "t"}, {"title": "t", "project_id": None}):
            error_of(await post("/api/tasks", headers=A, json=body), 422, "VALIDATION_FAILED")
        own = await post("/api/tasks", headers=A, json={"title": "t", "project_id": "p-a1"})
        assert data_of(own, 201)["project_id"] == "p-a1"

        for parent in ("p-b1", "nothing"):
            moved = await patch("/api/tasks/t-a1", headers=A, json={"project_id": parent, "title": "moved"})
            error_of(moved, 404, "NOT_FOUND")
        error_of(
            await patch("/api/tasks/t-a1", headers=A, json={"project_id": None}), 422, "VALIDATION_FAILED"
        )
        stored = await server.db(Task).read("t-a1")
        assert (stored.project_id, stored.title) == ("p-a1", "common 1 a")
        assert data_of(await patch("/api/tasks/t-a1", headers=A, json={"project_id": "p-a2"}))


async def test_children_of_another_org_are_not_there(database_url: str) -> None:
    """D10: nor are children of children, in lists, includes, filters and counts."""
    server = make_server(bind_tasks)
    async with serving(server, database_url) as http:

        async def ids(path: str, **params: Any) -> list[str]:
            return sorted(row["id"] for row in data_of(await http.get(path, params=params, headers=A)))

        assert await ids("/api/tasks") == ["t-a1", "t-a2", "t-a3"]
        assert await ids("/api/notes") == ["n-a1", "n-a2", "n-a3"]
        assert (await http.get("/api/notes/n-b1", headers=A)).status_code == 404
        projects = data_of(await http.get("/api/projects?include=tasks.notes", headers=A))
        assert {p["id"] for p in projects if p["tasks"]} == {"p-a1", "p-a2", "p-a3"}
        assert await ids("/api/projects", filter="tasks.title:starts_with:common") == ["p-a1", "p-a2", "p-a3"]
        assert (await http.patch("/api/notes/n-a1", headers=B, json={"text": "x"})).status_code == 404
        note = await http.post("/api/notes", headers=A, json={"task_id": "t-b1", "text": "x"})
        error_of(note, 404, "NOT_FOUND")
