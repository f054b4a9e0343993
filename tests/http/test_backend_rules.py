"""Rules around models with a backend: each holds as it does in SQL, or the start says that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from pydantic import model_validator

from maniflex import AuthInfo, Context, DeclarationError, Model, Next, Server, field, has_many
from maniflex.admin import Inline, ModelAdmin
from maniflex.db.backend import BackendPage, BackendQuery
from maniflex.middleware import auth, db, idempotency, response, service, validate, workflow
from maniflex.testing import client
from tests.kit.backends import Careless, Memory, quote, quote_model
from tests.kit.http import data_of, error_of
from tests.kit.panel import Browser, add_superuser, text_of
from tests.kit.processes import run_command

Setup = Callable[[Server], Any]


@asynccontextmanager
async def serving(
    *models: type[Model], setup: Setup | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    server = make_server(*models, setup=setup, **settings)
    async with client(server) as http:
        yield http


def make_server(*models: type[Model], setup: Setup | None = None, **settings: Any) -> Server:
    server = Server("sqlite://:memory:", **settings)
    server.register(*models)
    if setup is not None:
        setup(server)
    return server


async def sign_in(ctx: Context, next: Next) -> None:
    ctx.auth = AuthInfo(user_id="u1", tenant_id=ctx.header("x-tenant") or "a")
    await next()


class Desk(Model):
    name: str = "north"
    tenant: str = "a"


# -- what is shown


class Swapping(Memory):
    """A backend that lists another record than it was asked for."""

    async def list(self, query: BackendQuery) -> Sequence[Mapping[str, Any]]:
        return [quote("theirs", symbol="THEIRS")]


async def test_a_filter_of_code_binds_reads_and_lists_whatever_the_backend_does() -> None:
    async def narrow(ctx: Context, next: Next) -> None:
        ctx.query.add_filter("symbol", "ACME")
        await next()

    backend = Swapping(quote("mine"), quote("theirs", symbol="THEIRS"))
    setup: Setup = lambda server: server.pipeline.auth.register(narrow)  # noqa: E731 (a test reads better so)
    async with serving(quote_model(backend), setup=setup) as http:
        assert data_of(await http.get("/api/quotes/mine"))["id"] == "mine"
        error_of(await http.get("/api/quotes/theirs"), 404, "NOT_FOUND")
        listed = await http.get("/api/quotes")
        error_of(listed, 502, "BACKEND_ERROR")
        assert "THEIRS" not in listed.text


async def test_a_filter_of_code_that_the_backend_does_not_take_holds_for_single_records() -> None:
    async def narrow(ctx: Context, next: Next) -> None:
        ctx.query.add_filter("symbol", "B", "lt")
        await next()

    backend = Memory(quote("low", symbol="A"), quote("high", symbol="C"))
    async with serving(
        quote_model(backend), setup=lambda server: server.pipeline.auth.register(narrow)
    ) as http:
        assert data_of(await http.get("/api/quotes/low"))["id"] == "low"
        error_of(await http.get("/api/quotes/high"), 404, "NOT_FOUND")
        error_of(await http.patch("/api/quotes/high", json={"price": "1"}), 404, "NOT_FOUND")
        error_of(await http.delete("/api/quotes/high"), 404, "NOT_FOUND")
        error_of(await http.get("/api/quotes"), 500, "INTERNAL")  # it is code that asks, not the client


@pytest.mark.parametrize("query", ["filter=symbol:eq:B", "filter=price:gt:100", "filter=id:in:b"])
async def test_a_list_that_overlooks_a_filter_of_the_client_is_not_shown(query: str) -> None:
    async with serving(quote_model(Careless(quote("a"), quote("b", symbol="B", price="200")))) as http:
        error_of(await http.get(f"/api/quotes?{query}"), 502, "BACKEND_ERROR")


@pytest.mark.parametrize(
    "values",
    [
        {"symbol": "\ud800"},
        {"seen_at": "0001-01-01T00:00:00+14:00"},
        {"tags": ["\ud800"]},
        {"price": float("nan")},
    ],
)
async def test_a_value_that_cannot_be_sent_is_answered_as_502(values: dict[str, Any]) -> None:
    async with serving(quote_model(Memory(quote(**values)))) as http:
        error_of(await http.get("/api/quotes"), 502, "BACKEND_ERROR")
        error_of(await http.get("/api/quotes/q1"), 502, "BACKEND_ERROR")


async def test_a_number_that_is_none_is_answered_as_502() -> None:
    class Gauge(Model, backend=Memory({"id": "g1", "symbol": "a", "level": float("inf")})):
        symbol: str
        level: float

    async with serving(Gauge) as http:
        error_of(await http.get("/api/gauges/g1"), 502, "BACKEND_ERROR")


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), SystemExit(1), BaseException("secret"), DeclarationError("secret")],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_backend_raises_is_its_failure(error: BaseException) -> None:
    class Failing(Memory):
        async def read(self, record_id: str) -> Mapping[str, Any] | None:
            raise error

    async with serving(quote_model(Failing())) as http:
        answer = await http.get("/api/quotes/q1")

    error_of(answer, 502, "BACKEND_ERROR")
    assert "secret" not in answer.text


async def test_a_backend_that_hangs_is_answered_as_504() -> None:
    class Hanging(Memory):
        async def read(self, record_id: str) -> Mapping[str, Any] | None:
            await asyncio.Event().wait()
            return None

    async with serving(quote_model(Hanging()), query_timeout=0.2) as http:
        error_of(await http.get("/api/quotes/q1"), 504, "TIMEOUT")


async def test_a_record_that_is_listed_twice_is_answered_as_502(caplog: pytest.LogCaptureFixture) -> None:
    class Twice(Memory):
        async def list(self, query: BackendQuery) -> Sequence[Mapping[str, Any]]:
            return [quote("q1"), quote("q1", symbol="B")]

    async with serving(quote_model(Twice())) as http:
        error_of(await http.get("/api/quotes"), 502, "BACKEND_ERROR")
    assert "Quote: Twice.list: it gave the record 'q1' twice" in caplog.text


# -- totals


class Feed:
    """A backend that does not know how many records it has."""

    counts = False

    def __init__(self, size: int) -> None:
        self.records = [quote(f"q{n:03}", symbol=f"S{n:03}") for n in range(size)]

    async def list(self, query: BackendQuery) -> Sequence[Mapping[str, Any]] | BackendPage:
        rows = [record for record in self.records if query.matches(record)]
        return rows[query.offset : None if query.limit is None else query.offset + query.limit]

    async def read(self, record_id: str) -> Mapping[str, Any] | None:
        return next((record for record in self.records if record["id"] == record_id), None)


class UnsortedFeed(Feed):
    """One that says whether there are more."""

    async def list(self, query: BackendQuery) -> BackendPage:
        rows = await super().list(query)
        assert not isinstance(rows, BackendPage)
        return BackendPage(rows, more=query.offset + len(rows) < len(self.records))


@pytest.mark.parametrize(("backend", "is_told"), [(Feed(4), False), (UnsortedFeed(4), True)])
async def test_a_backend_that_counts_nothing_has_pages_without_a_total(backend: Feed, is_told: bool) -> None:
    Quote: Any = quote_model(backend)
    server = make_server(Quote)
    async with client(server) as http:
        metas = [(await http.get(f"/api/quotes?limit=2&page={page}")).json()["meta"] for page in (1, 2)]
        document = (await http.get("/api/openapi.json")).json()
        records = server.db(Quote)
        assert (await records.exists("q001"), await records.exists({"symbol": "none"})) == (True, False)
        assert len(await records.list()) == 4
        with pytest.raises(DeclarationError, match="counts no records"):
            await records.count()

    assert metas[0] == {"page": 1, "limit": 2, "has_more": True}
    assert metas[1] == {"page": 2, "limit": 2, "has_more": not is_told}  # a full page may have more
    answer = document["paths"]["/api/quotes"]["get"]["responses"]["200"]
    meta = answer["content"]["application/json"]["schema"]["properties"]["meta"]
    assert meta["required"] == ["page", "limit", "has_more"]


async def test_a_backend_that_tells_no_total_is_refused_at_the_start() -> None:
    class Untold(Memory):
        count = None  # type: ignore[assignment]  # a method that is taken away

    server = make_server(quote_model(Untold()))
    with pytest.raises(DeclarationError, match=r"Untold has no count, and Untold\.list gives no BackendPage"):
        await server.openapi()


async def test_the_panel_pages_through_records_that_nobody_counts() -> None:
    server = make_server(quote_model(Feed(60)), setup=lambda server: server.admin())
    async with client(server) as http:
        await add_superuser(server)
        browser = Browser(http)
        await browser.sign_in()
        assert "page=2" in await browser.get("/quotes")
        assert "S039" in text_of(await browser.get("/quotes?page=2"))


async def test_a_record_that_goes_while_a_list_is_counted_does_not_fail_it() -> None:
    class Vanishing(Memory):
        async def count(self, query: BackendQuery) -> int:
            return 0

    async with serving(quote_model(Vanishing(quote()))) as http:
        assert (await http.get("/api/quotes")).json()["meta"]["total"] == 1


# -- what the start refuses


class Trade(Model, backend=Memory()):
    symbol: str
    tenant: str = "a"
    size: int = 0
    desk_id: str | None = None


class Ticket(Model):
    trade_id: str | None = None


@pytest.mark.parametrize(
    ("entry", "model", "words"),
    [
        (db.force_filter("size", 5, "lt"), None, "Trade is kept by Memory, which does not take lt"),
        (
            db.force_filter_via("desk", "tenant", "a"),
            "Trade",
            "Trade has a backend, so Trade cannot be bound by 'desk.tenant'",
        ),
        (db.force_filter_via("desk", "tenant", "a"), None, "Trade has a backend"),
        (
            db.force_filter_via("trade", "tenant", "a"),
            "Ticket",
            "Trade has a backend, so Ticket cannot be bound by 'trade.tenant'",
        ),
    ],
)
async def test_a_rule_that_cannot_bind_a_backend_stops_the_start(entry: Any, model: Any, words: str) -> None:
    server = make_server(Desk, Trade, Ticket)
    server.pipeline.auth.register(entry, models=None if model is None else [model])

    with pytest.raises(DeclarationError, match=words):
        await server.openapi()


async def test_a_column_and_inline_rows_of_a_backend_stop_the_start() -> None:
    class Named(Model, backend=Memory()):
        symbol: str = field(column="sym")

    with pytest.raises(DeclarationError, match=r"Named\.symbol: column cannot be set"):
        await make_server(Named).openapi()

    def add_inlines(server: Server) -> None:
        server.admin().add(ModelAdmin(Branch, inlines=[Inline(Till, columns=("symbol",))]))

    with pytest.raises(DeclarationError, match="Till has a backend, so one save could not store both"):
        await make_server(Branch, Till, Slip, setup=add_inlines).openapi()


# -- rules about writes


async def test_validators_of_the_model_see_a_record_as_it_becomes() -> None:
    class Span(Model, backend=Memory({"id": "s1", "symbol": "a", "low": 1, "high": 2})):
        symbol: str = ""
        low: int
        high: int

        @model_validator(mode="after")
        def check_order(self) -> Span:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    async with serving(Span) as http:
        error_of(await http.patch("/api/spans/s1", json={"low": 5}), 422, "VALIDATION_FAILED")
        assert data_of(await http.patch("/api/spans/s1", json={"low": 2}))["low"] == 2


async def test_a_policy_judges_what_a_record_becomes_before_the_backend_is_told() -> None:
    backend = Memory(quote("mine"))

    def is_own(ctx: Context, record: Any) -> bool:
        return bool(record.tenant == "a")

    def setup(server: Server) -> None:
        server.pipeline.db.register(auth.enforce(is_own), models=["Quote"])

    async with serving(quote_model(backend), setup=setup) as http:
        assert (await http.patch("/api/quotes/mine", json={"tenant": "b"})).status_code == 403
        body = {"symbol": "N", "price": "1", "tenant": "b"}
        assert (await http.post("/api/quotes", json=body)).status_code == 403
        assert data_of(await http.patch("/api/quotes/mine", json={"tags": ["y"]}))["tags"] == ["y"]

    assert [record["tenant"] for record in backend.records.values()] == ["a"]


async def test_a_policy_judges_no_other_record_that_the_write_brings_along() -> None:
    deals, logs = Memory({"id": "d1", "owner": "ann", "state": "open"}), Memory({"id": "l1", "n": 0})
    started: list[asyncio.Event] = []

    class Deal(Model, backend=deals):
        owner: str
        state: str = "open"

    class Log(Model, backend=logs):
        n: int = 0

    async def note(ctx: Context, from_: Any, to: Any) -> None:
        await ctx.db(Log).update("l1", n=1)
        started.append(asyncio.Event())

        async def note_later() -> None:
            await ctx.server.db(Log).update("l1", n=2)
            started[0].set()

        ctx.background(note_later)

    def is_own(ctx: Context, record: Any) -> bool:
        return bool(record.owner == "ann")

    server = Server()
    server.register(Deal, Log)
    rules = (workflow.allow("open", "done"), workflow.on_transition("open", "done", note))
    server.pipeline.validate.register(workflow.machine("state", *rules), models=[Deal])
    server.pipeline.db.register(auth.enforce(is_own), models=[Deal])
    async with client(server) as http:
        assert data_of(await http.patch("/api/deals/d1", json={"state": "done"}))["state"] == "done"
        await asyncio.wait_for(started[0].wait(), 30)

    assert logs.records["l1"]["n"] == 2


async def test_a_state_machine_binds_clients_and_code() -> None:
    changes: list[tuple[Any, Any]] = []

    class Deal(Model, backend=Memory({"id": "d1", "symbol": "x", "state": "open"})):
        symbol: str
        state: str = "open"

    async def note(ctx: Context, from_: Any, to: Any) -> None:
        changes.append((from_, to))

    machine = workflow.machine(
        "state", workflow.allow("open", "done"), workflow.on_transition("open", "done", note)
    )

    def setup(server: Server) -> None:
        server.pipeline.validate.register(machine, models=["Deal"])

        @server.action("POST", "/finish")
        async def finish(ctx: Context) -> dict[str, Any]:
            return {"state": (await machine.transition(ctx, "d1", "done")).state}

    async with serving(Deal, setup=setup) as http:
        error_of(await http.patch("/api/deals/d1", json={"state": "lost"}), 422, "INVALID_TRANSITION")
        assert data_of(await http.post("/api/finish")) == {"state": "done"}
        error_of(await http.patch("/api/deals/d1", json={"state": "open"}), 422, "INVALID_TRANSITION")
    assert changes == [("open", "done")]


async def test_a_unique_field_is_looked_up_with_the_operators_there_are() -> None:
    def setup(server: Server) -> None:
        server.pipeline.validate.register(validate.unique_field("symbol"), models=["Quote"])

    async with serving(quote_model(Memory(quote("q1"), quote("q2", symbol="B"))), setup=setup) as http:
        error_of(await http.post("/api/quotes", json={"symbol": "B", "price": "1"}), 409, "CONFLICT")
        error_of(await http.patch("/api/quotes/q1", json={"symbol": "B"}), 409, "CONFLICT")
        assert data_of(await http.patch("/api/quotes/q1", json={"symbol": "ACME"}))["symbol"] == "ACME"


async def test_a_unique_field_needs_an_operator_to_look_it_up() -> None:
    class Ordered(Memory):
        operators = frozenset({"gt", "in"})

    server = make_server(quote_model(Ordered()))
    server.pipeline.validate.register(validate.unique_field("symbol"), models=["Quote"])
    with pytest.raises(DeclarationError, match="Quote is kept by Ordered, which does not take eq"):
        await server.openapi()


async def test_an_idempotency_key_lets_a_create_happen_once() -> None:
    backend = Memory()

    def setup(server: Server) -> None:
        server.pipeline.deserialize.register(idempotency.keys(), models=["Quote"], at="after")

    async with serving(quote_model(backend), setup=setup) as http:
        body, key = {"symbol": "A", "price": "1"}, {"Idempotency-Key": "k1"}
        answers = await asyncio.gather(
            *(http.post("/api/quotes", json=body, headers=key) for _ in range(3)),
        )

    assert {data_of(answer, 201)["id"] for answer in answers} == set(backend.records)


async def test_a_cache_hears_of_the_writes_of_the_server() -> None:
    Quote: Any = quote_model(Memory(quote()))

    class Order(Model):
        quote_id: str

    server = make_server(Quote, Order)
    server.pipeline.db.register(db.cache_query(ttl=60))
    async with client(server) as http:
        data_of(await http.post("/api/orders", json={"quote_id": "q1"}), 201)

        async def prices() -> tuple[str, str]:
            [order] = data_of(await http.get("/api/orders?include=quote"))
            return data_of(await http.get("/api/quotes/q1"))["price"], order["quote"]["price"]

        assert await prices() == ("12.50", "12.50")
        data_of(await http.patch("/api/quotes/q1", json={"price": "2"}))
        assert await prices() == ("2", "2")
        await server.db(Quote).update("q1", price=Decimal(3))
        assert await prices() == ("3", "3")
        await server.db(Quote).delete("q1")
        error_of(await http.get("/api/quotes/q1"), 404, "NOT_FOUND")


async def test_a_new_password_ends_the_sessions_of_its_user() -> None:
    class Member(Model, backend=Memory({"id": "m1", "symbol": "ada", "password": "old"})):
        symbol: str
        password: str = field(writeonly=True)

    tokens = auth.Tokens("a secret of at least thirty-two bytes", issuer="us")

    async def log_in(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
        return AuthInfo(user_id="m1")

    def setup(server: Server) -> None:
        tokens.mount(server, login=log_in)
        ends = service.hash_field("password", lambda plain: plain, ends=tokens)
        server.pipeline.service.register(ends, models=["Member"])

    async with serving(Member, setup=setup) as http:
        pair = data_of(await http.post("/api/auth/login", json={"email": "ada", "password": "old"}))
        data_of(await http.patch("/api/members/m1", json={"password": "a new one"}))
        refreshed = await http.post("/api/auth/refresh", json={"refresh_token": pair["refresh_token"]})
        error_of(refreshed, 401, "INVALID_REFRESH_TOKEN")


# -- tries that must leave nothing behind


async def test_a_look_at_a_bulk_change_of_the_panel_changes_nothing() -> None:
    backend = Memory(*(quote(f"q{n:03}", symbol=f"S{n:03}") for n in range(250)))
    server = make_server(quote_model(backend), setup=lambda server: server.admin())
    async with client(server) as http:
        await add_superuser(server)
        browser = Browser(http)
        await browser.sign_in()
        await browser.get("/quotes")
        chosen = {"ids": ["q001", "q002"], "action": "set", "set.tenant": "b"}
        deletion = {"ids": ["q001", "q002"], "action": "delete"}

        assert "2 records would change" in text_of((await browser.post("/quotes/bulk", chosen)).text)
        assert "2 records would change" in text_of((await browser.post("/quotes/bulk", deletion)).text)
        assert {record["tenant"] for record in backend.records.values()} == {"a"}
        assert len(backend.records) == 250

        await browser.send("/quotes/bulk", {**chosen, "confirm": "1"})
        assert [key for key, record in backend.records.items() if record["tenant"] == "b"] == ["q001", "q002"]
        await browser.send("/quotes/bulk", {**deletion, "confirm": "1"})
        assert len(backend.records) == 248
        everything = {"all": "1", "action": "set", "set.tenant": "c", "confirm": "1"}
        refused = await browser.post("/quotes/bulk", everything)
        assert (refused.status_code, "At most 200 records" in refused.text) == (422, True)
        assert {record["tenant"] for record in backend.records.values()} == {"a"}


IMPORTED = '''
import json, pathlib
from maniflex import Conflict, Model, Server, field

class Journal:
    """Writes every call into a file."""
    counts = False

    async def list(self, query):
        return []

    async def read(self, record_id):
        return None

    async def create(self, values):
        with pathlib.Path("journal.txt").open("a") as journal:
            journal.write(values["symbol"] + "\\n")
        if values["symbol"] == "BAD":
            raise Conflict("there is one")
        return values

class Quote(Model, backend=Journal()):
    symbol: str

server = Server("sqlite:///app.db")
server.register(Quote)
'''


def test_an_import_is_tried_without_the_backend_and_asks_it_once_for_each_line(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(IMPORTED)
    (tmp_path / "quotes.csv").write_text("symbol\nA\nBAD\nB\n")
    command = ("import", "app:server", "Quote", "quotes.csv", "--unscoped")

    tried = run_command(*command, "--check", cwd=tmp_path)
    assert "would be created 3" in tried.stdout
    assert not (tmp_path / "journal.txt").exists()

    done = run_command(*command, cwd=tmp_path)
    assert "created 2 · updated 0 · unchanged 0 · refused 1" in done.stdout
    assert (tmp_path / "journal.txt").read_text().split() == ["A", "BAD", "B"]


# -- what the panel offers


async def test_the_panel_offers_the_filters_that_the_backend_takes() -> None:
    class Order(Model):
        quote_id: str | None = None

    backend = Memory(*(quote(f"q{n:02}", symbol=f"S{n:02}") for n in range(30)))
    server = make_server(quote_model(backend), Order, setup=lambda server: server.admin())
    async with client(server) as http:
        await add_superuser(server)
        browser = Browser(http)
        await browser.sign_in()
        page = await browser.get("/quotes")
        assert 'name="f_symbol"' in page
        assert "contains" not in page
        assert "~gte" not in page
        assert "S05" in text_of(await browser.get("/quotes?f_symbol=S05"))
        record = await browser.get("/quotes/q05?list=")
        assert "/admin/quotes/q00" not in record  # no neighbours: its order is the backend's
        assert "S19" in text_of(await browser.get("/-/pick/quotes?q="))


async def test_the_panel_searches_where_the_backend_does() -> None:
    class Searching(Memory):
        operators = frozenset({"eq", "in", "contains"})

    server = make_server(
        quote_model(Searching(quote("q1"), quote("q2", symbol="OTHER"))),
        setup=lambda server: server.admin(),
    )
    async with client(server) as http:
        await add_superuser(server)
        browser = Browser(http)
        await browser.sign_in()
        page = await browser.get("/quotes?q=CM")
        assert ("/quotes/q1" in page, "/quotes/q2" in page) == (True, False)


# -- what works as it does elsewhere


async def test_redaction_computed_fields_and_in_process_calls_work() -> None:
    Quote: Any = quote_model(Memory(quote()))
    server = make_server(Quote)
    server.pipeline.response.register(
        response.redact_field("symbol", when=lambda ctx: True), models=["Quote"]
    )

    @server.computed(Quote, "double")
    def double(record: Any) -> str:
        return str(record.price * 2)

    async with client(server) as http:
        [listed] = data_of(await http.get("/api/quotes"))
        assert ("symbol" in listed, listed["double"]) == (False, "25.00")
        error_of(await http.get("/api/quotes?filter=symbol:eq:ACME"), 400, "INVALID_QUERY")
        assert (await server.execute("read", Quote, "q1")).status == 200
        async with server.scoped(auth=AuthInfo(user_id="u1")) as scoped:
            assert (await scoped.db(Quote).read("q1")).symbol == "ACME"


async def test_tenants_are_bound_in_requests_code_includes_and_keys() -> None:
    class Leg(Model):
        quote_id: str

    Quote: Any = quote_model(Memory(quote("mine"), quote("theirs", symbol="B", tenant="b")))
    server = make_server(Quote, Leg)
    server.pipeline.auth.register(sign_in)
    server.pipeline.auth.register(db.tenancy("tenant"), models=["Quote"])
    async with client(server) as http:
        error_of(await http.post("/api/legs", json={"quote_id": "theirs"}), 409, "CONFLICT")
        await server.db(Leg).create(quote_id="theirs")
        [leg] = data_of(await http.get("/api/legs?include=quote"))
        assert leg.get("quote") is None
        async with server.scoped(auth=AuthInfo(user_id="u1", tenant_id="b")) as scoped:
            records = scoped.db(Quote)
            assert [one.id for one in await records.list()] == ["theirs"]
            assert (await records.count(), await records.exists("mine")) == (1, False)


class Branch(Model):
    name: str = "west"
    tills: list[Till] = has_many()


class Till(Model, backend=Memory()):
    symbol: str
    branch_id: str
    slips: list[Slip] = has_many()


class Slip(Model):
    till_id: str


async def test_records_are_included_in_both_directions_and_outlive_each_other() -> None:
    async with serving(Branch, Till, Slip) as http:
        branch = data_of(await http.post("/api/branches", json={}), 201)
        till = data_of(await http.post("/api/tills", json={"symbol": "t", "branch_id": branch["id"]}), 201)
        data_of(await http.post("/api/slips", json={"till_id": till["id"]}), 201)

        [west] = data_of(await http.get("/api/branches?include=tills.slips"))
        assert len(west["tills"][0]["slips"]) == 1
        [slip] = data_of(await http.get("/api/slips?include=till.branch"))
        assert slip["till"]["branch"]["name"] == "west"
        error_of(await http.get("/api/slips?filter=till.symbol:eq:t"), 400, "INVALID_QUERY")
        assert (await http.delete(f"/api/tills/{till['id']}")).status_code == 204
        [slip] = data_of(await http.get("/api/slips?include=till"))
        assert slip.get("till") is None


async def test_the_description_says_that_a_backend_may_fail() -> None:
    async with serving(Branch, Till, Slip) as http:
        paths = (await http.get("/api/openapi.json")).json()["paths"]

    def codes(path: str, method: str) -> list[str]:
        found: list[str] = paths[path][method].get("x-error-codes", {}).get("502", [])
        return found

    for path, method in (
        ("/api/tills", "get"),
        ("/api/tills", "post"),
        ("/api/tills/{id}", "get"),
        ("/api/tills/{id}", "patch"),
        ("/api/tills/{id}", "delete"),
        ("/api/branches", "get"),  # it includes tills
        ("/api/slips", "post"),  # its key names one
    ):
        assert codes(path, method) == ["BACKEND_ERROR"], (path, method)
    assert codes("/api/branches", "post") == codes("/api/slips/{id}", "delete") == []


async def test_values_of_every_kind_come_back_and_can_be_filtered() -> None:
    class Kinds(Model, backend=Memory()):
        symbol: str = field(default="", filterable=True, ignore_case=True)
        number: int = field(default=0, filterable=True)
        known: UUID | None = field(default=None, filterable=True)
        at: datetime | None = field(default=None, filterable=True)
        data: dict[str, Any] | None = None

    async with serving(Kinds) as http:
        body = {
            "symbol": "Loud",
            "number": 3,
            "known": "12345678-1234-5678-1234-567812345678",
            "at": "2026-01-02T05:04:05+02:00",
            "data": {"a": [1, None]},
        }
        made = data_of(await http.post("/api/kinds", json=body), 201)
        assert (made["symbol"], made["at"], made["data"]) == ("loud", "2026-01-02T03:04:05Z", body["data"])
        for query in (
            "symbol:eq:LOUD",
            "number:gt:2",
            f"known:eq:{body['known']}",
            f"known:in:{body['known']}",
            "at:eq:2026-01-02T03:04:05Z",
        ):
            assert data_of(await http.get(f"/api/kinds?filter={query}")) == [made], query
