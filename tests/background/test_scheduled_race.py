"""Several sweepers at once, while the rows they sweep are edited and taken off the schedule."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from maniflex import Server
from tests.kit.scheduled_fields import FUTURE, PAST, START, a_newsroom, fill, runner_of

EDITS = {
    "leave": "UPDATE posts SET publish_at = NULL WHERE id = ? AND status = 'draft'",
    "postpone": "UPDATE posts SET publish_at = ? WHERE id = ? AND status = 'draft'",
    "archive": "UPDATE posts SET status = 'archived' WHERE id = ? AND status = 'draft'",
    "rename": "UPDATE posts SET title = 'renamed' WHERE id = ?",
    "delete": "UPDATE posts SET deleted_at = ? WHERE id = ? AND status = 'draft'",
}


class Editor:
    """Somebody who changes posts that are due; an edit counts if the post was still a draft."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self._server = server
        self._chance = chance
        self.made: dict[str, str] = {}  # id → edit

    async def work(self, ids: list[str], over: asyncio.Event) -> None:
        for id in ids:
            if over.is_set():
                return
            kind = self._chance.choice(list(EDITS))
            before = {"postpone": [FUTURE], "delete": [START]}.get(kind, [])
            if await self._server.raw_exec(EDITS[kind], *before, id):
                self.made[id] = kind


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_none_is_early_none_overwritten_and_each_is_served_once(database_url: str, long: bool) -> None:
    due, total, editors = (100_000, 1_000_000, 8) if long else (5_000, 50_000, 8)
    chance = random.Random(7)
    told: Counter[str] = Counter()
    over = asyncio.Event()
    async with a_newsroom(database_url) as first, a_newsroom(database_url) as second:
        await fill(first, 0, due, publish_at=PAST)
        await fill(first, due, total - due, publish_at=FUTURE)
        ids = [f"{n:012}" for n in range(due)]
        at_work = [Editor(chance.choice([first, second]), chance) for _ in range(editors)]
        writing = [
            asyncio.create_task(editor.work(chance.sample(ids[n::editors], due // editors // 2), over))
            for n, editor in enumerate(at_work)
        ]
        while not any(editor.made for editor in at_work):  # noqa: ASYNC110  # they have begun
            await asyncio.sleep(0)
        sweeps = [
            runner_of(server, batch=20, on_set_field=lambda model, id, name, to: told.update([id])).sweep()
            for server in (first, second, first)
        ]
        reports = await asyncio.gather(*sweeps)
        over.set()
        await asyncio.gather(*writing)
        # What a sweep passed over because an editor held it is due still.
        last = await runner_of(first, on_set_field=lambda model, id, name, to: told.update([id])).sweep()
        rows = await first.raw_query("SELECT * FROM posts WHERE id < ?", f"{due:012}")
        [future] = await first.raw_query(
            "SELECT COUNT(*) AS untouched FROM posts WHERE id >= ? AND status = 'draft'", f"{due:012}"
        )

    edits = {id: kind for editor in at_work for id, kind in editor.made.items()}
    refused = {id for id, kind in edits.items() if kind != "rename"}
    assert [failure for report in (*reports, last) for failure in report.errors] == []
    assert future["untouched"] == total - due
    assert set(told.values()) == {1}
    assert set(told) == set(ids) - refused
    assert sum(report.updated for report in (*reports, last)) == len(told)
    assert [row for row in rows if not _kept(row, edits.get(row["id"]))] == []
    assert len(set(edits.values())) == len(EDITS)
    assert len(edits) > due // 200
    assert sum(report.updated > 0 for report in reports) > 1


def _kept(row: dict[str, Any], edit: str | None) -> bool:
    """Whether a row is what its editor and the schedule made of it together."""
    match edit:
        case "leave":
            return row["status"] == "draft" and row["publish_at"] is None
        case "postpone" | "delete":
            return bool(row["status"] == "draft")
        case "archive":
            return bool(row["status"] == "archived")
        case "rename":
            return (row["status"], row["title"]) == ("published", "renamed")
        case _:
            return bool(row["status"] == "published")
