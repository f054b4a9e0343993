"""D13 to D18: budgets of requests, as clients meet them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Server
from maniflex.middleware import db, stores
from maniflex.testing import FakeClock, client
from tests.catalogue.limits.shop import Note, Tag, asking, from_address, shop, statuses
from tests.kit.http import created, error_of, total
from tests.kit.statements import Counting

ADA, BOB = {"x-user": "red/ada"}, {"x-user": "red/bob"}


def limited(limit: int = 3, window: float = 60, **options: Any) -> Server:
    server = shop()
    registration = {name: options.pop(name) for name in ("models", "operations") if name in options}
    server.pipeline.db.register(db.rate_limit(limit, window, **options), **registration)
    return server


async def test_after_its_tokens_a_caller_waits(database_url: str) -> None:
    clock = FakeClock()
    async with asking(limited(), database_url, clock) as http:
        assert await statuses(http, "/notes", 5, headers=ADA) == [200, 200, 200, 429, 429]
        refusal = await http.get("/notes", headers=ADA)
        error = error_of(refusal, 429, "RATE_LIMITED")
        assert error["retryable"] is True
        assert refusal.headers["retry-after"] == "20"

        clock.advance(timedelta(seconds=20))
        assert await statuses(http, "/notes", 2, headers=ADA) == [200, 429]
        clock.advance(timedelta(minutes=10))
        assert await statuses(http, "/notes", 4, headers=ADA) == [200, 200, 200, 429]


async def test_a_server_that_starts_again_on_another_database_has_full_buckets(tmp_path: Path) -> None:
    """What a process remembers of empty ones, to ask nothing while they are flooded, is of that database."""
    server = limited()
    for name in ("one", "two"):
        async with asking(server, f"sqlite:///{tmp_path}/{name}.db") as http:
            assert await statuses(http, "/notes", 5, headers=ADA) == [200, 200, 200, 429, 429]


async def test_a_bucket_belongs_to_caller_model_and_operation(database_url: str) -> None:
    async with asking(limited(1), database_url) as http:
        note = await created(http, "/notes", text="a")
        assert await statuses(http, "/notes", 2, headers=ADA) == [200, 429]
        assert await statuses(http, "/notes", 2, headers=BOB) == [200, 429]
        assert await statuses(http, "/notes", 2, headers={"x-user": "blue/ada"}) == [200, 429]
        assert await statuses(http, "/tags", 2, headers=ADA) == [200, 429]
        assert await statuses(http, f"/notes/{note['id']}", 2, headers=ADA) == [200, 429]
        assert await statuses(http, "/notes/another", 1, headers=ADA) == [429]


async def test_tenant_and_user_are_not_confused(database_url: str) -> None:
    """Of two names that read the same when joined, each has its own bucket."""
    async with asking(limited(1), database_url) as http:
        assert await statuses(http, "/notes", 2, headers={"x-user": "ab/c"}) == [200, 429]
        assert await statuses(http, "/notes", 2, headers={"x-user": "a/bc"}) == [200, 429]


async def test_head_counts_as_its_get_and_options_not_at_all(database_url: str) -> None:
    async with asking(limited(2), database_url) as http:
        note = await created(http, "/notes", text="a")
        assert (await http.head("/notes")).status_code == 200
        assert await statuses(http, "/notes", 2) == [200, 429]
        assert (await http.head(f"/notes/{note['id']}")).status_code == 200
        assert await statuses(http, f"/notes/{note['id']}", 2) == [200, 429]
        for _ in range(5):
            assert (await http.options("/notes")).status_code == 204


@pytest.mark.parametrize("step", ["db", "auth"])
async def test_a_refused_request_has_done_nothing(database_url: str, step: str) -> None:
    """C43, second half: no row, and a body that nobody can parse is not looked at."""
    server = shop()
    seen: list[str] = []

    @server.pipeline.deserialize.middleware()
    async def watch(ctx: Context, next: Any) -> None:
        seen.append(ctx.operation)
        await next()

    getattr(server.pipeline, step).register(db.rate_limit(2, 60), operations="create")
    async with asking(server, database_url) as http:
        for _ in range(2):
            await created(http, "/notes", text="a")
        error_of(await http.post("/notes", json={"text": "b"}), 429, "RATE_LIMITED")
        error_of(await http.post("/notes", content=b"{nonsense"), 429, "RATE_LIMITED")
        assert seen == ["create", "create"]
        assert await total(http, "/notes") == 2


async def test_a_rolled_back_request_gets_no_token_back(database_url: str) -> None:
    """D15: tokens are taken outside the transaction of the request."""
    server = limited(2, operations="create")

    @server.pipeline.service.middleware(operations="create")
    async def within_transaction(ctx: Context, next: Any) -> None:
        async with ctx.transaction():
            await next()
            ctx.abort(409, "NO", "never")

    async with asking(server, database_url) as http:
        answers = [(await http.post("/notes", json={})).status_code for _ in range(3)]
        assert answers == [409, 409, 429]


async def test_answers_say_what_is_left(database_url: str) -> None:
    async with asking(limited(3), database_url) as http:
        for remaining, reset in (("2", "20"), ("1", "40"), ("0", "60"), ("0", "60")):
            headers = (await http.get("/notes")).headers
            assert headers["ratelimit-limit"] == "3"
            assert (headers["ratelimit-remaining"], headers["ratelimit-reset"]) == (remaining, reset)
        missing = await http.get("/notes/unknown")
        assert (missing.status_code, missing.headers["ratelimit-remaining"]) == (404, "2")
        assert "ratelimit-limit" not in (await http.get("/live")).headers


async def test_of_several_limits_the_tightest_is_shown_once(database_url: str) -> None:
    server = shop()
    server.pipeline.auth.register(db.rate_limit(100, 60))
    server.pipeline.db.register(db.rate_limit(5, 60), models=Note)
    server.pipeline.db.register(db.rate_limit(50, 1))
    async with asking(server, database_url) as http:
        headers = (await http.get("/notes")).headers
        assert headers.get_list("ratelimit-limit") == ["5"]
        assert headers.get_list("ratelimit-remaining") == ["4"]
        assert (await http.get("/tags")).headers["ratelimit-limit"] == "50"


async def test_a_limit_that_is_passed_by_shows_nothing_and_others_once(database_url: str) -> None:
    server = shop()
    server.pipeline.auth.register(db.rate_limit(100, 60, backend=Broken(), on_error="allow"))
    server.pipeline.db.register(db.rate_limit(5, 60), models=Note)
    async with asking(server, database_url) as http:
        assert (await http.get("/notes")).headers.get_list("ratelimit-limit") == ["5"]
        assert "ratelimit-limit" not in (await http.get("/tags")).headers


async def test_equal_limits_have_buckets_of_their_own(database_url: str) -> None:
    """Settled point D14: each registered limit has a bucket of its own."""
    server = shop()
    for _ in range(2):
        server.pipeline.db.register(db.rate_limit(2, 60), models=Note)
    async with asking(server, database_url) as http:
        assert await statuses(http, "/notes", 3) == [200, 200, 429]


async def test_a_key_of_the_applications_own_replaces_the_caller(database_url: str) -> None:
    async def plan(ctx: Context) -> str | None:
        return ctx.header("x-plan")

    async with asking(limited(1, key=plan), database_url) as http:
        assert await statuses(http, "/notes", 2, headers={"x-plan": "free", **ADA}) == [200, 429]
        assert await statuses(http, "/notes", 1, headers={"x-plan": "free", **BOB}) == [429]
        assert await statuses(http, "/notes", 1, headers={"x-plan": "paid", **BOB}) == [200]
        assert await statuses(http, "/notes", 5) == [200] * 5


async def test_a_key_that_raises_refuses(database_url: str) -> None:
    def fail(ctx: Context) -> str:
        raise RuntimeError("no plan")

    async with asking(limited(1, key=fail), database_url) as http:
        error_of(await http.get("/notes"), 500, "INTERNAL")


async def test_a_cost_takes_several_tokens(database_url: str) -> None:
    async with asking(limited(5, cost=2, message="slow down"), database_url) as http:
        assert await statuses(http, "/notes", 3) == [200, 200, 429]
        assert error_of(await http.get("/notes"), 429, "RATE_LIMITED")["message"] == "slow down"


async def test_an_address_is_one_caller_whatever_the_port_or_header_says(database_url: str) -> None:
    """C41: 50 connections of one address, with 50 different X-Forwarded-For, share a bucket."""
    server = limited(10)
    async with asking(server, database_url):
        answers: list[int] = []
        for number in range(50):
            async with from_address(server, "203.0.113.7") as http:
                forwarded = {"x-forwarded-for": f"198.51.100.{number}"}
                answers.append((await http.get("/notes", headers=forwarded)).status_code)
        assert answers == [200] * 10 + [429] * 40
        async with from_address(server, "203.0.113.8") as http:
            assert await statuses(http, "/notes", 1) == [200]


async def test_an_ipv6_subscriber_is_one_caller(database_url: str) -> None:
    server = limited(2)
    async with asking(server, database_url):
        answers = []
        for address in ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:2::3", "2001:db8:1:3::1"):
            async with from_address(server, address) as http:
                answers += await statuses(http, "/notes", 1)
        assert answers == [200, 200, 429, 200]
        answers = []
        for address in ("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1"):
            async with from_address(server, address) as http:
                answers += await statuses(http, "/notes", 1)
        assert answers == [200, 200, 429]


async def test_an_action_has_one_bucket_for_all_ids(database_url: str) -> None:
    """C42: ids in the path make no new buckets."""
    server = shop()

    @server.action("POST", "/orders/{id}/pay", middleware=[db.rate_limit(5, 60)])
    async def pay(ctx: Context) -> dict[str, str]:
        return {"id": ctx.url_param("id")}

    @server.action("POST", "/orders/{id}/lines/{line}", middleware=[db.rate_limit(5, 60)])
    async def change(ctx: Context) -> None: ...

    async with asking(server, database_url) as http:
        paid = [await http.post(f"/orders/{n}/pay") for n in range(10)]
        assert [one.status_code for one in paid] == [200] * 5 + [429] * 5
        assert paid[0].headers["ratelimit-remaining"] == "4"
        changed = [(await http.post(f"/orders/{n}/lines/{n}")).status_code for n in range(6)]
        assert changed == [204] * 5 + [429]


async def test_on_auth_it_covers_actions_and_search_too(database_url: str) -> None:
    server = shop()
    server.pipeline.auth.register(db.rate_limit(2, 60))

    @server.action("GET", "/ping/{name}")
    async def ping(ctx: Context) -> str:
        return "pong"

    async with asking(server, database_url) as http:
        assert [(await http.get(f"/ping/{n}")).status_code for n in range(3)] == [200, 200, 429]
        assert await statuses(http, "/notes", 3) == [200, 200, 429]


async def test_before_the_authenticator_it_limits_guessing_by_address(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Note)
    server.pipeline.auth.register(db.rate_limit(2, 60))

    @server.pipeline.auth.middleware()
    async def refuse(ctx: Context, next: Any) -> None:
        ctx.abort(401, "UNAUTHORIZED", "no")

    async with asking(server, database_url) as http:
        assert await statuses(http, "/notes", 3, headers=ADA) == [401, 401, 429]


async def test_reached_models_are_not_counted(database_url: str) -> None:
    """A request counts where it goes: filtering through another model takes none of its tokens."""
    from tests.catalogue.limits.family import Child, Parent

    server = Server(path_prefix="")
    server.register(Parent, Child)
    server.pipeline.auth.register(db.rate_limit(1, 60), models=Child)
    async with asking(server, database_url) as http:
        assert await statuses(http, "/parents?include=children", 3) == [200] * 3
        assert await statuses(http, "/children", 2) == [200, 429]


async def test_a_flood_costs_no_statements(database_url: str) -> None:
    """D16, and the cost bar: one statement more for each request, none for one that is refused again."""
    adapter = Counting(database_url)
    server = limited(3)
    async with client(server, database=adapter, clock=FakeClock()) as http:  # type: ignore[arg-type]  # an adapter
        adapter.statements.clear()
        await statuses(http, "/notes", 3)
        assert len(adapter.statements) == 6
        assert sum("rate_limit" in text for text in adapter.statements) == 3
        adapter.statements.clear()
        assert await statuses(http, "/notes", 1) == [429]
        assert len(adapter.statements) == 1
        assert await statuses(http, "/notes", 100) == [429] * 100
        assert len(adapter.statements) == 1


async def test_a_restart_fills_no_bucket(database_url: str) -> None:
    """C40, last sentence."""
    clock = FakeClock()
    for answers in ([200, 200], [200, 429], [429, 429]):
        async with asking(limited(3), database_url, clock) as http:
            assert await statuses(http, "/notes", 2) == answers


class Broken:
    """A backend that is away."""

    async def take(self, *arguments: Any) -> stores.Taken:
        raise stores.StoreUnavailable("away")


async def test_a_backend_that_fails_refuses(database_url: str) -> None:
    """C43: 503 by default, and nothing was written."""
    async with asking(limited(1, backend=Broken()), database_url) as http:
        refusal = await http.post("/notes", json={})
        assert error_of(refusal, 503, "RATE_LIMIT_UNAVAILABLE")["retryable"] is True
        assert refusal.headers["retry-after"] == "1"


async def test_a_backend_that_fails_can_be_passed_by(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C43: with on_error="allow" requests pass, and the log says so once a minute."""
    async with asking(limited(1, backend=Broken(), on_error="allow"), database_url) as http:
        assert await statuses(http, "/notes", 5) == [200] * 5
    assert len([line for line in caplog.messages if "pass unlimited" in line]) == 1


