"""Submitting runs: what is stored, what is refused, and whose transaction it is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel

from maniflex import Context, Model, Run, Server
from maniflex.db.current import detached_context
from maniflex.errors import Conflict, DeclarationError, NotFound, ValidationFailed
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.runs import kinds, minutes, succeeding, working


class Order(Model):
    number: int


async def test_a_submitted_run_is_pending_due_now_and_says_so_in_an_event(
    server: Server, clock: FakeClock
) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", {"n": 1})

        stored = await work.get(made.id)
        assert (stored.status, stored.payload, stored.priority) == ("pending", {"n": 1}, 0)
        assert (stored.attempt, stored.max_attempts, stored.run_at) == (0, 3, clock.now())
        assert stored == made
        assert await kinds(work, made.id) == ["created"]


async def test_every_option_is_stored(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit(
            "default.ok",
            [1, "two"],
            priority=-7,
            delay=minutes(5),
            max_attempts=9,
            group_key="g",
            timeout=2.5,
            actor_id="a",
            tenant_id="t",
            trace_id="c",
            parent_id="p",
            idempotency_key="k",
        )
        stored = await work.get(made.id)

    assert stored == made
    assert (stored.priority, stored.run_at, stored.max_attempts) == (-7, clock.now() + minutes(5), 9)
    assert (stored.group_key, stored.timeout, stored.idempotency_key) == ("g", 2.5, "k")
    assert (stored.actor_id, stored.tenant_id, stored.trace_id, stored.parent_id) == ("a", "t", "c", "p")


async def test_a_run_is_not_started_before_its_time(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        later = await work.submit("default.ok", run_at=clock.now() + minutes(10))
        worker = work.worker()

        clock.advance(minutes(9))
        assert await worker.run_once() == 0
        clock.advance(minutes(1))
        assert await worker.run_once() == 1
        assert (await work.get(later.id)).status == "succeeded"


async def test_a_time_of_another_zone_is_the_same_moment(server: Server, clock: FakeClock) -> None:
    succeeding(server)
    async with working(server) as work:
        at = datetime(2026, 7, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))
        assert (await work.get((await work.submit("default.ok", run_at=at)).id)).run_at == at


NAIVE = datetime(2026, 1, 1)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("run_at", {"run_at": NAIVE}),
    ("delay", {"delay": float("nan")}),
    ("delay", {"delay": timedelta.max}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": True}),
    ("priority", {"priority": 101}),
    ("priority", {"priority": -101}),
    ("priority", {"priority": True}),
    ("priority", {"priority": 1.5}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": timedelta(seconds=-1)}),
    ("timeout", {"timeout": float("nan")}),
    ("group_key", {"group_key": "a\x00b"}),
    ("group_key", {"group_key": 7}),
    ("actor_id", {"actor_id": "\ud800"}),
    ("idempotency_key", {"idempotency_key": ""}),
    ("idempotency_key", {"idempotency_key": "k" * 501}),
    ("idempotency_key", {"idempotency_key": "\udfff"}),
    ("idempotency_key", {"idempotency_key": "a\x00"}),
]


@pytest.mark.parametrize(("field", "options"), REFUSED, ids=repr)
async def test_an_option_that_cannot_be_used_is_named(field: str, options: dict[str, Any]) -> None:
    server = Server(":memory:")
    succeeding(server)
    async with working(server) as work:
        with pytest.raises(ValidationFailed) as refused:
            await work.submit("default.ok", **options)
        assert refused.value.details == [{"field": field, "message": ANY}]
        assert await work.list() == []


@pytest.mark.parametrize("type", ["", "a b", "é", "x" * 201, ".a", None, "a\n"])
async def test_a_type_is_a_dotted_name(type: Any) -> None:
    server = Server(":memory:")
    succeeding(server)
    async with working(server) as work:
        with pytest.raises(ValidationFailed, match="dotted name"):
            await work.submit(type)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "payload",
    [
        float("nan"),
        {"x": float("inf")},
        "\x00",
        {"\x00": 1},
        "\ud800",
        object(),
        nested(100_000),
        {1: object()},
    ],
    ids=["nan", "inf", "nul", "nul-key", "surrogate", "object", "deep", "inner-object"],
)
async def test_a_payload_that_is_not_json_is_refused(server: Server, payload: Any) -> None:
    succeeding(server)
    async with working(server) as work:
        with pytest.raises(ValidationFailed, match="payload cannot be stored as JSON"):
            await work.submit("default.ok", payload)


class Receipt(BaseModel):
    order: int
    at: datetime


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (None, {}),
        ("NaN", "NaN"),
        ("\\u0000", "\\u0000"),
        ("\x1e\x1f\x01 between", "\x1e\x1f\x01 between"),
        ({"x": "Infinity"}, {"x": "Infinity"}),
        (0, 0),
        ([], []),
        (2**70, 2**70),
        ("𝄞 \u2028 'quoted' \"\\", "𝄞 \u2028 'quoted' \"\\"),
        (Receipt(order=7, at=datetime(2026, 1, 2, tzinfo=UTC)), {"order": 7, "at": "2026-01-02T00:00:00Z"}),
    ],
    ids=repr,
)
async def test_payloads_come_back_as_they_were(server: Server, payload: Any, stored: Any) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await work.submit("default.ok", payload)
        assert (await work.get(made.id)).payload == stored
        await work.worker().drain()
        assert [run.payload for run in seen] == [stored]
        assert (await work.get(made.id)).result == {"payload": stored}


# -- idempotency keys


async def test_the_same_key_gives_the_run_that_has_it(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        first = await work.submit("default.ok", {"n": 1}, idempotency_key="k")
        again = await work.submit("default.ok", {"n": 2}, idempotency_key="k")
        await work.worker().drain()
        later = await work.submit("default.ok", {"n": 3}, idempotency_key="k")

    assert again == first
    assert (later.id, later.status) == (first.id, "succeeded")
    assert len(seen) == 1


async def test_soft_deletion_frees_the_key(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        first = await work.submit("default.ok", idempotency_key="k")
        await work.delete(first.id, "wrong order")
        second = await work.submit("default.ok", idempotency_key="k")

        assert second.id != first.id
        assert await work.worker().drain() == 1
        with pytest.raises(NotFound):
            await work.get(first.id)


async def test_twenty_submitters_of_one_key_make_one_run(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        made = await asyncio.gather(*(work.submit("default.ok", idempotency_key="k") for _ in range(20)))
        await work.worker().drain()

        assert len({run.id for run in made}) == 1
        assert len(seen) == 1
        assert await kinds(work, made[0].id) == ["created", "leased", "succeeded"]


async def test_keys_in_bulk_repeat_those_of_the_batch_and_of_before(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        old = await work.submit("default.ok", "old", idempotency_key="a")
        many = await work.submit_many("default.ok", [1, 2, 3, 4], idempotency_keys=["a", "b", "b", None])

    assert [run.payload for run in many] == ["old", 2, 2, 4]
    assert many[0].id == old.id
    assert len({run.id for run in many}) == 3


# -- many at once


async def test_twelve_thousand_runs_are_submitted_together(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        made = await work.submit_many("default.ok", range(12_000), priority=3)
        [[stored]] = [row.values() for row in await server.raw_query("SELECT count(*) FROM workflow_run")]
        [[events]] = [row.values() for row in await server.raw_query("SELECT count(*) FROM workflow_event")]

    assert [run.payload for run in made] == list(range(12_000))
    assert (stored, events) == (12_000, 12_000)


async def test_of_many_with_one_bad_payload_none_is_stored(server: Server) -> None:
    succeeding(server)
    async with working(server) as work:
        with pytest.raises(ValidationFailed):
            await work.submit_many("default.ok", [1, object(), 3])
        assert await work.list() == []
        assert list(await work.submit_many("default.ok", [])) == []


# -- transactions


async def test_a_run_of_a_transaction_that_rolls_back_never_was(server: Server) -> None:
    server.register(Order)
    succeeding(server)
    async with working(server) as work:
        with suppress(RuntimeError):
            async with server.transaction():
                await server.db(Order).create(number=1)
                await work.submit("default.ok", idempotency_key="k")
                raise RuntimeError

        assert await work.list() == []
        assert await server.db(Order).count() == 0
        assert await server.raw_query("SELECT * FROM workflow_event") == []


async def test_a_run_is_there_when_its_transaction_commits_and_not_before(server: Server) -> None:
    seen = succeeding(server)
    async with working(server) as work:
        async with server.transaction() as tx:
            made = await work.submit("default.ok", tx=tx)
            assert (await work.get(made.id, tx=tx)).id == made.id
            if server.config.database.startswith("postgres"):  # where one can look beside it
                looking = asyncio.create_task(
                    server.raw_query("SELECT 1 FROM workflow_run"), context=detached_context()
                )
                assert await looking == []
        await work.worker().drain()
        assert len(seen) == 1


@pytest.mark.parametrize("many", [3, 6_000])
async def test_a_transaction_may_be_handed_over_from_elsewhere(server: Server, many: int) -> None:
    """Without a context that knows it: no second transaction is opened beside it."""
    succeeding(server)
    async with working(server) as work, server.transaction() as tx:
        keys = [str(n) for n in range(many)]
        submitting = work.submit_many("default.ok", range(many), idempotency_keys=keys, tx=tx)
        made = await asyncio.create_task(
            submitting, context=detached_context()
        )  # a task without the transaction
        telling = work.signal(made[0].id, "hello", tx=tx)
        await asyncio.create_task(telling, context=detached_context())
        assert len(made) == many


async def test_an_action_commits_its_record_and_its_run_together_or_neither(
    server: Server, database_url: str
) -> None:
    server.register(Order)
    succeeding(server)

    @server.action("POST", "/orders/place")
    async def place(ctx: Context) -> dict[str, str]:
        async with ctx.transaction():
            order = await ctx.db(Order).create(number=1)
            run = await server.work.submit("default.ok", {"order_id": order.id})
            if ctx.request.headers.get("x-fail"):
                raise ValidationFailed("forced")
            return {"run": run.id}

    async with client(server, database=database_url) as http:
        assert (await http.post("/api/orders/place", headers={"x-fail": "1"})).status_code == 422
        assert (await server.work.list(), await server.db(Order).count()) == ([], 0)

        placed = await http.post("/api/orders/place")
        assert placed.status_code == 200, placed.text
        assert len(await server.work.list()) == await server.db(Order).count() == 1


async def test_work_that_is_not_in_use_says_how_to_have_it() -> None:
    server = Server(":memory:")
    with pytest.raises(DeclarationError, match="has not started"):
        await server.work.submit("default.ok")
    async with server.lifespan(role="client"):
        with pytest.raises(DeclarationError, match="enable"):
            await server.work.submit("default.ok")


async def test_a_process_without_handlers_can_submit_when_it_says_so(server: Server) -> None:
    server.work.enable()
    async with working(server) as work:
        run = await work.submit("default.elsewhere")
        assert (await work.get(run.id)).max_attempts == 3
        assert work.services() == ()


async def test_declaration_mistakes_are_told_together() -> None:
    server = Server(":memory:")

    async def fn(run: Run) -> None: ...

    server.work.handler("default.a")(fn)
    server.work.handler("default.a")(fn)
    server.work.handler("not a type", max_attempts=0, lease=timedelta(0))(fn)
    server.work.handler("default.b", dead_letter="default.b")(fn)
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    for part in ("already", "dotted name", "max_attempts", "lease", "dead_letter"):
        assert part in str(refused.value)


async def test_handlers_come_before_the_start(server: Server) -> None:
    succeeding(server)
    async with working(server):
        with pytest.raises(DeclarationError, match="sealed"):
            succeeding(server, "default.late")


# -- keys and types that are somebody else's


async def test_a_key_that_belongs_to_a_run_of_another_type_is_a_conflict(server: Server) -> None:
    succeeding(server)
    succeeding(server, "default.other")
    async with working(server) as work:
        first = await work.submit("default.ok", idempotency_key="k")
        with pytest.raises(Conflict, match=r"key belongs to a run of another type, default\.ok"):
            await work.submit("default.other", idempotency_key="k")
        with pytest.raises(Conflict):
            await work.submit_many("default.other", range(3), idempotency_keys=["a", "k", "b"])
        assert [run.id for run in await work.list()] == [first.id]
        assert (await work.submit("default.ok", idempotency_key="k")).id == first.id


async def test_a_type_nobody_handles_here_is_warned_of_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    succeeding(server)
    async with working(server) as work:
        for _ in range(2):
            await work.submit("default.ok")
            await work.submit("elsewhere.one")
            await work.submit_many("elsewhere.two", range(3))
    warnings = [message for message in caplog.messages if "no handler is known here" in message]
    assert [message.split()[8].rstrip(";") for message in warnings] == ["elsewhere.one", "elsewhere.two"]
