"""The query as a value: what middleware reads in it, adds to it, and may not add."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import AuthInfo, Context, InvalidQuery, Model, Next, Operation, Server, field, has_many
from maniflex.middleware import response
from maniflex.query.query import Compare
from maniflex.testing import client
from tests.kit.http import data_of, error_of


class Maker(Model):
    name: str = field(filterable=True)
    toys: list[Toy] = has_many()


class Toy(Model):
    name: str = field(filterable=True, sortable=True)
    price: int = field(default=1, column="toy_price", alias="toyPrice")
    maker_id: str | None = None


def extended(change: Any, *operations: Operation) -> Server:
    server = Server()
    server.register(Maker, Toy)

    @server.pipeline.service.middleware(models=[Toy], operations=operations or [Operation.LIST])
    async def extend(ctx: Context, next: Next) -> None:
        change(ctx)
        await next()

    return server


async def stocked(server: Server) -> dict[str, str]:
    maker = await server.db(Maker).create(name="Wood")
    toys = {}
    for name, price, owner in (("a", 1, maker.id), ("b", 2, None), ("c", 3, maker.id)):
        toys[name] = (await server.db(Toy).create(name=name, price=price, maker_id=owner)).id
    return toys


CHANGES: list[tuple[Any, list[str]]] = [
    (lambda q: q.add_filter("price", 2), ["b"]),
    (lambda q: q.add_filter("toyPrice", 2, "gte"), ["b", "c"]),
    (lambda q: q.add_filter("toy_price", (1, 3), "in"), ["a", "c"]),
    (lambda q: q.add_filter("price", (1, 2), "between"), ["a", "b"]),
    (lambda q: q.add_filter("price", (), "in"), []),
    (lambda q: q.add_filter("price", (), "not_in"), ["a", "b", "c"]),
    (lambda q: q.add_filter("maker_id", op="is_null"), ["b"]),
    (lambda q: q.add_filter("maker.name", "Wood"), ["a", "c"]),
    (lambda q: q.add_filter("created_at", "updated_at", "eq_field"), ["a", "b", "c"]),
    (lambda q: q.add_sort("price", "desc"), ["c", "b", "a"]),
    (lambda q: q.add_sort("maker.name"), ["b", "a", "c"]),
    (lambda q: setattr(q, "limit", 1), ["a"]),
    (lambda q: setattr(q, "sorts", ()), ["a", "b", "c"]),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
async def test_middleware_extends_the_query_with_any_field(
    database_url: str, change: Any, expected: list[str]
) -> None:
    server = extended(lambda ctx: change(ctx.query))
    async with client(server, database=database_url) as http:
        await stocked(server)
        for _ in range(2):  # the second time the query string is remembered
            answer = await http.get("/api/toys?filter=name:not_null")
            assert [toy["name"] for toy in data_of(answer)] == expected


WRONG: list[Any] = [
    lambda q: q.add_filter("nothing", 1),
    lambda q: q.add_filter("maker.nothing", 1),
    lambda q: q.add_filter("nothing.name", 1),
    lambda q: q.add_filter("", 1),
    lambda q: q.add_filter("price", 1, "about"),
    lambda q: q.add_filter("price", "nothing", "eq_field"),
    lambda q: q.add_sort("nothing"),
    lambda q: q.add_sort("price", "desc; DROP TABLE toys"),
    lambda q: q.add_sort("price", ""),
]


@pytest.mark.parametrize("change", WRONG)
async def test_a_name_or_operator_that_does_not_exist_refuses_the_request(
    sqlite_url: str, change: Any
) -> None:
    async with client(extended(lambda ctx: change(ctx.query)), database=sqlite_url) as http:
        error = error_of(await http.get("/api/toys"), 500, "INTERNAL")
    assert error["message"] == "the server failed to handle the request"


@pytest.mark.parametrize(("value", "op"), [(1, "in"), ((1,), "between"), ("x", "eq")])
async def test_a_value_that_does_not_fit_may_be_the_clients(sqlite_url: str, value: Any, op: str) -> None:
    server = extended(lambda ctx: ctx.query.add_filter("price", value, op))
    async with client(server, database=sqlite_url) as http:
        error_of(await http.get("/api/toys"), 400, "INVALID_QUERY")


MISSPELT: list[tuple[Any, str]] = [
    (lambda ctx: ctx.db(Toy).list({"prce": 1}), "Toy: filter: 'prce' is not a field; did you mean 'price'?"),
    (lambda ctx: ctx.db(Toy).count({"maker.nme": 1}), "'maker.nme' is not a field; did you mean 'name'?"),
    (lambda ctx: ctx.db(Toy).list(sorts="nam"), "Toy: sort: 'nam' is not a field; did you mean 'name'?"),
    (lambda ctx: ctx.db(Toy).list(include="makr"), "'makr' is not a relation; did you mean 'maker'?"),
    (lambda ctx: ctx.aggregate(Toy, select=[("sun", "price")]), "no op 'sun'; did you mean 'sum'?"),
    (lambda ctx: ctx.aggregate(Toy, select=[("sum", "prce")]), "Toy: select: 'prce' is not"),
    (lambda ctx: ctx.aggregate(Toy, select=["count"], group_by="nam"), "Toy: group_by: 'nam'"),
    (lambda ctx: ctx.aggregate(Toy, select=["count"], where={"nam": 1}), "Toy: where: 'nam'"),
    (lambda ctx: ctx.aggregate(Toy, select=["count"], order_by="cont"), "did you mean 'count'?"),
    (lambda ctx: ctx.aggregate(Toy, select=["count"], having=[("cont", "gt", 1)]), "did you mean 'count'?"),
    (
        lambda ctx: ctx.recursive_query(Toy, root_id="x", parent_field="maker"),
        "Toy: parent_field: 'maker' is not a field that can be used here; did you mean 'maker_id'?",
    ),
]


@pytest.mark.parametrize(("call", "problem"), MISSPELT)
async def test_a_misspelt_name_in_code_is_told_to_the_log_and_not_to_the_client(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, call: Any, problem: str
) -> None:
    server = extended(lambda ctx: None)

    @server.action("POST", "/report")
    async def report(ctx: Context) -> None:
        await call(ctx)

    async with client(server, database=sqlite_url) as http:
        error = error_of(await http.post("/api/report"), 500, "INTERNAL")

    assert error == {"code": "INTERNAL", "message": "the server failed to handle the request"}
    assert problem in caplog.text
    assert __file__ in caplog.text


class Parcel(Model):
    weight: int = field(default=1, column="w_grams", alias="weightGrams", filterable=True, sortable=True)
    owner_code: str = field(default="", column="owner_col", alias="ownerCode")


@pytest.mark.parametrize("name", ["weight", "w_grams"])
@pytest.mark.parametrize(
    "query", ["filter={}:gt:0", "filter[0]={}:gt:0", "sort={}", "select={}", "filter=weightGrams:eq_field:{}"]
)
async def test_clients_use_the_api_name_and_are_told_it(sqlite_url: str, query: str, name: str) -> None:
    server = Server()
    server.register(Parcel)
    async with client(server, database=sqlite_url) as http:
        error = error_of(await http.get("/api/parcels?" + query.format(name)), 400, "INVALID_QUERY")
        assert error["message"].endswith("; did you mean 'weightGrams'?")
        assert (await http.get("/api/parcels?" + query.format("weightGrams"))).status_code == 200


@pytest.mark.parametrize("query", ["filter={}:eq:x", "sort={}"])
async def test_no_message_tells_the_name_of_a_closed_field(sqlite_url: str, query: str) -> None:
    server = Server()
    server.register(Parcel)
    async with client(server, database=sqlite_url) as http:
        for name in ("owner_code", "owner_col", "ownerCode"):
            error = error_of(await http.get("/api/parcels?" + query.format(name)), 400, "INVALID_QUERY")
            assert "did you mean" not in error["message"]


async def test_middleware_reads_what_the_client_asked_for(sqlite_url: str) -> None:
    seen: list[Any] = []

    def look(ctx: Context) -> None:
        query = ctx.query
        [compare] = query.filters
        assert isinstance(compare, Compare)
        seen.append((compare.field.name, compare.op.value, compare.value))
        seen.append([(sort.field.name, sort.descending) for sort in query.sorts])
        seen.append((query.page, query.limit, [i.relation.name for i in query.includes]))

    async with client(extended(look), database=sqlite_url) as http:
        await http.get("/api/toys?filter=name:in:a,b&sort=name:desc&page=2&limit=3&include=maker")
    assert seen == [("name", "in", ("a", "b")), [("name", True)], (2, 3, ["maker"])]


async def test_a_filter_added_to_a_read_holds_there_too(database_url: str) -> None:
    server = extended(lambda ctx: ctx.query.add_filter("price", 2, "lt"), Operation.READ)
    async with client(server, database=database_url) as http:
        toys = await stocked(server)
        assert data_of(await http.get(f"/api/toys/{toys['a']}"))["name"] == "a"
        error_of(await http.get(f"/api/toys/{toys['c']}"), 404, "NOT_FOUND")


async def test_one_request_does_not_change_the_query_of_the_next(sqlite_url: str) -> None:
    turns = iter([True, False])
    server = extended(lambda ctx: ctx.query.add_filter("name", "a") if next(turns) else None)
    async with client(server, database=sqlite_url) as http:
        await stocked(server)
        assert len(data_of(await http.get("/api/toys?sort=name"))) == 1
        assert len(data_of(await http.get("/api/toys?sort=name"))) == 3


async def test_code_that_names_no_field_is_refused_by_the_accessors_too(sqlite_url: str) -> None:
    server = extended(lambda ctx: None)
    async with client(server, database=sqlite_url):
        for wrong in ({"nothing": 1}, [("name", "about", 1)]):
            with pytest.raises(InvalidQuery):
                await server.db(Toy).list(wrong)
        with pytest.raises(InvalidQuery):
            await server.db(Toy).list(sorts="nothing")


def with_a_report() -> Server:
    server = Server()
    server.register(Maker, Toy)

    async def by_header(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="ann", roles=(ctx.header("x-role") or "",))
        await next()

    server.pipeline.auth.register(by_header)
    server.pipeline.response.register(
        response.redact_field("name", lambda ctx: not ctx.has_role("admin")), models=[Toy]
    )

    @server.action("POST", "/report")
    async def report(ctx: Context) -> list[str]:
        wanted = await ctx.bind_json(dict[str, Any])
        query = await ctx.read_query(Toy, filter=wanted.get("filter", ""), sort=wanted.get("sort", ""))
        assert await ctx.db(Toy).count(query) == len(await ctx.db(Toy).list(query))
        return [toy.name for toy in await ctx.db(Toy).list(query, limit=2)]

    @server.action("POST", "/mixed")
    async def mixed(ctx: Context) -> list[str]:
        query = await ctx.read_query("Toy", sort=["name:desc"])
        return [maker.name for maker in await ctx.db(Maker).list(query)]

    return server


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"sort": "name:desc"}, ["car", "boat"]),
        ({"sort": ["name"], "filter": "name:neq:boat"}, ["ark", "car"]),
        ({"filter": ["name:neq:boat", "name:neq:ark"]}, ["car"]),
        ({"filter": "name:eq:a&sort=name"}, []),
    ],
)
async def test_code_hands_on_what_a_client_filters_and_sorts_by(wanted: Any, names: list[str]) -> None:
    server = with_a_report()
    async with client(server, headers={"x-role": "admin"}) as http:
        for name in ("boat", "ark", "car"):
            await server.db(Toy).create(name=name)
        assert data_of(await http.post("/api/report", json=wanted)) == names


@pytest.mark.parametrize(
    "wanted",
    [
        {"sort": "nmae"},
        {"sort": "toyPrice"},  # not sortable
        {"sort": "maker.name"},  # of a model whose guards nobody has asked
        {"filter": "maker.name:eq:Wood"},
        {"filter": "toyPrice:eq:1"},
        {"filter": "name:lik:x"},
        {"filter": "name"},
        {"sort": ",".join(["name"] * 30)},
    ],
)
async def test_what_a_list_would_refuse_a_client_code_refuses_too(wanted: Any) -> None:
    async with client(with_a_report(), headers={"x-role": "admin"}) as http:
        error_of(await http.post("/api/report", json=wanted), 400, "INVALID_QUERY")


@pytest.mark.parametrize("wanted", [{"sort": "name"}, {"filter": "name:eq:ark"}])
async def test_code_sorts_for_no_client_by_a_field_that_is_hidden_from_it(wanted: Any) -> None:
    async with client(with_a_report()) as http:
        error_of(await http.post("/api/report", json=wanted), 400, "INVALID_QUERY")


async def test_a_query_about_another_model_is_a_mistake_of_the_code(caplog: pytest.LogCaptureFixture) -> None:
    async with client(with_a_report(), headers={"x-role": "admin"}) as http:
        assert (await http.post("/api/mixed")).status_code == 500
    assert "the query is about Toy, and not about Maker" in caplog.text