async def test_the_database_that_is_away_is_a_503(database_url: str) -> None:
    """Nothing is known of the bucket, so the request is refused like any other failure of the backend."""
    entry = db.rate_limit(5, 60)
    server = shop()
    server.pipeline.db.register(entry)
    async with asking(server, database_url) as http:
        await server.raw_exec("DROP TABLE rate_limit")
        error_of(await http.get("/notes"), 503, "RATE_LIMIT_UNAVAILABLE")


@pytest.mark.parametrize("form", ["memory", "redis"])
async def test_other_backends_do_the_same(sqlite_url: str, redis_url: str, form: str) -> None:
    from uuid import uuid4

    memory = stores.MemoryRateLimit()
    backend = memory if form == "memory" else stores.RedisRateLimit(redis_url, f"test_{uuid4().hex}")
    server = limited(3, backend=backend)
    async with asking(server, sqlite_url) as http:
        assert await statuses(http, "/notes", 5) == [200, 200, 200, 429, 429]
        tables = await server.raw_query("SELECT name FROM sqlite_master WHERE name = 'rate_limit'")
        assert tables == []


async def test_many_at_once_get_exactly_the_tokens(database_url: str) -> None:
    async with asking(limited(10), database_url) as http:
        answers = await asyncio.gather(*(http.get("/notes") for _ in range(40)))
        assert sorted(one.status_code for one in answers) == [200] * 10 + [429] * 30


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit=0 is not a number"),
    ({"limit": -1}, "limit=-1 is not a number"),
    ({"limit": 1.5}, "limit=1.5 is not a number"),
    ({"window": 0}, "window=0 is not a time"),
    ({"window": timedelta(seconds=-1)}, "is not a time"),
    ({"window": "60"}, "is not a time"),
    ({"cost": 0}, "cost=0 is not"),
    ({"limit": 3, "cost": 4}, "cost=4 is not a number of tokens from 1 to the limit, 3"),
    ({"on_error": "ignore"}, "neither 'refuse' nor 'allow'"),
    ({"key": "user"}, "key='user' is not a function"),
    ({"backend": object()}, "has no take"),
    ({"backend": stores.RedisRateLimit("redis://x", "two words")}, "not made of plain names"),
    ({"backend": stores.RedisRateLimit("http://x")}, "written redis://host"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_wrong_arguments_stop_the_start(options: dict[str, Any], message: str) -> None:
    server = shop()
    server.pipeline.db.register(db.rate_limit(**options))
    with pytest.raises(DeclarationError) as caught:
        server.seal()
    assert message in str(caught.value)
    assert "db.rate_limit" in str(caught.value)


def test_on_a_step_where_it_does_nothing_it_stops_the_start() -> None:
    server = shop()
    server.pipeline.validate.register(db.rate_limit(5), models=Tag)
    with pytest.raises(DeclarationError, match=r"register it on pipeline\.db or pipeline\.auth"):
        server.seal()
