"""`response.logging` and `response.metrics` (R18, R19)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from maniflex import DeclarationError, Server
from maniflex.middleware import response
from maniflex.testing import client
from tests.kit.notes import Note


class Numbers:
    """A collector that remembers."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.durations: list[float] = []

    def count(self, name: str, labels: Mapping[str, str]) -> None:
        self.counts[name, *(labels[key] for key in ("method", "route", "status", "model", "operation"))] += 1

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        assert "status" not in labels
        self.durations.append(value)


@pytest.mark.parametrize("way", ["observe", "step"])
async def test_a_line_and_a_count_for_every_request(
    way: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = Numbers()
    own = logging.getLogger("shop.requests")
    caplog.set_level("INFO", own.name)
    server = Server()
    server.register(Note)
    for entry in (response.logging(own), response.metrics(numbers)):
        if way == "observe":
            server.observe(entry)
        else:
            server.pipeline.response.register(entry)
    async with client(server, database=database_url) as http:
        await http.get("/api/notes?secret=hunter2")
        await http.request("WORD", "/nowhere")
        await http.get("/live")

    lines = [(r.levelname, r.getMessage().split(" ")[:3]) for r in caplog.records if r.name == own.name]
    assert lines == [("INFO", ["GET", "/api/notes", "200"]), ("WARNING", ["WORD", "/nowhere", "404"])]
    assert numbers.counts == {
        ("maniflex_requests_total", "GET", "/api/notes", "200", "Note", "list"): 1,
        ("maniflex_requests_total", "other", "", "404", "", ""): 1,
        ("maniflex_requests_total", "GET", "/live", "200", "", ""): 1,
    }
    assert len(numbers.durations) == 3


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (response.logging("access"), "is no logger"),  # type: ignore[arg-type]  # that is the mistake
        (response.logging(skip="/live"), "skip="),
        (response.metrics(object()), "has no method 'count'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_stop_the_start(entry: Any, problem: str) -> None:
    server = Server()
    server.observe(entry)
    with pytest.raises(DeclarationError, match=problem):
        server.seal()


def test_a_layer_is_no_observer() -> None:
    server = Server()
    server.observe(response.cors("*"))  # type: ignore[type-var]  # that is the mistake
    server.use(response.logging())  # type: ignore[arg-type]
    with pytest.raises(DeclarationError) as refusal:
        server.seal()

    assert len(refusal.value.problems) == 2
