"""Bringing softly deleted records back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maniflex import (
    Context,
    DeclarationError,
    Model,
    Next,
    NotFound,
    Operation,
    Server,
    WithDeletedAt,
    WithIsDeleted,
    field,
)
from maniflex.testing import FakeClock, client
from tests.kit.http import created, data_of, error_of, serving, total


class Note(Model, WithDeletedAt, restore=True, optimistic_lock=True):
    text: str = field(unique=True, filterable=True)
    tenant_id: str = field(default="", relation=None)
    restored_by: str | None = field(default=None, readonly=True)


class Task(Model, WithIsDeleted, restore=True):
    text: str = field(unique=True)


BOTH = pytest.mark.parametrize(("model", "path"), [(Note, "/api/notes"), (Task, "/api/tasks")])


@BOTH
async def test_a_deleted_record_comes_back_as_it_was(
    database_url: str, model: type[Model], path: str
) -> None:
    clock = FakeClock(datetime(2026, 5, 1, tzinfo=UTC))
    server = Server(clock=clock)
    server.register(model)
    async with client(server, database=database_url) as http:
        record = await created(http, path, text="a")
        one = f"{path}/{record['id']}"
        error_of(await http.post(f"{one}/restore"), 404, "NOT_FOUND")
        await http.delete(one)
        clock.advance(timedelta(hours=1))

        restored = await http.post(f"{one}/restore")
        assert data_of(restored) == record | {"updated_at": "2026-05-01T01:00:00Z"}
        assert data_of(await http.get(one)) == data_of(restored)
        error_of(await http.post(f"{one}/restore"), 404, "NOT_FOUND")
        error_of(await http.post(f"{path}/none/restore"), 404, "NOT_FOUND")
        assert (await http.get(f"{one}/restore")).status_code == 405


async def test_the_route_is_there_only_where_asked_for(database_url: str) -> None:
    class Plain(Model, WithDeletedAt):
        text: str = ""

    server = Server()
    server.register(Plain)
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/plains")
        await http.delete(f"/api/plains/{record['id']}")
        assert (await http.post(f"/api/plains/{record['id']}/restore")).status_code == 404
        assert (await server.db(Plain).restore(record["id"])).id == record["id"]  # code may
        with pytest.raises(NotFound):
            await server.db(Plain).restore(record["id"])


def test_a_model_that_removes_its_rows_has_nothing_to_restore() -> None:
    class Gone(Model, restore=True):
        text: str = ""

    server = Server()
    server.register(Gone)
    with pytest.raises(DeclarationError, match="Gone: restore needs a soft-delete model"):
        server.seal()


@BOTH
async def test_a_value_that_was_taken_meanwhile_is_a_conflict(
    database_url: str, model: type[Model], path: str
) -> None:
    async with serving(database_url, model) as http:
        record = await created(http, path, text="a")
        await http.delete(f"{path}/{record['id']}")
        taken = await created(http, path, text="a")

        refused = error_of(await http.post(f"{path}/{record['id']}/restore"), 409, "CONFLICT")
        assert [d["field"] for d in refused["details"]] == ["text"]
        await http.delete(f"{path}/{taken['id']}")
        assert (await http.post(f"{path}/{record['id']}/restore")).status_code == 200


async def test_rules_for_update_cover_it(database_url: str) -> None:
    seen: list[Operation] = []

    async def guard(ctx: Context, next: Next) -> None:
        seen.append(ctx.operation)
        if ctx.header("x-role") != "admin":
            ctx.abort(403, "FORBIDDEN", "no")
        await next()

    async def sign(ctx: Context, next: Next) -> None:
        ctx.set_field("restored_by", "admin")
        await next()

    server = Server()
    server.register(Note)
    server.pipeline.auth.register(guard, operations=[Operation.UPDATE])
    server.pipeline.service.register(sign, operations=[Operation.UPDATE])
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/notes", text="a")
        path = f"/api/notes/{record['id']}/restore"
        await http.delete(f"/api/notes/{record['id']}")
        error_of(await http.post(path), 403, "FORBIDDEN")
        restored = data_of(await http.post(path, headers={"x-role": "admin"}))
        assert restored["restored_by"] == "admin"
        assert seen == [Operation.UPDATE, Operation.UPDATE]


async def test_a_scope_binds_it(database_url: str) -> None:
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ctx.header("x-tenant") or "none")
        await next()

    server = Server()
    server.register(Note)
    server.pipeline.auth.register(bind)
    async with client(server, database=database_url) as http:
        http.headers["x-tenant"] = "t1"
        record = await created(http, "/api/notes", text="a")
        await http.delete(f"/api/notes/{record['id']}")
        path = f"/api/notes/{record['id']}/restore"
        foreign = await http.post(path, headers={"x-tenant": "t2"})
        absent = await http.post("/api/notes/none/restore", headers={"x-tenant": "t2"})
        assert (foreign.status_code, foreign.text) == (absent.status_code, absent.text) == (404, absent.text)
        assert data_of(await http.post(path))["tenant_id"] == "t1"


async def test_if_match_is_about_the_deleted_version(database_url: str) -> None:
    async with serving(database_url, Note) as http:
        response = await http.post("/api/notes", json={"text": "a"})
        record, tag = data_of(response, 201), response.headers["etag"]
        await http.delete(f"/api/notes/{record['id']}")
        path = f"/api/notes/{record['id']}/restore"
        error_of(await http.post(path, headers={"if-match": tag}), 412, "PRECONDITION_FAILED")
        assert (await http.post(path, headers={"if-match": "*"})).status_code == 200


class Parent(Model, WithDeletedAt, restore=True):
    name: str = ""


class Child(Model, WithDeletedAt, restore=True):
    parent_id: str = field(on_delete="cascade")


class Loose(Model, WithDeletedAt, restore=True):
    parent_id: str


async def test_a_child_comes_back_only_after_its_parent(database_url: str) -> None:
    async with serving(database_url, Parent, Child, Loose) as http:
        parent = await created(http, "/api/parents")
        child = await created(http, "/api/children", parent_id=parent["id"])
        loose = await created(http, "/api/looses", parent_id=parent["id"])
        await http.delete(f"/api/looses/{loose['id']}")
        await http.delete(f"/api/parents/{parent['id']}")

        refused = error_of(await http.post(f"/api/children/{child['id']}/restore"), 409, "CONFLICT")
        assert [d["field"] for d in refused["details"]] == ["parent_id"]
        assert (await http.post(f"/api/looses/{loose['id']}/restore")).status_code == 200
        assert (await http.post(f"/api/parents/{parent['id']}/restore")).status_code == 200
        assert await total(http, "/api/children") == 0  # what went along comes back by itself
        assert (await http.post(f"/api/children/{child['id']}/restore")).status_code == 200


async def test_a_restore_and_a_create_of_the_same_value_have_one_winner(database_url: str) -> None:
    async with serving(database_url, Task) as http:
        for turn in range(5):
            record = await created(http, "/api/tasks", text=f"{turn}")
            await http.delete(f"/api/tasks/{record['id']}")
            calls: list[Any] = [http.post("/api/tasks", json={"text": f"{turn}"}) for _ in range(3)]
            calls.insert(turn % 4, http.post(f"/api/tasks/{record['id']}/restore"))
            statuses = sorted(answer.status_code for answer in await asyncio.gather(*calls))
            assert statuses in ([200, 409, 409, 409], [201, 409, 409, 409])


async def test_many_restores_at_once_restore_once(database_url: str) -> None:
    async with serving(database_url, Task) as http:
        record = await created(http, "/api/tasks", text="a")
        await http.delete(f"/api/tasks/{record['id']}")
        answers = await asyncio.gather(*(http.post(f"/api/tasks/{record['id']}/restore") for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 404, 404, 404]


class Branch(Model, WithDeletedAt, restore=True):
    parent_id: str | None = field(default=None, relation="Branch", on_delete="cascade")


async def test_a_record_that_refers_to_itself_comes_back(database_url: str) -> None:
    server = Server()
    server.register(Branch)
    async with client(server, database=database_url) as http:
        branch = await created(http, "/api/branches")
        path = f"/api/branches/{branch['id']}"
        await http.patch(path, json={"parent_id": branch["id"]})
        assert (await http.delete(path)).status_code == 204

        assert (await http.post(f"{path}/restore")).status_code == 200
        assert (await http.get(path)).json()["data"]["parent_id"] == branch["id"]
