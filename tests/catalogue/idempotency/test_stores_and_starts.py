"""I3, I17, I19: other stores, stores that fail, and declarations that stop the start."""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Server, with_transaction
from maniflex import field as column
from maniflex.errors import Unavailable
from maniflex.middleware import auth, db, idempotency, stores
from tests.catalogue.idempotency.shop import Order, Refund, asking, is_replay, post, shop
from tests.kit.declarations import refusal_of
from tests.kit.http import error_of, together, total


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        return stores.MemoryIdempotency()
    url = request.getfixturevalue("redis_url")
    return stores.RedisIdempotency(url, prefix=f"test_{secrets.token_hex(6)}")


async def test_other_stores_keep_twins_apart(sqlite_url: str, store: Any) -> None:
    """I17."""
    async with asking(shop(idempotency.keys(store=store)), sqlite_url) as http:
        answers = await together(20, lambda _: post(http))
        assert {a.status_code for a in answers} == {201}
        assert len({a.content for a in answers}) == 1
        assert await total(http, "/orders") == 1
        error_of(await post(http, title="other"), 422, "IDEMPOTENCY_KEY_REUSED")
        error_of(await post(http, key="b", title=7), 422, "VALIDATION_FAILED")
        assert not is_replay(await post(http, key="b"))


class Failing:
    """A store that cannot be reached, at all or only when a key is settled."""

    def __init__(self, *failing: str) -> None:
        self._inner = stores.MemoryIdempotency()
        self._failing = failing

    def on(self, adapter: Any) -> Failing:
        return self

    def __getattr__(self, name: str) -> Any:
        if name in self._failing:
            return self._fail
        return getattr(self._inner, name)

    async def _fail(self, *args: Any, **options: Any) -> Any:
        raise stores.StoreUnavailable("no connection")


@pytest.mark.parametrize("shares", ["the entry", "the store"])
async def test_servers_that_share_a_store_keep_their_own_keys(
    database_url: str, tmp_path: Path, shares: str
) -> None:
    """Each beside its own rows, also when the other one starts later and when it is gone."""
    store = stores.SqlIdempotency()
    entry = idempotency.keys(store=store)
    one, other = shop(entry), shop(entry if shares == "the entry" else idempotency.keys(store=store))
    async with asking(one, database_url) as first:
        answer = await post(first)
        async with asking(other, f"sqlite:///{tmp_path}/other.db") as second:
            assert not is_replay(await post(second))
            assert not is_replay(await post(second, key="b"))
            again = await post(first)
            assert (again.content, is_replay(again)) == (answer.content, True)
            assert not is_replay(await post(first, key="b"))
            assert await total(first, "/orders") == await total(second, "/orders") == 2
        assert is_replay(await post(first, key="b"))
        assert not is_replay(await post(first, key="c"))


class NoFirstRead(stores.SqlIdempotency):
    """Reads before it claims, and cannot."""

    expects_answers = property(lambda self: True, lambda self, value: None)

    async def read_first(self, key: str) -> Any:
        raise Unavailable("no connection")


async def test_a_first_read_that_fails_refuses_the_request_too(database_url: str) -> None:
    async with asking(shop(idempotency.keys(store=NoFirstRead())), database_url) as http:
        error_of(await post(http), 503, "IDEMPOTENCY_UNAVAILABLE")
        assert await total(http, "/orders") == 0
    lenient = idempotency.keys(store=NoFirstRead(), on_error="run")
    async with asking(shop(lenient), database_url) as http:
        assert not is_replay(await post(http))
        assert await total(http, "/orders") == 1


async def test_a_store_that_fails_refuses_the_request(database_url: str) -> None:
    """I17: nothing runs."""
    async with asking(shop(idempotency.keys(store=Failing("claim"))), database_url) as http:
        refusal = await post(http)
        assert error_of(refusal, 503, "IDEMPOTENCY_UNAVAILABLE")["retryable"] is True
        assert int(refusal.headers["retry-after"]) >= 1
        assert await total(http, "/orders") == 0
        assert (await http.post("/orders", json={})).status_code == 201


async def test_on_error_run_runs_unprotected(database_url: str) -> None:
    entry = idempotency.keys(store=Failing("claim"), on_error="run")
    async with asking(shop(entry), database_url) as http:
        assert [(await post(http)).status_code for _ in range(2)] == [201, 201]
        assert await total(http, "/orders") == 2


