"""A saga of five steps whose worker is killed after each step in turn, on the way there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.crowd import Crowd, a_submitter, count, crowd
from tests.kit.runs import working
from tests.kit.waiting import eventually

STEPS = ("one", "two", "three", "four", "five")
FORTH = [f"+{name}" for name in STEPS]
BACK = [f"-{name}" for name in reversed(STEPS)]

SAGAS: list[tuple[dict[str, Any], str, list[str]]] = [
    *(({"die_after": name}, "succeeded", FORTH) for name in STEPS),
    *(({"die_after": name, "fails": True}, "failed", FORTH + BACK) for name in STEPS),
    *(({"die_before_undoing": name, "fails": True}, "failed", FORTH + BACK) for name in STEPS),
]


def effects(workers: Crowd, run_id: str) -> list[str]:
    return [entry.kind for entry in workers.entries() if entry.run_id == run_id]


async def test_a_killed_saga_goes_on_where_it_was_and_no_effect_happens_twice(
    database_url: str, tmp_path: Path
) -> None:
    server = a_submitter(database_url)
    deaths = 0
    with crowd(database_url, tmp_path) as workers:
        async with working(server) as work:
            made = [await work.submit("default.saga", payload) for payload, _, _ in SAGAS]
            pid = workers.start(lease=0.8, poll=0.1, concurrency=1)

            async def ended_or_dead() -> bool:
                open_runs = await count(server, "status IN ('pending', 'leased')")
                return not open_runs or not workers.is_alive(pid)

            while await eventually(ended_or_dead, "a death or the end", 120) and not workers.is_alive(pid):
                deaths += 1
                workers.pids.remove(pid)
                pid = workers.start(lease=0.8, poll=0.1, concurrency=1)
            ended = [await work.get(run.id) for run in made]
            did = [effects(workers, run.id) for run in made]

    assert deaths == len(SAGAS)
    assert [(run.status, effects) for run, effects in zip(ended, did, strict=True)] == [
        (status, effects) for _, status, effects in SAGAS
    ]
    assert {run.attempt for run in ended} == {2}
