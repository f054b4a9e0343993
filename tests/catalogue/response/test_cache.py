"""How long answers are kept, and how a caller asks whether one has changed (R9 to R12, C54, C56)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Next, Operation, Server, belongs_to, field
from maniflex.middleware import response
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of


class Author(Model):
    name: str


class Article(Model, export=True, aggregate=True):
    title: str = field(filterable=True, sortable=True)


class Page(Model, optimistic_lock=True):
    title: str
    author_id: str | None = None
    author: Author | None = belongs_to()


def a_server(entry: Any = None, **options: Any) -> Server:
    server = Server()
    server.register(Author, Article, Page)
    server.pipeline.response.register(entry or response.cache(60), **options)
    return server


def guard(server: Server, **options: Any) -> Server:
    @server.pipeline.auth.middleware(**options)
    async def sign_in(ctx: Context, next: Next) -> None:
        if ctx.header("x-user") is None:
            ctx.abort(401, "UNAUTHORIZED", "sign in first")
        await next()

    return server


async def test_get_and_head_have_the_same_tag_and_a_caller_that_has_it_gets_304(database_url: str) -> None:
    """C54."""
    async with client(guard(a_server()), database=database_url, headers={"x-user": "ada"}) as http:
        article = await created(http, "/api/articles", title="one")
        for path in (f"/api/articles/{article['id']}", "/api/articles", "/api/articles?limit=1&sort=title"):
            read, head = await http.get(path), await http.head(path)
            tag = read.headers["etag"]
            assert read.headers["cache-control"] == "private, max-age=60"
            assert (head.headers["etag"], head.headers["cache-control"]) == (tag, "private, max-age=60")
            for named in (tag, f'"other", {tag}', f"W/{tag}", "*"):
                unchanged = await http.get(path, headers={"if-none-match": named})
                assert (unchanged.status_code, unchanged.content) == (304, b"")
                assert unchanged.headers["etag"] == tag
                assert unchanged.headers["cache-control"] == "private, max-age=60"
            assert (await http.get(path, headers={"if-none-match": '"other"'})).status_code == 200
        signed_out = await http.get(path, headers={"if-none-match": tag, "x-user": ""})
        del http.headers["x-user"]
        nobody = await http.get(path, headers={"if-none-match": tag})

    assert signed_out.status_code == 304
    error_of(nobody, 401, "UNAUTHORIZED")
    assert nobody.headers["cache-control"] == "no-store"
    assert "etag" not in nobody.headers


async def test_a_write_changes_the_tag_and_answers_to_writes_are_kept_by_nobody(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        made = await http.post("/api/articles", json={"title": "one"})
        path = f"/api/articles/{made.json()['data']['id']}"
        before = (await http.get(path)).headers["etag"]
        changed = await http.patch(path, json={"title": "two"})
        after = await http.get(path, headers={"if-none-match": before})
        missing = await http.get("/api/articles/17", headers={"if-none-match": "*"})

    assert {made.headers["cache-control"], changed.headers["cache-control"]} == {"no-store"}
    assert data_of(after)["title"] == "two"
    error_of(missing, 404, "NOT_FOUND")
    assert missing.headers["cache-control"] == "no-store"


async def test_one_tag_serves_reading_and_writing_on_an_optimistic_model(database_url: str) -> None:
    """C54, R12, B20."""
    async with client(a_server(), database=database_url) as http:
        author = await created(http, "/api/authors", name="ada")
        page = await created(http, "/api/pages", title="one", author_id=author["id"])
        path = f"/api/pages/{page['id']}"
        tags = [
            (await http.get(path + query)).headers["etag"]
            for query in ("", "?include=author", "?select=title")
        ]
        assert len(set(tags)) == 3
        assert len({tag.partition(".")[0] for tag in tags}) == 1

        await http.patch(f"/api/authors/{author['id']}", json={"name": "eve"})
        included = await http.get(f"{path}?include=author", headers={"if-none-match": tags[1]})
        assert data_of(included)["author"]["name"] == "eve"
        assert (await http.get(path, headers={"if-none-match": tags[0]})).status_code == 304

        for tag in tags:
            assert (await http.patch(path, json={}, headers={"if-match": tag})).status_code == 200
        mine = await http.patch(path, json={"title": "two"}, headers={"if-match": tags[2]})
        assert mine.status_code == 200
        tag = (await http.get(path)).headers["etag"]
        await http.patch(path, json={"title": "foreign"})
        late = await http.patch(path, json={"title": "mine"}, headers={"if-match": tag})
        error_of(late, 412, "PRECONDITION_FAILED")
        error_of(await http.delete(path, headers={"if-match": tag}), 412, "PRECONDITION_FAILED")


async def test_exports_and_aggregates_have_no_tag(sqlite_url: str) -> None:
    """R11."""
    async with client(a_server(), database=sqlite_url) as http:
        await created(http, "/api/articles", title="one")
        export = await http.get("/api/articles/export")
        aggregate = await http.get('/api/articles/aggregate?aggregate={"select":[{"op":"count"}]}')

    for answer in (export, aggregate):
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "private, max-age=60"
        assert "etag" not in answer.headers


@pytest.mark.parametrize(
    ("entry", "control", "has_tag"),
    [
        (response.cache(), "private, max-age=0", True),
        (response.cache(timedelta(minutes=5)), "private, max-age=300", True),
        (response.cache(60, public=True), "public, max-age=60", True),
        (response.cache(60, etag=False), "private, max-age=60", False),
        (response.cache(no_store=True), "no-store", False),
    ],
)
async def test_what_the_headers_say(entry: Any, control: str, has_tag: bool, sqlite_url: str) -> None:
    async with client(a_server(entry, models=[Article]), database=sqlite_url) as http:
        answer = await http.get("/api/articles", headers={"if-none-match": "*" if not has_tag else '"x"'})
        other = await http.get("/api/authors")

    assert (answer.status_code, answer.headers.get_list("cache-control")) == (200, [control])
    assert ("etag" in answer.headers) is has_tag
    assert other.headers["cache-control"] == "no-store"


async def test_vary_names_what_answers_differ_by(sqlite_url: str) -> None:
    server = guard(a_server(response.cache(60, public=True, shared=True, vary=["X-User"])))
    server.use(response.cors(["https://app.example.com"]))
    async with client(server, database=sqlite_url, headers={"x-user": "ada"}) as http:
        answer = await http.get("/api/articles")
        unchanged = await http.get("/api/articles", headers={"if-none-match": answer.headers["etag"]})

    assert (unchanged.status_code, unchanged.headers["vary"]) == (304, "X-User, Origin")
    assert answer.headers.get_list("vary") == ["X-User, Origin"]


@pytest.mark.parametrize(
    "entry",
    [
        response.cache(-1),
        response.cache(public=True, no_store=True),
        response.cache(5, no_store=True),
        response.cache(vary=["a\nb"]),
    ],
)
def test_what_contradicts_itself_stops_the_start(entry: Any) -> None:
    with pytest.raises(DeclarationError, match=r"response\.cache"):
        a_server(entry).seal()


@pytest.mark.parametrize(
    "options", [{}, {"models": [Article]}, {"operations": [Operation.READ]}, {"operations": [Operation.LIST]}]
)
def test_public_answers_of_a_guarded_model_stop_the_start(options: Any) -> None:
    """C56."""
    with pytest.raises(DeclarationError, match="public=True"):
        guard(a_server(response.cache(60, public=True)), **options).seal()

    guard(a_server(response.cache(60, public=True, shared=True, vary=["Authorization"])), **options).seal()


def test_public_answers_of_another_model_are_fine() -> None:
    guard(a_server(response.cache(60, public=True), models=[Author]), models=[Article]).seal()
    guard(a_server(response.cache(60, public=True)), operations=Operation.WRITES).seal()


def test_it_does_nothing_for_writes() -> None:
    with pytest.raises(DeclarationError, match="it does nothing for create"):
        a_server(response.cache(), operations=[Operation.CREATE]).seal()


@pytest.mark.parametrize("entry", [response.cache(no_store=True), response.cache(60, etag=False)])
async def test_the_tag_of_an_optimistic_model_stays_for_writes_and_answers_no_read(
    entry: Any, database_url: str
) -> None:
    """R9: no answer may be kept, and yet a write can say which version it is for."""
    async with client(a_server(entry), database=database_url) as http:
        page = await created(http, "/api/pages", title="x")
        path = f"/api/pages/{page['id']}"
        read = await http.get(path)
        tag = read.headers["etag"]
        again = await http.get(path, headers={"if-none-match": tag})
        listed = await http.get("/api/pages", headers={"if-none-match": "*"})
        written = await http.patch(path, json={"title": "y"}, headers={"if-match": tag})
        late = await http.patch(path, json={"title": "z"}, headers={"if-match": tag})

    assert [again.status_code, listed.status_code] == [200, 200]
    assert "etag" not in listed.headers
    assert [written.status_code, late.status_code] == [200, 412]
