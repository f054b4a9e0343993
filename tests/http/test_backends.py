"""Models that a service which is not SQL keeps: the same routes, and nothing is shown that may not be."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import httpx
import pytest

from docs.examples.declare.backends import KeptQuote, QuoteService
from maniflex import (
    Conflict,
    Context,
    DeclarationError,
    Model,
    Next,
    NotFound,
    Server,
    WithDeletedAt,
    field,
)
from maniflex.db.backend import BackendCondition, BackendPage, BackendQuery
from maniflex.middleware import auth, db
from maniflex.testing import client
from maniflex.testing.conformance import BackendConformance
from tests.kit.backends import Careless, Memory, Side, quote, quote_model
from tests.kit.http import data_of, error_of, offenders
from tests.kit.panel import Browser, add_superuser, text_of
from tests.kit.sockets import listening


@asynccontextmanager
async def serving(backend: Any, *models: type[Model], **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = Server("sqlite://:memory:")
    server.register(quote_model(backend, **options), *models)
    async with client(server) as http:
        yield http


async def by_tenant(ctx: Context, next: Next) -> None:
    ctx.query.force("tenant", ctx.header("x-tenant") or "a")
    await next()


class TestMemory(BackendConformance):
    field = "symbol"

    @pytest.fixture
    def backend(self) -> Memory:
        return Memory()

    @pytest.fixture
    def values(self) -> Callable[[int], Mapping[str, Any]]:
        return lambda n: quote(f"q{n}", symbol=f"S{n}")


class TestHttpService(BackendConformance):
    field = "symbol"

    @pytest.fixture
    async def backend(self) -> AsyncIterator[QuoteService]:
        upstream = Server("sqlite://:memory:")
        upstream.register(KeptQuote)
        async with listening(upstream) as port:
            service = QuoteService()
            service.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api", trust_env=False)
            async with service.http:
                yield service

    @pytest.fixture
    def values(self) -> Callable[[int], Mapping[str, Any]]:
        return lambda n: {"id": f"q{n}", "symbol": f"S{n}", "price": Decimal(n)}


async def test_records_are_created_listed_read_changed_and_deleted() -> None:
    backend = Memory()
    async with serving(backend) as http:
        body = {"symbol": "ACME", "price": "12.50", "tags": ["new"], "seen_at": "2026-01-02T03:04:05Z"}
        created = data_of(await http.post("/api/quotes", json=body), 201)
        path = f"/api/quotes/{created['id']}"

        assert {name: created[name] for name in body} == body
        assert "secret" not in created
        assert backend.records[created["id"]]["price"] == Decimal("12.50")
        assert data_of(await http.get(path)) == created
        assert data_of(await http.get("/api/quotes?select=symbol"))[0]["symbol"] == "ACME"
        assert data_of(await http.patch(path, json={"side": "sell"}))["side"] == "sell"
        assert (await http.delete(path)).status_code == 204
        error_of(await http.get(path), 404, "NOT_FOUND")
        error_of(await http.patch(path, json={"side": "buy"}), 404, "NOT_FOUND")
        assert offenders(await http.post("/api/quotes", json={"symbol": 1}))


async def test_lists_are_filtered_sorted_and_paged_by_the_backend() -> None:
    backend = Memory(*(quote(f"q{n}", symbol=f"S{n}", price=n) for n in range(5)))
    async with serving(backend) as http:
        answer = (await http.get("/api/quotes?filter=price:gt:1&sort=symbol:desc&limit=2&page=2")).json()

        assert [one["symbol"] for one in answer["data"]] == ["S2"]
        assert answer["meta"] == {"total": 3, "page": 2, "limit": 2, "pages": 2}
        [query] = backend.queries
        assert query.conditions == (BackendCondition("price", "gt", Decimal(1)),)
        assert (query.limit, query.offset) == (2, 2)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("filter=symbol:like:A%", "takes eq, gt, in"),
        ("filter[0]=symbol:eq:a&filter[0]=symbol:eq:b", "group"),
        ("q=acme", "q"),
        ("cursor=", "cursor"),
    ],
)
async def test_what_the_backend_does_not_take_is_refused_by_name(query: str, words: str) -> None:
    async with serving(Memory()) as http:
        assert words in error_of(await http.get(f"/api/quotes?{query}"), 400, "INVALID_QUERY")["message"]


async def test_what_a_backend_lacks_has_no_route_and_is_not_described() -> None:
    class ReadOnly:
        async def list(self, query: BackendQuery) -> BackendPage:
            return BackendPage([quote()], 1)

        async def read(self, record_id: str) -> Mapping[str, Any]:
            raise NotFound

    async with serving(ReadOnly()) as http:
        assert (await http.get("/api/quotes")).json()["meta"]["total"] == 1
        error_of(await http.get("/api/quotes/none"), 404, "NOT_FOUND")
        error_of(
            await http.post("/api/quotes", json={"symbol": "A", "price": "1"}), 405, "METHOD_NOT_ALLOWED"
        )
        error_of(await http.delete("/api/quotes/q1"), 405, "METHOD_NOT_ALLOWED")
        paths = (await http.get("/api/openapi.json")).json()["paths"]
        assert "post" not in paths["/api/quotes"]
        assert "delete" not in paths["/api/quotes/{id}"]
        filter_text = next(p for p in paths["/api/quotes"]["get"]["parameters"] if p["name"] == "filter")
        assert "`eq`" in filter_text["description"]
        assert "`like`" not in filter_text["description"]


async def test_a_backend_that_overlooks_the_tenant_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    backend = Careless(quote("mine"), quote("theirs", symbol="THEIRS", tenant="b"))
    server = Server("sqlite://:memory:")
    server.register(quote_model(backend))
    server.pipeline.auth.register(by_tenant)
    with caplog.at_level(logging.ERROR):
        async with client(server) as http:
            answer = await http.get("/api/quotes")
            assert "THEIRS" not in answer.text
            error_of(answer, 502, "BACKEND_ERROR")
            assert data_of(await http.get("/api/quotes/mine"))["id"] == "mine"
            error_of(await http.get("/api/quotes/theirs"), 404, "NOT_FOUND")
            error_of(await http.patch("/api/quotes/theirs", json={"price": "1"}), 404, "NOT_FOUND")
            error_of(await http.delete("/api/quotes/theirs"), 404, "NOT_FOUND")
            created = data_of(
                await http.post("/api/quotes", json={"symbol": "N", "price": "1", "tenant": "b"}), 201
            )
            assert created["tenant"] == "a"
    assert backend.records["theirs"]["price"] == "12.50"
    assert "Quote: Careless.list: it gave a record that is outside the condition on tenant" in caplog.text


async def test_forced_conditions_reach_the_backend() -> None:
    backend = Memory(quote("mine"), quote("theirs", symbol="B", tenant="b"))
    server = Server("sqlite://:memory:")
    server.register(quote_model(backend))
    server.pipeline.auth.register(by_tenant)
    async with client(server) as http:
        answer = (await http.get("/api/quotes")).json()

    assert ([one["id"] for one in answer["data"]], answer["meta"]["total"]) == (["mine"], 1)
    assert backend.queries[0].conditions == (BackendCondition("tenant", "eq", "a"),)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"price": "much"}, "Quote.price: Memory.list: it gave a str that is no decimal"),
        ({"symbol": None}, "Quote.symbol: Memory.list: it gave no value"),
        ({"side": "hold"}, "Quote.side: Memory.list: it gave a str that is no text"),
    ],
)
async def test_a_value_of_the_wrong_type_is_logged_and_not_shown(
    values: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Memory(quote(**values))) as http:
        answer = await http.get("/api/quotes")

    error_of(answer, 502, "BACKEND_ERROR")
    assert "much" not in answer.text
    assert "price" not in answer.text
    assert words in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound(), 404, "NOT_FOUND"),
        (Conflict(), 409, "CONFLICT"),
        (ConnectionRefusedError("secret host"), 503, "UNAVAILABLE"),
        (TimeoutError("secret host"), 503, "UNAVAILABLE"),
        (ValueError("secret host"), 502, "BACKEND_ERROR"),
    ],
)
async def test_what_a_backend_raises_becomes_an_answer(error: Exception, status: int, code: str) -> None:
    class Failing(Memory):
        async def read(self, record_id: str) -> Mapping[str, Any] | None:
            raise error

    async with serving(Failing()) as http:
        answer = await http.get("/api/quotes/q1")

    error_of(answer, status, code)
    assert "secret host" not in answer.text


async def test_policies_judge_the_records_of_a_backend() -> None:
    backend = Memory(quote("mine"), quote("theirs", symbol="B", tenant="b"))
    server = Server("sqlite://:memory:")
    server.register(quote_model(backend))

    def is_own(ctx: Context, record: Any) -> bool:
        return bool(record.tenant == "a")

    server.pipeline.db.register(auth.enforce(is_own), models=["Quote"])
    async with client(server) as http:
        assert [one["id"] for one in data_of(await http.get("/api/quotes"))] == ["mine"]
        assert (await http.get("/api/quotes/theirs")).status_code in (403, 404)
        assert (await http.patch("/api/quotes/theirs", json={"price": "1"})).status_code in (403, 404)
        assert (await http.delete("/api/quotes/theirs")).status_code in (403, 404)
        assert data_of(await http.patch("/api/quotes/mine", json={"price": "1"}))["price"] == "1"
    assert "theirs" in backend.records


async def test_records_are_included_across_a_backend_and_sql() -> None:
    backend = Memory(quote("q1"))

    class Order(Model):
        quote_id: str

    async with serving(backend, Order) as http:
        order = data_of(await http.post("/api/orders", json={"quote_id": "q1"}), 201)
        [listed] = data_of(await http.get("/api/orders?include=quote"))

        assert listed["quote"]["symbol"] == "ACME"
        assert listed["id"] == order["id"]
        error_of(await http.post("/api/orders", json={"quote_id": "none"}), 409, "CONFLICT")
        error_of(await http.get("/api/orders?filter=quote.symbol:eq:ACME"), 400, "INVALID_QUERY")


async def test_a_record_of_a_backend_belongs_to_one_in_sql() -> None:
    class Desk(Model):
        name: str

    backend = Memory()

    class Trade(Model, backend=backend):
        symbol: str
        desk_id: str

    server = Server("sqlite://:memory:")
    server.register(Desk, Trade)
    async with client(server) as http:
        desk = data_of(await http.post("/api/desks", json={"name": "north"}), 201)
        body = {"symbol": "A", "desk_id": desk["id"]}
        data_of(await http.post("/api/trades", json=body), 201)
        error_of(await http.post("/api/trades", json={"symbol": "B", "desk_id": "none"}), 409, "CONFLICT")
        [trade] = data_of(await http.get("/api/trades?include=desk"))

    assert trade["desk"]["name"] == "north"


async def test_code_uses_the_records_and_is_told_what_there_is_not() -> None:
    Quote: Any = quote_model(Memory())
    server = Server("sqlite://:memory:")
    server.register(Quote)
    async with client(server):
        records = server.db(Quote)
        record = await records.create(symbol="A", price=Decimal(1))
        assert (await records.update(record.id, price=Decimal(2))).price == 2
        assert [one.side for one in await records.list({"symbol": "A"})] == [Side.BUY]
        assert (await records.count(), await records.exists(record.id)) == (1, True)
        with pytest.raises(DeclarationError, match="Quote is kept by Memory, which increments no fields"):
            await records.increment(record.id, price=1)
        async with server.transaction(on=Quote) as tx:
            with pytest.raises(DeclarationError, match="which runs no SQL"):
                await tx.fetch(None)  # type: ignore[arg-type]  # refused before it is looked at
        await records.delete(record.id)
        assert await records.count() == 0


async def test_a_transaction_does_not_take_back_what_a_backend_keeps() -> None:
    backend = Memory()
    server = Server("sqlite://:memory:")

    class Note(Model):
        text: str

    Quote: Any = quote_model(backend)
    server.register(Quote, Note)
    async with client(server) as http:

        async def write_both() -> None:
            async with server.transaction():
                await server.db(Note).create(text="n")
                await server.db(Quote).create(symbol="A", price=Decimal(1))
                raise LookupError

        with pytest.raises(LookupError):
            await write_both()
        assert (await http.get("/api/notes")).json()["meta"]["total"] == 0
        assert len(backend.records) == 1


async def test_no_table_is_made_for_it() -> None:
    server = Server("sqlite://:memory:")
    server.register(quote_model(Memory()))
    async with client(server):
        assert not await server.raw_query("SELECT name FROM sqlite_master WHERE name = 'quotes'")


async def test_everything_wrong_with_a_declaration_is_said_at_once() -> None:
    class Broken:
        operators = frozenset({"eq", "liek"})
        sorts = False

        def list(self, query: BackendQuery) -> None: ...

        async def raed(self, record_id: str) -> None: ...

        async def updaet(self, record_id: str, changes: Any) -> None: ...

        async def delete(self) -> None: ...

    class Bad(
        Model,
        WithDeletedAt,
        backend=Broken(),
        aggregate=True,
        versioned=True,
        export=True,
        operations=["create"],
    ):
        name: str = field(unique=True, searchable=True, sortable=True)

    server = Server("sqlite://:memory:")
    server.register(Bad)
    with pytest.raises(DeclarationError) as caught:
        await server.openapi()

    text = str(caught.value)
    for words in (
        "Bad: backend: Broken has no read; did you mean 'raed'?",
        "Bad: backend: Broken.list must be written with async def",
        "Bad: backend: Broken.delete must take 1 argument",
        "Bad: backend: Broken.updaet is no method of a backend; did you mean 'update'?",
        "Bad: backend: Broken.operators: there is no operator 'liek'; did you mean 'like'?",
        "Bad: aggregate cannot be set on a model with a backend",
        "Bad: versioned cannot be set on a model with a backend",
        "Bad: export cannot be set on a model with a backend",
        "Bad: soft_delete cannot be set on a model with a backend",
        "Bad: operations: Broken has no create",
        "Bad.name: unique cannot be set on a model with a backend",
        "Bad.name: searchable cannot be set on a model with a backend",
        "Bad.name: sortable, but Broken does not sort",
    ):
        assert words in text


async def test_the_panel_lists_makes_changes_and_deletes_records() -> None:
    backend = Memory(*(quote(f"q{n:02}", symbol=f"S{n:02}") for n in range(60)))
    server = Server("sqlite://:memory:")
    server.register(quote_model(backend))
    server.admin()
    async with client(server) as http:
        await add_superuser(server)
        browser = Browser(http)
        await browser.sign_in()

        page = await browser.get("/quotes")
        assert "S00" in text_of(page)
        assert "page=2" in page
        assert "S39" in text_of(await browser.get("/quotes?page=2"))
        assert "S01" in text_of(await browser.get("/quotes/q01"))
        await browser.get("/quotes/new")
        controls = {"f.symbol": "NEW", "f.price": "3", "f.side": "buy", "f.tags": "[]", "f.tenant": "a"}
        await browser.send("/quotes", controls)
        assert any(record["symbol"] == "NEW" for record in backend.records.values())
        await browser.get("/quotes/q01/delete")
        await browser.send("/quotes/q01/delete")
        assert "q01" not in backend.records


async def test_an_audit_trail_leaves_it_out_and_may_not_name_it() -> None:
    backend = Memory()
    server = Server("sqlite://:memory:")
    server.register(quote_model(backend))
    server.pipeline.db.register(db.audit_log())
    async with client(server) as http:
        data_of(await http.post("/api/quotes", json={"symbol": "A", "price": "1"}), 201)

    named = Server("sqlite://:memory:")
    named.register(quote_model(Memory()))
    named.pipeline.db.register(db.audit_log(), models=["Quote"])
    with pytest.raises(DeclarationError, match="Quote has a backend, whose writes share no transaction"):
        await named.openapi()


async def test_a_server_without_a_database_serves_it_under_policies() -> None:
    backend = Memory(quote("q1"))
    server = Server()
    server.register(quote_model(backend))
    server.pipeline.db.register(auth.enforce(lambda ctx, record: True), models=["Quote"])
    async with client(server, database=None) as http:
        assert data_of(await http.patch("/api/quotes/q1", json={"price": "2"}))["price"] == "2"
        assert (await http.delete("/api/quotes/q1")).status_code == 204


async def test_a_locked_record_is_not_changed() -> None:
    backend = Memory(quote("q1", state="final"))

    class Deal(Model, backend=backend):
        symbol: str
        state: str = field(default="open", lock_when={"state": "final"})

    server = Server("sqlite://:memory:")
    server.register(Deal)
    async with client(server) as http:
        error_of(await http.patch("/api/deals/q1", json={"symbol": "B"}), 422, "RECORD_LOCKED")
        error_of(await http.delete("/api/deals/q1"), 422, "RECORD_LOCKED")
