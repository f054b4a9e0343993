"""H12 to H15: what is bound through its parent, or by a hidden field, shows nobody another's versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Server
from maniflex import field as column
from maniflex.errors import DeclarationError, NotFound
from maniflex.middleware import db
from tests.history.world import Invoice, Line, World, a_world, as_tenant

A, B = as_tenant("a"), as_tenant("b")


class Folder(Model, table="hist_folders"):
    """A parent without a history."""

    tenant_id: str = column(default="", relation=None, hidden=True)
    title: str = ""


class Shelf(Model, table="hist_shelves"):
    folder_id: str | None = column(default=None, relation="Folder", on_delete="set_null")


class Note(Model, table="hist_notes", versioned=True, history_restore=True, soft_delete=True, restore=True):
    text: str = column(default="", filterable=True)
    shelf_id: str | None = column(default=None, relation="Shelf", on_delete="set_null")


class Memo(Model, table="hist_memos", versioned_diff_only=True, history_restore=True):
    text: str = ""
    shelf_id: str | None = column(default=None, relation="Shelf", on_delete="set_null")


class Card(Model, table="hist_cards", versioned=True, history_restore=True):
    text: str = ""
    tenant_id: str = column(default="", relation=None, hidden=True)


def _prepare(server: Server) -> None:
    def tenant(ctx: Context) -> str:
        return ctx.require_auth().tenant_id

    server.register(Folder, Shelf, Note, Memo, Card)
    via = db.force_filter_via("shelf.folder", "tenant_id", tenant)
    server.pipeline.auth.register(via, models=[Note, Memo])
    server.pipeline.auth.register(db.tenancy(), models=[Card])


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def _everything_shown(world: World, table: str, model: str, record_id: str, then: str) -> str:
    """All that tenant b is shown of a record of the past, on every surface."""
    rows = await world.server.db(f"{model.capitalize()}History").list({"record_id": record_id})
    paths = [
        f"/{table}/{record_id}/history",
        f"/{table}/{record_id}/history/1",
        f"/{model}_histories",
        f"/{model}_histories?filter=record_id:eq:{record_id}",
        f"/{table}/{record_id}?as_of={then}",
        f"/{table}?as_of={then}",
        *(f"/{model}_histories/{row.id}" for row in rows),
    ]
    shown = [(await world.http.get(path, headers=B)).text for path in paths]
    for number in (1, 2):
        await world.http.post(f"/{table}/{record_id}/history/{number}/restore", headers=B)
    shown.append((await world.http.get(f"/{table}/{record_id}", headers=B)).text)
    return "".join(shown)


@pytest.mark.parametrize(("model", "table"), [(Note, "hist_notes"), (Memo, "hist_memos")])
async def test_a_parent_that_changed_hands_does_not_take_former_versions_along(
    database_url: str, model: type[Model], table: str
) -> None:
    async with a_world(database_url, tenants=True, prepare=_prepare) as world:
        server = world.server
        folder = await server.db(Folder).create(tenant_id="a")
        shelf = await server.db(Shelf).create(folder_id=folder.id)
        record = await server.db(model).create(text="first of a", shelf_id=shelf.id)
        await server.db(model).update(record.id, text="of a again")
        before = world.tick()
        own = (await world.http.get(f"/{table}/{record.id}/history", headers=A)).json()["data"]
        assert [v["version"] for v in own] == [2, 1]
        await server.db(model).update(record.id, text="last of a")
        world.tick()
        await server.db(Folder).update(folder.id, tenant_id="b")
        await server.db(model).update(record.id, text="of b")
        await server.db(model).update(record.id, text="of b again")
        after = _text(world.tick())

        shown = await _everything_shown(world, table, model.__name__.lower(), record.id, _text(before))
        assert "first of a" not in shown
        assert "of a again" not in shown
        history = (await world.http.get(f"/{table}/{record.id}/history?sort=version", headers=B)).json()
        assert [v["version"] for v in history["data"]] == [4, 5]  # made by b, of what b found
        assert history["meta"]["total"] == 2
        now = await world.http.get(f"/{table}/{record.id}?as_of={after}", headers=B)
        assert now.json()["data"]["text"] == "of b again"
        for path in (f"/{table}/{record.id}/history", f"/{table}/{record.id}?as_of={after}"):
            assert (await world.http.get(path, headers=A)).status_code == 404

        async with server.scoped(auth=AuthInfo(user_id="u", tenant_id="b")):
            assert [v.version for v in await server.history(model).of(record.id)] == [5, 4]
            for call in (
                server.history(model).at(record.id, before),
                server.history(model).version(record.id, 1),
                server.history(model).revert(record.id, 2),
            ):
                with pytest.raises(NotFound):
                    await call


async def test_versions_stay_with_the_tenant_when_the_former_parent_goes(database_url: str) -> None:
    async with a_world(database_url, tenants=True, prepare=_prepare) as world:
        server = world.server
        folders = [await server.db(Folder).create(tenant_id=t) for t in ("a", "a", "b")]
        shelves = [await server.db(Shelf).create(folder_id=folder.id) for folder in folders]
        note = await server.db(Note).create(text="on the first", shelf_id=shelves[0].id)
        await server.db(Note).update(note.id, shelf_id=shelves[1].id, text="on the second")
        await server.db(Folder).update(folders[0].id, tenant_id="b")
        url = f"/hist_notes/{note.id}/history"
        assert [v["version"] for v in (await world.http.get(url, headers=A)).json()["data"]] == [2, 1]
        await server.db(Shelf).delete(shelves[0].id)
        await server.db(Folder).delete(folders[0].id)
        assert [v["version"] for v in (await world.http.get(url, headers=A)).json()["data"]] == [2, 1]
        # The version that moved it to b has values of a in its diff.
        await server.db(Note).update(note.id, shelf_id=shelves[2].id, text="with b")
        await server.db(Note).delete(note.id)
        rows = (await world.http.get(url, headers=B)).json()["data"]
        assert [v["operation"] for v in rows] == ["delete"]
        await server.db(Note).restore(note.id)
        assert len((await world.http.get(url, headers=B)).json()["data"]) == 2
        assert (await world.http.get(url, headers=A)).status_code == 404


async def test_a_hidden_owner_binds_versions_and_is_in_none_of_them(database_url: str) -> None:
    async with a_world(database_url, tenants=True, prepare=_prepare) as world:
        server = world.server
        card = await server.db(Card).create(text="of a", tenant_id="a")
        then = _text(world.tick())
        world.tick()
        await server.db(Card).update(card.id, tenant_id="b", text="of b")
        await server.db(Card).update(card.id, text="of b still")
        shown = await _everything_shown(world, "hist_cards", "card", card.id, then)
        assert "of a" not in shown
        rows = (await world.http.get(f"/hist_cards/{card.id}/history", headers=B)).json()["data"]
        assert [v["version"] for v in rows] == [3]
        assert "binding" not in rows[0]
        assert "tenant_id" not in rows[0]["snapshot"]


async def test_cascades_and_quick_deletes_stamp_their_versions(database_url: str) -> None:
    async with a_world(database_url, tenants=True) as world:
        server = world.server
        invoice = await server.db(Invoice).create(tenant_id="a")
        lines = [await server.db(Line).create(invoice_id=invoice.id) for _ in range(3)]
        await server.db(Line).delete(lines[0].id)
        await server.db(Invoice).delete(invoice.id)
        for line in lines[:2]:
            versions = await world.versions(Line, record_id=line.id)
            stamps = [row.binding["invoice.tenant_id"]["then"] for row in versions]
            assert stamps == ["a", "a"][: len(stamps)]
        assert len(await world.versions(Line, record_id=lines[0].id)) == 2


async def test_versions_without_a_stamp_are_not_shown_to_bound_callers(database_url: str) -> None:
    async with a_world(database_url, tenants=True) as world:
        server = world.server
        invoice = await server.db(Invoice).create(tenant_id="a")
        line = await server.db(Line).create(text="before", invoice_id=invoice.id)
        await server.raw_exec("UPDATE line_histories SET binding = NULL")
        await server.db(Line).update(line.id, text="after")
        then = _text(world.tick())
        url = f"/hist_lines/{line.id}"
        rows = (await world.http.get(f"{url}/history", headers=A)).json()["data"]
        assert [v["version"] for v in rows] == [2]
        assert (await world.http.get(f"{url}?as_of={then}", headers=A)).status_code == 200
        operator = as_tenant("ops", "operator")
        assert len((await world.http.get(f"{url}/history", headers=operator)).json()["data"]) == 2


class Entry(Model, table="hist_entries", versioned=True, history_scope="invoice.tenant_id"):
    text: str = ""
    invoice_id: str = column(relation="Invoice", on_delete="cascade")


class Remark(Model, table="hist_remarks", versioned=True):
    text: str = ""
    invoice_id: str = column(relation="Invoice", on_delete="cascade")


async def test_what_code_forces_is_named_by_history_scope(database_url: str) -> None:
    async def force(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
        if ctx.auth is not None:
            ctx.query.force("invoice.tenant_id", ctx.auth.tenant_id)
        await next()

    def prepare(server: Server) -> None:
        server.register(Entry, Remark)
        server.pipeline.auth.register(force, models=[Entry, Remark], at="after")

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(tenant_id="a")
        entry = await world.server.db(Entry).create(text="of a", invoice_id=invoice.id)
        remark = await world.server.db(Remark).create(text="of a", invoice_id=invoice.id)

        async def count(path: str, headers: Any) -> int:
            answer = await world.http.get(path, headers=headers)
            return len(answer.json().get("data", []))

        assert await count(f"/hist_entries/{entry.id}/history", A) == 1
        assert await count(f"/hist_remarks/{remark.id}/history", A) == 0  # nobody said what to keep
        await world.server.db(Invoice).update(invoice.id, tenant_id="b")
        assert await count(f"/hist_entries/{entry.id}/history", B) == 0


async def test_history_scope_names_a_field() -> None:
    class Wrong(Model, versioned=True, history_scope=("invoice.nothing", "text")):
        text: str = ""

    server = Server()
    server.register(Wrong)
    with pytest.raises(DeclarationError, match=r"history_scope: 'invoice\.nothing' is no field"):
        server.seal()


async def test_one_transaction_hands_over_between_two_versions(database_url: str) -> None:
    """What bound a version is what its own transaction saw, not what a clock says came first."""
    async with a_world(database_url, tenants=True) as world:
        server = world.server
        invoice = await server.db(Invoice).create(tenant_id="a")
        line = await server.db(Line).create(text="of a", invoice_id=invoice.id)
        async with server.transaction():
            await server.db(Line).update(line.id, text="still of a")
            await server.db(Invoice).update(invoice.id, tenant_id="b")
            await server.db(Line).update(line.id, text="of b")
        rows = (await world.http.get(f"/hist_lines/{line.id}/history", headers=B)).json()["data"]
        assert [v["version"] for v in rows] == [3]
