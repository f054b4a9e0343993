"""What a delete does to the records that refer to the deleted one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maniflex import (
    Conflict,
    Context,
    DeclarationError,
    DeleteRestricted,
    Index,
    Model,
    Next,
    Server,
    WithDeletedAt,
    WithIsDeleted,
    field,
    many_to_many,
)
from maniflex.db import cascade as removal
from maniflex.db.current import detached_context
from maniflex.errors import TransactionError
from maniflex.testing import FakeClock, client
from tests.kit.http import created, data_of, error_of, serving, total


class Author(Model):
    name: str
    tenant_id: str = field(default="", relation=None, filterable=True)


class Book(Model):
    title: str
    author_id: str = field(on_delete="cascade", filterable=True)
    editor_id: str | None = field(relation="Author", on_delete="set_null")


class Chapter(Model, WithDeletedAt):
    book_id: str = field(on_delete="cascade")
    updated: int = 0


class Loan(Model):
    book_id: str = field(on_delete="restrict")
    tenant_id: str = field(default="", relation=None)


class Note(Model):
    book_id: str


LIBRARY = (Author, Book, Chapter, Loan, Note)


async def test_a_cascade_takes_the_children_and_theirs(database_url: str) -> None:
    clock = FakeClock(datetime(2026, 5, 1, tzinfo=UTC))
    server = Server(clock=clock)
    server.register(*LIBRARY)
    async with client(server, database=database_url) as http:
        ada, bob = (
            await created(http, "/api/authors", name="a"),
            await created(http, "/api/authors", name="b"),
        )
        book = await created(http, "/api/books", title="t", author_id=ada["id"])
        kept = await created(http, "/api/books", title="u", author_id=bob["id"])
        chapter = await created(http, "/api/chapters", book_id=book["id"])
        other = await created(http, "/api/chapters", book_id=kept["id"])
        clock.advance(timedelta(hours=1))

        assert (await http.delete(f"/api/authors/{ada['id']}")).status_code == 204

        assert data_of(await http.get("/api/books")) == [kept]
        assert data_of(await http.get("/api/chapters")) == [other]
        [row] = data_of(await http.get("/api/chapters?filter=deleted_at:not_null"))
        assert row["id"] == chapter["id"]
        assert row["deleted_at"] == row["updated_at"] == "2026-05-01T01:00:00Z"


async def test_set_null_empties_the_key_and_bumps_the_row(database_url: str) -> None:
    clock = FakeClock(datetime(2026, 5, 1, tzinfo=UTC))
    server = Server(clock=clock)
    server.register(*LIBRARY)
    async with client(server, database=database_url) as http:
        ada, bob = (
            await created(http, "/api/authors", name="a"),
            await created(http, "/api/authors", name="b"),
        )
        book = await created(http, "/api/books", title="t", author_id=ada["id"], editor_id=bob["id"])
        clock.advance(timedelta(hours=1))

        assert (await http.delete(f"/api/authors/{bob['id']}")).status_code == 204

        found = data_of(await http.get(f"/api/books/{book['id']}"))
        assert found == book | {"editor_id": None, "updated_at": "2026-05-01T01:00:00Z"}


async def test_a_restriction_anywhere_below_undoes_everything(database_url: str) -> None:
    async with serving(database_url, *LIBRARY) as http:
        ada = await created(http, "/api/authors", name="a")
        books = [await created(http, "/api/books", title=str(n), author_id=ada["id"]) for n in range(3)]
        for book in books:
            await created(http, "/api/chapters", book_id=book["id"])
        loan = await created(http, "/api/loans", book_id=books[1]["id"])

        for path in (f"/api/authors/{ada['id']}", f"/api/books/{books[1]['id']}"):
            error = error_of(await http.delete(path), 409, "DELETE_RESTRICTED")
            assert error["details"] == [
                {"model": "Loan", "field": "book_id", "message": "records of Loan refer to it"}
            ]
        assert (await total(http, "/api/books"), await total(http, "/api/chapters")) == (3, 3)

        assert (await http.delete(f"/api/loans/{loan['id']}")).status_code == 204
        assert (await http.delete(f"/api/authors/{ada['id']}")).status_code == 204
        assert (await total(http, "/api/books"), await total(http, "/api/chapters")) == (0, 0)


async def test_a_reference_that_says_nothing_stays_as_it_is(database_url: str) -> None:
    async with serving(database_url, *LIBRARY) as http:
        ada = await created(http, "/api/authors", name="a")
        book = await created(http, "/api/books", title="t", author_id=ada["id"])
        note = await created(http, "/api/notes", book_id=book["id"])

        assert (await http.delete(f"/api/books/{book['id']}")).status_code == 204

        assert data_of(await http.get("/api/notes")) == [note]
        assert data_of(await http.get(f"/api/notes/{note['id']}?include=book")) == note
        assert data_of(await http.patch(f"/api/notes/{note['id']}", json=note))["book_id"] == book["id"]


async def test_a_refusal_names_no_record_of_another_tenant(database_url: str) -> None:
    async def bind(ctx: Context, next: Next) -> None:
        tenant = ctx.header("x-tenant")
        if tenant:
            ctx.query.force("tenant_id", tenant)
        await next()

    server = Server()
    server.register(*LIBRARY)
    server.pipeline.auth.register(bind, models=[Author, Loan])
    async with client(server, database=database_url) as http:
        mine = await created(http, "/api/authors", name="a", tenant_id="t1")
        book = await created(http, "/api/books", title="t", author_id=mine["id"])
        await created(http, "/api/loans", book_id=book["id"], tenant_id="t2")
        path = f"/api/authors/{mine['id']}"

        refused = error_of(await http.delete(path, headers={"x-tenant": "t1"}), 409, "DELETE_RESTRICTED")
        assert "details" not in refused
        error_of(await http.delete(path, headers={"x-tenant": "t2"}), 404, "NOT_FOUND")
        await created(http, "/api/loans", book_id=book["id"], tenant_id="t1")
        refused = error_of(await http.delete(path, headers={"x-tenant": "t1"}), 409, "DELETE_RESTRICTED")
        assert refused["details"][0]["model"] == "Loan"


class Node(Model):
    parent_id: str | None = field(relation="Node", on_delete="cascade")
    twin_id: str | None = field(relation="Node", on_delete="restrict")


async def test_a_circle_of_cascades_ends(database_url: str) -> None:
    async with serving(database_url, Node) as http:
        first = await created(http, "/api/nodes")
        second = await created(http, "/api/nodes", parent_id=first["id"])
        third = await created(http, "/api/nodes", parent_id=second["id"])
        await http.patch(f"/api/nodes/{first['id']}", json={"parent_id": third["id"]})
        alone = await created(http, "/api/nodes")
        await http.patch(f"/api/nodes/{alone['id']}", json={"parent_id": alone["id"], "twin_id": alone["id"]})

        assert (await http.delete(f"/api/nodes/{second['id']}")).status_code == 204
        assert [row["id"] for row in data_of(await http.get("/api/nodes"))] == [alone["id"]]
        assert (await http.delete(f"/api/nodes/{alone['id']}")).status_code == 204


async def test_a_record_that_goes_along_restricts_nothing(database_url: str) -> None:
    async with serving(database_url, Node) as http:
        root = await created(http, "/api/nodes")
        left = await created(http, "/api/nodes", parent_id=root["id"])
        right = await created(http, "/api/nodes", parent_id=root["id"], twin_id=left["id"])
        await http.patch(f"/api/nodes/{left['id']}", json={"twin_id": right["id"]})
        outside = await created(http, "/api/nodes", twin_id=left["id"])

        error_of(await http.delete(f"/api/nodes/{root['id']}"), 409, "DELETE_RESTRICTED")
        assert await total(http, "/api/nodes") == 4
        assert (await http.delete(f"/api/nodes/{outside['id']}")).status_code == 204
        assert (await http.delete(f"/api/nodes/{root['id']}")).status_code == 204
        assert await total(http, "/api/nodes") == 0


async def test_deep_and_wide_trees_go_batch_by_batch(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "BATCH", 3)
    server = Server()
    server.register(Node)
    async with client(server, database=database_url) as http:
        root = await server.db(Node).create()
        async with server.transaction():
            for _ in range(10):
                child = await server.db(Node).create(parent_id=root.id)
                for _ in range(4):
                    await server.db(Node).create(parent_id=child.id)
            deepest = root
            for _ in range(1_200):
                deepest = await server.db(Node).create(parent_id=deepest.id)

        assert (await http.delete(f"/api/nodes/{root.id}")).status_code == 204
        assert await server.db(Node).count() == 0


class Team(Model, WithIsDeleted):
    name: str


class Member(Model):
    team_id: str | None = field(on_delete="set_null")


class Badge(Model):
    team_id: str = field(on_delete="restrict")


async def test_a_parent_that_is_marked_counts_as_deleted(database_url: str) -> None:
    async with serving(database_url, Team, Member, Badge) as http:
        team = await created(http, "/api/teams", name="a")
        member = await created(http, "/api/members", team_id=team["id"])
        badge = await created(http, "/api/badges", team_id=team["id"])

        error_of(await http.delete(f"/api/teams/{team['id']}"), 409, "DELETE_RESTRICTED")
        await http.delete(f"/api/badges/{badge['id']}")
        assert (await http.delete(f"/api/teams/{team['id']}")).status_code == 204
        assert (await http.delete(f"/api/teams/{team['id']}")).status_code == 404
        assert data_of(await http.get(f"/api/members/{member['id']}"))["team_id"] is None
        assert [t["id"] for t in data_of(await http.get("/api/teams?filter=is_deleted:eq:true"))] == [
            team["id"]
        ]


class Invoice(Model):
    number: int


class Line(Model):
    invoice_id: str = field(on_delete="cascade", lock_when={"posted": True})
    posted: bool = False


async def test_a_locked_child_is_not_taken_along(database_url: str) -> None:
    async with serving(database_url, Invoice, Line) as http:
        invoice = await created(http, "/api/invoices", number=1)
        await created(http, "/api/lines", invoice_id=invoice["id"])
        await created(http, "/api/lines", invoice_id=invoice["id"], posted=True)

        error_of(await http.delete(f"/api/invoices/{invoice['id']}"), 409, "DELETE_RESTRICTED")
        assert await total(http, "/api/lines") == 2


class Product(Model):
    name: str
    tags: list[Tag] = many_to_many(through="ProductTag")


class Tag(Model, WithDeletedAt):
    label: str
    products: list[Product] = many_to_many(through="ProductTag")


class ProductTag(Model):
    product_id: str
    tag_id: str = field(unique="product_id")


async def test_links_go_with_the_records_they_join(database_url: str) -> None:
    async with serving(database_url, Product, Tag, ProductTag) as http:
        pen, ink = [await created(http, "/api/products", name=name) for name in ("pen", "ink")]
        red = await created(http, "/api/tags", label="red")
        for product in (pen, ink):
            await created(http, "/api/product_tags", product_id=product["id"], tag_id=red["id"])
        again = await http.post("/api/product_tags", json={"product_id": pen["id"], "tag_id": red["id"]})
        assert error_of(again, 409, "CONFLICT")["details"][0]["field"] == "tag_id"

        assert (await http.delete(f"/api/products/{pen['id']}")).status_code == 204
        [link] = data_of(await http.get("/api/product_tags"))
        assert link["product_id"] == ink["id"]

        assert (await http.delete(f"/api/tags/{red['id']}")).status_code == 204
        assert data_of(await http.get("/api/products?include=tags")) == [ink | {"tags": []}]
        assert await total(http, "/api/product_tags") == 1  # a marked tag may come back, with its links


class Student(Model):
    name: str
    courses: list[Course] = many_to_many(through="Enrolment")


class Course(Model):
    title: str


def enrolment(student: Any = None, course: Any = None, *bases: type, **fields: Any) -> type[Model]:
    """A junction of students and courses whose keys say this about deletes, and that has these fields too."""
    keys: dict[str, Any] = {"student_id": student, "course_id": course}
    body: dict[str, Any] = {"__annotations__": dict.fromkeys(keys, str) | fields, "__module__": __name__}
    body |= {key: field(on_delete=on_delete) for key, on_delete in keys.items() if on_delete}
    metaclass: Any = type(Model)
    made: type[Model] = metaclass("Enrolment", (Model, *bases), body)
    return made


@pytest.mark.parametrize(
    ("declared", "silent"),
    [
        ({}, ["student_id", "course_id"]),
        ({"student": "cascade"}, ["course_id"]),
        ({"student": "cascade", "course": "restrict"}, []),
    ],
)
def test_a_junction_with_fields_of_its_own_says_what_a_delete_does_to_them(
    declared: dict[str, Any], silent: list[str]
) -> None:
    server = Server()
    server.register(Student, Course, enrolment(**declared, grade=int, paid=bool))
    if not silent:
        server.seal()
        return
    with pytest.raises(DeclarationError) as refused:
        server.seal()

    assert len(refused.value.problems) == len(silent)
    for key, problem in zip(silent, refused.value.problems, strict=True):
        assert problem.startswith(f"Enrolment.{key}: Enrolment joins records and has fields of its own")
        assert "(grade, paid)" in problem
        assert 'field(on_delete="cascade")' in problem


@pytest.mark.parametrize("bases", [(), (WithDeletedAt,)])
def test_what_every_model_has_is_no_field_of_a_junctions_own(bases: tuple[type, ...]) -> None:
    server = Server()
    server.register(Student, Course, enrolment(None, None, *bases))
    server.seal()


async def test_a_grade_goes_or_refuses_as_it_was_declared(database_url: str) -> None:
    graded = enrolment("cascade", "restrict", grade=int)
    async with serving(database_url, Student, Course, graded) as http:
        ada = await created(http, "/api/students", name="ada")
        logic = await created(http, "/api/courses", title="logic")
        await created(http, "/api/enrolments", student_id=ada["id"], course_id=logic["id"], grade=1)

        error_of(await http.delete(f"/api/courses/{logic['id']}"), 409, "DELETE_RESTRICTED")
        assert (await http.delete(f"/api/students/{ada['id']}")).status_code == 204
        assert await total(http, "/api/enrolments") == 0
        assert (await http.delete(f"/api/courses/{logic['id']}")).status_code == 204


async def test_a_refusal_that_is_caught_inside_a_transaction_commits_nothing(database_url: str) -> None:
    server = Server()
    server.register(*LIBRARY)
    async with client(server, database=database_url):
        ada = await server.db(Author).create(name="a")
        plain = await server.db(Book).create(title="p", author_id=ada.id)
        lent = await server.db(Book).create(title="l", author_id=ada.id)
        await server.db(Loan).create(book_id=lent.id)

        async def deaf() -> None:
            async with server.transaction():
                with suppress(DeleteRestricted):
                    await server.db(Author).delete(ada.id)

        with pytest.raises(TransactionError):
            await deaf()
        assert await server.db(Book).exists(plain.id)
        assert await server.db(Author).exists(ada.id)


async def test_a_delete_and_new_children_never_leave_an_orphan(database_url: str) -> None:
    server = Server()
    server.register(*LIBRARY)
    async with client(server, database=database_url) as http:
        for soft in range(6):
            ada = await created(http, "/api/authors", name="a")
            body = {"title": "t", "author_id": ada["id"]}
            posts: list[Any] = [http.post("/api/books", json=body) for _ in range(6)]
            posts.insert(soft, http.delete(f"/api/authors/{ada['id']}"))
            answers = await asyncio.gather(*posts)
            assert {answer.status_code for answer in answers} <= {201, 204, 409}
            assert 204 in {answer.status_code for answer in answers}
            assert await server.db(Book).count({"author_id": ada["id"]}) == 0


class Shelf(Model, WithDeletedAt):
    name: str = ""


class Item(Model):
    shelf_id: str = field(on_delete="cascade")


async def test_marking_a_parent_and_new_children_never_leave_an_orphan(database_url: str) -> None:
    server = Server()
    server.register(Shelf, Item)
    async with client(server, database=database_url) as http:
        for turn in range(6):
            shelf = await created(http, "/api/shelves")
            posts: list[Any] = [http.post("/api/items", json={"shelf_id": shelf["id"]}) for _ in range(6)]
            posts.insert(turn, http.delete(f"/api/shelves/{shelf['id']}"))
            answers = await asyncio.gather(*posts)
            assert 204 in {answer.status_code for answer in answers}
            assert await server.db(Item).count({"shelf_id": shelf["id"]}) == 0


async def test_a_delete_waits_for_a_child_that_is_being_made(database_url: str) -> None:
    server = Server()
    server.register(Shelf, Item)
    async with client(server, database=database_url):
        shelf = await server.db(Shelf).create()
        async with server.transaction() as tx:
            await server.db(Item, tx).create(shelf_id=shelf.id)
            deleting = detached_context().run(asyncio.create_task, server.db(Shelf).delete(shelf.id))
            for _ in range(20):  # time enough to get as far as it gets
                await server.db(Item, tx).count()
            assert not deleting.done()
        await deleting
        assert await server.db(Item).count() == 0


async def test_a_child_waits_for_a_delete_that_is_under_way(database_url: str) -> None:
    server = Server()
    server.register(Shelf, Item)
    async with client(server, database=database_url):
        shelf = await server.db(Shelf).create()
        async with server.transaction() as tx:
            await server.db(Shelf, tx).delete(shelf.id)
            making = detached_context().run(asyncio.create_task, server.db(Item).create(shelf_id=shelf.id))
            for _ in range(20):
                await server.db(Item, tx).count()
            assert not making.done()
        with pytest.raises(Conflict):
            await making
        assert await server.db(Item).count() == 0


async def test_two_deletes_at_once_delete_once(database_url: str) -> None:
    async with serving(database_url, *LIBRARY) as http:
        ada = await created(http, "/api/authors", name="a")
        for n in range(5):
            await created(http, "/api/books", title=str(n), author_id=ada["id"])
        answers = await asyncio.gather(*(http.delete(f"/api/authors/{ada['id']}") for _ in range(4)))
        assert sorted(a.status_code for a in answers) == [204, 404, 404, 404]
        assert await total(http, "/api/books") == 0


def test_on_delete_across_databases_stops_the_start() -> None:
    class Remote(Model, database="sqlite:///elsewhere.db"):
        author_id: str = field(on_delete="cascade")

    server = Server(database=":memory:")
    server.register(Author, Remote)
    with pytest.raises(DeclarationError, match=r"Remote.author_id: on_delete cannot reach"):
        server.seal()


async def test_a_duplicate_link_is_refused_only_where_declared(database_url: str) -> None:
    class Pair(Model):
        product_id: str
        tag_id: str

    class Tie(Model, indices=[Index(("product_id", "tag_id"), unique=True)]):
        product_id: str
        tag_id: str

    async with serving(database_url, Product, Tag, ProductTag, Pair, Tie) as http:
        pen = await created(http, "/api/products", name="pen")
        red = await created(http, "/api/tags", label="red")
        ends = {"product_id": pen["id"], "tag_id": red["id"]}
        for status in (201, 201):
            assert (await http.post("/api/pairs", json=ends)).status_code == status
        for status in (201, 409):
            assert (await http.post("/api/ties", json=ends)).status_code == status
