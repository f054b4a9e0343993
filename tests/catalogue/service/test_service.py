"""Service entries as a client meets them."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import httpx
import pytest

from maniflex import Context, DeclarationError, Model, Server, field
from maniflex.middleware import body, db, service, validate
from maniflex.middleware.auth.passwords import verify_password
from maniflex.pipeline.entry import Entry
from maniflex.testing import FakeClock, client
from tests.catalogue.rules_app import as_user, build, serve
from tests.kit.http import created, data_of, error_of, offenders, together, total


class User(Model):
    email: str = ""
    name: str = ""
    password: str | None = field(default=None, writeonly=True, min_length=8, max_length=72)


class Post(Model):
    title: str = ""
    slug: str | None = field(default=None, unique=True)
    summary: str | None = None
    owner_id: str = field(immutable=True)
    kind: str = field(default="", readonly=True)


class Article(Model):
    title: str | None = None
    slug: str | None = None
    length: int = 0
    status: Literal["draft", "published", "gone"] = "draft"
    published_at: datetime | None = field(default=None, readonly=True)
    seen_at: datetime | None = None
    seen_on: date | None = field(default=None, readonly=True)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
ARGON_TEXT = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$RdescudvJCsgt3ub+b4dWRWJTmaaJObG"


async def stored_password(server: Server, user_id: str) -> str | None:
    """The password column of a user."""
    record = await server.db(User).read(user_id)
    return record.password


async def test_a_password_is_stored_as_a_hash(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """C35."""
    caplog.set_level(logging.DEBUG)
    server = build([User], ("service", service.hash_field("password")))
    async with client(server, database=database_url) as http:
        plain = "p" * 72
        user = await created(http, "/api/users", password=plain)
        path = f"/api/users/{user['id']}"
        stored = await stored_password(server, user["id"])
        assert stored is not None
        assert stored.startswith("$argon2id$")
        assert await verify_password(plain, stored)
        data_of(await http.patch(path, json={"name": "ann"}))
        assert await stored_password(server, user["id"]) == stored
        assert offenders(await http.patch(path, json={"password": "p" * 73})) == {"password": "max_length"}
        assert offenders(await http.patch(path, json={"password": "short"})) == {"password": "min_length"}
        assert await stored_password(server, user["id"]) == stored
        data_of(await http.patch(path, json={"password": None}))
        assert await stored_password(server, user["id"]) is None
        assert plain not in caplog.text


async def test_a_password_that_looks_like_a_hash_is_hashed_all_the_same(database_url: str) -> None:
    """C35."""

    class Account(Model):
        password: str = field(writeonly=True)

    server = build([Account], ("service", service.hash_field("password")))
    async with client(server, database=database_url) as http:
        account = await created(http, "/api/accounts", password=ARGON_TEXT)
        stored = (await server.db(Account).read(account["id"])).password
        assert stored != ARGON_TEXT
        assert await verify_password(ARGON_TEXT, stored)


async def test_bcrypt_takes_seventy_two_bytes(database_url: str) -> None:
    server = build([User], ("service", service.hash_field("password", "bcrypt")))
    async with client(server, database=database_url) as http:
        user = await created(http, "/api/users", password="p" * 72)
        stored = await stored_password(server, user["id"])
        assert stored is not None
        assert stored.startswith("$2b$12$")
        answer = await http.post("/api/users", json={"password": "é" * 40})
        assert offenders(answer) == {"password": "max_length"}


async def test_a_hasher_that_fails_stores_nothing_and_tells_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(plain: str) -> str:
        raise RuntimeError(f"cannot hash {plain}")

    async with serve(database_url, [User], ("service", service.hash_field("password", fail))) as http:
        answer = await http.post("/api/users", json={"password": "open sesame"})
        error_of(answer, 500, "HASH_ERROR")
        assert await total(http, "/api/users") == 0
        assert "open sesame" not in caplog.text + answer.text


async def test_a_hasher_may_be_an_object_that_is_awaited(database_url: str) -> None:
    class Hasher:
        async def __call__(self, plain: str) -> str:
            return f"hash of {len(plain)} letters"

    server = build([User], ("service", service.hash_field("password", Hasher())))
    async with client(server, database=database_url) as http:
        user = await created(http, "/api/users", password="open sesame")
        assert await stored_password(server, user["id"]) == "hash of 11 letters"


async def test_the_confirmation_of_a_password_is_read_and_not_kept(database_url: str) -> None:
    """S6."""

    def agree(values: dict[str, Any]) -> dict[str, str] | None:
        differs = values.get("password") != values.get("again")
        return {"again": "differs from the password"} if differs else None

    entries = (
        ("validate", body.reject_unknown_fields()),
        ("validate", validate.cross_field(agree, fields=["password"])),
        ("service", service.hash_field("password")),
        ("service", service.strip_field("again")),
    )
    async with serve(database_url, [User], *entries) as http:
        sent = {"password": "open sesame", "again": "open sesame"}
        data_of(await http.post("/api/users", json=sent), 201)
        assert offenders(await http.post("/api/users", json={**sent, "again": "x"})) == {"again": "invalid"}
        assert offenders(await http.post("/api/users", json={**sent, "agian": "x"})) == {"agian": "unknown"}


async def test_fields_that_are_stripped_are_not_stored(database_url: str) -> None:
    async with serve(database_url, [Article], ("service", service.strip_field("length", "title"))) as http:
        article = await created(http, "/api/articles", length=5, title="x")
        assert (article["length"], article["title"]) == (0, None)


# -- slugs


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("Crème Brûlée, 2 Ways!", "creme-brulee-2-ways"),
        ("  --Hello__World--  ", "hello-world"),
        ("Привет, мир", "привет-мир"),
        ("日本 語", "日本-語"),
        ("हिन्दी", "हिन्दी"),
        ("x" * 100, "x" * 80),
        ("It\u2019s O'Brien\u2019s 'day'", "its-obriens-day"),
    ],
)
async def test_a_slug_is_made_of_letters_and_digits(database_url: str, title: str, slug: str) -> None:
    async with serve(database_url, [Article], ("service", service.slugify_field("title", "slug"))) as http:
        assert (await created(http, "/api/articles", title=title))["slug"] == slug


async def test_when_a_slug_is_made(database_url: str) -> None:
    """S3."""
    async with serve(database_url, [Article], ("service", service.slugify_field("title", "slug"))) as http:
        assert (await created(http, "/api/articles", title="A", slug="own"))["slug"] == "own"
        assert len((await created(http, "/api/articles", title="!!!"))["slug"]) == 6
        article = await created(http, "/api/articles", title="First")
        path = f"/api/articles/{article['id']}"
        assert data_of(await http.patch(path, json={"title": "Second"}))["slug"] == "first"
        assert data_of(await http.patch(path, json={"slug": None}))["slug"] is None
        assert data_of(await http.patch(path, json={"length": 1}))["slug"] is None
        assert data_of(await http.patch(path, json={"title": "Third"}))["slug"] == "third"
        assert data_of(await http.patch(path, json={"title": "Fourth", "slug": ""}))["slug"] == "fourth"


async def test_equal_slugs_get_numbers_also_when_made_at_once(database_url: str) -> None:
    entries = (
        ("service", service.slugify_field("title", "slug", unique=True)),
        ("service", service.owner_scope("owner_id")),
    )
    async with serve(database_url, [Post], *entries) as http:
        user = as_user("ann")

        async def post(n: int) -> httpx.Response:
            return await http.post("/api/posts", json={"title": "Same"}, headers=user)

        slugs = [data_of(await post(n), 201)["slug"] for n in range(3)]
        assert slugs == ["same", "same-2", "same-3"]
        answers = await together(4, post)
        slugs = [data_of(answer, 201)["slug"] for answer in answers]
        assert len(set(slugs)) == 4


async def test_no_slug_of_many_equal_titles_at_once_is_refused(database_url: str) -> None:
    entry = service.slugify_field("title", "slug", unique=True)
    async with serve(database_url, [Post], ("service", entry)) as http:
        body = {"title": "Same", "owner_id": "ada"}
        answers = await together(24, lambda n: http.post("/api/posts", json=body))
        slugs = {data_of(answer, 201)["slug"] for answer in answers}
    assert len(slugs) == 24
    assert all(slug == "same" or slug.startswith("same-") for slug in slugs)


async def test_a_slug_that_the_scope_hides_is_not_tried_again(database_url: str) -> None:
    entries = (
        ("service", service.slugify_field("title", "slug", unique=True)),
        ("service", service.owner_scope("owner_id")),
        ("db", db.force_filter("owner_id", lambda ctx: ctx.auth.user_id)),
    )
    async with serve(database_url, [Post], *entries) as http:
        for user in ("ada", "bob", "cy", "dan", "eve", "fay", "gus", "hal"):
            answer = await http.post("/api/posts", json={"title": "Same"}, headers=as_user(user))
            assert data_of(answer, 201)["slug"].startswith("same")


# -- values that the server sets


async def test_the_server_sets_fields_that_clients_may_not(database_url: str) -> None:
    async def kind(ctx: Context) -> Any:
        return service.SKIP if ctx.body["title"] == "skip" else "note"

    entries = (
        ("service", service.set_field("kind", kind)),
        ("service", service.copy_field("title", "summary")),
        ("service", service.owner_scope("owner_id")),
    )
    async with serve(database_url, [Post], *entries) as http:
        user = as_user("ann")
        sent = {"title": "a", "kind": "mine"}
        post = data_of(await http.post("/api/posts", json=sent, headers=user), 201)
        assert (post["kind"], post["summary"], post["owner_id"]) == ("note", "a", "ann")
        skipping = {"title": "skip", "summary": None}
        post = data_of(await http.post("/api/posts", json=skipping, headers=user), 201)
        assert (post["kind"], post["summary"]) == ("", None)


async def test_a_value_the_field_cannot_hold_is_the_servers_fault(database_url: str) -> None:
    async with serve(database_url, [Article], ("service", service.set_field("length", "long"))) as http:
        error_of(await http.post("/api/articles", json={}), 500, "INTERNAL")
        assert await total(http, "/api/articles") == 0


async def test_a_new_record_belongs_to_its_caller(database_url: str) -> None:
    """S9."""
    async with serve(database_url, [Post], ("service", service.owner_scope("owner_id"))) as http:
        answer = await http.post("/api/posts", json={})
        error_of(answer, 401, "UNAUTHORIZED")
        assert answer.headers["www-authenticate"]
        user = as_user("ann")
        data_of(await http.post("/api/posts", json={"owner_id": "ann"}, headers=user), 201)
        answer = await http.post("/api/posts", json={"owner_id": "bob"}, headers=user)
        error_of(answer, 403, "FIELD_FORBIDDEN")
    overwriting = service.owner_scope("owner_id", mismatch="overwrite")
    async with serve(database_url, [Post], ("service", overwriting)) as http:
        answer = await http.post("/api/posts", json={"owner_id": "bob"}, headers=user)
        assert data_of(answer, 201)["owner_id"] == "ann"


async def test_some_roles_say_whose_a_new_record_is(database_url: str) -> None:
    """A superuser of the panel is no account that a relation could refer to."""

    class Account(Model):
        name: str

    class Letter(Model):
        text: str
        account_id: str

    entry = service.owner_scope("account_id", mismatch="overwrite", unless_role="superuser")
    async with serve(database_url, [Account, Letter], ("service", entry)) as http:
        root = as_user("root", "superuser")
        ann, bob = [
            data_of(await http.post("/api/accounts", json={"name": name}, headers=root), 201)["id"]
            for name in ("ann", "bob")
        ]
        letter = {"text": "x", "account_id": bob}
        stamped = await http.post("/api/letters", json=letter, headers=as_user(ann))
        assert data_of(stamped, 201)["account_id"] == ann
        said = await http.post("/api/letters", json=letter, headers=root)
        assert data_of(said, 201)["account_id"] == bob
        asked = await http.post("/api/letters", json={"text": "x"}, headers=root)
        assert error_of(asked, 422, "VALIDATION_FAILED")["details"][0]["field"] == "account_id"


async def test_moments_are_noted_when_a_field_changes(database_url: str) -> None:
    """S7, S8."""
    clock = FakeClock(NOW)
    entries = (
        ("service", service.timestamp_when("published_at", "status", "published", clear=True)),
        ("service", service.timestamp("seen_at")),
        ("service", service.timestamp("seen_on")),
    )
    async with serve(database_url, [Article], *entries, clock=clock) as http:
        first = await created(http, "/api/articles", status="published")
        assert first["published_at"] == first["seen_at"] == "2026-01-01T00:00:00Z"
        assert first["seen_on"] == "2026-01-01"
        path = f"/api/articles/{first['id']}"

        async def patch(**changes: Any) -> Any:
            clock.advance(timedelta(hours=1))
            return data_of(await http.patch(path, json=changes))

        same = await patch(status="published", seen_at="2020-01-01T00:00:00Z", seen_on="2020-01-01")
        assert same["published_at"] == first["published_at"]
        assert (same["seen_at"], same["seen_on"]) == ("2020-01-01T00:00:00Z", "2026-01-01")
        assert (await patch(status="gone"))["published_at"] is None
        assert (await patch(status="published"))["published_at"] == "2026-01-01T03:00:00Z"


async def test_entries_leave_a_restore_alone(database_url: str) -> None:
    class Page(Model, soft_delete=True, restore=True):
        title: str = ""
        touched: str = ""

    entry = service.set_field("touched", lambda ctx: "x")
    async with serve(database_url, [Page], ("service", entry)) as http:
        page = await created(http, "/api/pages")
        assert (await http.delete(f"/api/pages/{page['id']}")).status_code == 204
        data_of(await http.post(f"/api/pages/{page['id']}/restore"))


MISTAKES: list[tuple[Entry, str]] = [
    (service.hash_field("passwrd"), "no model has a field 'passwrd'; did you mean 'password'"),
    (service.hash_field("password", "md5"), "there is no hasher 'md5'"),
    (service.hash_field("length"), "cannot hold a hash"),
    (service.hash_field("password"), "is hashed already, by another entry"),
    (service.slugify_field("title", "title"), "one field"),
    (service.slugify_field("length", "slug"), "length is no text"),
    (service.set_field("id", "x"), "assigned by the framework"),
    (service.timestamp("title"), "neither a date"),
    (service.timestamp_when("seen_at", "status", "lost"), "status is one of"),
    (service.owner_scope("owner_id", mismatch="x"), "none of 'refuse', 'overwrite'"),
    (service.strip_field(), "name the keys"),
]


def test_all_mistakes_stop_the_start_in_one_message() -> None:
    entries = [("service", entry) for entry in (service.hash_field("password"), *(e for e, _ in MISTAKES))]
    with pytest.raises(DeclarationError) as stopped:
        build([User, Post, Article], *entries).seal()
    text = str(stopped.value)
    assert [words for _, words in MISTAKES if words not in text] == [], text
