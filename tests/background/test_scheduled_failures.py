"""Scheduled fields when something goes wrong for some of the records."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from maniflex import Server
from maniflex.background.scheduled_fields.observers import Subscribers, SweepEvent
from maniflex.background.scheduled_fields.runner import Runner
from maniflex.db.port import Tx
from maniflex.errors import Unavailable
from tests.kit.scheduled_fields import PAST, Post, a_newsroom, runner_of, stored


async def dislike(tx: Tx, swept: SweepEvent) -> None:
    """An observer that cannot cope with some titles."""
    if any(row["title"].startswith("bad") for row in swept.before):
        raise ValueError("what a title")


def disliking(server: Server, batch: int) -> Runner:
    return runner_of(server, batch=batch, subscribers=Subscribers(observers=[dislike]))


async def posts(server: Server, *titles: str, field: str = "publish_at") -> None:
    for n, title in enumerate(titles):
        await server.db(Post).create(title=title, **{field: PAST + timedelta(seconds=n)})


@pytest.mark.parametrize("field", ["publish_at", "expires_at", "purge_at"])
async def test_a_record_an_observer_cannot_cope_with_holds_up_no_other(database_url: str, field: str) -> None:
    async with a_newsroom(database_url) as server:
        await posts(server, "bad", *"abcdefg", "bad too", "h", field=field)

        report = await disliking(server, batch=4).sweep()

        assert (report.changed, report.skipped, report.failed) == (8, 2, 2)
        assert [failure.message for failure in report.errors] == ["what a title"] * 2
        due = {row["id"]: row for row in await stored(server, "posts")}
        assert {due[str(failure.id)]["title"] for failure in report.errors} == {"bad", "bad too"}


async def test_it_is_told_once_and_tried_again_by_every_sweep(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_newsroom(database_url) as server:
        await posts(server, "bad", "a")
        runner = disliking(server, batch=4)
        with caplog.at_level(logging.ERROR, "maniflex"):
            reports = [await runner.sweep() for _ in range(3)]
        assert [(r.updated, r.failed) for r in reports] == [(1, 1), (0, 1), (0, 1)]
        assert [r.getMessage() for r in caplog.records] == [
            "the sweep of Post.publish_at had to leave a record alone"
        ]

        await server.raw_exec("UPDATE posts SET title = 'good'")
        assert (await runner.sweep()).updated == 1


async def test_a_batch_of_bad_records_is_left_behind(database_url: str) -> None:
    async with a_newsroom(database_url) as server:
        await posts(server, *(f"bad {n}" for n in range(4)), "a", "b")
        runner = disliking(server, batch=4)

        assert (await runner.sweep()).changed == 0
        assert (await runner.sweep()).updated == 2


async def test_a_database_that_is_away_is_no_fault_of_the_records(database_url: str) -> None:
    seen: list[int] = []

    async def away(tx: Tx, swept: SweepEvent) -> None:
        seen.append(len(swept.before))
        raise Unavailable

    async with a_newsroom(database_url) as server:
        await posts(server, *"abcdefgh")

        report = await runner_of(server, subscribers=Subscribers(observers=[away])).sweep()

        assert (report.changed, report.skipped, report.failed) == (0, 0, 1)
        assert seen == [8]
