"""`POST /batch`: every operation through its own pipeline, all of them one transaction or each by itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import httpx
import pytest

from maniflex import (
    AuthInfo,
    Context,
    DeclarationError,
    LocaleOptions,
    Model,
    ModelOptions,
    Next,
    Operation,
    Server,
    belongs_to,
    field,
    has_many,
)
from maniflex.middleware import auth, db, idempotency
from maniflex.middleware.stores import SqlRateLimit
from maniflex.testing import client
from tests.kit.http import data_of, error_of, together


class Order(Model, optimistic_lock=True, versioned=True, export=True, events=True):
    customer: str = field(filterable=True)
    tenant_id: str = field(default="", relation=None)
    total: Decimal | None = None
    lines: list[Line] = has_many()


class Line(Model):
    order_id: str = field(filterable=True)
    order: Order = belongs_to()
    sku: str = field(unique=True)
    pieces: int = field(default=1, min=1)


class Secret(Model):
    text: str


JSON = dict[str, Any]


def post(path: str, body: Any, **more: Any) -> JSON:
    return {"method": "POST", "path": path, "body": body, **more}


def get(path: str, **more: Any) -> JSON:
    return {"method": "GET", "path": path, **more}


class Site:
    """A server with a batch route, and its client."""

    def __init__(self, server: Server, http: httpx.AsyncClient, events: list[str], told: list[str]) -> None:
        self.server, self.http, self.events, self.told = server, http, events, told

    async def send(self, *operations: JSON, headers: Any = None, **body: Any) -> httpx.Response:
        return await self.http.post("/api/batch", json={"operations": [*operations], **body}, headers=headers)

    async def orders(self) -> list[str]:
        return [one["customer"] for one in data_of(await self.http.get("/api/orders?sort=id&limit=100"))]


def a_server(settings: JSON | None = None, **options: Any) -> tuple[Server, list[str]]:
    server, told = Server(**(settings or {})), list[str]()
    server.register(Order, Line, Secret)
    server.enable_batch(**options)

    async def identify(ctx: Context, next: Next) -> None:
        user = ctx.header("x-user")
        if user:
            ctx.auth = AuthInfo(user_id=user, tenant_id=ctx.header("x-tenant") or "", roles=[user])
        await next()

    async def only_staff(ctx: Context, next: Next) -> None:
        if not ctx.has_role("staff"):
            ctx.abort(403, "STAFF_ONLY", "staff only")
        await next()

    server.pipeline.auth.register(identify)
    server.pipeline.auth.register(only_staff, models=[Secret])

    @server.pipeline.service.middleware(models=[Order], operations=Operation.WRITES)
    async def tell(ctx: Context, next: Next) -> None:
        await next()
        ctx.after_commit(lambda: told.append(f"{ctx.operation} {ctx.caller().source}"))

    @server.action("POST", "/orders/close")
    async def close(ctx: Context) -> Any:
        ctx.set_cookie("closed", "yes")
        ctx.add_header("x-closed", "1")
        return {"by": ctx.auth.user_id if ctx.auth else None, "body": await ctx.bind_json()}

    return server, told


@asynccontextmanager
async def site_of(url: str, server: Server, told: list[str]) -> AsyncIterator[Site]:
    events: list[str] = []

    @server.events.subscribe("*", group="g")
    async def note(event: Any) -> None:
        events.append(event.type)

    async with client(server, database=url) as http:
        yield Site(server, http, events, told)


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    server, told = a_server()
    async with site_of(database_url, server, told) as site:
        yield site


async def test_an_atomic_batch_answers_with_what_each_operation_came_to(site: Site) -> None:
    answer = await site.send(
        post("/orders", {"customer": "ann", "total": 10.10}, **{"as": "order"}),
        post("/lines", {"order_id": {"$ref": "order.id"}, "sku": "a"}, **{"as": "line"}),
        {"method": "PATCH", "path": "/lines/{line.id}", "body": {"pieces": 3}},
        get("/orders/{order.id}?include=lines"),
        get("/lines?filter=order_id:eq:{order.id}"),
        {"method": "DELETE", "path": "/lines/{line.id}"},
    )
    made, line, changed, read, listed, deleted = data_of(answer)
    assert [one["status"] for one in (made, line, changed, read, listed, deleted)] == [
        *(201, 201, 200, 200, 200, 204)
    ]
    assert made["headers"]["etag"] == read["headers"]["etag"]
    assert line["data"]["order_id"] == made["data"]["id"]
    assert changed["data"]["pieces"] == 3
    assert [one["pieces"] for one in read["data"]["lines"]] == [3]
    assert (len(listed["data"]), listed["meta"]["total"]) == (1, 1)
    assert deleted["data"] is None
    assert site.told == ["create request"]
    single = await site.http.get(f"/api/orders/{made['data']['id']}")
    assert data_of(single) == made["data"]


async def test_the_first_failure_takes_everything_back(site: Site) -> None:
    """Check 51."""
    bodies: list[JSON] = [{"customer": f"c{n}"} for n in range(3)]
    operations = [post("/orders", body) for body in bodies]
    operations += [post("/orders", {}), post("/orders", {"customer": "c4"})]
    error = error_of(await site.send(*operations), 422, "BATCH_FAILED")
    [detail] = error["details"]
    assert (detail["index"], detail["status"]) == (3, 422)
    assert detail["error"]["code"] == "VALIDATION_FAILED"
    assert [one["field"] for one in detail["error"]["details"]] == ["customer"]
    assert await site.orders() == []
    assert site.told == []
    await site.server.events.drain()
    assert site.events == []
    assert await site.server.db("OrderHistory").count() == 0

    apart = await site.send(*operations, atomic=False)
    assert [one["status"] for one in data_of(apart, 207)] == [201, 201, 201, 422, 201]
    assert data_of(apart, 207)[3]["error"]["code"] == "VALIDATION_FAILED"
    assert await site.orders() == ["c0", "c1", "c2", "c4"]
    assert site.told == ["create request"] * 4
    await site.server.events.drain()
    assert site.events == ["order.created"] * 4


async def test_a_failure_of_any_kind_keeps_its_status(site: Site) -> None:
    """Check 52."""
    order = data_of(await site.http.post("/api/orders", json={"customer": "x"}), 201)
    data_of(await site.http.post("/api/lines", json={"order_id": order["id"], "sku": "taken"}), 201)
    before = post("/orders", {"customer": "new"})
    stale = {"method": "PATCH", "path": f"/orders/{order['id']}", "body": {"customer": "y"}}
    failing: list[tuple[int, str, JSON]] = [
        (403, "STAFF_ONLY", get("/secrets")),
        (403, "STAFF_ONLY", post("/secrets", {"text": "t"})),
        (404, "NOT_FOUND", get("/orders/none")),
        (404, "NOT_FOUND", get("/nowhere")),
        (405, "METHOD_NOT_ALLOWED", {"method": "PUT", "path": "/orders", "body": {}}),
        (409, "CONFLICT", post("/lines", {"order_id": order["id"], "sku": "taken"})),
        (409, "CONFLICT", post("/lines", {"order_id": "none", "sku": "s"})),
        (412, "PRECONDITION_FAILED", {**stale, "headers": {"If-Match": '"stale"'}}),
        (400, "EMPTY_BODY", {"method": "POST", "path": "/orders"}),
        (400, "INVALID_QUERY", get("/orders?sort=nothing")),
    ]
    for status, code, operation in failing:
        error = error_of(await site.send(before, operation), status, "BATCH_FAILED")
        [detail] = error["details"]
        assert (detail["index"], detail["status"], detail["error"]["code"]) == (1, status, code)
        alone = await site.http.request(
            operation["method"],
            f"/api{operation['path']}",
            json=operation.get("body"),
            headers=operation.get("headers"),
        )
        assert alone.json()["error"] == detail["error"], operation
    assert await site.orders() == ["x"]
    assert data_of(await site.send(get("/secrets"), headers={"x-user": "staff"}))[0]["data"] == []


async def test_what_can_be_known_to_be_wrong_is_refused_before_anything_runs(site: Site) -> None:
    """Check 53."""
    ok = post("/orders", {"customer": "new"}, **{"as": "first"})
    wrong: list[tuple[str, JSON | Any]] = [
        ("operations[1].path", get("/orders/{later.id}")),
        ("operations[1].path", get("/orders/{first}")),
        ("operations[1].path", get("/orders/{first.id")),
        ("operations[1].path", {"method": "POST", "path": "/batch", "body": {"operations": []}}),
        ("operations[1].path", {"method": "POST", "path": "/orders/close", "body": {}}),
        ("operations[1].path", get("/orders/export")),
        ("operations[1].path", get("orders")),
        ("operations[1].path", {"method": "GET"}),
        ("operations[1].headers.Authorization", get("/orders", headers={"Authorization": "Bearer x"})),
        ("operations[1].headers.X-User", get("/orders", headers={"X-User": "staff"})),
        ("operations[1].headers.If-Match", get("/orders", headers={"If-Match": "a\r\nx-user: staff"})),
        ("operations[1].method", {"method": "HEAD", "path": "/orders"}),
        ("operations[1].body", get("/orders", body={})),
        ("operations[1].body", post("/lines", {"order_id": {"$ref": "later.id"}})),
        ("operations[1].body", post("/lines", {"order_id": {"$ref": "first.id", "x": 1}})),
        ("operations[1].body", post("/lines", {"order_id": {"$ref": 1}})),
        ("operations[1].as", get("/orders", **{"as": "first"})),
        ("operations[1].as", get("/orders", **{"as": "1st"})),
        ("operations[1].unknown", get("/orders", unknown=1)),
        ("operations[1]", "GET /orders"),
    ]
    for place, operation in wrong:
        error = error_of(await site.send(ok, operation), 422, "VALIDATION_FAILED")
        assert place in [detail["field"] for detail in error["details"]], (operation, error)
    bodies: list[JSON] = [{"operations": []}, {"operations": {}}, {}, {"operations": [ok], "atomic": 1}]
    for body in bodies:
        error_of(await site.http.post("/api/batch", json=body), 422, "VALIDATION_FAILED")
    error_of(await site.http.post("/api/batch", json={"operations": [ok], "x": 1}), 422, "VALIDATION_FAILED")
    error_of(await site.http.post("/api/batch", json=[ok]), 400, "INVALID_JSON")
    error_of(await site.http.post("/api/batch", content=b"{"), 400, "INVALID_JSON")
    error_of(await site.http.post("/api/batch"), 400, "EMPTY_BODY")
    error_of(await site.send(*[ok] * 101), 413, "BATCH_TOO_LARGE")
    assert await site.orders() == []


async def test_values_of_earlier_answers_go_into_bodies_and_paths_as_they_are(site: Site) -> None:
    odd = "a/b ?&#{é}%2F"
    total = "12345678901234567890.123456789"
    body = f'{{"customer": {json.dumps(odd)}, "total": {total}}}'
    raw = (
        '{"operations": ['
        f'{{"method": "POST", "path": "/orders", "as": "a", "body": {body}}},'
        '{"method": "POST", "path": "/orders", "as": "b", "body":'
        ' {"customer": {"$ref": "a.customer"}, "total": {"$ref": "a.total"}}},'
        '{"method": "GET", "path": "/orders?filter=customer:eq:{a.customer}", "as": "found"},'
        '{"method": "GET", "path": "/orders/{found.1.id}"}]}'
    )
    answer = await site.http.post("/api/batch", content=raw, headers={"content-type": "application/json"})
    first, second, found, one = data_of(answer)
    assert first["data"]["customer"] == second["data"]["customer"] == odd
    assert str(first["data"]["total"]) == str(second["data"]["total"])
    assert len(found["data"]) == 2
    assert one["data"]["id"] == found["data"][1]["id"]
    stored = await site.server.db(Order).list(sorts="id")
    assert [order.total for order in stored] == [Decimal(total)] * 2


async def test_a_value_that_is_not_there_or_leads_elsewhere_is_refused(site: Site) -> None:
    first = post("/orders", {"customer": "export"}, **{"as": "a"})
    for operation, status in (
        (get("/orders/{a.nothing}"), 422),
        (get("/orders/{a.total}"), 422),
        (post("/lines", {"order_id": {"$ref": "a.x.y"}, "sku": "s"}), 422),
        (get("/orders/{a.customer}"), 422),  # /orders/export
    ):
        error = error_of(await site.send(first, operation), status, "BATCH_FAILED")
        assert error["details"][0]["index"] == 1
    slash = post("/orders", {"customer": "x/restore"}, **{"as": "a"})
    error_of(await site.send(slash, get("/orders/{a.customer}")), 404, "BATCH_FAILED")
    assert await site.orders() == []


async def test_apart_what_leans_on_a_failure_does_not_run(site: Site) -> None:
    answer = await site.send(
        post("/orders", {}, **{"as": "a"}),
        post("/lines", {"order_id": {"$ref": "a.id"}, "sku": "1"}, **{"as": "b"}),
        get("/lines/{b.id}"),
        post("/orders", {"customer": "ok"}),
        atomic=False,
    )
    outcomes = data_of(answer, 207)
    assert [one["status"] for one in outcomes] == [422, 424, 424, 201]
    assert outcomes[1]["error"]["code"] == "DEPENDENCY_FAILED"
    assert await site.orders() == ["ok"]


async def test_actions_run_where_they_are_let_in(database_url: str) -> None:
    server, told = a_server(path="/all", max_operations=3, actions=True)
    async with site_of(database_url, server, told) as site:
        operation = post("/orders/close", {"a": 1})
        answer = await site.http.post("/api/all", json={"operations": [operation]}, headers={"x-user": "ann"})
        [outcome] = data_of(answer)
        assert outcome["data"] == {"by": "ann", "body": {"a": 1}}
        assert outcome["headers"] == {"x-closed": "1"}
        assert "closed=yes" in answer.headers["set-cookie"]
        error_of(
            await site.http.post("/api/all", json={"operations": [operation] * 4}), 413, "BATCH_TOO_LARGE"
        )
        nested = {"operations": [post("/all", {"operations": [operation]})]}
        error_of(await site.http.post("/api/all", json=nested), 422, "VALIDATION_FAILED")


async def test_a_key_covers_the_whole_batch(site: Site) -> None:
    key = {"idempotency-key": "k1"}
    operations = [post("/orders", {"customer": "once"}), post("/lines", {"order_id": "none", "sku": "s"})]
    error_of(await site.send(*operations, headers=key), 409, "BATCH_FAILED")
    first = await site.send(operations[0], headers={"idempotency-key": "k2"})
    again = await site.send(operations[0], headers={"idempotency-key": "k2"})
    assert data_of(first) == data_of(again)
    assert again.headers["idempotent-replayed"] == "true"
    other = await site.send(post("/orders", {"customer": "x"}), headers={"idempotency-key": "k2"})
    error_of(other, 422, "IDEMPOTENCY_KEY_REUSED")
    assert await site.orders() == ["once"]
    apart = {"atomic": False, "headers": {"idempotency-key": "k3"}}
    first = await site.send(*operations, **apart)
    assert [one["status"] for one in data_of(first, 207)] == [201, 409]
    again = await site.send(*operations, **apart)
    assert data_of(again, 207) == data_of(first, 207)
    assert await site.orders() == ["once", "once"]


async def test_twins_of_a_batch_with_a_key_are_one(site: Site) -> None:
    async def send(_: int) -> httpx.Response:
        return await site.send(post("/orders", {"customer": "twin"}), headers={"idempotency-key": "t"})

    answers = await together(8, send)
    assert {json.dumps(data_of(one)) for one in answers} == {json.dumps(data_of(answers[0]))}
    assert await site.orders() == ["twin"]


@pytest.mark.parametrize("atomic", [True, False])
async def test_operations_have_keys_of_their_own(database_url: str, atomic: bool) -> None:
    server, told = a_server()
    server.pipeline.deserialize.register(idempotency.keys(required=True), models=[Order], at="after")
    async with site_of(database_url, server, told) as site:
        status = 200 if atomic else 207
        keyed = post("/orders", {"customer": "k"}, headers={"Idempotency-Key": "one"})
        broken = post("/lines", {"order_id": "none", "sku": "s"})
        error = await site.send(post("/orders", {"customer": "k"}), atomic=atomic)
        assert "IDEMPOTENCY_KEY_REQUIRED" in error.text
        if atomic:  # a batch that fails leaves no key behind
            error_of(await site.send(keyed, broken), 409, "BATCH_FAILED")
            assert await site.orders() == []
        first = data_of(await site.send(keyed, keyed, atomic=atomic), status)
        assert [one["status"] for one in first] == [201, 201]
        assert first[0]["data"] == first[1]["data"]
        again = data_of(await site.send(keyed, atomic=atomic), status)
        assert again[0]["data"] == first[0]["data"]
        alone = await site.http.post(
            "/api/orders", json={"customer": "k"}, headers={"idempotency-key": "one"}
        )
        assert data_of(alone, 201) == first[0]["data"]
        assert await site.orders() == ["k"]


async def test_a_limit_counts_every_operation_also_of_a_batch_that_fails(database_url: str) -> None:
    server, told = a_server()
    limit = db.rate_limit(5, 60, backend=SqlRateLimit())
    server.pipeline.db.register(limit, models=[Order], operations=[Operation.CREATE])
    async with site_of(database_url, server, told) as site:
        user = {"x-user": "ann"}
        order, broken = post("/orders", {"customer": "c"}), post("/orders", {})
        error_of(await site.send(order, broken, headers=user), 422, "BATCH_FAILED")
        error_of(await site.send(order, broken, headers=user), 422, "BATCH_FAILED")
        assert len(data_of(await site.send(order, headers=user))) == 1
        limited = await site.send(order, headers=user)
        error = error_of(limited, 429, "BATCH_FAILED")
        assert error["details"][0]["status"] == 429
        assert int(limited.headers["retry-after"]) > 0
        assert await site.orders() == ["c"]


async def test_scopes_bind_and_stamp_every_operation(database_url: str) -> None:
    server, told = a_server()
    server.pipeline.auth.register(db.tenancy("tenant_id"), models=[Order])
    async with site_of(database_url, server, told) as site:
        a, b = ({"x-user": "u", "x-tenant": tenant} for tenant in "ab")
        made = data_of(await site.send(post("/orders", {"customer": "of a"}), headers=a))[0]["data"]
        assert made["tenant_id"] == "a"
        for method, body in (("GET", None), ("PATCH", {"customer": "x"}), ("DELETE", None)):
            operation = {"method": method, "path": f"/orders/{made['id']}"} | ({"body": body} if body else {})
            error_of(
                await site.send(post("/orders", {"customer": "of b"}), operation, headers=b),
                404,
                "BATCH_FAILED",
            )
        assert data_of(await site.send(get("/orders"), headers=b))[0]["data"] == []
        assert data_of(await site.send(get("/orders"), headers=a))[0]["data"] == [made]


async def test_authenticators_find_what_they_look_for(database_url: str) -> None:
    import jwt

    secret = "0123456789abcdef0123456789abcdef"
    server = Server()
    server.register(Order, Line, Secret)
    server.enable_batch()
    server.pipeline.auth.register(auth.jwt(secret))
    async with site_of(database_url, server, []) as site:
        token = jwt.encode({"sub": "ann", "exp": 4_000_000_000}, secret, algorithm="HS256")
        operation = post("/orders", {"customer": "c"})
        assert (await site.send(operation)).status_code == 401
        data_of(await site.send(operation, headers={"authorization": f"Bearer {token}"}))
        outcome = await site.server.call(
            "POST", "/api/batch", json={"operations": [operation]}, auth=AuthInfo(user_id="ann")
        )
        assert outcome.status == 200
        assert (await site.server.call("POST", "/api/batch", json={"operations": [operation]})).status == 401


async def test_models_of_two_databases_are_no_one_transaction(database_url: str, tmp_path: Any) -> None:
    class Apart(Model):
        name: str

    server = Server()
    server.register(Order, Line)
    server.register(Apart, ModelOptions(database=f"sqlite:///{tmp_path}/apart.db"))
    server.enable_batch()
    async with client(server, database=database_url) as http:
        both = [post("/orders", {"customer": "c"}), post("/aparts", {"name": "n"})]
        error = error_of(await http.post("/api/batch", json={"operations": both}), 422, "VALIDATION_FAILED")
        assert [detail["field"] for detail in error["details"]] == ["operations[1].path"]
        alone = {"operations": [post("/aparts", {"name": "n"}), post("/aparts", {})]}
        error_of(await http.post("/api/batch", json=alone), 422, "BATCH_FAILED")
        assert data_of(await http.get("/api/aparts")) == []
        data_of(await http.post("/api/batch", json={"operations": both, "atomic": False}), 207)
        assert len(data_of(await http.get("/api/aparts"))) == 1


async def test_query_timeout_bounds_the_whole(database_url: str) -> None:
    server, told = a_server({"query_timeout": 0.3})
    entered = asyncio.Event()

    @server.pipeline.service.middleware(models=[Line], operations=[Operation.CREATE])
    async def hang(ctx: Context, next: Next) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with site_of(database_url, server, told) as site:
        order = post("/orders", {"customer": "c"}, **{"as": "o"})
        slow = post("/lines", {"order_id": {"$ref": "o.id"}, "sku": "s"})
        assert (await site.send(order, slow)).status_code == 504
        assert entered.is_set()
        assert await site.orders() == []
        assert site.told == []


async def test_the_description_has_the_route(site: Site) -> None:
    document = (await site.http.get("/api/openapi.json")).json()
    operation = document["paths"]["/api/batch"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["operations"]["maxItems"] == 100
    assert {"200", "207", "413", "422"} <= operation["responses"].keys()
    assert any(one.get("name") == "Idempotency-Key" for one in operation["parameters"])


def test_mistakes_of_the_declaration_are_told() -> None:
    server = Server()
    server.register(Order, Line)
    server.enable_batch("batch", max_operations=0)
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    assert len([p for p in refused.value.problems if "enable_batch" in p]) == 2
    other = Server()
    other.enable_batch()
    with pytest.raises(DeclarationError, match="already"):
        other.enable_batch()


async def test_refusals_speak_german_to_who_asks_for_it(database_url: str) -> None:
    server, told = a_server(
        {"messages": {"de": {}}, "locale": LocaleOptions(supported=("en", "de"), from_header=True)}
    )
    async with site_of(database_url, server, told) as site:
        error = (await site.send(post("/orders", {}), headers={"accept-language": "de"})).json()["error"]
        assert error["message"] == "Operation 0 ist gescheitert, und nichts wurde gespeichert"
        assert "erforderlich" in error["details"][0]["error"]["details"][0]["message"]
        unknown = await site.send(get("/x/{a.b}"), headers={"accept-language": "de"})
        assert "keine frühere Operation" in unknown.json()["error"]["details"][0]["message"]


def test_an_application_without_any_of_it_loads_none_of_it() -> None:
    """Check 57."""
    program = (
        "import sys; from maniflex import Model, Server\n"
        "class Note(Model): text: str\n"
        "server = Server(database=':memory:'); server.register(Note); server.seal()\n"
        "names = ('features.batch', 'features.nested', 'background_api.sagas', 'ext.saga')\n"
        "print([name for name in names if f'maniflex.{name}' in sys.modules], len(server.routes))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] "), done.stdout
