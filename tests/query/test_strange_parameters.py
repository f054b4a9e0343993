"""Query parameters that nothing reads: those that mean something are 400 and say what to write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from maniflex import Context, DeclarationError, Model, Next, Server, field, file, has_many
from maniflex.middleware import response
from maniflex.testing import client


class Book(Model, export=True, aggregate=True):
    title: str = field(filterable=True, sortable=True, searchable=True)
    price: int = field(filterable=True, sortable=True, default=0)
    author_name: str = field(alias="authorName", filterable=True, default="")
    shelf: str = ""
    secret: str = field(hidden=True, default="")
    cost: int = field(filterable=True, default=0)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = Server("sqlite:///:memory:", **settings)
    server.register(Book)
    server.pipeline.response.register(
        response.redact_field("cost", lambda ctx: ctx.header("x-boss") is None), models=[Book]
    )

    @server.pipeline.service.middleware(models=[Book], params={"preview": "Shows drafts.", "order": ""})
    async def preview(ctx: Context, next: Next) -> None:
        if ctx.operation == "list":
            ctx.add_header("x-preview", ctx.query_param("preview") + ctx.query_param("order"))
        await next()

    async with client(server) as http:
        await http.post("/api/books", json={"title": "Dune", "price": 5})
        yield http


def message_of(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "INVALID_QUERY"
    return str(error["message"])


MEANT = [
    ("title=Dune", "there is no parameter 'title'; write filter=title:eq:Dune"),
    ("authorName=Ann", "write filter=authorName:eq:Ann"),
    ("author_name=Ann", "write filter=authorName:eq:Ann"),
    ("title__icontains=du", "write filter=title:contains:du"),
    ("price__gte=5", "write filter=price:gte:5"),
    ("price[gt]=5", "write filter=price:gt:5"),
    ("price%5Blt%5D=5", "write filter=price:lt:5"),
    ("price_lte=5", "write filter=price:lte:5"),
    ("title__isnull=1", "write filter=title:is_null"),
    ("title__regex=x", "a filter is written filter=title:operator:value"),
    ("shelf=a", "there is no parameter 'shelf', and 'shelf' is not a field that can be filtered by"),
    ("id=1", "write filter=id:eq:1"),
    ("order_by=price", "write sort=price"),
    ("ordering=-price", "write sort=-price"),
    ("sort_by=price", "write sort=price"),
    ("sortBy=price", "write sort=price"),
    ("$orderby=price", "write sort=price"),
    ("fields=title", "write select=title"),
    ("fields[books]=title", "write select=title"),
    ("expand=shelf", "write include=shelf"),
    ("offset=40", "write page=2&limit=20"),
    ("$skip=40", "write page=2&limit=20"),
    ("page_size=5", "write limit=5"),
    ("per_page=5", "write limit=5"),
    ("pageSize=5", "write limit=5"),
    ("page[size]=5", "write limit=5"),
    ("page[number]=2", "write page=2"),
    ("page_token=abc", "write cursor=abc"),
    ("search=dune", "write q=dune"),
    ("where=x", "write filter=field:operator:value"),
    ("fliter=x", "did you mean 'filter'?"),
    (f"title={'x' * 300}", "write filter=title:eq:…"),
]


async def test_a_parameter_that_means_something_elsewhere_says_what_to_write() -> None:
    async with serving() as http:
        for query, words in MEANT:
            for path in ("/api/books", "/api/books/export"):
                assert message_of(await http.get(f"{path}?{query}")).endswith(words), query


async def test_where_nothing_declares_them_none_of_them_lists_everything() -> None:
    server = Server("sqlite:///:memory:")
    server.register(Book)
    names = ("title", "order", "fields", "offset", "page_size", "per_page", "sort_by", "ordering", "expand")
    async with client(server) as http:
        await http.post("/api/books", json={"title": "Dune"})
        statuses = {name: (await http.get("/api/books", params={name: "x"})).status_code for name in names}
    assert statuses == dict.fromkeys(names, 400)


async def test_other_names_pass_and_declared_ones_are_read_whatever_they_mean_elsewhere() -> None:
    passing = ("tab=2", "utm_source=x", "preview=1", "age=3", "", "&", "=x", "secret=x", "secret__eq=x")
    async with serving() as http:
        for query in passing:
            assert (await http.get(f"/api/books?{query}")).status_code == 200, query
        listed = await http.get("/api/books?preview=yes&order=price")
        assert (listed.status_code, listed.headers["x-preview"]) == (200, "yesprice")


async def test_with_strict_params_every_name_is_ours_or_declared() -> None:
    known = ("preview=1", "order=price", "page=1&limit=5&sort=price", "q=dune", "filter[0]=price:gt:1")
    async with serving(strict_params=True) as http:
        assert message_of(await http.get("/api/books?tab=2")) == "there is no parameter 'tab'"
        assert message_of(await http.get("/api/books?previw=1")).endswith("did you mean 'preview'?")
        assert "filter" not in message_of(await http.get("/api/books?secret=1"))
        for query in known:
            assert (await http.get(f"/api/books?{query}")).status_code == 200, query
        assert (await http.get("/api/books/export?format=csv")).status_code == 200
        aggregate = await http.get('/api/books/aggregate?aggregate={"select":[{"op":"count"}]}')
        assert aggregate.status_code == 200
        created = await http.post("/api/books?anything=1", json={"title": "Emma"})
        assert created.status_code == 201


async def test_a_field_that_some_callers_may_not_see_is_told_to_nobody() -> None:
    async with serving() as http:
        for headers in ({}, {"x-boss": "1"}):
            for query in ("cost=5", "cost__gt=5", "unheard_of=5"):
                assert (await http.get(f"/api/books?{query}", headers=headers)).status_code == 200


async def test_one_record_takes_them_no_more_than_a_list() -> None:
    async with serving() as http:
        [book] = (await http.get("/api/books")).json()["data"]
        path = f"/api/books/{book['id']}"
        assert message_of(await http.get(f"{path}?fields=title")).endswith("write select=title")
        assert (await http.get(f"{path}?tab=1")).status_code == 200


class Paper(Model, export=True, aggregate=True, versioned=True):
    """Its fields are called like what routes of their own read."""

    format: str = field(filterable=True, default="")
    aggregate: str = ""
    download: str = field(filterable=True, default="")
    scan: str | None = file(default=None)


@pytest.mark.parametrize("strict", [False, True])
async def test_what_another_route_of_the_model_reads_is_refused_with_the_line_to_write(strict: bool) -> None:
    server = Server("sqlite:///:memory:", storage="memory:", strict_params=strict)
    server.register(Paper, Book)
    async with client(server) as http:
        answer = await http.post("/api/papers", data={"format": "a4"}, files={"scan": ("a", b"a")})
        paper = answer.json()["data"]["id"]
        count = 'aggregate={"select":[{"op":"count"}]}'
        as_of = f"as_of={answer.json()['data']['created_at']}"
        for path in ("/api/papers?", f"/api/papers/{paper}?", f"/api/papers?{as_of}&"):
            told = message_of(await http.get(f"{path}format=a4"))
            here = "there is no parameter 'format' here; write filter=format:eq:a4"
            assert told == f"{here}; /api/papers/export takes it"
            assert "filter=download:eq:1; /api/papers/{id}/{field} t" in message_of(
                await http.get(f"{path}download=1")
            )
            told = message_of(await http.get(f"{path}{count}"))
            assert "is not a field that can be filtered by; /api/papers/aggregate takes it" in told
        told = message_of(await http.get("/api/books?format=csv"))
        assert told == "there is no parameter 'format' here; /api/books/export takes it"
        assert "aggregate takes it" in message_of(await http.get(f"/api/papers/export?{count}"))
        assert "export takes it" in message_of(await http.get(f"/api/papers/aggregate?{count}&format=csv"))

        assert (await http.get("/api/papers/export?format=csv")).status_code == 200
        assert (await http.get(f"/api/papers/aggregate?{count}")).json()["data"] == [{"count": 1}]
        assert (await http.get(f"/api/papers/{paper}/scan?download=1")).content == b"a"
        assert len((await http.get("/api/papers?filter=format:eq:a4")).json()["data"]) == 1


async def test_a_declared_name_passes_though_another_route_reads_it() -> None:
    server = Server("sqlite:///:memory:")
    server.register(Paper)

    @server.pipeline.service.middleware(models=[Paper], params=["format"])
    async def note(ctx: Context, next: Next) -> None:
        ctx.add_header("x-format", ctx.query_param("format"))
        await next()

    async with client(server) as http:
        assert (await http.get("/api/papers?format=a4")).headers["x-format"] == "a4"


async def test_an_include_that_goes_too_deep_is_told_so() -> None:
    class Ticket(Model):
        remarks: list[Remark] = has_many()

    class Remark(Model):
        ticket_id: str

    server = Server("sqlite:///:memory:")
    server.register(Ticket, Remark)
    async with client(server) as http:
        assert (await http.get("/api/tickets?include=remarks.ticket")).status_code == 200
        for name in ("remarks.ticket.remarks", "remarks.ticket.nothing"):  # whatever there is
            for path in ("/api/tickets", "/api/tickets/x"):
                told = message_of(await http.get(f"{path}?include={name}"))
                assert told == f"include: {name!r} goes 3 levels deep, and 2 is the most"


async def test_declared_parameters_are_in_the_description() -> None:
    server = Server("sqlite:///:memory:")
    server.register(Book)

    @server.pipeline.service.middleware(models=[Book], operations=["list"], params={"preview": "Drafts too."})
    async def preview(ctx: Context, next: Next) -> None:
        await next()

    paths = (await server.openapi())["paths"]
    [described] = [p for p in paths["/api/books"]["get"]["parameters"] if p.get("name") == "preview"]
    assert (described["in"], described["description"]) == ("query", "Drafts too.")
    assert "preview" not in str(paths["/api/books"]["post"])


@pytest.mark.parametrize(
    ("params", "words"),
    [("page", "a parameter of every list"), ([""], "lists names"), ({"a": 1}, "sentence")],
)
def test_params_that_cannot_be_meant_are_refused(params: Any, words: str) -> None:
    async def own(ctx: Context, next: Next) -> None: ...

    with pytest.raises(DeclarationError, match=words):
        Server().pipeline.auth.register(own, params=params)


async def test_a_limit_that_is_no_number_says_how_many_records_a_page_has() -> None:
    async with serving() as http:
        for limit in ("0", "-1", "ten", "00", "2000000000"):
            message = message_of(await http.get(f"/api/books?limit={limit}"))
            assert message == "limit: a whole number; a page has at most 200 records"
