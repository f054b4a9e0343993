"""Rows in forms: children and links with fields of their own, stored with the record or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import (
    Context,
    DeclarationError,
    Model,
    Next,
    Operation,
    Server,
    belongs_to,
    field,
    has_many,
    many_to_many,
)
from maniflex.admin import Inline, ModelAdmin
from maniflex.admin.tables import AdminEvent
from tests.admin.test_forms import controls_of
from tests.kit.panel import Browser, text_of, visiting


class Post(Model, optimistic_lock=False):
    title: str = field(min_length=2)
    comments: list[Comment] = has_many()
    people: list[Reader] = many_to_many(through="Seat")


class Comment(Model, optimistic_lock=True):
    post_id: str = field(filterable=True, on_delete="cascade")
    post: Post | None = belongs_to()
    body: str = field(min_length=3, unique=True)
    stars: int = field(default=3, max=5)
    hot: bool = field(default=False)
    token: str | None = field(default=None, writeonly=True)


class Reader(Model):
    name: str


class Seat(Model):
    post_id: str = field(on_delete="cascade")
    reader_id: str = field(on_delete="cascade")
    row: str = field(default="A", max_length=1)


def make_blog(**options: Any) -> Server:
    server = Server()
    server.register(Post, Comment, Reader, Seat)
    admin = server.admin()
    admin.add(
        ModelAdmin(Post, inlines=[Inline(Comment, columns=("body", "stars", "hot", "token"), **options)])
    )
    return server


async def open_form(browser: Browser, path: str, changes: dict[str, str | None]) -> dict[str, Any]:
    controls = controls_of(await browser.get(path))
    for name, value in changes.items():
        controls.pop(name, None) if value is None else controls.update({name: value})
    return controls


async def bodies(server: Server) -> list[tuple[str, int]]:
    return [(one.body, one.stars) for one in await server.db(Comment).list(sorts="id")]


async def test_children_are_made_changed_and_removed_with_their_parent(database_url: str) -> None:
    server = make_blog()
    async with visiting(server, database_url) as browser:
        changes: dict[str, str | None] = {"f.title": "First", "inline.comments.0.body": "one"}
        controls = await open_form(browser, "/posts/new", changes)
        controls |= {
            "inline.comments.1.body": "two",
            "inline.comments.1.stars": "5",
            "inline.comments.7.stars": "3",
        }
        path = await browser.send("/posts", controls)
        assert await bodies(server) == [("one", 3), ("two", 5)]

        changes = {"inline.comments.0._delete": "1", "inline.comments.1.stars": "4"}
        changes |= {"inline.comments.2.body": "one", "inline.comments.2.hot": "true"}
        controls = await open_form(browser, f"{path}/edit", changes)
        assert controls["inline.comments.1.body"] == "two"
        await browser.send(path, controls)
        assert await bodies(server) == [("two", 4), ("one", 3)]
        events = await server.db(AdminEvent).list({"model": "Post"}, "id")
        assert [(one.action, one.fields) for one in events] == [
            ("create", ["title", "comments"]),
            ("update", ["comments"]),
        ]
        again = await browser.post(path, controls)  # the same form once more: nothing is made twice
        assert again.status_code == 303
        assert len(await bodies(server)) == 2
        controls = await open_form(browser, f"{path}/edit", {})
        await browser.send(path, controls)
        assert "Nothing was changed" in text_of(await browser.get(path))


async def test_one_wrong_child_stores_nothing_and_is_told_at_its_field(database_url: str) -> None:
    server = make_blog()
    async with visiting(server, database_url) as browser:
        changes: dict[str, str | None] = {"f.title": "First", "inline.comments.0.body": "fine"}
        controls = await open_form(browser, "/posts/new", changes)
        controls |= {
            "inline.comments.1.body": "no",
            "inline.comments.2.body": "long",
            "inline.comments.2.stars": "9",
        }
        controls |= {"inline.comments.2.token": "row-secret"}
        response = await browser.post("/posts", controls)
        assert response.status_code == 422
        page = response.text
        assert 'href="#field-inline.comments.1.body"' in page
        assert "comments[1].body:" in text_of(page)
        assert "comments[2].stars:" in text_of(page)
        assert "row-secret" not in page
        sent_again = controls_of(page)
        assert sent_again["inline.comments.0.body"] == "fine"
        assert sent_again["inline.comments.2.stars"] == "9"
        for model in (Post, Comment, AdminEvent):
            assert await server.db(model).count({"action": "create"} if model is AdminEvent else {}) == 0
        sent_again |= {"inline.comments.1.body": "now", "inline.comments.2.stars": "1"}
        await browser.send("/posts", sent_again)
        assert len(await bodies(server)) == 3
        # a conflict of unique values rolls back the change of the parent, too
        path = "/posts/" + (await server.db(Post).list())[0].id
        controls = await open_form(
            browser, f"{path}/edit", {"f.title": "Other", "inline.comments.3.body": "fine"}
        )
        response = await browser.post(path, controls)
        assert response.status_code == 422
        assert "comments[3].body" in text_of(response.text)
        assert (await server.db(Post).list())[0].title == "First"


async def test_rows_of_others_are_out_of_reach_and_their_changes_are_told(database_url: str) -> None:
    server = make_blog()
    async with visiting(server, database_url) as browser:
        first, second = [await server.db(Post).create(title=title) for title in ("First", "Second")]
        mine = await server.db(Comment).create(post_id=first.id, body="mine")
        other = await server.db(Comment).create(post_id=second.id, body="other")
        path = f"/posts/{first.id}"
        for name, value in (("body", "stolen"), ("_delete", "1")):
            controls = await open_form(browser, f"{path}/edit", {f"inline.comments.0.{name}": value})
            await browser.post(path, controls | {"inline.comments.0._id": other.id})
            assert (await server.db(Comment).read(other.id)).body == "other"
        controls = await open_form(browser, f"{path}/edit", {"inline.comments.0.body": "changed"})
        await server.db(Comment).update(mine.id, body="theirs")
        response = await browser.post(path, controls)
        assert response.status_code == 409
        assert "theirs" in text_of(response.text)
        assert (await server.db(Comment).read(mine.id)).body == "theirs"
        await browser.send(path, controls_of(response.text))
        assert (await server.db(Comment).read(mine.id)).body == "changed"


async def test_links_with_fields_of_their_own_are_rows(database_url: str) -> None:
    server = make_blog()
    async with visiting(server, database_url) as browser:
        readers = [await server.db(Reader).create(name=name) for name in ("Ada", "Bob")]
        changes: dict[str, str | None] = {"f.title": "First", "inline.people.0.reader_id": readers[0].id}
        controls = await open_form(browser, "/posts/new", {**changes, "inline.people.0.row": "C"})
        path = await browser.send("/posts", controls | {"inline.people.1.reader_id": readers[1].id})
        seats = {seat.reader_id: seat.row for seat in await server.db(Seat).list()}
        assert seats == {readers[0].id: "C", readers[1].id: "A"}
        page = await browser.get(f"{path}/edit")
        assert 'data-label="Ada"' in page
        copy = await browser.send(path, controls_of(page) | {"_then": "copy", "f.title": "Copy"})
        seats_of_copy = await server.db(Seat).list({"post_id": copy.rpartition("/")[2]})
        assert sorted(seat.row for seat in seats_of_copy) == ["A", "C"]


async def test_rights_decide_what_a_row_offers(sqlite_url: str) -> None:
    server = make_blog(max_rows=2)

    async def only_look(ctx: Context, next: Next) -> None:
        ctx.abort(403, "FORBIDDEN", "only looking")

    server.pipeline.auth.register(only_look, models=[Comment], operations=Operation.WRITES)
    async with visiting(server, sqlite_url) as browser:
        post = await server.db(Post).create(title="First")
        for number in range(3):
            await server.db(Comment).create(post_id=post.id, body=f"body {number}")
        page = await browser.get(f"/posts/{post.id}/edit")
        assert "body 1" in page
        assert "body 2" not in page
        assert f"/comments?f_post_id={post.id}" in page
        assert 'name="inline.comments.0.body"' not in page
        assert "inline.comments.0._delete" not in page
        forged = controls_of(page) | {"inline.comments.5.body": "forged"}
        response = await browser.post(f"/posts/{post.id}", forged)
        assert "only looking" in text_of(response.text)
        assert await server.db(Comment).count() == 3


@pytest.mark.parametrize(
    ("inline", "text"),
    [
        (Inline("Reader"), "no has_many relation to 'Reader'"),
        (Inline(Comment, columns=("bdy",)), "Comment has no field 'bdy'"),
        (Inline(Comment, max_rows=0), "max_rows"),
    ],
)
def test_mistakes_in_inlines_stop_the_start(inline: Inline, text: str) -> None:
    server = Server()
    server.register(Post, Comment, Reader, Seat)
    server.admin().add(ModelAdmin(Post, inlines=[inline]))
    with pytest.raises(DeclarationError, match=text):
        server.seal()
