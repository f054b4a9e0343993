"""The pure parts of the operations panel: masks, timelines, plots, sentences for readers of one tenant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from maniflex.admin.operations.desk import MASK, SECRET_NAMES, LostMask, mask, unmask
from maniflex.admin.operations.overview import axis_of, draw_bars, write_number, write_seconds
from maniflex.admin.operations.run_page import WIDTH, draw_timeline
from maniflex.background.processes.overview import WaitFacts, describe_wait
from maniflex.background.runs.model import Status, WorkflowRun

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def event(name: str, after: float, **data: Any) -> dict[str, Any]:
    created = (NOW + timedelta(seconds=after)).isoformat()
    return {"event_type": name, "created_at": created, "data": data or None}


def test_secrets_are_masked_at_any_depth_and_come_back_when_they_are_left() -> None:
    stored = {"a": [{"Api-Key": 1, "n": 2}], "PASSWORD": None, "tokens": ["x"], "plain": "y"}
    masked = mask(stored, SECRET_NAMES)
    assert masked == {"a": [{"Api-Key": MASK, "n": 2}], "PASSWORD": None, "tokens": MASK, "plain": "y"}
    assert unmask(masked, stored, masked) == stored
    edited = {**masked, "plain": "z", "tokens": ["new"]}
    assert unmask(edited, stored, masked) == {**stored, "plain": "z", "tokens": ["new"]}
    assert unmask({"plain": "••• in a text"}, stored, masked) == {"plain": "••• in a text"}


def test_headers_are_masked_as_pairs_and_as_names_with_values() -> None:
    stored = {
        "headers": [["Authorization", "Bearer k"], ["Accept", "text/html"], {"name": "Cookie", "value": "k"}]
    }
    shown = mask(stored, SECRET_NAMES)["headers"]
    assert shown == [["Authorization", MASK], ["Accept", "text/html"], {"name": "Cookie", "value": MASK}]


def test_a_secret_never_moves_to_another_entry_of_a_list() -> None:
    stored = [{"url": "a", "token": "A"}, {"url": "b", "token": "B"}, {"url": "c", "token": "C"}]
    shown = mask(stored, SECRET_NAMES)
    assert unmask(shown[1:], stored, shown) == stored[1:]
    assert unmask(shown[::-1], stored, shown) == stored[::-1]
    changed = [shown[0], {**shown[1], "note": "new"}, shown[2]]
    assert unmask(changed, stored, shown) == [stored[0], {**stored[1], "note": "new"}, stored[2]]
    with pytest.raises(LostMask):  # one entry less, and the entry with the mask is no longer as it was shown
        unmask([{**shown[1], "url": "new"}, shown[2]], stored, shown)
    with pytest.raises(LostMask):  # swapped: the first is the entry that was second, and changed
        unmask([{**shown[1], "n": 1}, shown[0], shown[2]], stored, shown)
    twins = [{"token": "A"}, {"token": "B"}]
    assert unmask(mask(twins, SECRET_NAMES), twins, mask(twins, SECRET_NAMES)) == twins
    with pytest.raises(LostMask):
        unmask([{"token": MASK}], twins, mask(twins, SECRET_NAMES))
    with pytest.raises(LostMask):
        unmask({"elsewhere": MASK}, {"token": "A"}, {"token": MASK})


def test_a_timeline_has_waits_attempts_and_pauses_inside_its_axis() -> None:
    events = [
        event("created", 0),
        event("leased", 10, attempt=1),
        event("retried", 11, error="x"),
        event("leased", 30, attempt=2),
        event("succeeded", 30.001),
    ]
    steps = [{"name": "render", "created_at": event("", 10.5)["created_at"]}]
    steps.append({"name": "@failed", "created_at": event("", 11)["created_at"]})
    timeline = draw_timeline(events, steps, now=NOW + timedelta(hours=1), is_over=True)
    assert [bar.kind for bar in timeline.bars] == ["wait", "failed", "pause", "work"]
    assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH + 0.1 for bar in timeline.bars)
    assert [row.lasted for row in timeline.events] == ["10.0 s", "1.0 s", "19.0 s", "1 ms", ""]
    assert [name for _, name in timeline.ticks] == ["render"]
    assert timeline.total == "30.0 s"
    assert draw_timeline([], [], now=NOW, is_over=False).bars == []


def test_bars_stand_on_each_other_and_none_is_too_small_to_see() -> None:
    plot = draw_bars("t", [("a", "ok", [0, 1000]), ("b", "bad", [0, 1])], ("x", "y"), write_number)
    assert plot.series[0].path.count("M") == 1
    assert "v-0.8" in plot.series[1].path
    assert plot.top == "1,001"
    assert draw_bars("t", [("a", "ok", [0, 0])], ("x", "y"), write_seconds).series[0].path == ""
    axis = axis_of(NOW + timedelta(seconds=59), timedelta(hours=1), timedelta(minutes=1))
    assert (len(axis), axis[-1]) == (60, NOW)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"group_holder": "other-run"}, "group g is busy with another run"),
        ({}, "no living process takes a.b"),
    ],
)
def test_readers_of_one_tenant_learn_of_no_other_run(facts: dict[str, Any], text: str) -> None:
    run = WorkflowRun(type="a.b", run_at=NOW, group_key="g")
    assert describe_wait(run, WaitFacts(NOW, names_others=False, **facts)) == text
    leased = WorkflowRun(type="a.b", run_at=NOW, status=Status.LEASED, leased_by="host:1", attempt=1)
    leased.lease_until = NOW + timedelta(seconds=5)
    assert "host" not in describe_wait(leased, WaitFacts(NOW, names_others=False))
