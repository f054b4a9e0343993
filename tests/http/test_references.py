"""A key refers to a record that is there, alive and inside the caller's scope, or the write is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maniflex import Conflict, Context, Model, Next, Server, WithDeletedAt, field, has_many, with_transaction
from maniflex.model.relation import NotLoaded
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, serving


class User(Model, WithDeletedAt):
    name: str
    tenant_id: str = field(default="", relation=None)
    posts: list[Post] = has_many()


class Post(Model):
    title: str = "t"
    user_id: str
    reviewer_id: str | None = field(relation="User", alias="reviewerId")
    tenant_id: str = field(default="", relation=None)
    comments: list[Comment] = has_many()


class Comment(Model):
    post_id: str
    user_id: str | None = None


BLOG = (User, Post, Comment)
MISSING = "the record it refers to does not exist"


async def test_a_key_that_leads_nowhere_is_a_conflict_that_names_it(database_url: str) -> None:
    async with serving(database_url, *BLOG) as http:
        ada = await created(http, "/api/users", name="Ada")
        gone = await created(http, "/api/users", name="Bob")
        await http.delete(f"/api/users/{gone['id']}")

        for key in ("nobody", "", gone["id"], "é" * 300):
            refused = error_of(await http.post("/api/posts", json={"user_id": key}), 409, "CONFLICT")
            assert refused["details"] == [{"field": "user_id", "message": MISSING}]
        both = {"user_id": "x", "reviewerId": "y"}
        refused = error_of(await http.post("/api/posts", json=both), 409, "CONFLICT")
        assert [d["field"] for d in refused["details"]] == ["user_id", "reviewerId"]
        one = {"user_id": ada["id"], "reviewerId": gone["id"]}
        refused = error_of(await http.post("/api/posts", json=one), 409, "CONFLICT")
        assert [d["field"] for d in refused["details"]] == ["reviewerId"]
        assert data_of(await http.get("/api/posts")) == []


async def test_an_update_checks_the_keys_it_changes_and_no_others(database_url: str) -> None:
    async with serving(database_url, *BLOG) as http:
        ada, bob = [await created(http, "/api/users", name=name) for name in ("Ada", "Bob")]
        post = await created(http, "/api/posts", user_id=ada["id"], reviewerId=bob["id"])
        path = f"/api/posts/{post['id']}"
        await http.delete(f"/api/users/{ada['id']}")

        assert data_of(await http.patch(path, json={"title": "u"}))["title"] == "u"
        assert data_of(await http.patch(path, json=post)) | {"updated_at": ""} == post | {"updated_at": ""}
        error_of(await http.patch(path, json={"reviewerId": ada["id"]}), 409, "CONFLICT")
        error_of(await http.patch(path, json={"user_id": "nobody"}), 409, "CONFLICT")
        error_of(await http.patch("/api/posts/none", json={"user_id": "nobody"}), 404, "NOT_FOUND")
        assert (await http.patch(path, json={"user_id": None})).status_code == 422
        assert data_of(await http.patch(path, json={"reviewerId": None}))["reviewerId"] is None
        assert data_of(await http.patch(path, json={"user_id": bob["id"]}))["user_id"] == bob["id"]


async def test_a_record_of_another_tenant_answers_as_one_that_does_not_exist(database_url: str) -> None:
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", ctx.header("x-tenant") or "none")
        await next()

    server = Server()
    server.register(*BLOG)
    server.pipeline.auth.register(bind, models=[User, Post])
    async with client(server, database=database_url) as http:
        http.headers["x-tenant"] = "t2"
        theirs = await created(http, "/api/users", name="Bob")
        http.headers["x-tenant"] = "t1"
        mine = await created(http, "/api/users", name="Ada")
        post = await created(http, "/api/posts", user_id=mine["id"])

        answers = []
        for key in (theirs["id"], "nobody"):
            answers.append(await http.post("/api/posts", json={"user_id": key}))
            answers.append(await http.patch(f"/api/posts/{post['id']}", json={"user_id": key}))
        assert {answer.status_code for answer in answers} == {409}
        assert len({answer.text for answer in answers}) == 1


async def test_code_is_held_to_the_same(database_url: str) -> None:
    server = Server()
    server.register(*BLOG)
    async with client(server, database=database_url):
        ada = await server.db(User).create(name="Ada")
        post = await server.db(Post).create(user_id=ada.id)
        with pytest.raises(Conflict):
            await server.db(Post).create(user_id="nobody")
        with pytest.raises(Conflict):
            await server.db(Post).update(post.id, user_id="nobody")
        async with server.transaction():
            bob = await server.db(User).create(name="Bob")
            assert (await server.db(Post).create(user_id=bob.id)).user_id == bob.id


async def test_a_refusal_inside_a_transaction_leaves_it_usable(database_url: str) -> None:
    server = Server()
    server.register(*BLOG)
    server.pipeline.service.register(with_transaction())
    async with client(server, database=database_url) as http:
        ada = await created(http, "/api/users", name="Ada")
        async with server.transaction():
            with pytest.raises(Conflict):
                await server.db(Post).create(user_id="nobody")
            await server.db(Post).create(user_id=ada["id"])
        assert await server.db(Post).count() == 1


async def test_a_row_may_refer_to_itself(database_url: str) -> None:
    class Node(Model):
        root_id: str = field(relation="Node")

    server = Server()
    server.register(Node)
    async with client(server, database=database_url):
        node = await server.db(Node).create(id="a", root_id="a")
        assert (await server.db(Node).create(root_id=node.id)).root_id == "a"


async def test_a_key_to_another_database_is_looked_up_there(database_url: str) -> None:
    class Account(Model, database=":memory:"):
        name: str = ""

    class Movement(Model):
        account_id: str

    server = Server()
    server.register(Account, Movement)
    async with client(server, database=database_url) as http:
        account = await created(http, "/api/accounts")
        moved = await created(http, "/api/movements", account_id=account["id"])
        error_of(await http.post("/api/movements", json={"account_id": "x"}), 409, "CONFLICT")
        error_of(await http.patch(f"/api/movements/{moved['id']}", json={"account_id": "x"}), 409, "CONFLICT")


async def test_moving_a_child_while_its_new_parent_goes_never_leaves_it_behind(database_url: str) -> None:
    class Box(Model, WithDeletedAt):
        name: str = ""

    class Thing(Model):
        box_id: str | None = field(on_delete="cascade", filterable=True)

    server = Server()
    server.register(Box, Thing)
    async with client(server, database=database_url) as http:
        for turn in range(5):
            old, new = await created(http, "/api/boxes"), await created(http, "/api/boxes")
            things = [await created(http, "/api/things", box_id=old["id"]) for _ in range(5)]
            calls: list[Any] = [
                http.patch(f"/api/things/{thing['id']}", json={"box_id": new["id"]}) for thing in things
            ]
            calls += [http.patch(f"/api/things/{things[0]['id']}", json={"box_id": new["id"]})]
            calls.insert(turn, http.delete(f"/api/boxes/{new['id']}"))
            answers = await asyncio.gather(*calls)
            assert {answer.status_code for answer in answers} <= {200, 204, 404, 409}
            assert await server.db(Thing).count({"box_id": new["id"]}) == 0


async def test_code_loads_relations_along(database_url: str) -> None:
    server = Server()
    server.register(*BLOG)
    async with client(server, database=database_url):
        ada, bob = [await server.db(User).create(name=name) for name in ("Ada", "Bob")]
        first = await server.db(Post).create(title="1", user_id=ada.id, reviewer_id=bob.id)
        second = await server.db(Post).create(title="2", user_id=ada.id)
        await server.db(Comment).create(post_id=first.id, user_id=bob.id)
        await server.db(User).delete(bob.id)

        users = await server.db(User).list(include=["posts.comments", "posts.user"])
        [posts] = [user.posts for user in users]
        assert [post.id for post in posts] == [first.id, second.id]
        assert [len(post.comments) for post in posts] == [1, 0]
        read = await server.db(Post).read(first.id, include="comments")
        assert read.comments[0].user_id == bob.id
        with pytest.raises(NotLoaded):
            _ = (await server.db(Post).read(first.id)).comments
        with pytest.raises(Exception, match=r"User: include: 'post' is not a relation; did you mean 'posts'"):
            await server.db(User).list(include=["post"])
