"""What models and middleware cost a request that needs none of them: CPU of this process, side by side.

Both sides are measured in turns and the best turn of each counts, so that a busy machine slows both
and decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import new_class
from typing import Any

from maniflex import Context, Model, Next, Operation, Server, field
from maniflex.pipeline.registration import Middleware

CALLS = 50  # so few that some turns of many are undisturbed
TURNS = 100
TRIES = 3
STEPS = ("auth", "deserialize", "validate", "service", "db", "response")


class Item(Model):
    name: str = field(filterable=True, sortable=True)
    price: int = 0


def noted(step: str, passed: set[str]) -> Middleware:
    async def pass_on(ctx: Context, next: Next) -> None:
        passed.add(step)
        await next()

    return pass_on


def plain_server(more_models: int = 0) -> Server:
    server = Server(database=":memory:", static_disabled=True)
    server.register(Item, *(another_model(n) for n in range(more_models)))
    return server


def another_model(n: int) -> type[Model]:
    body = {"__module__": __name__, "__annotations__": {"name": str, "price": int, "item_id": str}}
    return new_class(f"Item{n}", (Model,), {"table": f"items_{n}"}, lambda namespace: namespace.update(body))


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b'{"price":1}', "more_body": False}


async def discard(message: Any) -> None:
    assert message.get("status", 200) == 200


async def turn(server: Server, method: str, path: str) -> float:
    """CPU seconds of one request, averaged over a few dozen."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"test")],
    }
    before = time.process_time()
    for _ in range(CALLS):
        await server(dict(scope), receive, discard)
    return (time.process_time() - before) / CALLS


async def compared(
    method: str, one: Callable[[], Server], other: Callable[[], Server]
) -> tuple[float, float]:
    """The CPU seconds of the same request for one record on each server."""
    async with AsyncExitStack() as stack:
        sides: list[tuple[Server, str, list[float]]] = []
        for make in (one, other):
            server = await stack.enter_async_context(make().lifespan())
            item = await server.db(Item).create(name="tea")
            sides.append((server, f"/api/items/{item.id}", []))
        for _ in range(TURNS):
            for server, path, costs in sides:
                costs.append(await turn(server, method, path))
        return min(sides[0][2]), min(sides[1][2])


def measured(
    method: str, one: Callable[[], Server], other: Callable[[], Server], *, at_most: float
) -> tuple[float, float]:
    """The first comparison that is good enough, or the last of a few: noise only ever adds."""
    for _ in range(TRIES):
        costs = asyncio.run(compared(method, one, other))
        if costs[1] <= costs[0] * at_most:
            break
    return costs


def test_three_hundred_models_cost_a_request_nothing(
    record_property: Callable[[str, object], None],
) -> None:
    alone, among_many = measured("GET", plain_server, lambda: plain_server(300), at_most=1.15)

    record_property("microseconds", f"{alone * 1e6:.1f} alone, {among_many * 1e6:.1f} among 300")
    assert among_many <= alone * 1.15, (alone, among_many)


def test_a_middleware_on_each_of_the_six_steps_costs_a_fraction_of_a_request(
    record_property: Callable[[str, object], None],
) -> None:
    passed: set[str] = set()

    def with_middleware() -> Server:
        server = plain_server()
        for step in STEPS:
            getattr(server.pipeline, step).register(noted(step, passed), operations=[Operation.UPDATE])
        return server

    plain, six = measured("PATCH", plain_server, with_middleware, at_most=1.15)

    assert passed == set(STEPS)
    record_property("microseconds", f"{plain * 1e6:.1f} plain, {(six - plain) * 1e6:.1f} added by six")
    assert six <= plain * 1.15, (plain, six)
