"""Forged forms and crossed edits: what the pages do not offer, no request to them does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from maniflex import AuthInfo, Context, Model, Next, Server, field, file
from maniflex.admin import AdminContext, ModelAdmin
from maniflex.admin.tables import AdminEvent, AdminSession
from maniflex.middleware import auth, db
from maniflex.testing import FakeClock
from tests.admin.test_forms import controls_of, make_book
from tests.kit.bookshop import Author, Book, BookTag, Tag, make_shop
from tests.kit.panel import EMAIL, PASSWORD, add_superuser, text_of, visiting


class Task(Model):
    tenant_id: str = field(default="", relation=None)
    title: str = field(filterable=True)
    state: Literal["open", "done"] = field(default="open", filterable=True)
    is_urgent: bool = True
    note: str | None = None


class Discount(BaseModel):
    percent: int


async def test_an_action_asks_for_its_operation(sqlite_url: str) -> None:
    server = Server()
    server.register(Task)
    server.pipeline.auth.register(auth.require_role("boss"), models=[Task], operations="delete")
    admin = server.admin()
    calls = []

    @admin.action(Task, on="record", operation="delete")
    async def shred(ctx: AdminContext, ids: Sequence[str]) -> str:
        calls.append(ids)
        return "shredded"

    async with visiting(server, sqlite_url) as browser:
        task = await server.db(Task).create(title="One")
        assert "Shred" not in text_of(await browser.get(f"/tasks/{task.id}"))
        await browser.get(f"/tasks/{task.id}/action/shred", 404)
        assert (await browser.post(f"/tasks/{task.id}/action/shred")).status_code == 404
        assert calls == []


async def test_an_action_is_given_no_record_of_another_tenant(database_url: str) -> None:
    server = Server()
    server.register(Task)
    server.pipeline.db.register(db.tenancy())
    admin = server.admin()
    calls = []

    @admin.action(Task, on="records")
    async def close(ctx: AdminContext, ids: Sequence[str]) -> str:
        calls.append(list(ids))
        return "closed"

    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        own = await server.db(Task).create(title="own", tenant_id="t1")
        theirs = await server.db(Task).create(title="theirs", tenant_id="t2")
        await browser.sign_in("ada@one.example")
        for ids in ([theirs.id], [own.id, theirs.id], [own.id, "nobody"]):
            for confirm in ("", "1"):
                controls: dict[str, Any] = {"ids": ids, "action": "action:close", "confirm": confirm}
                assert (await browser.post("/tasks/bulk", controls)).status_code == 404
        await browser.send("/tasks/bulk", {"ids": [own.id], "action": "action:close", "confirm": "1"})
        assert calls == [[own.id]]


async def test_an_action_on_many_records_has_its_form(sqlite_url: str) -> None:
    server = make_shop()
    admin = server.declared_panel
    assert admin is not None

    @admin.action(Book, on="records", form=Discount)
    async def discount(ctx: AdminContext, ids: Sequence[str]) -> str:
        return f"{ctx.form.percent} % off {len(ids)}"

    async with visiting(server, sqlite_url) as browser:
        chosen: dict[str, Any] = {"ids": [await make_book(server), await make_book(server)]}
        chosen["action"] = "action:discount"
        page = (await browser.post("/books/bulk", chosen)).text
        assert 'name="f.percent"' in page
        wrong = await browser.post("/books/bulk", {**chosen, "confirm": "1", "f.percent": "much"})
        assert (wrong.status_code, 'aria-invalid="true"' in wrong.text) == (422, True)
        assert wrong.text.count('name="ids"') == 2
        await browser.send("/books/bulk", {**chosen, "confirm": "1", "f.percent": "10"})
        assert "10 % off 2" in text_of(await browser.get("/books"))


async def test_no_way_around_the_form_changes_what_it_only_shows(sqlite_url: str) -> None:
    server = Server()
    server.register(Task)
    server.admin().add(ModelAdmin(Task, readonly=("state", "is_urgent")))
    async with visiting(server, sqlite_url) as browser:
        task = await server.db(Task).create(title="One")
        assert "/cell/state" not in await browser.get("/tasks")
        path = f"/tasks/{task.id}"
        await browser.post(path, {"f.state": "done", "_seen": '{"state": "open"}'})
        assert (await browser.post(f"{path}/cell/state", {"value": "done"})).status_code == 404
        assert (await browser.post(f"{path}/cell/is_urgent", {"value": "false"})).status_code == 404
        bulk = {"ids": [task.id], "action": "set", "set.state": "done", "confirm": "1"}
        assert (await browser.post("/tasks/bulk", bulk)).status_code == 404
        stored = await server.db(Task).read(task.id)
        assert (stored.state, stored.is_urgent) == ("open", True)


async def test_views_are_shared_within_a_tenant(database_url: str) -> None:
    server = Server()
    server.register(Task)
    server.pipeline.db.register(db.tenancy())
    server.admin()
    async with visiting(server, database_url, signed_in=False) as browser:
        for email, tenant in (("ada@a.example", "t1"), ("eve@a.example", "t1"), ("bob@b.example", "t2")):
            await add_superuser(server, email, tenant_id=tenant)
        await browser.sign_in("ada@a.example")
        view = {"model": "tasks", "name": "Acme is late", "query": "f_title=Acme", "shared": "1"}
        await browser.send("/-/views", view)
        pages = {}
        for email in ("ada@a.example", "eve@a.example", "bob@b.example"):
            await browser.send("/-/logout")
            await browser.sign_in(email)
            pages[email] = await browser.get("/tasks") + await browser.get("/-/views")
        assert "Acme is late" in pages["ada@a.example"]
        assert "Acme is late" in pages["eve@a.example"]
        assert "Acme" not in pages["bob@b.example"]


class Staff:
    fields: Sequence[str] = ()

    async def login(self, ctx: Context, form: Mapping[str, str]) -> AuthInfo | None:
        return AuthInfo(user_id=form["username"], roles=("superuser",))

    async def refresh(self, auth: AuthInfo) -> AuthInfo | None:
        return auth


class Company(Model):
    name: str


async def test_a_chosen_tenant_can_be_left_after_the_person_was_asked_after(sqlite_url: str) -> None:
    clock, server = FakeClock(), Server()
    server.register(Company)
    server.admin(auth=Staff(), tenants=Company)
    async with visiting(server, sqlite_url, signed_in=False, clock=clock) as browser:
        company = await server.db(Company).create(name="Acme")
        await browser.sign_in("grace", "any")
        for forged in (f"{company.id}/x", "/", "nobody"):
            assert (await browser.post("/-/tenant", {"tenant": forged})).status_code == 404
        await browser.send("/-/tenant", {"tenant": company.id})
        clock.advance(timedelta(seconds=61))
        await browser.get("/")
        await browser.send("/-/tenant", {"tenant": ""})
        [session] = await server.db(AdminSession).list()
        assert (session.tenant_id, session.identity["tenant_id"]) == (None, "")


async def test_links_of_others_stay_and_typed_ones_survive_a_refusal(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        one, two, three = [(await server.db(Tag).create(name=name)).id for name in ("a", "b", "c")]
        book_id = await make_book(server)
        for tag in (one, two):
            await server.db(BookTag).create(book_id=book_id, tag_id=tag)
        controls = controls_of(await browser.get(f"/books/{book_id}/edit"))
        await server.db(BookTag).create(book_id=book_id, tag_id=three)  # somebody else, meanwhile
        refused = await browser.post(f"/books/{book_id}", {**controls, "f.tags": one, "f.title": ""})
        assert refused.status_code == 422
        again = controls_of(refused.text) | {"f.title": "Good"}
        await browser.send(f"/books/{book_id}", again)
        assert {link.tag_id for link in await server.db(BookTag).list()} == {one, three}


async def test_save_as_new_that_is_sent_twice_makes_one_record(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book_id = await make_book(server)
        controls = {**controls_of(await browser.get(f"/books/{book_id}/edit")), "_then": "copy"}
        first = await browser.send(f"/books/{book_id}", controls)
        assert await browser.send(f"/books/{book_id}", controls) == first
        assert await server.db(Book).count() == 2


async def test_a_field_that_the_form_did_not_have_is_not_emptied(database_url: str) -> None:
    server, hides = Server(), [True]
    server.register(Task)

    @server.pipeline.response.middleware(models=[Task])
    async def hide(ctx: Context, next: Next) -> None:
        await next()
        if hides and ctx.response is not None and isinstance(ctx.response.data, dict):
            for name in ("note", "is_urgent"):
                ctx.response.data.pop(name, None)

    server.admin()
    async with visiting(server, database_url) as browser:
        task = await server.db(Task).create(title="One", note="kept")
        controls = controls_of(await browser.get(f"/tasks/{task.id}/edit"))
        hides.clear()  # another role, another owner
        await browser.send(f"/tasks/{task.id}", {**controls, "f.title": "Two"})
        stored = await server.db(Task).read(task.id)
        assert (stored.title, stored.note, stored.is_urgent) == ("Two", "kept", True)


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/tasks?q=日本", "/admin/tasks?q=%E6%97%A5%E6%9C%AC"),
        ("/../api/tasks", "/admin/"),
        ("/tasks/%2e%2E/%2e%2e/api", "/admin/"),
    ],
)
async def test_a_login_leads_into_the_panel(sqlite_url: str, target: str, place: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        await browser.get("/-/login")
        form = {"username": EMAIL, "password": PASSWORD, "next": target}
        assert (await browser.post("/-/login", form)).headers["location"] == place


@pytest.mark.parametrize("options", [{"auth": "pipeline"}, {"allow_unauthenticated": True}])
async def test_a_panel_without_a_login_takes_no_password(sqlite_url: str, options: dict[str, Any]) -> None:
    server = Server()
    server.register(Task)
    server.admin(**options)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        token = "0" * 64
        form = {"_csrf": token, "username": EMAIL, "password": PASSWORD}
        answer = await browser.post("/-/login", form, headers={"cookie": f"_csrf={token}"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin/")
        assert await server.db(AdminEvent).count() == 0


async def test_a_cookie_of_a_neighbour_does_not_change_the_session(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        token = browser.http.cookies["maniflex_admin"]
        browser.http.cookies.clear()
        both = f"maniflex_admin={token}; maniflex_admin=planted"  # a browser sends the longer path first
        assert EMAIL in await browser.get("/", headers={"cookie": both})


class Scan(Model):
    title: str = ""
    data: str | None = file(default=None)


async def test_a_large_file_comes_whole(sqlite_url: str) -> None:
    server = Server(storage="memory:", max_body_size=64 << 20)
    server.register(Scan)
    server.admin()
    content = b"text " * (5 << 20)
    async with visiting(server, sqlite_url) as browser:
        controls = controls_of(await browser.get("/scans/new"))
        path = await browser.send("/scans", controls, files={"f.data": ("a.txt", content, "text/plain")})
        answer = await browser.http.get(f"/admin{path}/file/data")
        assert (answer.status_code, len(answer.content)) == (200, len(content))
        assert answer.content == content


@pytest.mark.parametrize("name", ["x-forwarded-for", "x-real-ip", "forwarded", "via", "x-forwarded-host"])
async def test_an_open_panel_answers_no_proxy_and_no_unknown_peer(sqlite_url: str, name: str) -> None:
    server = Server()
    server.register(Task)
    server.admin(allow_unauthenticated=True)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await browser.get("/", headers={"host": "localhost"})
        await browser.get("/", 403, headers={"host": "localhost", name: "192.0.2.7"})
        transport = httpx.ASGITransport(app=server, client=None)  # type: ignore[arg-type]  # behind a socket
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get("/admin/")).status_code == 403


async def test_a_mount_may_be_left_out_of_the_path(sqlite_url: str) -> None:
    server = Server()
    server.register(Task)
    server.admin()
    async with visiting(server, sqlite_url, signed_in=False):
        transport = httpx.ASGITransport(app=server, root_path="/mounted")
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            page = await http.get("/admin/-/login")  # a proxy took the mount off
            assert page.status_code == 200
            assert 'action="/mounted/admin/-/login"' in page.text


@pytest.mark.parametrize(
    "path", ["/tasks/export/edit", "/tasks/export/delete", "/tasks/history", "/tasks/aggregate"]
)
async def test_a_path_of_the_api_is_no_record(sqlite_url: str, path: str) -> None:
    class Task(Model, export=True, versioned=True):
        title: str = field(filterable=True)

    server = Server()
    server.register(Task)
    server.admin()
    async with visiting(server, sqlite_url) as browser:
        await browser.get(path, 404)


async def test_an_origin_of_another_scheme_is_another_site(sqlite_url: str) -> None:
    server = make_shop()
    async with visiting(server, sqlite_url) as browser:
        for headers, status in (
            ({"origin": "https://test"}, 403),
            ({"origin": "http://test"}, 303),
            ({"origin": "https://test", "sec-fetch-site": "same-origin"}, 303),  # TLS ended before us
            ({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, 403),
        ):
            headers = {"host": "test", **headers}
            answer = await browser.post(
                "/-/account/preferences", {"theme": "dark", "zone": "UTC"}, headers=headers
            )
            assert answer.status_code == status, headers


async def test_a_cell_is_not_changed_over_the_change_of_others(database_url: str) -> None:
    server = make_shop()
    async with visiting(server, database_url) as browser:
        book = await server.db(Book).create(title="A book")
        await browser.get("/books")
        path = f"/books/{book.id}/cell/status"
        await server.db(Book).update(book.id, status="archived")
        answer = await browser.post(path, {"value": "published", "base": "draft"})
        assert "archived" in answer.json()["error"]
        assert (await server.db(Book).read(book.id)).status == "archived"
        answer = await browser.post(path, {"value": "published", "base": "archived"})
        assert answer.json()["value"] == "published"
        assert (await server.db(Book).read(book.id)).status == "published"


async def test_the_audit_names_no_record_of_a_model_that_may_not_be_listed(database_url: str) -> None:
    server = make_shop()

    async def authors_are_for_editors(ctx: Context, next: Next) -> None:
        if not ctx.has_role("editor"):
            ctx.abort(403, "FORBIDDEN", "for editors")
        await next()

    server.pipeline.auth.register(authors_are_for_editors, models=[Author])
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "eve@example.org", roles=("superuser", "editor"))
        await add_superuser(server, "bob@example.org")
        await browser.sign_in("eve@example.org")
        path = await browser.send("/authors", {"f.name": "Ursula", "_seen": "{}", "_key": "k1"})
        record_id = path.rpartition("/")[2]
        assert record_id in await browser.get("/-/audit")
        await browser.post("/-/logout")
        await browser.sign_in("bob@example.org")
        for page in ("/", "/-/audit", f"/-/audit?f_record={record_id}"):
            text = await browser.get(page)
            assert f"/authors/{record_id}" not in text
            assert "Author " not in text_of(text)
