"""A large application starts quickly, on an empty database and on its own.

How it grows is always looked at. The limits are processor seconds, which say something of a quiet machine
only: they are for the long run.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from maniflex import Model, Server, field
from tests.kit.schema import model

LIMIT = 2.0  # seconds


def application(count: int) -> list[type[Model]]:
    return [
        model(
            f"Thing{n}",
            f"things{n}",
            {
                "slug": (str, field(unique=True, filterable=True)),
                "title": (str, field(min_length=1, max_length=200, sortable=True)),
                "views": (int, field(default=0, index=True)),
                "price": (float | None, None),
                "active": (bool, True),
                **{f"text{i}": (str | None, None) for i in range(5)},
            },
        )
        for n in range(count)
    ]


async def start(url: str, models: list[type[Model]]) -> float:
    """Processor seconds from the declared classes to the running server."""
    server = Server(url)
    before = time.process_time()
    server.register(*models)
    await server.start()
    took = time.process_time() - before
    await server.stop()
    return took


@pytest.mark.long
async def test_100_models_of_10_fields_start_in_two_seconds_and_again(
    database_url: str, record_property: Any
) -> None:
    assert len(application(1)[0].__annotations__) == 10
    first = await start(database_url, application(100))
    second = await start(database_url, application(100))
    record_property("first", first)
    record_property("second", second)

    assert first < LIMIT
    assert second < LIMIT


async def test_start_up_grows_with_the_models_and_no_faster(sqlite_url: str, tmp_path: Any) -> None:
    await start(f"sqlite:///{tmp_path}/warm.db", application(5))
    few = min([await start(f"sqlite:///{tmp_path}/few{n}.db", application(25)) for n in range(3)])
    many = await start(f"sqlite:///{tmp_path}/many.db", application(200))

    assert many < few * 8 * 2.5


@pytest.mark.long
async def test_a_thousand_models_start(database_url: str) -> None:
    assert await start(database_url, application(1000)) < LIMIT * 15
