"""Parents that change hands and come back: what is restored or asked of the past follows the stamps."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from maniflex import AuthInfo, Context, Model, Server, scheduled
from maniflex import field as column
from maniflex.errors import NotFound
from maniflex.middleware import db
from tests.history.world import a_world, as_tenant

A, B = as_tenant("a"), as_tenant("b")


class Binder(Model, table="move_binders", versioned=True, soft_delete=True, restore=True):
    tenant_id: str = column(default="", relation=None)
    title: str = ""


class Page(Model, table="move_pages", versioned=True, history_restore=True, soft_delete=True, restore=True):
    text: str = column(default="", filterable=True, sortable=True)
    binder_id: str | None = column(default=None, relation="Binder", on_delete="set_null")


class Scrap(Model, table="move_scraps", versioned_diff_only=True, history_restore=True):
    text: str = column(default="", filterable=True)
    binder_id: str | None = column(default=None, relation="Binder", on_delete="set_null")


class Node(Model, table="move_nodes", versioned=True, history_restore=True):
    text: str = ""
    tenant_id: str = column(default="", relation=None, hidden=True)
    parent_id: str | None = column(default=None, relation="Node", on_delete="set_null")


def prepare(server: Server) -> None:
    def tenant(ctx: Context) -> str:
        return ctx.require_auth().tenant_id

    server.register(Binder, Page, Scrap, Node)
    server.pipeline.auth.register(db.tenancy(), models=[Binder])
    server.pipeline.auth.register(db.force_filter_via("binder", "tenant_id", tenant), models=[Page, Scrap])
    server.pipeline.auth.register(db.force_filter_via("parent", "tenant_id", tenant), models=[Node])


def text_of(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def test_a_version_is_not_restored_into_a_parent_that_is_another_tenants_by_now(
    database_url: str,
) -> None:
    async with a_world(database_url, prepare=prepare) as world:
        server = world.server
        first, second = [await server.db(Binder).create(tenant_id="a") for _ in "12"]
        for model, table in ((Page, "move_pages"), (Scrap, "move_scraps")):
            record = await server.db(model).create(text="first", binder_id=first.id)
            await server.db(model).update(record.id, binder_id=second.id, text="second")
            await server.db(Binder).update(first.id, tenant_id="b")
            answer = await world.http.post(f"/{table}/{record.id}/history/1/restore", headers=A)
            assert answer.status_code == 404, answer.text
            row = (await server.db(model).read(record.id)).model_dump()
            assert (row["binder_id"], row["text"]) == (second.id, "second")
            await server.db(Binder).update(first.id, tenant_id="a")
            answer = await world.http.post(f"/{table}/{record.id}/history/1/restore", headers=A)
            assert answer.status_code == 200, answer.text


async def test_what_another_tenant_wrote_meanwhile_stays_theirs_when_the_parent_comes_back(
    database_url: str,
) -> None:
    async with a_world(database_url, prepare=prepare) as world:
        server = world.server
        for model, table in ((Page, "move_pages"), (Scrap, "move_scraps")):
            binder = await server.db(Binder).create(tenant_id="a")
            record = await server.db(model).create(text="first of a", binder_id=binder.id)
            world.tick()
            await server.db(Binder).update(binder.id, tenant_id="b")
            await server.db(model).update(record.id, text="secret of b")
            meanwhile = text_of(world.tick())
            await server.db(model).update(record.id, text="left to a")
            world.tick()
            await server.db(Binder).update(binder.id, tenant_id="a")
            await server.db(model).update(record.id, text="a again")
            world.tick()
            name = model.__name__.lower()
            rows = await world.versions(model, record_id=record.id)
            url = f"/{table}/{record.id}"
            paths = [
                f"{url}/history",
                f"{url}/history?sort=version&limit=1",
                *(f"{url}/history/{number}" for number in range(1, 5)),
                f"{url}?as_of={meanwhile}",
                f"/{table}?as_of={meanwhile}",
                f"/{table}?as_of={meanwhile}&filter=text:contains:secret",
                f"/{name}_histories",
                f"/{name}_histories?filter=operation:eq:update",
                *(f"/{name}_histories/{row.id}" for row in rows),
            ]
            for headers in (A, {**A, "x-roles": "admin"}):
                for path in paths:
                    answer = await world.http.get(path, headers=headers)
                    assert answer.status_code < 500, (path, answer.text)
                    assert "secret of b" not in answer.text, path
            history = (await world.http.get(f"{url}/history?sort=version", headers=A)).json()
            assert [row["version"] for row in history["data"]] == [1, 4]
            assert history["meta"]["total"] == 2
            for number in (2, 3):
                restored = await world.http.post(f"{url}/history/{number}/restore", headers=A)
                assert restored.status_code == 404
            for path in paths:
                answer = await world.http.get(path, headers=B)
                assert "of a" not in answer.text, path
                assert "a again" not in answer.text, path


async def test_a_parent_that_is_deleted_and_restored_takes_its_versions_along(database_url: str) -> None:
    async with a_world(database_url, prepare=prepare) as world:
        server = world.server
        binder = await server.db(Binder).create(tenant_id="a")
        page = await server.db(Page).create(text="of a", binder_id=binder.id)
        await server.db(Page).update(page.id, text="of a again")
        await server.db(Page).delete(page.id)
        await server.db(Binder).update(binder.id, tenant_id="b")
        await server.db(Page).restore(page.id)
        url = f"/move_pages/{page.id}"
        rows = (await world.http.get(f"{url}/history", headers=B)).json()["data"]
        assert [row["operation"] for row in rows] == ["restore"]
        for path in (f"{url}/history", url):
            assert (await world.http.get(path, headers=A)).status_code == 404


async def test_a_stamp_is_no_field_of_a_history(database_url: str) -> None:
    async with a_world(database_url, prepare=prepare) as world:
        binder = await world.server.db(Binder).create(tenant_id="a")
        page = await world.server.db(Page).create(text="of a", binder_id=binder.id)
        for path in (f"/move_pages/{page.id}/history", "/page_histories"):
            for query in ("select=binding", "sort=binding:asc", "filter=binding:not_null"):
                answer = await world.http.get(f"{path}?{query}", headers=A)
                assert answer.status_code == 400, (query, answer.text)
        for query in ("include=binder", "include=binder.pages", "filter=binder.tenant_id:eq:b"):
            answer = await world.http.get(f"/move_pages/{page.id}/history?{query}", headers=A)
            assert answer.status_code == 400, (query, answer.text)


async def test_a_record_bound_through_its_own_kind(database_url: str) -> None:
    async with a_world(database_url, prepare=prepare) as world:
        server = world.server
        root = await server.db(Node).create(tenant_id="a")
        child = await server.db(Node).create(text="of a", parent_id=root.id)
        await server.db(Node).update(root.id, tenant_id="b")
        await server.db(Node).update(child.id, text="of b")
        url = f"/move_nodes/{child.id}/history"
        rows = (await world.http.get(url, headers=B)).json()["data"]
        assert [row["version"] for row in rows] == [2]
        assert (await world.http.get(url, headers=A)).status_code == 404
        assert (await world.http.get(f"/move_nodes/{root.id}/history", headers=A)).status_code == 404


class Tally(Model, table="move_tallies", versioned=True, soft_delete=True, restore=True):
    count: int = column(default=0, min=0)
    binder_id: str | None = column(default=None, relation="Binder", on_delete="set_null")
    ends_at: datetime | None = scheduled(default=None, soft_delete=True)


def prepare_tallies(server: Server) -> None:
    prepare(server)
    server.register(Tally)
    via = db.force_filter_via("binder", "tenant_id", lambda ctx: ctx.require_auth().tenant_id)
    server.pipeline.auth.register(via, models=[Tally])


async def test_every_way_to_write_stamps_its_version(database_url: str) -> None:
    async with a_world(database_url, prepare=prepare_tallies) as world:
        server = world.server
        binder = await server.db(Binder).create(tenant_id="a")
        made = await world.http.post("/move_tallies", json={"binder_id": binder.id}, headers=A)
        url = f"/move_tallies/{made.json()['data']['id']}"
        tally_id = made.json()["data"]["id"]
        await server.db(Tally).increment(tally_id, count=2)
        await world.http.patch(url, json={"count": 5}, headers=A)
        await world.http.delete(url, headers=A)
        await world.http.post(f"{url}/restore", headers=A)
        due = world.clock.now() + timedelta(minutes=1)
        await server.db(Tally).update(tally_id, ends_at=due)
        world.tick(120)
        await server.scheduled.runner().sweep()
        await server.db(Tally).restore(tally_id)
        rows = await world.versions(Tally, record_id=tally_id)
        assert [row.operation for row in rows] == [
            *("create", "update", "update", "delete", "restore", "update", "delete", "restore")
        ]
        assert [row.binding["binder.tenant_id"]["then"] for row in rows] == ["a"] * 8
        shown = (await world.http.get(f"{url}/history?limit=50", headers=A)).json()["data"]
        assert len(shown) == 8
        assert (await world.http.get(f"{url}/history", headers=B)).status_code == 404


async def test_code_that_is_bound_reverts_into_no_other_tenant(database_url: str) -> None:
    async with a_world(database_url, prepare=prepare) as world:
        server = world.server
        first, second = [await server.db(Binder).create(tenant_id="a") for _ in "12"]
        page = await server.db(Page).create(text="first", binder_id=first.id)
        await server.db(Page).update(page.id, binder_id=second.id, text="second")
        await server.db(Binder).update(first.id, tenant_id="b")
        async with server.scoped(auth=AuthInfo(user_id="u", tenant_id="a")):
            with pytest.raises(NotFound):
                await server.history(Page).revert(page.id, 1)
        async with server.scoped(auth=AuthInfo(user_id="u", tenant_id="b")):
            assert await server.history(Page).of(page.id) == []
        assert (await server.db(Page).read(page.id)).binder_id == second.id
