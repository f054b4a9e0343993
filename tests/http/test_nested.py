"""Records in the bodies of others: all of it or none, all problems by their paths, all rules of models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from maniflex import (
    AuthInfo,
    Context,
    DeclarationError,
    Model,
    ModelOptions,
    Next,
    Operation,
    Server,
    belongs_to,
    field,
    has_many,
    many_to_many,
)
from maniflex.config import Limits
from maniflex.middleware import auth, db, idempotency
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, together


class Customer(Model):
    name: str = field(unique=True, max_length=10)
    tenant_id: str = field(default="", relation=None)


class Tag(Model):
    name: str = field(max_length=5)
    tenant_id: str = field(default="", relation=None)


class OrderTag(Model):
    order_id: str = field(on_delete="cascade")
    tag_id: str


class Order(Model, optimistic_lock=True, versioned=True, events=True):
    title: str = field(max_length=10, filterable=True)
    tenant_id: str = field(default="", relation=None)
    customer_id: str | None = None
    customer: Customer | None = belongs_to(nested=True)
    lines: list[Line] = has_many(nested=True)
    notes: list[Note] = has_many()
    tags: list[Tag] = many_to_many(through="OrderTag", nested=True)


class Line(Model, versioned=True, events=True):
    order_id: str = field(on_delete="cascade")
    order: Order = belongs_to(nested=True)
    sku: str = field(unique=True)
    quantity: int = field(min=1)
    options: list[Option] = has_many(nested=True)


class Option(Model):
    line_id: str = field(on_delete="cascade")
    name: str
    parts: list[Part] = has_many(nested=True)


class Part(Model):
    option_id: str = field(on_delete="cascade")
    name: str


class Note(Model):
    order_id: str


MODELS = (Customer, Tag, OrderTag, Order, Line, Option, Part, Note)


def a_server(**settings: Any) -> Server:
    server = Server(**settings)
    server.register(*MODELS)

    async def identify(ctx: Context, next: Next) -> None:
        user = ctx.header("x-user")
        if user:
            roles = (ctx.header("x-roles") or "").split()
            ctx.auth = AuthInfo(user_id=user, tenant_id=ctx.header("x-tenant") or "", roles=roles)
        await next()

    server.pipeline.auth.register(identify)
    return server


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client(a_server(), database=database_url) as http:
        yield http


async def totals(http: httpx.AsyncClient) -> dict[str, int]:
    names = ("orders", "lines", "options", "customers", "tags", "order_tags")
    return {name: (await http.get(f"/api/{name}")).json()["meta"]["total"] for name in names}


NOTHING = dict.fromkeys(("orders", "lines", "options", "customers", "tags", "order_tags"), 0)


def fields_of(answer: httpx.Response) -> list[str]:
    return [detail["field"] for detail in error_of(answer, 422, "VALIDATION_FAILED")["details"]]


async def test_one_answer_names_the_problems_of_all_levels_and_nothing_is_stored(
    http: httpx.AsyncClient,
) -> None:
    """Check 55."""
    tag = await created(http, "/api/tags", name="t")
    body = {
        "title": "x" * 11,
        "customer": {"name": "y" * 11},
        "lines": [
            {"sku": "a", "quantity": 1},
            {"quantity": 0},
            {"sku": "c", "quantity": 2, "options": [{"name": "o"}, {}]},
        ],
        "tags": {"link": [tag["id"], "none"], "create": [{"name": "toolong"}]},
    }
    answer = await http.post("/api/orders", json=body)
    assert fields_of(answer) == [
        *("customer.name", "title", "lines[1].sku", "lines[1].quantity", "lines[2].options[1].name"),
        *("tags.link[1]", "tags.create[0].name"),
    ]
    assert 'field "lines[1].sku" is required' in answer.text.replace('\\"', '"')
    assert await totals(http) == {**NOTHING, "tags": 1}


async def test_a_post_makes_all_of_it_in_one_transaction(database_url: str) -> None:
    server = a_server()
    events: list[tuple[str, Any]] = []

    @server.events.subscribe("*", group="all")
    async def note(event: Any) -> None:
        events.append((event.type, event.data))

    async with client(server, database=database_url) as http:
        tag = await created(http, "/api/tags", name="t")
        lines: list[dict[str, Any]] = [{"sku": f"s{n}", "quantity": n + 1} for n in range(3)]
        lines[1]["options"] = [{"name": "red"}]
        body = {
            "title": "first",
            "customer": {"name": "ann"},
            "lines": lines,
            "tags": {"link": [tag["id"], tag["id"]], "create": [{"name": "new"}]},
        }
        answer = await http.post("/api/orders", json=body)
        order = data_of(answer, 201)
        assert order["customer"]["name"] == "ann"
        assert order["customer_id"] == order["customer"]["id"]
        assert [line["sku"] for line in order["lines"]] == ["s0", "s1", "s2"]
        assert {line["order_id"] for line in order["lines"]} == {order["id"]}
        assert [one["name"] for one in order["lines"][1]["options"]] == ["red"]
        assert [one["name"] for one in order["tags"]] == ["t", "new"]
        shown = await http.get(f"/api/orders/{order['id']}?include=customer,lines.options,tags")
        assert shown.headers["etag"] == answer.headers["etag"]
        assert {**data_of(shown), "lines": []} == {**order, "lines": []}
        await server.events.drain()
        assert sorted(kind for kind, _ in events) == ["line.created"] * 3 + ["order.created"]
        for line in order["lines"]:
            assert len(await server.history(Line).of(line["id"])) == 1
        assert (await totals(http))["order_tags"] == 2


async def test_a_patch_makes_changes_and_removes_and_gives_the_parent_another_tag(
    http: httpx.AsyncClient,
) -> None:
    tags = [await created(http, "/api/tags", name=f"t{n}") for n in range(3)]
    body = {
        "title": "o",
        "customer": {"name": "ann"},
        "lines": [{"sku": f"s{n}", "quantity": 1} for n in range(3)],
        "tags": {"link": [tags[0]["id"], tags[1]["id"]]},
    }
    made = await http.post("/api/orders", json=body)
    order, path = data_of(made, 201), f"/api/orders/{made.json()['data']['id']}"
    ids = [line["id"] for line in order["lines"]]
    change = {
        "customer": {"update": {"name": "bob"}},
        "lines": {
            "create": [{"sku": "new", "quantity": 7}],
            "update": [{"id": ids[0], "quantity": 9, "options": {"create": [{"name": "blue"}]}}],
            "delete": [ids[1], ids[1]],
        },
        "tags": {
            "link": [tags[0]["id"], tags[2]["id"]],
            "unlink": [tags[1]["id"]],
            "create": [{"name": "n"}],
        },
    }
    stale = await http.patch(path, json=change, headers={"if-match": '"stale"'})
    error_of(stale, 412, "PRECONDITION_FAILED")
    changed = await http.patch(path, json=change, headers={"if-match": made.headers["etag"]})
    order = data_of(changed)
    assert order["customer"]["name"] == "bob"
    assert [(line["sku"], line["quantity"]) for line in order["lines"]] == [("s0", 9), ("s2", 1), ("new", 7)]
    assert [one["name"] for one in order["lines"][0]["options"]] == ["blue"]
    assert sorted(one["name"] for one in order["tags"]) == ["n", "t0", "t2"]
    assert changed.headers["etag"] != made.headers["etag"]
    shown = await http.get(path)
    assert shown.headers["etag"] == changed.headers["etag"]
    again = await http.patch(path, json={"tags": {"link": [tags[0]["id"]], "unlink": [tags[1]["id"]]}})
    assert again.headers["etag"] == changed.headers["etag"]  # what is so already changes nothing
    moved = data_of(await http.patch(path, json={"customer": {"create": {"name": "eve"}}}))
    assert moved["customer_id"] == moved["customer"]["id"] != order["customer_id"]
    assert (await totals(http))["customers"] == 2


async def test_other_forms_are_refused_with_the_ones_there_are(http: httpx.AsyncClient) -> None:
    """Check 56."""
    order = await created(http, "/api/orders", title="o")
    path = f"/api/orders/{order['id']}"
    line = await created(http, "/api/lines", order_id=order["id"], sku="s", quantity=1)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("lines", {"lines": [{"sku": "x", "quantity": 1}]}),
        ("lines", {"lines": None}),
        ("lines", {"lines": {"add": []}}),
        ("lines.create", {"lines": {"create": {}}}),
        ("lines.create[0]", {"lines": {"create": ["x"]}}),
        ("lines.update[0].id", {"lines": {"update": [{"quantity": 1}]}}),
        ("lines.delete[0]", {"lines": {"delete": [1]}}),
        ("lines.delete[0]", {"lines": {"update": [{"id": line["id"]}], "delete": [line["id"]]}}),
        ("lines.update[1].id", {"lines": {"update": [{"id": line["id"]}, {"id": line["id"]}]}}),
        ("lines.create[0].order_id", {"lines": {"create": [{"sku": "x", "quantity": 1, "order_id": "z"}]}}),
        (
            "lines.create[0].order",
            {"lines": {"create": [{"sku": "x", "quantity": 1, "order": {"title": "q"}}]}},
        ),
        ("tags", {"tags": ["x"]}),
        ("tags", {"tags": None}),
        ("tags.unlink[0]", {"tags": {"link": ["a"], "unlink": ["a"]}}),
        ("customer", {"customer": {"name": "x"}}),
        ("customer", {"customer": None}),
        ("customer", {"customer": {"create": {}, "update": {}}}),
        ("customer.update", {"customer": {"update": {"name": "x"}}}),
        ("customer", {"customer_id": "x", "customer": {"create": {"name": "x"}}}),
    ]
    for place, body in wrong:
        assert place in fields_of(await http.patch(path, json=body)), body
    for place, body in (
        ("lines", {"lines": {"create": []}}),
        ("tags", {"tags": [{"name": "x"}]}),
        ("tags", {"tags": {"unlink": []}}),
        ("customer", {"customer": []}),
        ("customer", {"customer_id": "x", "customer": {"name": "x"}}),
    ):
        assert place in fields_of(await http.post("/api/orders", json={"title": "n", **body})), body
    notes = error_of(
        await http.post("/api/orders", json={"title": "n", "notes": []}), 422, "VALIDATION_FAILED"
    )
    assert [(d["field"], d["code"]) for d in notes["details"]] == [("notes", "relation")]
    assert await totals(http) == {**NOTHING, "orders": 1, "lines": 1}


async def test_records_of_another_parent_are_as_those_that_are_not_there(http: httpx.AsyncClient) -> None:
    """Check 56."""
    one, other = [await created(http, "/api/orders", title=name) for name in ("one", "other")]
    line = await created(http, "/api/lines", order_id=other["id"], sku="s", quantity=1)
    answers = []
    for record_id in (line["id"], "none"):
        body = {"lines": {"update": [{"id": record_id, "quantity": 5}]}}
        answers.append(await http.patch(f"/api/orders/{one['id']}", json=body))
        answers.append(await http.patch(f"/api/orders/{one['id']}", json={"lines": {"delete": [record_id]}}))
    assert [fields_of(answer) for answer in answers] == [["lines.update[0].id"], ["lines.delete[0]"]] * 2
    missing = await http.patch("/api/orders/none", json={"lines": {"delete": [line["id"]]}})
    error_of(missing, 404, "NOT_FOUND")
    assert answers[0].json() == answers[2].json()
    assert answers[1].json() == answers[3].json()
    assert data_of(await http.get(f"/api/lines/{line['id']}"))["quantity"] == 1


async def test_a_body_has_so_many_levels_and_so_many_records(http: httpx.AsyncClient) -> None:
    deep = {"sku": "s", "quantity": 1, "options": [{"name": "o", "parts": [{"name": "p"}]}]}
    answer = await http.post("/api/orders", json={"title": "o", "lines": [deep]})
    assert fields_of(answer) == ["lines[0].options[0].parts"]
    lines = [{"sku": f"s{n}", "quantity": 1, "options": [{"name": "o"}]} for n in range(50)]
    more = {"title": "o", "lines": lines, "tags": {"create": [{"name": "t"}]}}
    assert len(fields_of(await http.post("/api/orders", json=more))) == 1
    assert await totals(http) == NOTHING
    assert (
        len(data_of(await http.post("/api/orders", json={"title": "o", "lines": lines}), 201)["lines"]) == 50
    )


async def test_limits_are_those_of_the_settings(database_url: str) -> None:
    server = a_server(limits=Limits(nested_depth=3, nested_items=3))
    async with client(server, database=database_url) as http:
        deep = {"sku": "s", "quantity": 1, "options": [{"name": "o", "parts": [{"name": "p"}]}]}
        order = data_of(await http.post("/api/orders", json={"title": "o", "lines": [deep]}), 201)
        assert order["lines"][0]["options"][0]["parts"][0]["name"] == "p"
        tags = {"link": ["a", "b"]}
        answer = await http.post(
            "/api/orders", json={"title": "o", "lines": [{**deep, "options": []}] * 2, "tags": tags}
        )
        assert any("3 records" in d["message"] for d in answer.json()["error"]["details"])


async def test_a_refusal_of_the_database_names_the_record_and_takes_all_back(http: httpx.AsyncClient) -> None:
    order = await created(http, "/api/orders", title="o")
    await created(http, "/api/lines", order_id=order["id"], sku="taken", quantity=1)
    lines = [{"sku": "new", "quantity": 1}, {"sku": "taken", "quantity": 1}]
    answer = await http.post("/api/orders", json={"title": "n", "customer": {"name": "c"}, "lines": lines})
    assert [d["field"] for d in error_of(answer, 409, "CONFLICT")["details"]] == ["lines[1].sku"]
    answer = await http.patch(f"/api/orders/{order['id']}", json={"title": "x", "lines": {"create": lines}})
    assert [d["field"] for d in error_of(answer, 409, "CONFLICT")["details"]] == ["lines.create[1].sku"]
    assert await totals(http) == {**NOTHING, "orders": 1, "lines": 1}
    assert data_of(await http.get(f"/api/orders/{order['id']}"))["title"] == "o"


async def test_children_pass_the_middleware_of_their_own_model(database_url: str) -> None:
    server = a_server()
    server.pipeline.auth.register(auth.require_role("seller"), models=[Line], operations=[Operation.DELETE])
    seen: list[str] = []

    @server.pipeline.validate.middleware(models=[Line], operations=[Operation.CREATE])
    async def no_blue(ctx: Context, next: Next) -> None:
        if ctx.field("sku") == "blue":
            ctx.abort(409, "NO_BLUE", "no blue")
        await next()

    @server.pipeline.service.middleware(models=[Line], operations=Operation.WRITES)
    async def price(ctx: Context, next: Next) -> None:
        if ctx.operation is Operation.CREATE:
            ctx.set_field("sku", ctx.field("sku").upper())
        await next()
        ctx.after_commit(lambda: seen.append(f"{ctx.operation}"))
        ctx.add_header("x-line", str(ctx.operation))
        if ctx.field("quantity") == 13:
            ctx.abort(402, "UNLUCKY", "not thirteen")

    async with client(server, database=database_url) as http:

        def body(**line: Any) -> dict[str, Any]:
            return {"title": "o", "lines": [{"sku": "a", "quantity": 1}, {"sku": "b", "quantity": 1, **line}]}

        error_of(await http.post("/api/orders", json=body(sku="blue")), 409, "NO_BLUE")
        error_of(await http.post("/api/orders", json=body(quantity=13)), 402, "UNLUCKY")
        assert seen == []
        assert await totals(http) == NOTHING
        made = await http.post("/api/orders", json=body())
        order = data_of(made, 201)
        assert [line["sku"] for line in order["lines"]] == ["A", "B"]
        assert made.headers.get_list("x-line") == ["create", "create"]
        assert seen == ["create", "create"]
        path, ids = f"/api/orders/{order['id']}", [line["id"] for line in order["lines"]]
        error_of(await http.patch(path, json={"lines": {"delete": ids}}), 401, "UNAUTHORIZED")
        ann = {"x-user": "ann"}
        error_of(await http.patch(path, json={"lines": {"delete": ids}}, headers=ann), 403, "FORBIDDEN")
        seller = {**ann, "x-roles": "seller"}
        assert data_of(await http.patch(path, json={"lines": {"delete": ids}}, headers=seller))["lines"] == []


async def test_scopes_stamp_and_bind_what_is_nested(database_url: str) -> None:
    server = a_server()
    server.pipeline.auth.register(db.tenancy("tenant_id"), models=[Order, Customer, Tag])
    server.pipeline.auth.register(
        db.force_filter_via("order", "tenant_id", lambda ctx: ctx.auth.tenant_id if ctx.auth else None),
        models=[Line],
    )
    a, b = ({"x-user": "u", "x-tenant": tenant} for tenant in "ab")
    async with client(server, database=database_url) as http:
        body = {"title": "o", "customer": {"name": "c"}, "lines": [{"sku": "s", "quantity": 1}]}
        body["tags"] = {"create": [{"name": "t"}]}
        order = data_of(await http.post("/api/orders", json=body, headers=a), 201)
        assert order["tenant_id"] == order["customer"]["tenant_id"] == order["tags"][0]["tenant_id"] == "a"
        path, line, tag = f"/api/orders/{order['id']}", order["lines"][0]["id"], order["tags"][0]["id"]
        for change in (
            {"lines": {"delete": [line]}},
            {"customer": {"update": {"name": "x"}}},
            {"title": "x"},
        ):
            error_of(await http.patch(path, json=change, headers=b), 404, "NOT_FOUND")
        other = data_of(await http.post("/api/orders", json={"title": "of b"}, headers=b), 201)
        of_b = f"/api/orders/{other['id']}"
        for record_id in (tag, "none"):
            answer = await http.patch(of_b, json={"tags": {"link": [record_id]}}, headers=b)
            assert fields_of(answer) == ["tags.link[0]"]
            answer = await http.post(
                "/api/orders", json={"title": "n", "tags": {"link": [record_id]}}, headers=b
            )
            assert fields_of(answer) == ["tags.link[0]"]
        for record_id in (line, "none"):
            change = {"lines": {"update": [{"id": record_id, "quantity": 9}]}}
            assert fields_of(await http.patch(of_b, json=change, headers=b)) == ["lines.update[0].id"]
        named = {"title": "n", "customer": {"name": "d", "tenant_id": "a"}}
        made = await http.post("/api/orders", json=named, headers=b)
        assert made.status_code in (201, 422)
        if made.status_code == 201:
            assert data_of(made, 201)["customer"]["tenant_id"] == "b"
        assert data_of(await http.get(path, headers=a))["title"] == "o"


async def test_the_answer_shows_only_what_the_caller_may_read(database_url: str) -> None:
    server = a_server()
    server.pipeline.auth.register(auth.require_role("reader"), models=[Line], operations=Operation.READS)
    async with client(server, database=database_url) as http:
        body = {"title": "o", "lines": [{"sku": "s", "quantity": 1}], "customer": {"name": "c"}}
        order = data_of(await http.post("/api/orders", json=body, headers={"x-user": "ann"}), 201)
        assert "lines" not in order
        assert order["customer"]["name"] == "c"
        body["lines"] = [{"sku": "t", "quantity": 1}]
        body["customer"] = {"name": "d"}
        reader = {"x-user": "ann", "x-roles": "reader"}
        assert len(data_of(await http.post("/api/orders", json=body, headers=reader), 201)["lines"]) == 1


async def test_a_key_covers_what_is_nested(database_url: str) -> None:
    server = a_server()
    server.pipeline.deserialize.register(idempotency.keys(required=True), models=[Order, Line], at="after")
    async with client(server, database=database_url) as http:
        body = {"title": "o", "lines": [{"sku": "s", "quantity": 1}]}

        async def send(_: int) -> httpx.Response:
            return await http.post("/api/orders", json=body, headers={"idempotency-key": "k"})

        answers = await together(4, send)
        assert len({data_of(answer, 201)["lines"][0]["id"] for answer in answers}) == 1
        assert (await totals(http))["lines"] == 1


async def test_two_who_link_the_same_link_it_once(http: httpx.AsyncClient) -> None:
    order, tag = await created(http, "/api/orders", title="o"), await created(http, "/api/tags", name="t")

    async def link(_: int) -> httpx.Response:
        return await http.patch(f"/api/orders/{order['id']}", json={"tags": {"link": [tag["id"]]}})

    answers = await together(6, link)
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert (await totals(http))["order_tags"] == 1


async def test_operations_of_a_batch_may_hold_nested_records(database_url: str) -> None:
    server = a_server()
    server.enable_batch()
    async with client(server, database=database_url) as http:
        body = {"title": "o", "lines": [{"sku": "s", "quantity": 1}]}
        first = {"method": "POST", "path": "/orders", "as": "o", "body": body}
        change = {"lines": {"update": [{"id": {"$ref": "o.lines.0.id"}, "quantity": 3}]}}
        second = {"method": "PATCH", "path": "/orders/{o.id}", "body": change}
        outcome = data_of(await http.post("/api/batch", json={"operations": [first, second]}))
        assert outcome[1]["data"]["lines"][0]["quantity"] == 3


async def test_the_description_shows_what_may_be_nested() -> None:
    document = await a_server().openapi()
    schemas = document["components"]["schemas"]
    create, update = schemas["OrderCreate"]["properties"], schemas["OrderUpdate"]["properties"]
    line = create["lines"]["items"]["$ref"].rpartition("/")[2]
    assert "order_id" not in schemas[line]["properties"]
    assert schemas[line]["required"] == ["sku", "quantity"]
    assert "options" in schemas[line]["properties"]
    assert update["lines"]["properties"].keys() == {"create", "update", "delete"}
    assert update["tags"]["properties"].keys() == {"link", "create", "unlink"}
    assert [list(form["properties"]) for form in update["customer"]["oneOf"]] == [["create"], ["update"]]
    assert "notes" not in create


def test_mistakes_of_declarations_are_told(tmp_path: Any) -> None:
    class Far(Model):
        near_id: str

    class Joint(Model):
        near_id: str
        far_id: str
        needed: str

    class Near(Model):
        fars: list[Far] = has_many(nested=True)
        joined: list[Far] = many_to_many(through="Joint", nested=True)
        odd: list[Joint] = has_many(nested="yes")  # type: ignore[arg-type]  # the mistake

    server = Server(database=f"sqlite:///{tmp_path}/a.db")
    server.register(Near, Joint, Far, ModelOptions(database=f"sqlite:///{tmp_path}/b.db"))
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    text = "\n".join(refused.value.problems)
    assert "Near.odd: nested='yes' is neither True nor False" in text


def test_a_junction_with_more_than_its_keys_and_another_database_are_told(tmp_path: Any) -> None:
    class Far(Model):
        near_id: str

    class Joint(Model):
        near_id: str
        far_id: str = field(relation=None)
        other_id: str
        needed: str

    class Other(Model):
        pass

    class Near(Model):
        fars: list[Far] = has_many(nested=True)
        others: list[Other] = many_to_many(through="Joint", nested=True)

    server = Server(database=f"sqlite:///{tmp_path}/a.db")
    server.register(Near, Other, Joint, Far, ModelOptions(database=f"sqlite:///{tmp_path}/b.db"))
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    text = "\n".join(refused.value.problems)
    assert "Near.fars: nested: Far is in another database" in text
    assert "Near.others: nested: Joint needs far_id, needed" in text


async def test_writers_of_one_order_end_with_what_they_sent(http: httpx.AsyncClient) -> None:
    order = await created(http, "/api/orders", title="o")

    async def add(n: int) -> httpx.Response:
        change = {"lines": {"create": [{"sku": f"{n}", "quantity": n + 1}]}}
        return await http.patch(f"/api/orders/{order['id']}", json=change)

    answers = await asyncio.gather(*map(add, range(8)))
    stored = sum(answer.status_code == 200 for answer in answers)
    assert all(answer.status_code in (200, 409) for answer in answers)
    assert (await totals(http))["lines"] == stored
