"""Whoever works in the panel is told to rules, stamps and actions as the API would tell them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Next, Server, WithDeletedAt, field, has_many
from maniflex.admin import AdminContext, Inline, ModelAdmin
from maniflex.admin.tables import AdminEvent, AdminTransfer
from maniflex.admin.transfers.runner import InRequest
from maniflex.middleware import auth, db, service
from tests.kit.panel import Browser, runner_of, text_of, visiting


class Org(Model):
    name: str = field(filterable=True)


class Account(Model):
    org_id: str = field(filterable=True)
    email: str = field(filterable=True)


class Post(Model, WithDeletedAt, versioned=True, restore=True):
    org_id: str = field(filterable=True)
    author_id: str = field(filterable=True, relation="Account")
    editor_id: str | None = field(default=None, relation="Account", filterable=True)
    title: str = field(filterable=True, sortable=True)
    remarks: list[Remark] = has_many()


class Remark(Model):
    org_id: str
    post_id: str
    author_id: str = field(relation="Account")
    text: str = field(filterable=True)


def make_server(how: str) -> Server:
    server = Server()
    server.register(Org, Account, Post, Remark)
    pipeline = server.pipeline

    async def identify(user_id: str) -> AuthInfo | None:
        account = await server.db(Account).read(user_id)
        return AuthInfo(user_id=account.id, roles=["member"], tenant_id=account.org_id)

    @pipeline.auth.middleware()
    async def read_header(ctx: Context, next: Next) -> None:
        if not (ctx.in_process and ctx.auth is not None):
            name = ctx.header("x-account")
            ctx.auth = None if name is None else await identify(name)
        if ctx.auth is None:
            ctx.abort(401, "UNAUTHORIZED", "sign in first")
        await next()

    pipeline.auth.register(db.tenancy("org_id", shared=[Org]))
    pipeline.auth.register(auth.require_owner("author_id"), models=[Post, Remark])
    pipeline.service.register(
        service.set_field("editor_id", lambda ctx: ctx.require_auth().user_id), models=[Post]
    )

    async def login(ctx: Context, username: str, password: str) -> AuthInfo | None:
        [account] = await server.db(Account).list({"email": username})
        return await identify(account.id)

    @server.action("POST", "/posts/{id}/sign", request=Signature)
    async def sign(ctx: Context) -> None:
        await ctx.db(Post).update(ctx.url_param("id"), title=f"signed by {ctx.require_auth().user_id}")

    admin = server.admin(
        auth=login if how == "login" else "pipeline", role="member", tenants=Org, accounts=Account
    )
    admin.add(ModelAdmin(Post, inlines=(Inline(Remark),), can_import=True))

    @admin.action(Post, label="Shout", on="records")
    async def shout(ctx: AdminContext, ids: Sequence[str]) -> str:
        for one in ids:
            answer = await ctx.call("PATCH", f"/api/posts/{one}", json={"title": "LOUD"})
            assert answer.status == 200, answer.error
        return "shouted"

    return server


class Signature(Model, headless=True):
    word: str


@pytest.fixture(params=["login", "pipeline"])
def how(request: pytest.FixtureRequest) -> str:
    way: str = request.param
    return way


class Member:
    """Somebody of the application in the panel, and a colleague whose records are not theirs."""

    def __init__(self, server: Server, browser: Browser, account: Account, other: Account) -> None:
        self.server, self.browser, self.id, self.org_id = server, browser, account.id, account.org_id
        self.other = other

    async def own(self, title: str = "Mine") -> Post:
        return await self.server.db(Post).create(title=title, author_id=self.id, org_id=self.org_id)


async def enter(server: Server, browser: Browser, how: str) -> Member:
    org = await server.db(Org).create(name="Acme")
    account, other = [
        await server.db(Account).create(org_id=org.id, email=email) for email in ("eve@acme", "bob@acme")
    ]
    if how == "login":
        await browser.sign_in("eve@acme", "x")
    else:
        browser.http.headers["x-account"] = account.id
        await browser.get("/")
    return Member(server, browser, account, other)


async def perform(server: Server, place: str) -> None:
    transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
    await runner_of(server).perform(transfer, InRequest())


async def test_records_and_rows_are_stamped_with_the_person(sqlite_url: str, how: str) -> None:
    server = make_server(how)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        eve = await enter(server, browser, how)
        form = await browser.get("/posts/new")
        assert 'name="f.author_id"' not in form
        assert 'name="f.org_id"' not in form
        controls = {"f.title": "First", "inline.remarks.0.text": "Hello", "_key": "one"}
        place = await browser.send("/posts", controls)
        [post] = await server.db(Post).list()
        [remark] = await server.db(Remark).list()
        assert (post.author_id, post.editor_id, post.org_id) == (eve.id, eve.id, eve.org_id)
        assert (remark.author_id, remark.org_id) == (eve.id, eve.org_id)
        form = await browser.get(f"{place}/edit")
        for name in ("author_id", "org_id"):
            assert f'name="f.{name}"' not in form, name
            assert f'name="inline.remarks.0.{name}"' not in form, name
        seen = re.findall(r'name="_seen" value="([^"]*)"', form)[0].replace("&#34;", '"')
        copied = await browser.send(place, {"f.title": "Copy", "_seen": seen, "_then": "copy", "_key": "two"})
        assert (await server.db(Post).read(copied.rpartition("/")[2])).author_id == eve.id


async def test_changes_of_many_are_made_by_the_person(sqlite_url: str, how: str) -> None:
    server = make_server(how)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        eve = await enter(server, browser, how)
        mine = [await eve.own(f"Mine {n}") for n in range(3)]
        foreign = await server.db(Post).create(title="X", author_id=eve.other.id, org_id=eve.org_id)
        await browser.get("/posts")
        ids = [one.id for one in mine]
        sent = {"ids": [*ids, foreign.id], "action": "set", "set.title": "New", "confirm": "1"}
        assert "3 records changed, 1 refused" in text_of((await browser.post("/posts/bulk", sent)).text)
        await browser.send("/posts/bulk", {"ids": ids, "action": "action:shout", "confirm": "1"})
        posts = await server.db(Post).list({"author_id": eve.id})
        assert {(one.title, one.editor_id) for one in posts} == {("LOUD", eve.id)}
        await browser.send("/posts/bulk", {"ids": ids, "action": "delete", "confirm": "1"})
        trash = {"ids": ids, "action": "restore", "query": "trash=1", "confirm": "1"}
        await browser.send("/posts/bulk", trash)
        assert await server.db(Post).count({"author_id": eve.id}) == 3
        versions = await server.raw_query("SELECT DISTINCT actor_id FROM post_histories WHERE version > 1")
        assert [row["actor_id"] for row in versions] == [eve.id]
        events = await server.db(AdminEvent).list({"model": "Post"})
        assert {one.actor_id for one in events} == {eve.id}


async def test_work_in_the_background_is_done_by_the_person(sqlite_url: str, how: str) -> None:
    server = make_server(how)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        eve = await enter(server, browser, how)
        async with server.transaction():
            for number in range(210):
                await eve.own(f"Mine {number}")
            for _ in range(3):
                await server.db(Post).create(title="X", author_id=eve.other.id, org_id=eve.org_id)
        await browser.get("/posts")
        sent = {"all": "1", "action": "set", "set.title": "New", "confirm": "1", "query": ""}
        await perform(server, await browser.send("/posts/bulk", sent))
        assert await server.db(Post).count({"title": "New", "editor_id": eve.id}) == 210
        await browser.get("/posts/import")
        lines = "\r\n".join(["title", *(f"Imported {n}" for n in range(3)), ""]).encode()
        place = await browser.send("/posts/import", {"step": "import"}, files={"file": ("a.csv", lines)})
        transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        assert (transfer.created, transfer.refused) == (3, 0)
        imported = await server.db(Post).list([("title", "starts_with", "Imported")])
        assert {(one.author_id, one.editor_id, one.org_id) for one in imported} == {
            (eve.id, eve.id, eve.org_id)
        }


async def test_actions_and_versions_are_of_the_person(sqlite_url: str, how: str) -> None:
    server = make_server(how)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        eve = await enter(server, browser, how)
        post = await eve.own()
        page = await browser.get(f"/posts/{post.id}/action/sign")
        assert "eve@acme" in page  # who is signed in
        await browser.send(f"/posts/{post.id}/action/sign", {"f.word": "x"})
        assert (await server.db(Post).read(post.id)).title == f"signed by {eve.id}"
        await browser.send(f"/posts/{post.id}/history/1/restore")
        back = await server.db(Post).read(post.id)
        assert (back.title, back.editor_id) == ("Mine", eve.id)
        await browser.send(f"/posts/{post.id}/delete")
        await browser.send(f"/posts/{post.id}/restore")
        page = text_of(await browser.get(f"/posts/{post.id}/history"))
        assert "eve@acme" in page
        assert eve.id not in page.replace(f"signed by {eve.id}", "")


async def test_a_field_that_rules_fix_cannot_be_set_on_many(sqlite_url: str, how: str) -> None:
    server = make_server(how)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        eve = await enter(server, browser, how)
        post: Any = await eve.own()
        page = await browser.get("/posts")
        assert '<option value="title">' in page
        assert '<option value="org_id">' not in page
        assert '<option value="author_id">' not in page
        sent = {"ids": post.id, "action": "set", "set.org_id": "x", "confirm": "1"}
        assert (await browser.post("/posts/bulk", sent)).status_code == 404