async def test_what_was_done_is_answered_although_it_cannot_be_settled(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I17: the gap between commit and settling, as the log tells of it."""
    async with asking(
        shop(idempotency.keys(store=Failing("settle", "release"), wait=0)), database_url
    ) as http:
        assert (await post(http)).status_code == 201
        assert "could not be settled" in caplog.text
        error_of(await post(http), 409, "IDEMPOTENCY_IN_PROGRESS")
        assert await total(http, "/orders") == 1


async def test_a_lost_claim_of_another_store_is_answered_by_the_successor(sqlite_url: str) -> None:
    """I10 without a common transaction: the answers agree, though both have had their effect."""
    store = stores.MemoryIdempotency()
    server, reached, go_on = (
        shop(idempotency.keys(store=store, lease=1, wait=10)),
        asyncio.Event(),
        asyncio.Event(),
    )

    @server.pipeline.service.middleware(operations=["create"])
    async def steal(ctx: Context, next: Any) -> None:
        await next()
        if not reached.is_set():
            reached.set()
            [name] = store._keys
            del store._keys[name]  # as if its lease had ended
            await go_on.wait()

    async with (
        asking(server, sqlite_url) as one,
        asking(shop(idempotency.keys(store=store)), sqlite_url) as other,
    ):
        owner = asyncio.create_task(post(one))
        await reached.wait()
        successor = await post(other)
        go_on.set()
        assert (await owner).content == successor.content


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"lease": 0.5}, "lease=0.5 is less than a second"),
        ({"ttl": 30}, "ttl=30 is not more than the lease of 30 s"),
        ({"ttl": timedelta(seconds=10), "lease": 20}, "is not more than the lease of 20 s"),
        ({"wait": -1}, "wait=-1 is not a time"),
        ({"ttl": "a day"}, "ttl='a day' is not a time"),
        ({"max_answer": "big"}, "max_answer='big' is not a size"),
        ({"on_error": "ignore"}, "on_error='ignore' is neither"),
        ({"caller": "ip"}, "caller='ip' is not a function"),
        ({"required": "yes"}, "required='yes' is neither"),
        ({"transaction": None}, "transaction=None is neither"),
        ({"store": object()}, "has no on()"),
    ],
)
def test_a_wrong_argument_stops_the_start(arguments: dict[str, Any], problem: str) -> None:
    assert problem in str(refusal_of(shop(idempotency.keys(**arguments))))


@pytest.mark.parametrize(("step", "at"), [("db", "before"), ("auth", "after"), ("deserialize", "before")])
def test_another_place_stops_the_start(step: str, at: str) -> None:
    server = Server()
    server.register(Order)
    getattr(server.pipeline, step).register(idempotency.keys(), at=at)
    assert "idempotency.keys: it does nothing" in str(refusal_of(server))


@pytest.mark.parametrize(
    ("step", "at"), [("auth", "before"), ("deserialize", "before"), ("deserialize", "after")]
)
def test_a_transaction_around_it_stops_the_start(step: str, at: str) -> None:
    server = shop()
    getattr(server.pipeline, step).register(with_transaction(), at=at, models=[Order])
    assert "register with_transaction() on the service step" in str(refusal_of(server))


def test_a_transaction_elsewhere_starts() -> None:
    server = Server(":memory:")
    server.register(Order, Refund)
    server.pipeline.auth.register(with_transaction(), models=[Refund])
    server.pipeline.service.register(with_transaction())
    server.pipeline.deserialize.register(idempotency.keys(), at="after", models=[Order])
    server.seal()


def test_reads_alone_stop_the_start() -> None:
    server = Server()
    server.register(Order)
    server.pipeline.deserialize.register(idempotency.keys(), at="after", operations=["read", "list"])
    assert "it does nothing for list, read" in str(refusal_of(server))


def test_two_on_one_route_stop_the_start() -> None:
    server = shop()
    server.pipeline.deserialize.register(
        idempotency.keys(), at="after", models=[Order], operations=["create"]
    )
    assert "a request would pass it twice" in str(refusal_of(server))


def test_two_on_different_routes_start() -> None:
    server = Server()
    server.register(Order, Refund)
    for model in (Order, Refund):
        server.pipeline.deserialize.register(idempotency.keys(), at="after", models=[model])
    server.seal()


def in_action(*middleware: Any, method: str = "POST") -> Server:
    server = Server()

    @server.action(method, "/pay", middleware=list(middleware))
    async def pay(ctx: Context) -> None: ...

    return server


def test_an_action_it_cannot_help_stops_the_start() -> None:
    assert "a GET changes nothing" in str(refusal_of(in_action(idempotency.keys(), method="GET")))
    twice = in_action(idempotency.keys(), idempotency.keys())
    assert "a request would pass it twice" in str(refusal_of(twice))
    late = in_action(with_transaction(), idempotency.keys())
    assert "put it before with_transaction()" in str(refusal_of(late))
    assert "lease=0 is less than a second" in str(refusal_of(in_action(idempotency.keys(lease=0))))


class Tenanted(Model):
    tenant_id: str = column(default="", relation=None)


@pytest.mark.parametrize(
    "entry",
    [auth.require_role("cashier"), db.tenancy(), db.rate_limit(5, 60), db.rate_limit_field("email", 5, 60)],
    ids=lambda entry: entry.name,
)
def test_what_refuses_a_request_stands_before_its_key(entry: Any) -> None:
    """I14: behind it, a replay would pass a lost role, another tenant and a limit."""
    server = in_action(idempotency.keys(), entry)
    server.register(Tenanted)
    problem = f"a replay would pass {entry.name}, which stands behind it; put it behind {entry.name}"
    assert problem in str(refusal_of(server))
    server = in_action(entry, idempotency.keys())
    server.register(Tenanted)
    server.seal()


async def test_a_model_can_bring_its_own_keys(database_url: str) -> None:
    """The class keyword `middleware=` puts the entry where it has to stand."""

    class Parcel(Model, middleware={"deserialize": idempotency.keys()}):
        title: str = ""

    server = Server(path_prefix="")
    server.register(Parcel, Refund)
    async with asking(server, database_url) as http:
        for path, replays in (("/parcels", True), ("/refunds", False)):
            answers = [await post(http, path) for _ in range(2)]
            assert [is_replay(answer) for answer in answers] == [False, replays]


def test_a_model_cannot_bring_them_to_another_step() -> None:
    class Parcel(Model, middleware={"db": idempotency.keys()}):
        title: str = ""

    server = Server()
    server.register(Parcel)
    with pytest.raises(DeclarationError, match=r"register it on pipeline\.deserialize"):
        server.seal()
